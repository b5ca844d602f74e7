"""Changes in the history of runs: known rates of alarms, and what is said of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest
from benchmarks.changes import history, rates, trend

from dask_otel.cli import main
from dask_otel.report.history.changes import FEWEST, FEWEST_SPLIT, change_points
from tests.unit.report_files import span, traces


def noise(seed: int = 1) -> Any:
    chance = random.Random(seed)
    return lambda: chance.lognormvariate(0.0, 0.05)


def test_the_rates_of_alarms() -> None:
    found = dict(takewhile(lambda one: one[0].startswith("normal"), rates(500, 7)))
    assert found["normal noise: a change in 30 equal runs"] <= 0.02
    assert found["normal noise: an unusual last run"] <= 0.03
    assert found["normal noise: +30% found within five runs"] >= 0.9
    assert found["normal noise: +20% found within five runs"] >= 0.6


def test_ranks_have_the_same_rate_for_any_noise() -> None:
    chance = random.Random(3)
    alarms = {
        draw: sum(bool(change_points([draw() for _ in range(30)])) for _ in range(1000))
        for draw in (lambda: chance.paretovariate(0.5), lambda: 1.0 + chance.randrange(3))
    }
    assert max(alarms.values()) <= 12


def test_levels_are_found_where_they_begin() -> None:
    levels = [1.0] * 20 + [1.5] * 20 + [0.8] * 20
    assert change_points([level + 0.001 * (n % 7) for n, level in enumerate(levels)]) == [20, 40]
    assert change_points([5.0] * 100) == []


def test_a_slower_level_is_a_regression_while_it_is_new_and_lasts() -> None:
    def regression(*levels: float) -> bool:
        return trend(history(noise(), list(levels))).regression

    slower = [1.0] * 25 + [1.5] * 5
    assert regression(*slower)
    assert not regression(*slower, 1.0)
    assert not regression(*slower, *[1.5] * 6)
    assert not regression(*[1.5] * 25, *[1.0] * 5)
    assert not regression(*[1.0] * 25, 9.0)


def test_a_change_is_said_with_both_medians() -> None:
    runs = history(lambda: 1.0, [1.0 + 0.001 * (n % 5) for n in range(25)] + [1.31] * 5)
    (duration, thread_time) = trend(runs).changes
    assert (duration.runs_before, duration.runs_after, duration.since) == (25, 5, runs[25].start)
    assert "; ".join(duration.texts()) == (
        "duration +31% since 1970-01-02 01:00:00 UTC: 100.2 s (median of 25 runs) before,"
        " 2 m 11 s (median of 5 runs) after; slower"
    )
    assert thread_time.figure == "thread-time"
    noted = [
        replace(
            run, tasks=8 + n // 25, distributed=str(n // 25), parts={"Idle": 1.0, "Computing": n}
        )
        for n, run in enumerate(runs)
    ]
    (duration, change) = trend(noted).changes
    assert duration.parts == {}
    assert sum(change.parts.values()) == pytest.approx(27.0 - 12.0)
    assert "; ".join(change.texts()).endswith(
        "; slower and more work; the mean +15.0 s: +15.0 s computing; tasks: 8 before, 9 after;"
        " distributed: 0 before, 1 after"
    )
    unknown = [replace(run, thread_seconds=None) for run in runs]
    assert [one.figure for one in trend(unknown).changes] == ["duration"]


def test_a_single_run_is_unusual_against_its_predecessors() -> None:
    (unusual, _) = trend(history(noise(), [1.0] * 20 + [2.0])).unusual
    assert 50 < unusual.least < 100 < unusual.most < 180 < unusual.value
    assert "its 20 predecessors give" in unusual.texts()[1]
    # A level that has changed is not unusual any more.
    assert not trend(history(noise(), [1.0] * 20 + [2.0] * 12)).unusual


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, f"too few runs to tell: 1 succeeded, at least {FEWEST} are needed"),
        (FEWEST - 1, f"too few runs to tell: 7 succeeded, at least {FEWEST} are needed"),
        (
            FEWEST,
            "too few runs to tell of a lasting change: "
            f"8 succeeded, at least {FEWEST_SPLIT} are needed",
        ),
        (FEWEST_SPLIT, "no change in 13 runs"),
    ],
)
def test_few_runs_are_too_few(count: int, said: str) -> None:
    (line,) = trend(history(noise(), [1.0] * count)).lines()
    assert line.startswith(said)


def test_runs_that_did_not_succeed_are_not_compared() -> None:
    runs = history(noise(), [1.0] * 25 + [9.0] * 5)
    failed = [replace(run, result="failure") for run in runs[25:]]
    assert trend([*runs[:25], *failed]).lines() == ["no change in 25 runs"]
    # The last run is what is asked about, even if it failed.
    assert trend(runs).regression
    assert not trend([*runs, failed[0]]).regression


@pytest.mark.usefixtures("cache")
def test_check_fails_when_the_last_run_is_a_regression(tmp_path, capsys) -> None:
    vary = noise()
    for number in range(30):
        for name, level in (("etl", 1.0 if number < 25 else 1.5), ("train", 1.0)):
            seconds = 10 * level * vary()
            of = {"dask.span.root.id": "id-1", "dask.span.result": "success"}
            root = span(1, name, start=100 * number, seconds=seconds, **of)
            text = json.dumps(traces(root)).replace(
                "ab" * 16, f"{name.encode().hex():0>30}{number:02}"
            )
            (tmp_path / f"{name}-{number:08x}-0001-traces.jsonl").write_text(text + "\n")
    assert main(["history", str(tmp_path), "--check", "train"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "train: no change in 30 runs"
    assert main(["history", str(tmp_path), "--check", "etl", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {run["name"] for run in found["runs"]} == {"etl"}
    (etl,) = found["trends"]
    assert (etl["regression"], etl["changes"][0]["runs_after"]) == (True, 5)
    assert main(["history", str(tmp_path)]) == 0
    assert "etl: duration +" in capsys.readouterr().out
    assert main(["history", str(tmp_path), "--check", "else"]) == 1
    assert "no run of else below" in capsys.readouterr().err

"""Changes in the history of runs: known rates of alarms, and what is said of them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import takewhile
from typing import Any

import pytest
from benchmarks.changes import history, rates, trend

from dask_otel.report.history.changes import FEWEST, FEWEST_SPLIT, change_points


def noise(seed: int = 1) -> Any:
    chance = random.Random(seed)
    return lambda: chance.lognormvariate(0.0, 0.05)


def test_the_rates_of_alarms() -> None:
    found = dict(takewhile(lambda one: one[0].startswith("normal"), rates(100, 7)))
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
    noisy = [level + 0.001 * (n % 7) for n, level in enumerate(levels)]
    assert [change_points(noisy), change_points([5.0] * 100)] == [[20, 40], []]


@pytest.mark.parametrize(
    ("levels", "regression"),
    [
        ([1.0] * 25 + [1.5] * 5, True),
        ([1.0] * 25 + [1.5] * 5 + [1.0], False),
        ([1.0] * 25 + [1.5] * 11, False),
        ([1.5] * 25 + [1.0] * 5, False),
        ([1.0] * 25 + [9.0], False),
    ],
)
def test_a_slower_level_is_a_regression_while_it_is_new_and_lasts(
    levels: list[float], regression: bool
) -> None:
    assert trend(history(noise(), levels)).regression == regression


def test_a_change_is_said_with_both_medians() -> None:
    runs = history(lambda: 1.0, [1.0 + 0.001 * (n % 5) for n in range(25)] + [1.31] * 5)
    (duration, thread_time) = trend(runs).changes
    assert (duration.runs_before, duration.runs_after, duration.since) == (25, 5, runs[25].start)
    assert ("; ".join(duration.texts()), thread_time.figure) == (
        "duration +31% since 1970-01-02 01:00:00 UTC: 100.2 s (median of 25 runs) before,"
        " 2 m 11 s (median of 5 runs) after; slower",
        "thread-time",
    )
    noted = [
        replace(
            run, tasks=8 + n // 25, distributed=str(n // 25), parts={"Idle": 1.0, "Computing": n}
        )
        for n, run in enumerate(runs)
    ]
    (duration, change) = trend(noted).changes
    assert (duration.parts, sum(change.parts.values())) == ({}, pytest.approx(27.0 - 12.0))
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
        (FEWEST_SPLIT, "no change beyond chance in 13 runs"),
    ],
)
def test_few_runs_are_too_few(count: int, said: str) -> None:
    (line,) = trend(history(noise(), [1.0] * count)).lines()
    assert line.startswith(said)


def test_runs_that_did_not_succeed_are_not_compared() -> None:
    runs = history(noise(), [1.0] * 25 + [9.0] * 5)
    failed = [replace(run, result="failure") for run in runs[25:]]
    assert trend([*runs[:25], *failed]).lines() == ["no change beyond chance in 25 runs"]
    # The last run is what is asked about, even if it failed.
    assert trend(runs).regression
    assert not trend([*runs, failed[0]]).regression

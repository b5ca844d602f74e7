"""The process of the replays: its results, its progress, and its ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dask_otel.report.whatif import WhatIfReport
from dask_otel.whatif import child, engine, running
from dask_otel.whatif.experiments import Experiment
from dask_otel.whatif.graph import Graph
from dask_otel.whatif.result import Replayed
from dask_otel.whatif.running import ReplayError, Room, replay
from tests.whatif.graphs import graph

EIGHT = graph(*({"start": task // 2} for task in range(8)))
DOUBLE = Experiment("double", workers=(2, 2))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """All processes that a replay starts."""
    started: list[subprocess.Popen[str]] = []
    subprocess_of = subprocess.Popen

    def noted(*args: Any, **kwargs: Any) -> subprocess.Popen[str]:
        started.append(subprocess_of(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(running.subprocess, "Popen", noted)
    return started


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Let the process be one that says these lines, and then does not end by itself.

    One of the replays' own imports Dask.
    """

    def stand_in(*lines: str, end: str = "exec sleep 600") -> None:
        said = [f"echo '{line}'" for line in lines]
        script = tmp_path / "child"
        script.write_text("\n".join(["#!/bin/sh", *said, end]))
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return stand_in


def result(name: str, seconds: float, first: float = 0.0) -> str:
    found = asdict(Replayed(name, seconds, 1.0, 0.0))
    return json.dumps({"done": 48, "total": 96, "result": found, "first": first or seconds})


def test_the_run_as_it_was_comes_first(processes: list[subprocess.Popen[str]]) -> None:
    told: list[tuple[int, int]] = []
    changes = [DOUBLE, Experiment("there", cluster=graph({}, workers=(4,)))]
    found = replay(EIGHT, changes, lambda done, total: told.append((done, total)))
    assert (found.refused, found.recorded, found.error) == (
        None, 4.0, pytest.approx(0.0, abs=1e-5),
    )  # fmt: skip
    assert found.replayed
    took = [(one.name, round(one.seconds, 3)) for one in (found.replayed, *found.experiments)]
    assert took == [("as it was", 4.0), ("double", 2.0), ("there", 2.0)]
    assert told == sorted(told)
    assert told[-1] == (72, 72)
    assert [process.returncode for process in processes] == [0]


def test_a_run_that_cannot_be_replayed_gets_no_answers(
    processes: list[subprocess.Popen[str]], says: Callable[..., None]
) -> None:
    says(result("as it was", 1.0), result("double", 1.0), end="")
    found = replay(graph({}, submissions=[0.0], stop=1.0, outside=7, workers=(1,)), [DOUBLE])
    assert found.refused is None
    # Not in the recorded orders, but by chance.
    says(result("as it was", 1.4, first=1.0), result("double", 1.0), end="")
    found = replay(graph({}, stop=1.0, workers=(1,)), [DOUBLE])
    assert (found.refused, found.error) == (None, pytest.approx(0.4))
    says(result("as it was", 1.4))
    found = replay(graph({}, stop=1.0, workers=(1,)), [DOUBLE])
    assert (found.refused or "").endswith("or the scheduler's clock was set back.")
    says(result("as it was", 1.0))
    late = graph({"start": 5.0, "sent": 5.0}, outside=7, workers=(1,))
    found = replay(late, [DOUBLE])
    assert (found.experiments, found.replayed and found.replayed.seconds) == ((), 1.0)
    assert found.refused == (
        "The replay of the run as it was took 1.00 s instead of 6.00 s; the most likely reason: "
        "tasks waited for data of other spans, 7 times."
    )
    back = graph({}, {"sent": -3.0, "start": -3.0, "before": [0]}, stop=5.0, outside=7)
    assert "most likely reason: the scheduler's clock was set back, so" in str(replay(back, []))
    assert [process.returncode for process in processes] == 2 * [0] + 3 * [-signal.SIGKILL]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"complete": False, "left_out": 1234}, "1,234 runs of its tasks are not in its graph log"),
        ({"complete": False}, "Its scheduler closed, or the bridge was removed, before it was"),
        ({"workers": []}, "No run of a task was recorded."),
    ],
)
def test_what_is_not_recorded_is_not_replayed(
    processes: list[subprocess.Popen[str]], line: dict[str, Any], why: str
) -> None:
    found = replay(graph({"worker": -1}, **line), [DOUBLE])
    assert found.replayed is None
    assert (found.refused or "").startswith(why)
    assert not processes


def test_a_replay_that_takes_too_long_is_ended(processes: list[subprocess.Popen[str]]) -> None:
    room = Room(limited=True)
    room.until = 0.0
    found = replay(EIGHT, [DOUBLE], room=room)
    assert (found.replayed, found.refused, room.times(EIGHT)) == (None, running.NO_TIME, 0.0)
    assert [process.returncode for process in processes] == [-signal.SIGKILL]


def test_what_was_replayed_before_the_time_was_over_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = [result("as it was", 4.0), result("a", 2.0), '{"done": 60, "total": 96}']
    monkeypatch.setattr(running, "_answers", lambda *_: map(json.loads, said))
    found = replay(EIGHT, [replace(DOUBLE, name=name) for name in "abc"])
    assert (found.refused, [one.name for one in found.experiments]) == (None, ["a"])
    assert found.assumptions[-1] == "There was no time for 2 more changes."


@pytest.mark.parametrize(
    ("times", "spreads"), [(6.0, [3, 3]), (5.9, [3, 1]), (3.0, [2, 1]), (2.5, [1, 1]), (1.5, [1])]
)
def test_the_room_decides_how_many_changes_are_replayed_and_how_often(
    monkeypatch: pytest.MonkeyPatch, times: float, spreads: list[int]
) -> None:
    answers = Mock(return_value=[json.loads(result("", 4.0))] * len(spreads))
    monkeypatch.setattr(running, "_answers", answers)
    room = Room(limited=True)
    before = room.runs
    found = replay(EIGHT, [DOUBLE], room=room, times=times)
    _, changes, orders = answers.call_args.args[0]
    assert (len(changes), orders) == (len(spreads), spreads)
    # Eight tasks, and the start of a process, which takes as long as a hundred.
    assert before - room.runs == sum(spreads) * 108
    once = "Changes were replayed once; `dask-otel whatif` has the median of three."
    notes = {"There was no time for 1 more change.": spreads == [1], once: spreads != [3, 3]}
    assert {note: note in found.assumptions for note in notes} == notes


def test_one_that_is_interrupted_leaves_no_process(
    processes: list[subprocess.Popen[str]], says: Callable[..., None]
) -> None:
    says(result("as it was", 4.0))
    with pytest.raises(KeyboardInterrupt):
        replay(EIGHT, [DOUBLE], Mock(side_effect=KeyboardInterrupt))
    assert [process.returncode for process in processes] == [-signal.SIGKILL]


@pytest.mark.parametrize(
    ("lines", "end", "said"),
    [
        (("Traceback", "KeyError: 7"), "exit 3", r"status 3\. Its last output: KeyError: 7$"),
        ((), "kill -9 $$", r"status -9\. Its last output: none"),
    ],
)
def test_a_process_that_dies_is_an_error_with_its_last_words(
    says: Callable[..., None], lines: tuple[str, ...], end: str, said: str
) -> None:
    says(result("as it was", 4.0), *lines, end=end)
    with pytest.raises(ReplayError, match=f"ended with {said}"):
        replay(EIGHT, [DOUBLE])


GPU = {"workers": None, "resources": {"GPU": 1}, "loose": False}
ON_GPU = graph({"restriction": 0}, {"start": 1.0}, restrictions=[GPU],
               workers=[{"threads": 1}, {"threads": 1, "resources": {"GPU": 1}}])  # fmt: skip
#: The first worker has no GPU, and 2 s of transfers take a million.
ALONE = Experiment("1 thread", workers=(1,))
SLOW = Experiment("1 kB/s", bandwidth=1000.0)
FETCHED = graph({"nbytes": 10**9}, {"before": [0], "start": 2.0, "transfer": 1.0, "worker": 1,
                                    "restriction": 0},
                restrictions=[{"workers": [1], "resources": {}, "loose": False}])  # fmt: skip


@pytest.mark.parametrize(
    ("recorded", "change", "why"),
    [(ON_GPU, ALONE, "no worker has what a task needs"),
     (FETCHED, SLOW, "it had not ended after 1,020 s")],
)  # fmt: skip
def test_a_replay_without_an_end_has_its_reason_and_spoils_no_other_one(
    recorded: Graph, change: Experiment, why: str
) -> None:
    said: list[dict[str, Any]] = []
    child.answer(recorded, [change, Experiment("as it was")], [1, 1], said.append)
    assert said[0] == {"done": 2, "total": 4, "stuck": f"{change.name}: no answer, because {why}."}
    assert (said[1]["result"]["name"], said[1]["result"]["seconds"] > 0.9) == ("as it was", True)


STUCK = '{"done": 8, "total": 24, "stuck": "a: no answer, because it waits."}'


@pytest.mark.parametrize(
    ("lines", "known", "refused"),
    [
        ((result("as it was", 4.0), STUCK, result("b", 2.0)), ["b"], False),
        # No other one is left.
        ((STUCK,), [], True),
        ((result("as it was", 4.0), STUCK), [], True),
    ],
)
def test_without_an_end_the_others_count(
    says: Callable[..., None], lines: tuple[str, ...], known: list[str], refused: bool
) -> None:
    says(*lines, end="exit 0")
    found = replay(EIGHT, [replace(DOUBLE, name=name) for name in "ab"[: 1 + (not refused)]])
    assert [one.name for one in found.experiments] == known
    assert (found.refused or next(WhatIfReport(found).notes())) == json.loads(STUCK)["stuck"]
    assert refused or not any("no time" in one for one in found.assumptions)


def test_the_median_of_several_orders_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    took = [Replayed("", seconds, 1.0, 0.0, 4) for seconds in (3.0, 1.0, 2.5)]
    monkeypatch.setattr(engine, "replayed", Mock(side_effect=took))
    said: list[dict[str, Any]] = []
    child.answer(graph({}, {"worker": 1}, workers=(1, 1)), [DOUBLE], [3], said.append)
    found = asdict(Replayed("double", 2.5, 1.0, 0.0, 4, 2.0))
    assert said == [{"done": 6, "total": 6, "result": found, "first": 3.0}]


def test_it_ends_with_the_process_that_started_it() -> None:
    many = [Experiment(str(number)) for number in range(10_000)]
    command = [sys.executable, "-m", "dask_otel.whatif.child"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin
        assert process.stdout
        json.dump((EIGHT, many, [1] * len(many)), process.stdin, default=vars)
        process.stdin.close()
        # It has begun; then it is as if the other process ended.
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait() == 1

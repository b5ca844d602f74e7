"""The process of the replays: its results, its progress, and its ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from dask_otel.whatif import running
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
    started = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(running.subprocess, "Popen", Noted)
    return started


def test_the_run_as_it_was_comes_first(processes: list[subprocess.Popen[str]]) -> None:
    told: list[tuple[int, int]] = []
    found = replay(EIGHT, [DOUBLE], lambda done, total: told.append((done, total)))
    assert found.refused is None
    assert found.replayed is not None
    assert (found.recorded, found.error) == (4.0, pytest.approx(0.0, abs=1e-5))
    assert [(one.name, round(one.seconds, 3)) for one in found.experiments] == [("double", 2.0)]
    assert told == sorted(told)
    assert told[-1] == (48, 48)
    assert [process.returncode for process in processes] == [0]


def test_a_run_that_cannot_be_replayed_gets_no_answers(
    processes: list[subprocess.Popen[str]],
) -> None:
    found = replay(graph({}, submissions=[0.0], stop=1.0, outside=7, workers=(1,)), [DOUBLE])
    assert found.refused is None
    late = graph({"start": 5.0, "sent": 5.0}, outside=7, workers=(1,))
    found = replay(late, [DOUBLE])
    assert (found.experiments, found.replayed and round(found.replayed.seconds, 3)) == ((), 1.0)
    assert found.refused == (
        "The replay of the run as it was took 1.00 s instead of 6.00 s; the most likely reason: "
        "tasks waited for data of other spans, 7 times."
    )
    assert processes[-1].poll() is not None


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
    found = replay(graph({}, **line), [DOUBLE])
    assert found.replayed is None
    assert (found.refused or "").startswith(why)
    assert not processes


def test_a_replay_that_takes_too_long_is_ended(
    processes: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(limited=True)
    room.until = 0.0
    found = replay(EIGHT, [DOUBLE], room=room)
    assert (found.replayed, found.refused) == (None, running.NO_TIME)
    assert [process.returncode for process in processes] == [-signal.SIGKILL]
    assert room.times(EIGHT) == 0.0


def test_what_was_replayed_before_the_time_was_over_is_kept(
    processes: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Callable[[], object]] = []

    class Timer:
        def __init__(self, seconds: float, end: Callable[[], object]) -> None:
            ends.append(end)

        def start(self) -> None: ...

        def cancel(self) -> None: ...

    monkeypatch.setattr(running, "Timer", Timer)

    def end_in_the_second(done: int, total: int) -> None:
        # Each result comes when the tasks of three replays are done.
        if done == 48:
            ends[0]()

    changes = [replace(DOUBLE, name=name) for name in "abc"]
    found = replay(EIGHT, changes, end_in_the_second)
    assert found.refused is None
    assert "a" in [one.name for one in found.experiments]
    missing = 3 - len(found.experiments)
    assert (found.assumptions[-1].startswith("There was no time for ")) == (missing > 0)


@pytest.mark.parametrize(("times", "kept", "spreads"), [(6.0, 2, 3), (5.9, 2, 1), (1.5, 1, 1)])
def test_the_room_decides_how_many_changes_are_replayed_and_how_often(
    monkeypatch: pytest.MonkeyPatch, times: float, kept: int, spreads: int
) -> None:
    asked = []

    def results(graph: Graph, changes: Any, orders: int, *rest: Any) -> Iterator[Replayed]:
        asked.append((len(changes), orders))
        return (Replayed(one.name, 4.0, 1.0, 0.0) for one in changes)

    monkeypatch.setattr(running, "_results", results)
    room = Room(limited=True)
    before = room.runs
    found = replay(EIGHT, [DOUBLE], room=room, times=times)
    assert asked == [(kept, spreads)]
    # Eight tasks, and the start of a process, which takes as long as a hundred.
    assert before - room.runs == kept * spreads * 108
    missing = "There was no time for 1 more change." in found.assumptions
    assert missing == (kept == 1)


def test_one_that_is_interrupted_leaves_no_process(
    processes: list[subprocess.Popen[str]],
) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(EIGHT, [DOUBLE], interrupt)
    assert [process.returncode for process in processes] == [-signal.SIGKILL]


def test_the_last_words_of_a_process_that_dies_are_the_error() -> None:
    never = graph({}, restrictions=[{"workers": None, "resources": {"GPU": 1}, "loose": False}])
    never.runs["restriction"][:] = [0]  # type: ignore[index]
    with pytest.raises(ReplayError, match="as it was: it does not end, since no worker has what"):
        replay(never, [DOUBLE])


def test_a_process_that_is_killed_is_an_error(processes: list[subprocess.Popen[str]]) -> None:
    def kill(done: int, total: int) -> None:
        os.kill(processes[0].pid, signal.SIGKILL)

    many = [Experiment(str(number)) for number in range(100)]
    with pytest.raises(ReplayError, match=r"ended with status -9\. Its last output: none"):
        replay(EIGHT, many, kill)


def test_it_ends_with_the_process_that_started_it() -> None:
    many = [Experiment(str(number)) for number in range(10_000)]
    with subprocess.Popen(
        [sys.executable, "-m", "dask_otel.whatif.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked = json.dumps({"graph": EIGHT, "changes": many, "orders": 1}, default=vars)
        process.stdin.write(asked.encode() + b"\n")
        process.stdin.flush()
        # It has begun.
        assert process.stdout.readline()
        # As the end of the other process does. Nobody reads its lines.
        process.stdin.close()
        assert process.wait() == 1

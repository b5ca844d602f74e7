"""What Dask tells of runs that are shown by themselves."""

from __future__ import annotations

from math import inf, nan
from types import SimpleNamespace
from typing import Any

import pytest

from dask_otel._dask import task_spans
from dask_otel._dask.stimuli import stimulus_time
from dask_otel._dask.task_spans import MAX_PARTS, Ended, TaskSpans
from dask_otel.core.life.clock_offsets import ClockOffsets
from dask_otel.core.life.open_span import Group, OpenSpan, TaskLimits
from dask_otel.core.records import Failure, SpanIdentity, TaskRun

T = 1_000_000.0
#: By how much the worker's clock is behind.
BEHIND = 100.0
FAILURE = Failure(T, "k", "load", "tcp://w", "ValueError('no')", None)


def part(action: str, start: float, seconds: float) -> dict[str, Any]:
    return {"action": action, "start": start, "stop": start + seconds}


class Scheduler:
    """What is read of one."""

    def __init__(self, waiting: tuple[str, ...] = (), unrunnable: tuple[str, ...] = ()) -> None:
        self.queued = [SimpleNamespace(key=key) for key in waiting]
        self.unrunnable = [SimpleNamespace(key=key) for key in unrunnable]
        self.tasks: dict[str, Any] = {}


SLOWEST = TaskLimits(slowest=1)


def made(limits: TaskLimits = SLOWEST, scheduler: Any = None) -> tuple[TaskSpans, Group]:
    clocks = ClockOffsets(stimulus_time)
    clocks.heartbeat("tcp://w", T, BEHIND, None)
    shown = TaskSpans(scheduler or Scheduler(), limits, clocks)
    shown.attach()
    span = OpenSpan(T, (), SpanIdentity("d", "d", ("a",), 1, 1, 2, None), False)
    group = Group(span, "load-1", "load", None, limits.floor)
    span.add(group)
    return shown, group


def ended(**changes: Any) -> Ended:
    compute = part("compute", T + 4, 2.0)
    info = {
        "worker": "tcp://w",
        "nbytes": 28,
        "typename": "int",
        "startstops": [*changes.pop("before", ()), compute, *changes.pop("after", ())],
        **changes.pop("info", {}),
    }
    end = Ended(
        info=info,
        seconds=2.0,
        sent=T + 1,
        # The worker's estimate of the scheduler's clock was 0.5 s behind.
        start=T + 4.5,
        stop=T + 6.5,
        queued=0.0,
        stimulus_id=f"task-finished-{T}",
        assigned=SimpleNamespace(name="w-1"),  # type: ignore[arg-type]
    )
    return end._replace(**changes)


def task(key: Any = "k", run_id: int | None = 7) -> Any:
    return SimpleNamespace(key=key, run_id=run_id)


def kept(end: Ended, limits: TaskLimits = SLOWEST, **of_task: Any) -> Any:
    shown, group = made(limits)
    shown.succeeded(group, task(**of_task), end)
    return next(map(TaskRun._make, group.slowest), None)


def test_what_is_kept_of_a_run() -> None:
    assert kept(ended(queued=T)) == (
        2.0, 7, "k", "w-1", T + 4.5, T + 6.5, 1, 1.0, 28, "int", ()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        # Transfers are shifted as their run, and disk reads by their own clock: 100 s behind, it
        # says T + 3.2.
        (
            {
                "before": (
                    part("transfer", T + 2, 0.5),
                    part("disk-read", T + 3.2 - BEHIND, 0.25),
                    part("disk-write", T + 3, 0.1),
                ),
                "after": (part("disk-write", T, 1.0),),
            },
            {"parts": (("transfer", T + 2.5, 0.5), ("disk-read", pytest.approx(T + 3.2), 0.25))},
        ),
        # A disk read ends before its run begins.
        (
            {"before": [part("disk-read", T + 4.5 - BEHIND, 0.25)]},
            {"parts": (("disk-read", T + 4.25, 0.25),)},
        ),
        # On a clock that nobody knows, it is left out.
        (
            {"before": [part("disk-read", T + 3, 0.25)], "info": {"worker": "tcp://unknown"}},
            {"parts": ()},
        ),
        # The first belongs to a reported run; the last ended before this one was sent.
        (
            {
                "before": [
                    part("transfer", T + 1, 0.1),
                    part("compute", T + 2, 0.5),
                    part("transfer", T, 0.1),
                ]
            },
            {"parts": ()},
        ),
        ({"info": {"nbytes": "many", "typename": 7}}, {"nbytes": None, "type": None}),
        ({"assigned": None}, {"worker": None}),
        # Seconds in the queue.
        *(
            ({"queued": queued, "sent": sent}, {"queued": waited})
            for queued, sent, waited in (
                *((0.0, T, 0.0), (T - 2, T, 2.0), (T + 1, T, 0.0)),
                *((None, T, None), (0.0, 0.0, None)),
            )
        ),
    ],
)
def test_what_is_shown_of_a_run(changes: dict[str, Any], shown: dict[str, Any]) -> None:
    run = kept(ended(**changes))
    assert {name: getattr(run, name) for name in shown} == shown


def test_of_many_transfers_the_longest_are_kept() -> None:
    before = [part("transfer", T + 1 + i / 100, (i % 7 + 1) / 1000) for i in range(100)]
    parts = kept(ended(before=before)).parts
    longest = sorted(stop["stop"] - stop["start"] for stop in before)[-MAX_PARTS:]
    assert sorted(seconds for _, _, seconds in parts) == longest
    assert [start for _, start, _ in parts] == sorted(start for _, start, _ in parts)


@pytest.mark.parametrize(
    "wrong",
    [
        {"stimulus_id": f"compute-task-{T}"},
        {"seconds": inf},
        {"seconds": nan},
        {"seconds": -2.0},
    ],
)
def test_what_is_no_run_of_its_own_is_not_kept(wrong: dict[str, Any]) -> None:
    """A worker that has the result already repeats the times of a run with another number."""
    assert kept(ended(**wrong)) is None
    assert kept(ended(), run_id=None) is None


def test_tasks_that_wait_already_are_known_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, since, overflowed in ((2, ["a", "b"], True), (3, ["a", "b", "c"], False)):
        monkeypatch.setattr(task_spans, "MAX_QUEUED", most)
        shown, group = made(scheduler=Scheduler(("a", "b"), ("c",)))
        assert shown.since == dict.fromkeys(since)
        shown.succeeded(group, task(), ended())
        # Beyond the limit, nobody knows who has waited.
        assert group.slowest[0][7] == (None if overflowed else 0.0)
        shown.clear()
        assert (shown.since, shown.overflowed) == ({}, False)
    off, _ = made(TaskLimits(most=0), Scheduler(("a",)))
    assert not off.since


def test_tasks_whose_end_was_missed_are_forgotten() -> None:
    scheduler = Scheduler(("queued", "gone", "done"))
    shown, _ = made(scheduler=scheduler)
    scheduler.tasks = {
        "queued": SimpleNamespace(state="queued"),
        "done": SimpleNamespace(state="memory"),
    }
    shown.repair()
    assert list(shown.since) == ["queued"]


def test_a_failure_is_kept_with_its_run_and_its_number() -> None:
    shown, group = made()
    shown.repeated(group.span, "k")
    end = ended(stimulus_id=f"task-erred-{T}", info={"nbytes": None, "typename": None})
    shown.failed(group, task(), end, FAILURE)
    assert group.slowest == ()
    assert group.span.runs is not None
    ((run, of, failure),) = filter(None, group.span.runs.failed.values())
    assert (run[6], run[8], of, failure) == (2, None, group, FAILURE)


def test_switched_off_nothing_is_kept() -> None:
    shown, group = made(TaskLimits(5, 1.0, 0))
    assert not shown.sampling
    shown.succeeded(group, task(), ended())
    shown.failed(group, task(), ended(), FAILURE)
    shown.repeated(group.span, "k")
    assert group.slowest == ()
    assert group.span.runs is None


@pytest.mark.parametrize("key", [("x", 0), "x" * 10**6, b"\xff", 7, 1.5, ("a", ("b", 1))])
def test_keys_of_any_kind_are_chosen_and_kept_as_they_are(key: Any) -> None:
    shown, group = made(TaskLimits(0, 1.0))
    shown.succeeded(group, task(key=key), ended())
    assert group.span.runs is not None
    ((run, _),) = group.span.runs.sampled
    assert run[2] == key

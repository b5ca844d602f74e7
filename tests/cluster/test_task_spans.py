"""Spans of single tasks, against what the tasks saw themselves."""

from __future__ import annotations

import time
from typing import Any

import pytest
from distributed import Reschedule, get_worker, wait

from dask_otel import span
from dask_otel.core import identity
from dask_otel.core.life.open_span import Limits, TaskLimits
from dask_otel.core.records import TaskRun
from tests.cluster import tasks as user_code
from tests.cluster.conftest import Bridged
from tests.cluster.observed import Observed

pytestmark = pytest.mark.cluster

#: What lies between the task's own look at the clock and the worker's, on a machine that is busy
#: with something else. The worker's clock follows its heartbeats, one of which can take long.
READING = 10.0
#: A clock of milliseconds, read twice.
CLOCK = 0.005


def limits(**tasks: Any) -> Limits:
    return Limits(linger=0.3, settle_timeout=30.0, tasks=TaskLimits(**tasks), path=False)


def timed(number: int, seconds: float) -> tuple[float, float, int, str]:
    """Return when it ran, Dask's number of the run, and the worker's name."""
    worker = get_worker()
    run_id = worker.state.tasks[worker.get_current_task()].run_id
    start = time.time()
    time.sleep(seconds)
    return start, time.time(), run_id, str(worker.name)


def fail(seconds: float) -> None:
    time.sleep(seconds)
    raise ValueError("as asked")


RUNS: dict[str, int] = {}


def fail_first(how: type[Exception]) -> int:
    """Fail in the first run; workers are threads of this process."""
    RUNS[how.__name__] = RUNS.get(how.__name__, 0) + 1
    if RUNS[how.__name__] == 1:
        raise how
    return RUNS[how.__name__]


def check(found: TaskRun, key: Any, saw: tuple[float, float, int, str]) -> None:
    start, stop, run, worker = saw
    assert (found.key, found.number, found.worker) == (key, run, worker)
    assert found.start == pytest.approx(start, abs=READING)
    assert found.stop == pytest.approx(stop, abs=READING)
    assert stop - start - CLOCK <= found.seconds <= stop - start + READING
    assert found.stop - found.start == pytest.approx(found.seconds, abs=1e-4)


@pytest.mark.options(limits(slowest=2))
def test_the_slowest_and_the_failed_are_those_that_the_tasks_know_of(o: Observed) -> None:
    # Far apart: what a busy machine adds does not change the order.
    lengths = [0.01, 0.6, 0.02, 0.01, 0.9, 0.03, 0.3, 0.01]
    with span("work"), o.held():
        futures = o.client.map(timed, range(len(lengths)), lengths)
        bad = o.client.submit(fail, 0.2, key="bad")
        wait([*futures, bad])
        again = o.client.submit(fail_first, ZeroDivisionError, retries=2)
        moved = o.client.submit(fail_first, Reschedule)
        assert (again.result(), moved.result()) == (2, 2)
        saw = o.client.gather(futures)
        keys = [future.key for future in futures]
    del futures, bad, again, moved
    o.quiet()
    finished = o.named("work")
    failed, *others = finished.tasks
    # Of the two that ran again the last run alone is known, in groups of their own.
    assert [task.prefix for task in others].count("fail_first") == 2
    assert [task.run.attempt for task in others if task.prefix == "fail_first"] == [2, 2]
    first, second = [task.run for task in others if task.prefix == "timed"]
    known = dict(zip(keys, saw, strict=True))
    for task in (first, second):
        check(task, task.key, known.pop(task.key))
    # Of a busy machine, too: none of the others took longer.
    longest = max(stop - start for start, stop, _, _ in known.values())
    assert longest - CLOCK <= second.seconds <= first.seconds
    assert (first.attempt, first.type, first.nbytes is None) == (1, "tuple", False)
    assert (failed.run.key, failed.run.failure and failed.run.failure.text) == (
        "bad",
        "ValueError('as asked')",
    )
    assert 0.2 - CLOCK <= failed.run.seconds <= 0.2 + READING
    assert finished.dropped_tasks == 0
    assert not o.adapter.task_events.queued_since


@pytest.mark.options(limits(slowest=0, ratio=1.0), n_workers=1)
def test_time_in_the_queue_is_what_tasks_waited_for(o: Observed) -> None:
    with span("work"):
        submitted = time.time()
        futures = o.client.map(timed, range(8), [0.1] * 8)
        wait(futures)
        saw = sorted(o.client.gather(futures))
    del futures
    o.quiet()
    by_run = {task.run.number: task.run for task in o.named("work").tasks}
    tasks = [by_run[run] for _, _, run, _ in saw]
    assert len(by_run) == len(tasks) == 8
    for order, (task, (start, stop, run, worker)) in enumerate(zip(tasks, saw, strict=True)):
        check(task, task.key, (start, stop, run, worker))
        assert task.queued is not None
        # One runs and one waits on the worker, as its saturation of 1.1 says: the next one is
        # sent when the last but one is over, and before it starts.
        least = saw[order - 2][1] - saw[0][0] - CLOCK if order > 1 else 0.0
        assert least <= task.queued <= start - submitted + CLOCK
    assert [task.queued for task in tasks[:2]] == [0.0, 0.0]


@pytest.mark.parametrize(
    "slowest",
    [pytest.param(n, marks=pytest.mark.options(limits(slowest=n), processes=True)) for n in (1, 0)],
)
def test_a_group_begins_with_the_first_transfer_which_is_an_event_of_its_task(
    o: Observed, slowest: int
) -> None:
    # Between processes: within one, nothing is copied.
    one, other = o.cluster.scheduler.workers
    with span("work"), o.held():
        data = o.client.map(bytes, range(50_000_000, 50_000_003), workers=[one])
        wait(data)
        sizes = o.client.map(len, data, workers=[other])
        assert o.client.gather(sizes) == list(range(50_000_000, 50_000_003))
    del data, sizes
    o.quiet()
    work = o.named("work")
    (group,) = [group for group in work.groups if group.prefix == "len"]
    # They take no time, and were waited for: so much at least came before.
    assert group.durations["transfer"] > group.durations["compute"]
    assert group.stop - group.start > group.durations["compute"]
    tasks = [task.run for task in work.tasks if task.prefix == "len"]
    told = [(task, part) for task in tasks for part in task.parts if part[0] == "transfer"]
    # Several come in one message, which is booked on one of them.
    assert bool(told) == bool(slowest)
    for task, (_, start, seconds) in told:
        assert seconds > 0
        assert start + seconds <= task.start + READING


@pytest.mark.options({"spans": {"tasks": {"slowest": 0, "ratio": 0.5}}})
def test_in_a_chosen_task_its_own_span_is_the_current_one(bridged: Bridged) -> None:
    with span("work") as work:
        futures = bridged.client.map(user_code.current, range(40))
        found = dict(zip([f.key for f in futures], bridged.client.gather(futures), strict=True))
    del futures
    received = bridged.exported()
    shown = {s.attributes["dask.task.key"]: s for s in received.spans if s.type == "task"}
    assert shown.keys() == {key for key in found if identity.is_sampled(key, 0.5)}
    assert 5 < len(shown) < 35
    ids = (identity.trace_id(work), identity.span_id(work), 1)
    own = {key: (s.trace_id, s.span_id, 1) for key, s in shown.items()}
    assert found == {**dict.fromkeys(found, ids), **own}


@pytest.mark.options({"spans": {"detail": "span", "tasks": {"slowest": 3, "ratio": 0.5}}})
def test_without_groups_those_that_failed_and_were_chosen_hang_below_the_span(
    bridged: Bridged,
) -> None:
    with span("work"):
        futures = bridged.client.map(user_code.current, range(20))
        bad = bridged.client.submit(fail, 0.01, key="bad")
        wait([*futures, bad])
        keys = {future.key for future in futures}
    del futures, bad
    received = bridged.exported()
    work = received.named("work")
    tasks = [s for s in received.spans if s.type == "task"]
    assert {s.type for s in received.spans} == {"span", "task"}
    assert {s.parent_id for s in tasks} == {work.span_id}
    chosen = {key for key in keys if identity.is_sampled(key, 0.5)}
    assert {s.attributes["dask.task.key"] for s in tasks} == {"bad", *chosen}

"""The exported spans, also of single tasks, against what Dask and the tasks say."""

from __future__ import annotations

import time
from typing import Any

import dask
import pytest
from distributed import get_worker, span, wait
from lab.programs import flaky, moved

from dask_otel import span as own_span
from dask_otel.core import identity
from dask_otel.core.life.open_span import Limits
from dask_otel.core.records import TaskRun
from dask_otel.lab.clock import EPOCH
from tests.cluster.tasks import current
from tests.limits import make_limits, make_task_limits
from tests.receiver import Receiver
from tests.simulated.bridged import Bridged
from tests.simulated.observed import Simulated
from tests.simulated.tasks import fail, inc

#: Floats, added up.
CLOSE = 5e-6

#: The type of every span attribute on the wire, by key; a prefix for families of keys.
TYPES: dict[str, type] = {
    "dask.span.type": str,
    "dask.span.id": str,
    "dask.span.root.id": str,
    "dask.span.name": str,
    "dask.span.tags": tuple,
    "dask.span.root.name": str,
    "dask.span.result": str,
    "dask.span.complete": bool,
    "dask.span.generation": int,
    "dask.span.queue.time": float,
    "dask.span.capacity.time": float,
    "dask.span.idle.time": float,
    "dask.span.dask.active_cpu.time": float,
    "dask.span.dask.idle.time": float,
    "dask.span.output.size": int,
    "dask.task.count": int,
    "dask.task_group.count": int,
    "dask.worker.count": int,
    "dask.thread.count": int,
    "dask.collection.types": tuple,
    "dask.span.collision": bool,
    "dask.span.requested.name": str,
    "dask.span.late": bool,
    "dask.span.dropped.count": int,
    "code.file.path": str,
    "code.line.number": int,
    "code.function.name": str,
    "error.type": str,
    "dask.task_group.name": str,
    "dask.task.prefix": str,
    "dask.task_group.types": tuple,
    "dask.task.key": str,
    "dask.task.attempt": int,
    "dask.task.queue.time": float,
    "dask.task.output.size": int,
    "dask.task.output.type": str,
    "dask.task.on_path": bool,
    "dask.span.path.tasks": int,
    "dask.span.path.submitted.tasks": int,
    "dask.span.elsewhere.time": float,
    "dask.span.seceded.time": float,
    "dask.span.memory.peak": int,
    "dask.span.memory.time": float,
    "dask.span.memory.largest.prefix": str,
    "dask.span.memory.largest.size": int,
    "dask.span.worker_memory.peak": float,
    "dask.span.worker_memory.worker.name": str,
    "dask.span.worker_memory.worker.time": float,
    "dask.span.worker_memory.heartbeat.count": int,
    "dask.span.worker_tasks.peak": int,
    "dask.task_group.restriction": str,
    "dask.task_group.slow_worker.names": tuple,
    "dask.worker.name": str,
}
FAMILIES: dict[str, type] = {
    "dask.span.activity.time.": float,
    "dask.span.memory.at_peak.": float,
    "dask.span.path.": float,
    "dask.task.path.": float,
    "dask.task_group.duration.": float,
    "dask.task_group.slow_worker.": float,
}
OUTCOMES = ("memory", "erred", "cancelled", "retried", "lost", "recomputed", "rescheduled")
TYPES |= {f"dask.task.{outcome}.count": int for outcome in OUTCOMES}


def expected_type(key: str) -> type:
    (found,) = [TYPES[key]] if key in TYPES else [t for f, t in FAMILIES.items() if f in key]
    return found


def assert_types(received: Receiver) -> None:
    """Every attribute is one of the contract, with the contract's type."""
    for one in received.spans:
        for key, value in one.attributes.items():
            assert type(value) is expected_type(key), (key, value)


# ---------------------------------------------------------------------------- Dask spans


@pytest.mark.options(otel={"spans": {"default": "metrics-only"}})
def test_untagged_work_can_stay_out_of_the_traces(b: Bridged) -> None:
    """`otel.spans.default: metrics-only` keeps its metrics."""
    assert b.client.submit(inc, 1).result() == 2
    with span("mine"):
        assert b.client.submit(inc, 10, key="mine-1").result() == 11
    received = b.exported()
    assert {s.attributes["dask.span.root.name"] for s in received.spans} == {"mine"}
    durations = received.last("dask.span.duration")
    assert {dict(labels)["dask.span.name"] for labels in durations} == {"default", "mine"}


@pytest.mark.options(config={"distributed.diagnostics.computations.nframes": 1})
def test_ids_that_are_no_uuid_and_where_the_code_was_submitted(b: Bridged) -> None:
    """Any string can be a span id: it is hashed as it is.

    Code is known if Dask collects it; the source text itself is not exported.
    """
    ids = ("not a uuid", "ü" * 40)

    def of_the_user() -> int:
        return int(b.client.submit(inc, 1).result())

    with dask.annotate(span={"name": ("odd", "child"), "ids": ids}):
        assert of_the_user() == 2
    received = b.exported()
    child = received.named("child")
    assert child.attributes["dask.span.id"] == ids[1]
    assert child.parent_id == received.named("odd").span_id
    assert child.attributes["code.file.path"].endswith("test_spans.py")
    assert child.attributes["code.line.number"] > 0
    assert child.attributes["code.function.name"] == "of_the_user"
    assert_types(received)


@pytest.mark.options(otel={"spans": {"detail": "span", "tasks": {"slowest": 3, "ratio": 0.5}}})
def test_chosen_tasks_have_spans_of_their_own_which_are_current_in_them(b: Bridged) -> None:
    """Without groups, these and those that failed hang below the span."""
    with span("work"):
        futures = b.client.map(current, range(20))
        bad = b.client.submit(fail, 0.01, key="bad")
        wait([*futures, bad])
        found = dict(zip([f.key for f in futures], b.client.gather(futures), strict=True))
    received = b.exported()
    work = received.named("work")
    tasks = {s.attributes["dask.task.key"]: s for s in received.spans if s.type == "task"}
    assert {s.type for s in received.spans} == {"span", "task"}
    assert {s.parent_id for s in tasks.values()} == {work.span_id}
    assert tasks.keys() == {"bad"} | {key for key in found if identity.is_sampled(key, 0.5)}
    assert found == {key: tasks.get(key, work).ids for key in found}
    assert_types(received)


# ---------------------------------------------------------------------------- single tasks


def limits(**tasks: Any) -> Limits:
    return make_limits(linger=0.3, settle_timeout=30.0, tasks=make_task_limits(**tasks), path=False)


def timed(number: int, seconds: float) -> tuple[float, float, int, str]:
    """Return when it ran, Dask's number of the run, and the worker's name."""
    worker = get_worker()
    run_id = worker.state.tasks[worker.get_current_task()].run_id
    start = time.time()
    time.sleep(seconds)
    return start, time.time(), run_id, str(worker.name)


def check(found: TaskRun, key: Any, saw: tuple[float, float, int, str]) -> None:
    start, stop, run, worker = saw
    assert (found.key, found.number, found.worker) == (key, run, worker)
    times = (found.start, found.stop, found.seconds)
    assert times == pytest.approx((start, stop, stop - start), abs=CLOSE)


@pytest.mark.options(limits=limits(slowest=2))
def test_the_slowest_and_the_failed_are_those_that_the_tasks_know_of(o: Simulated) -> None:
    lengths = [0.01, 0.6, 0.02, 0.01, 0.9, 0.03, 0.3, 0.01]
    with span("work"):
        futures = o.client.map(timed, range(len(lengths)), lengths)
        bad = o.client.submit(fail, 0.2, key="bad")
        again = [o.client.submit(how, 0.0, retries=2) for how in (flaky, moved)]
        wait([*futures, bad, *again])
        saw = o.client.gather(futures)
        keys = [future.key for future in futures]
    o.quiet()
    finished = o.named("work")
    failed, *others = finished.tasks
    # Of the two that ran again the last run alone is known.
    assert [task.run.attempt for task in others if task.prefix in ("flaky", "moved")] == [2, 2]
    first, second = [task.run for task in others if task.prefix == "timed"]
    check(first, keys[4], saw[4])
    check(second, keys[1], saw[1])
    assert (first.attempt, first.type, first.nbytes is None) == (1, "tuple", False)
    assert failed.run.failure is not None
    assert (failed.run.key, failed.run.failure.text) == ("bad", "ValueError('as asked')")
    assert failed.run.seconds == pytest.approx(0.2, abs=CLOSE)
    assert finished.dropped_tasks == 0
    assert not o.adapter.task_events.ready


def together(*parts: bytes) -> int:
    return len(parts)


def slow_data(sender: Any, receiver: Any, message: Any) -> float:
    """Let messages with data take half a second."""
    return 0.5 if type(message) is dict and message.get("data") else 0.0


@pytest.mark.parametrize(
    "slowest",
    [
        pytest.param(n, marks=pytest.mark.options(limits=limits(slowest=n), latency=slow_data))
        for n in (1, 0)
    ],
)
def test_a_group_begins_with_the_first_transfer_which_is_an_event_of_its_task(
    o: Simulated, slowest: int
) -> None:
    with own_span("work"):
        data = o.client.map(bytes, range(5_000_000, 5_000_003), workers=["w0"])
        wait(data)
        wait(o.client.submit(together, *data, workers=["w1"]))
    o.quiet()
    work = o.named("work")
    (group,) = [group for group in work.groups if group.prefix == "together"]
    assert group.durations["transfer"] == pytest.approx(0.5, abs=CLOSE)
    assert group.stop - group.start == pytest.approx(0.5, abs=CLOSE)
    tasks = [task.run for task in work.tasks if task.prefix == "together"]
    shown = [(task, part) for task in tasks for part in task.parts if part[0] == "transfer"]
    # All came in one message.
    assert len(shown) == slowest
    for task, (_, start, seconds) in shown:
        assert seconds == pytest.approx(0.5, abs=CLOSE)
        assert start + seconds == pytest.approx(task.start, abs=CLOSE)
        assert start > EPOCH

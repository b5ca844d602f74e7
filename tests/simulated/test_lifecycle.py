"""How Dask spans live and die, and what is exported of them.

Each test ends with the tree of what was exported: name (``#2``: the second generation), result,
seconds, and the counts that are not zero.
"""

from __future__ import annotations

import gc
import operator
import time
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType, MethodType, ModuleType
from typing import Any

import dask
import pytest
from distributed import span, wait
from distributed.scheduler import TaskGroup, TaskState, WorkerState
from distributed.spans import Span
from lab.programs import flaky, moved

from dask_otel import semconv
from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.tasks import LONGEST_TRACEBACK
from dask_otel.core.life.open_span import OpenSpan
from tests.cluster.tasks import Counter
from tests.simulated.observed import LIMITS, Simulated
from tests.simulated.tasks import inc, nap

RETRIED, LOST = semconv.TASK_RETRIED.name, semconv.TASK_LOST.name
#: Floats, added up.
CLOSE = 5e-6


def boom(x: int, delay: float = 0.0, deep: int = 600) -> None:
    # In turns with `deeper`, or Python would shorten the traceback.
    if deep:
        deeper(x, delay, deep)
    time.sleep(delay)
    raise KeyError(x)


def deeper(x: int, delay: float, deep: int) -> None:
    boom(x, delay, deep - 2)


# ------------------------------------------------------------------------ how spans nest


@pytest.mark.options(threads=1)
def test_single_nested_and_default_spans(o: Simulated) -> None:
    with span("root"):
        with span("load"):
            loaded = o.client.map(inc, range(4), delay=0.2)
        with span("without work"):
            pass
        with span("empty", "nested"):
            total = o.client.submit(sum, loaded)
    assert total.result() == 10
    del loaded, total
    # Once these are released: a message waits for the batch before it.
    time.sleep(0.1)
    o.client.submit(operator.neg, 1).result()
    o.assert_tree("""
        root success 0.400 tasks=5 memory=5
          empty success 0.400 tasks=1 memory=1
            nested success 0.400 tasks=1 memory=1
          load success 0.400 tasks=4 memory=4
        default success 0.000 tasks=1 memory=1
    """)
    assert o.named("load").worker_count == 2
    # As Dask's `Span.start`: of the tree.
    starts = {name: o.named(name).first_start for name in ("root", "load", "empty", "nested")}
    assert starts["empty"] == starts["nested"] > starts["load"] == starts["root"]
    spans = o.scheduler.extensions["spans"].spans.values()
    dask_says = {s.name[-1]: s.start for s in spans if s.name[0] == "root"}
    assert starts == pytest.approx(dask_says, abs=CLOSE)


def test_what_begins_below_a_continuation_is_late(o: Simulated) -> None:
    with span("root"):
        kept = o.client.submit(inc, 1, key="first-1")
        wait(kept)
        o.quiet()
        slow = o.client.submit(nap, 1.0, kept, key="first-2")
        with span("below"):
            o.client.submit(inc, 2, key="below").result()
    wait(slow)
    o.assert_tree("""
        root success 0.000 tasks=1 memory=1
          root#2 success 1.000 tasks=2 memory=2
          below success 0.000 tasks=1 memory=1 late
    """)


# --------------------------------------------------------------------------------- failures


@pytest.mark.options(threads=1, limits=replace(LIMITS, max_exceptions=3))
def test_all_tasks_erred_has_its_real_length(o: Simulated) -> None:
    """The fixture compares the failures with details, and those without, with the limit."""
    with span("bad"):
        futures = o.client.map(boom, range(4), delay=0.3)
    wait(futures)
    o.assert_tree("bad failure 0.600 tasks=4 erred=4")
    failure = o.named("bad").failures[0]
    assert failure.text in {f"KeyError({n})" for n in range(4)}
    assert failure.prefix == "boom"
    names = {worker.address: name for name, worker in o.cluster.workers.items()}
    assert failure.worker_name == names[failure.worker]
    # Some 600 frames are more than can be shown, and the last one is what a reader needs.
    assert len(failure.traceback) == LONGEST_TRACEBACK
    assert failure.traceback.rstrip().endswith("raise KeyError(x)")
    assert o.named("bad").activities["failed"] == pytest.approx(1.2, abs=CLOSE)
    (group,) = o.named("bad").groups
    assert group.stop - group.start == pytest.approx(0.6, abs=CLOSE)


@pytest.mark.filterwarnings("ignore")
def test_a_task_that_its_worker_cannot_start_failed_there(o: Simulated) -> None:
    """Dask reports that by another message, without times; no worker was lost."""
    with span("unable"), dask.annotate(executor="none"):
        wait([o.client.submit(nap, 1.0, retries=1), o.client.submit(nap, 2.0, retries=1)])
    o.assert_tree("unable failure 0.005 tasks=2 erred=2 retried=2")
    assert o.counted(RETRIED) == {(("unable",), "nap", "error"): 2}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("run", "reason", "counts"),
    [(flaky, "error", "retried=1"), (moved, "rescheduled", "rescheduled=1")],
)
def test_a_task_that_runs_again_by_itself_starts_with_its_first_run(
    o: Simulated, run: Callable[..., float], reason: str, counts: str
) -> None:
    """A retry that heals it leaves no error; a task that asked to move leaves no event."""
    with span("again"):
        future = o.client.submit(run, 1.5, retries=2)
    assert future.result() == 1.5
    o.assert_tree(f"again success 3.000 tasks=1 memory=1 {counts}")
    assert o.counted(RETRIED) == {(("again",), run.__name__, reason): 1}
    again = o.named("again")
    retries = [(one.reason, one.failure.text) for one in again.retries]
    assert retries == ([("error", "ValueError()")] if run is flaky else [])
    # What failed was no waiting. Dask sends no times of a run that moves: heartbeats list it.
    (group,) = again.groups
    times = again.first_start, group.start, group.stop
    assert times == pytest.approx((again.start, again.start, again.start + 3.0), abs=CLOSE)
    # "cancelled" is Dask's word for the time of a run that gave no result.
    lost = "failed" if run is flaky else "cancelled"
    assert again.activities[lost] == pytest.approx(1.5, abs=CLOSE)


def test_client_retry_after_the_export_is_a_continuation(o: Simulated) -> None:
    with span("failed"):
        future = o.client.submit(flaky, 0.1)
        dependent = o.client.submit(inc, future)
    wait(dependent)
    o.quiet()
    o.client.retry([dependent])
    assert dependent.result() == 1.1
    o.assert_tree("""
        failed failure 0.100 tasks=2 erred=1
          failed#2 success 0.100 tasks=2 memory=2 retried=1
    """)
    assert o.counted(RETRIED) == {(("failed",), "flaky", "client"): 1}


@pytest.mark.parametrize(
    ("counts", "lost"),
    [
        pytest.param("retried=1 lost=2", 2, marks=pytest.mark.options(
            config={"distributed.scheduler.allowed-failures": 1}), id="twice"),
        pytest.param("lost=1", 1, marks=pytest.mark.options(
            config={"distributed.scheduler.allowed-failures": 0}), id="once"),
    ],
)  # fmt: skip
def test_killed_workers(o: Simulated, counts: str, lost: int) -> None:
    """Every run is lost, also the last one, after which Dask gives the task up."""
    with span("deadly"):
        future = o.client.submit(nap, 60.0)
        for _ in range(lost):
            time.sleep(2.0)
            (task,) = o.scheduler.tasks.values()
            o.cluster.kill(task.processing_on.name)
    wait(future)
    # The submission took 10 ms.
    o.assert_tree(f"deadly failure {2.0 * lost - 0.01:.3f} tasks=1 erred=1 {counts}")
    assert o.counted(LOST) == {(("deadly",), "nap"): lost}
    # As Dask says.
    events = [event for _, event in o.scheduler.get_events("all")]
    removed = [event for event in events if event.get("action") == "remove-worker"]
    assert sum(len(event["processing-tasks"]) for event in removed) == lost
    retried = {(("deadly",), "nap", "worker_lost"): lost - 1} if lost > 1 else {}
    assert o.counted(RETRIED) == retried
    deadly = o.named("deadly")
    reasons = [one.reason for one in deadly.retries]
    assert reasons == ["worker_lost"] * (lost - 1)
    assert deadly.failures[0].scheduler_error == "KilledWorker"
    # It has left by now, and is still called by its name.
    assert deadly.failures[0].worker_name in ("w0", "w1")
    # Also of a run that no other follows.
    assert deadly.first_start == pytest.approx(deadly.start, abs=0.01)
    assert (deadly.worker_count, len(deadly.ran_on or ()), deadly.computed) == (lost, lost, None)


@pytest.mark.options(workers=1, threads=1)
def test_what_the_last_runs_of_a_worker_computed_is_known_without_its_heartbeat(
    o: Simulated,
) -> None:
    with span("last"):
        wait(o.client.submit(nap, 1.0))
        wait(o.client.submit(nap, 0.05))
    o.cluster.leave("w0")
    o.quiet()
    last = o.named("last")
    assert last.computed == pytest.approx(1.05, abs=CLOSE)
    # Dask's own sum has no heartbeat after them.
    assert sum(last.activities.values()) < 1.02


@pytest.mark.options(workers=0)
def test_dependencies_larger_than_the_memory_of_a_worker(o: Simulated) -> None:
    o.cluster.add_worker("small", memory_limit=1000)
    with span("large"):
        future = o.client.submit(len, o.client.submit(bytes, 2000))
    wait(future)
    o.quiet()
    large = o.named("large")
    # The scheduler says so, with a class of Python's: these are pickled in another way.
    assert [one.scheduler_error for one in large.failures] == ["MemoryError"]


def test_an_actor_whose_worker_leaves(o: Simulated) -> None:
    with span("acting"):
        actor = o.client.submit(Counter, actor=True)
        assert actor.result().sync().result() is None
        (address,) = o.client.who_has([actor])[actor.key]
        o.cluster.leave(o.scheduler.workers[address].name)
    wait(actor)
    o.quiet()
    acting = o.named("acting")
    assert (acting.result, acting.counts.erred, acting.counts.tasks) == ("failure", 1, 1)
    assert acting.failures[0].scheduler_error == "RuntimeError"


# ------------------------------------------------------------------------------- cancelled


@pytest.mark.options(threads=1)
@pytest.mark.parametrize("seconds", [1.5, 0.1])
def test_cancelled_futures_that_run_on_in_their_threads(o: Simulated, seconds: float) -> None:
    """Heartbeats have listed their runs, or the next one does."""
    with span("cancelled"):
        futures = o.client.map(nap, [4.0] * 6, pure=False)
        time.sleep(seconds)
        o.client.cancel(futures)
    o.assert_tree(f"cancelled cancellation {seconds - 0.01:.3f} tasks=6 cancelled=6")
    # They ran to their ends all the same, and the span was held until their seconds came.
    cancelled = o.named("cancelled")
    assert cancelled.activities["cancelled"] == pytest.approx(8.0, abs=CLOSE)
    # Two of them ran, which their heartbeats say; the others never did.
    assert cancelled.worker_count == 2
    (group,) = cancelled.groups
    assert group.start == cancelled.first_start == pytest.approx(cancelled.start, abs=0.01)
    assert group.stop <= cancelled.stop
    assert o.adapter.lifecycle.unsettled == 0
    assert not [k for k in o.observer.increments if k[0] == semconv.OTEL_LATE.name]


# ------------------------------------------------------------------------ lost and restarted


def test_a_run_whose_input_is_lost_is_repeated_and_not_lost(o: Simulated) -> None:
    """It waits on a worker that is there for what was on one that died."""
    with span("input"):
        source = o.client.submit(nap, 0.1, workers=["w0"], allow_other_workers=True)
        wait(source)
    o.cluster.machines["w1"].stop(2.0)
    with span("output"):
        sink = o.client.submit(inc, source, 0.1, workers=["w1"], allow_other_workers=True)
        time.sleep(0.5)
        o.cluster.kill("w0")
    assert sink.result() == 1.1
    o.quiet()
    assert o.named("output").counts.lost == 0
    assert o.counted(LOST) == {}
    assert {k[-1]: v for k, v in o.counted(RETRIED).items()} == {"worker_lost": 1, "recomputed": 1}


def test_results_lost_after_the_export_are_recomputed_in_a_continuation(o: Simulated) -> None:
    with span("lost"):
        results = o.client.map(inc, range(4), delay=0.1)
        summed = o.client.submit(sum, results)
    assert summed.result() == 10
    del results
    o.quiet()
    (address,) = o.client.who_has([summed])[summed.key]
    o.cluster.leave(o.scheduler.workers[address].name)
    assert summed.result() == 10
    o.quiet()
    # Its inputs had been released: they are computed again, too.
    (again,) = [one for one in o.exported if one.identity.generation == 2]
    assert (again.result, again.counts.recomputed, again.counts.memory) == ("success", 5, 5)
    assert 0.2 <= again.stop - again.start <= 0.25


@pytest.mark.options(config={"distributed.scheduler.no-workers-timeout": "1 s"}, within=2.3)
def test_a_lost_result_fails_again_without_a_worker(o: Simulated) -> None:
    """Dask gives it up before it is sent to one; until it is, it is no work, and threads unused."""
    with span("restricted"):
        result = o.client.submit(nap, 0.1, workers=["w0"])
        wait(result)
        o.cluster.kill("w0")
        time.sleep(0.1)
        wait(result)
    assert result.status == "error"
    o.assert_tree("""
        restricted success 0.100 tasks=1 memory=1
          restricted#2 failure 0.000 tasks=1 erred=1
    """)
    (failure,) = o.exported[-1].failures
    assert failure.scheduler_error == "NoValidWorkerError"


# ------------------------------------------------------------- spans that are used again


def test_the_same_function_again_under_other_spans_while_futures_live(o: Simulated) -> None:
    with span("first"):
        kept = o.client.map(inc, range(3), delay=0.1)
    wait(kept)
    o.quiet()
    with span("second"):
        again = o.client.map(inc, range(3), delay=0.1)  # is no work
        again += o.client.map(inc, range(10, 12), delay=0.1)
    wait(again)
    o.quiet()
    outside = o.client.map(inc, range(20, 21), delay=0.1)
    wait(outside)
    # As Dask books it: the task group belongs to the first span for life.
    o.assert_tree("""
        first success 0.100 tasks=3 memory=3
          first#2 success 0.100 tasks=2 memory=2 requested=second
          first#3 success 0.100 tasks=1 memory=1 requested=default
    """)
    # Of a result, each has the same.
    assert len({one.output_bytes / one.counts.memory for one in o.exported}) == 1
    assert o.counted("dask.span.collided") == {(("second",),): 1, (("default",),): 1}
    # Nobody knows which span it asks for.
    with dask.annotate(span={"name": ("third",), "ids": ()}):
        wait(o.client.map(inc, range(30, 31), delay=0.1))
    o.quiet()
    assert o.counted("dask.otel.sanitized") == {("message",): 1}


# ------------------------------------------------------------------- the state that is kept


def kept(adapter: SchedulerAdapter) -> list[Any]:
    """Every object of Dask's, and every open span, that the adapter keeps alive."""
    lifecycle = adapter.lifecycle
    seen: dict[int, Any] = {}
    stack = [
        lifecycle.open,
        lifecycle.reports,
        lifecycle.finished,
        lifecycle.generations,
        lifecycle.settling,
        lifecycle._lingering,
        lifecycle._long,
        lifecycle.progress,
        adapter.blocks.blocks._holding,
        adapter.blocks.blocks._waiting,
        adapter.spans.groups,
        adapter.task_events.ready,
        adapter.spans.requested,
    ]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType | MethodType):
            continue
        seen[id(item)] = item
        stack += gc.get_referents(item)
    owned = Span | TaskGroup | TaskState | WorkerState | OpenSpan
    return [item for item in seen.values() if isinstance(item, owned)]


def test_nothing_of_dasks_is_kept_after_the_export(o: Simulated) -> None:
    with span("root"), span("child"):
        good = o.client.map(operator.neg, range(10))
        # More of its group is for the same span.
        good += o.client.map(operator.neg, range(10, 20))
        bad = o.client.submit(operator.truediv, 1, 0)
    wait([*good, bad])
    assert {type(item) for item in kept(o.adapter)} >= {TaskGroup, OpenSpan}
    o.quiet()
    assert kept(o.adapter) == []
    assert o.counted("dask.span.collided") == {}

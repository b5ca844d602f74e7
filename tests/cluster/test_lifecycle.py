"""How Dask spans live and die on real clusters, and what is exported of them.

Each test ends with the tree of what was exported: name (``#2``: the second generation),
result, least length in seconds, and the counts that are not zero. How long a span may be at most
is no number of seconds: it must not be longer than its work, as the scheduler saw it.
"""

from __future__ import annotations

import operator
import os
import signal
import time
from pathlib import Path

import dask
import pytest
from distributed import (
    Client,
    Reschedule,
    fire_and_forget,
    span,
    wait,
)

from dask_otel import semconv
from dask_otel._dask.tasks import LONGEST_TRACEBACK
from tests.cluster.observed import observed
from tests.cluster.tasks import Counter
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

RETRIED = semconv.TASK_RETRIED.name
LOST = semconv.TASK_LOST.name


# What tasks do. Nested functions and lambdas would do as well; these are pickled by reference
# in threads, and by value for processes.


def inc(x, delay=0.0):
    time.sleep(delay)
    return x + 1


def boom(x, delay=0.0, deep=600):
    # In turns with `deeper`, or Python would shorten the traceback.
    if deep:
        deeper(x, delay, deep)
    time.sleep(delay)
    raise KeyError(x)


def deeper(x, delay, deep):
    boom(x, delay, deep - 2)


def fail_once(flag, delay=0.0):
    """Fail the first time, then not."""
    path = Path(flag)
    time.sleep(delay)
    if not path.exists():
        path.touch()
        raise OSError("not yet")
    return 1


def wait_for_file(flag):
    while not Path(flag).exists():
        time.sleep(0.01)
    return 1


def fail_with_file(flag):
    wait_for_file(flag)
    raise KeyError(flag)


def die_with_file(flag):
    wait_for_file(flag)
    os._exit(1)


def reschedule_once(flag, after):
    path = Path(flag)
    wait_for_file(after)
    if not path.exists():
        path.touch()
        raise Reschedule
    return 1


@pytest.fixture
def flag(tmp_path):
    """A file that lets tasks go on; they do at the end, whatever happens."""
    path = tmp_path / "go"
    yield path
    path.touch()


# ------------------------------------------------------------------------ how spans nest


def test_single_nested_and_default_spans(o):
    with o.held():
        with span("root"):
            with span("load"):
                loaded = o.client.map(inc, range(4), delay=0.2)
            with span("without work"):
                pass
            with span("empty", "nested"):
                total = o.client.submit(sum, loaded)
        assert total.result() == 10
    del loaded, total
    o.client.submit(operator.neg, 1).result()
    o.assert_tree("""
        root success 0.4.. tasks=5 memory=5
          load success 0.4.. tasks=4 memory=4
          empty success 0.4.. tasks=1 memory=1
            nested success 0.4.. tasks=1 memory=1
        default success 0.0.. tasks=1 memory=1
    """)
    assert o.named("load").worker_count == 2
    # As Dask's `Span.start`: of the tree.
    starts = {name: o.named(name).first_start for name in ("root", "load", "empty", "nested")}
    assert starts["empty"] == starts["nested"] > starts["load"] == starts["root"]
    spans = o.scheduler.extensions["spans"].spans.values()
    dask_says = {s.name[-1]: s.start for s in spans if s.name[0] == "root"}
    close = 0.1 + 2 * o.witness.skew
    assert starts == {name: pytest.approx(dask_says[name], abs=close) for name in starts}


# --------------------------------------------------------------------------------- failures


def test_all_tasks_erred_has_its_real_length(o):
    with span("bad"):
        futures = o.client.map(boom, range(4), delay=0.3)
    wait(futures)
    o.assert_tree("bad failure 0.6.. tasks=4 erred=4")
    failure = o.named("bad").failures[0]
    assert failure.text in {f"KeyError({n})" for n in range(4)}
    assert failure.prefix == "boom"
    names = {ws.address: str(ws.name) for ws in o.scheduler.workers.values()}
    assert failure.worker_name == names[failure.worker]
    # Some 600 frames are more than can be shown, and the last one is what a reader needs.
    assert len(failure.traceback) == LONGEST_TRACEBACK
    assert failure.traceback.rstrip().endswith("raise KeyError(x)")
    assert o.named("bad").activities["failed"] >= 1.2
    (group,) = o.named("bad").groups
    assert group.stop - group.start >= 0.6 - o.witness.skew


def test_an_error_that_a_retry_heals_is_none(o, tmp_path):
    with span("healed"):
        future = o.client.submit(fail_once, str(tmp_path / "flag"), 0.2, retries=2)
    assert future.result() == 1
    o.assert_tree("healed success 0.4.. tasks=1 memory=1 retried=1")
    (incident,) = o.named("healed").incidents
    assert incident.attributes["dask.task.retry.reason"] == "error"
    assert incident.failure.text == "OSError('not yet')"
    assert o.counted(RETRIED) == {(("healed",), "fail_once", "error"): 1}
    # The first start is the first run's: what failed was no waiting.
    healed = o.named("healed")
    assert incident.time - healed.first_start >= 0.2 - o.witness.skew
    (group,) = healed.groups
    assert group.start == healed.first_start
    assert group.stop - group.start >= 0.4 - o.witness.skew


def test_client_retry_after_the_export_is_a_continuation(o, tmp_path):
    with o.held():
        with span("failed"):
            future = o.client.submit(fail_once, str(tmp_path / "flag"))
            dependent = o.client.submit(inc, future)
        wait(dependent)
    o.quiet()
    o.client.retry([dependent])
    assert dependent.result() == 2
    o.assert_tree("""
        failed failure 0.0.. tasks=2 erred=1
          failed#2 success 0.0.. tasks=2 memory=2 retried=1
    """)
    assert o.counted(RETRIED) == {(("failed",), "fail_once", "client"): 1}


def test_dependents_of_a_failure_are_no_failures(o, flag):
    """Neither those that waited for it, nor those that are submitted onto it later."""
    with span("root"):
        with span("source"):
            source = o.client.submit(fail_with_file, str(flag))
        with span("sink"):
            sinks = o.client.map(operator.add, [source] * 3, range(3))
        eventually(lambda: len(o.scheduler.tasks) == 4)
        time.sleep(0.2)
        flag.touch()
        wait(sinks)
    with span("later"):
        later = o.client.map(operator.mul, [source] * 3, range(3))
    wait(later)
    o.assert_tree("""
        root failure 0.2.. tasks=4 erred=1
          source failure 0.2.. tasks=1 erred=1
          sink success 0.2.. tasks=3
        later success 0.0.. tasks=3
    """)


def lost_runs(o):
    """What Dask tells of the runs that were lost with their workers."""
    events = [event for _, event in o.scheduler.get_events("all")]
    removed = [event for event in events if event.get("action") == "remove-worker"]
    return sum(len(event["processing-tasks"]) for event in removed)


@pytest.mark.parametrize(("allowed", "counts"), [(1, "retried=1 lost=2"), (0, "lost=1")])
def test_killed_workers(flag, allowed, counts):
    """Every run is lost, also the last one, after which Dask gives the task up."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": allowed}),
        observed(processes=True, n_workers=1 + allowed) as o,
    ):
        with span("deadly"):
            future = o.client.submit(die_with_file, str(flag))
            eventually(
                lambda: o.adapter.tasks.under_way.seen, what="a heartbeat that lists the run"
            )
            died = time.time()
            flag.touch()
        wait(future)
        o.assert_tree(f"deadly failure 0.0.. tasks=1 erred=1 {counts}")
        assert lost_runs(o) == 1 + allowed
        assert o.counted(LOST) == {(("deadly",), "die_with_file"): 1 + allowed}
        retried = {(("deadly",), "die_with_file", "worker_lost"): 1} if allowed else {}
        assert o.counted(RETRIED) == retried
        deadly = o.named("deadly")
        reasons = [i.attributes["dask.task.retry.reason"] for i in deadly.incidents]
        assert reasons == ["worker_lost"] * allowed
        assert deadly.failures[0].scheduler_error == "KilledWorker"
        # It has left by now, and is still called by its name.
        assert deadly.failures[0].worker_name in ("0", "1")
        # Also of a run that no other follows.
        assert 0.0 < deadly.first_start < died
        # The second worker dies at once, mostly before a heartbeat.
        assert 1 <= deadly.worker_count <= 1 + allowed


@pytest.mark.options(config={"distributed.scheduler.no-workers-timeout": "1s"})
def test_no_valid_worker(o):
    with span("hopeless"):
        future = o.client.submit(inc, 1, resources={"GPU": 1})
    wait(future)
    o.assert_tree("hopeless failure 1.0.. tasks=1 erred=1")
    assert o.named("hopeless").failures[0].scheduler_error == "NoValidWorkerError"


@pytest.mark.options
def test_an_actor_whose_worker_leaves(o):
    with span("acting"):
        actor = o.client.submit(Counter, actor=True)
        assert actor.result().sync().result() is None
        o.close_worker_of(actor)
    eventually(lambda: actor.status == "error")
    o.assert_tree("acting failure 0.0.. tasks=1 erred=1")
    assert o.named("acting").failures[0].scheduler_error == "RuntimeError"


# ------------------------------------------------------------------------------- cancelled


def test_cancelled_futures_that_run_on_in_their_threads(o, flag):
    with span("cancelled"):
        futures = o.client.map(wait_for_file, [str(flag)] * 6, pure=False)
        eventually(lambda: sum(len(ws.processing) for ws in o.scheduler.workers.values()) >= 2)
        eventually(lambda: o.running() == 2)
        began, seen = time.monotonic(), time.time()
        o.client.cancel(futures)
    eventually(lambda: not o.scheduler.tasks)
    eventually(
        lambda: not o.adapter.tasks.under_way._cancelled, what="heartbeats that list the runs"
    )
    ran_on = time.monotonic() - began
    flag.touch()
    o.assert_tree("cancelled cancellation 0.0.. tasks=6 cancelled=6")
    # They ran to their ends all the same, and the span was held until their seconds came.
    cancelled = o.named("cancelled")
    assert cancelled.activities["cancelled"] >= 2 * ran_on
    # Two of them ran, which their heartbeats say; the others never did.
    assert cancelled.worker_count == 2
    assert cancelled.start <= cancelled.first_start <= seen + o.witness.skew
    (group,) = cancelled.groups
    assert group.start == cancelled.first_start
    assert group.stop <= cancelled.stop
    assert o.adapter.lifecycle.unsettled == 0
    assert not [k for k in o.observer.increments if k[0] == semconv.OTEL_LATE.name]


@pytest.mark.options
def test_fire_and_forget_and_published_data_outlive_their_client(o):
    with Client(o.cluster, set_as_default=False) as other:
        with span("forgotten"):
            fire_and_forget(other.submit(inc, 1, delay=0.6))
        with span("published"):
            other.publish_dataset(data=other.submit(time.sleep, 0.6))
    o.assert_tree("""
        forgotten success 0.6.. tasks=1 memory=1
        published success 0.6.. tasks=1 memory=1
    """)


# ------------------------------------------------------------------------ lost and restarted


@pytest.mark.options(processes=True)
def test_client_restart(o, tmp_path):
    with span("restarted"), o.held():
        done = o.client.submit(lambda x: x, 1)
        wait(done)
        futures = o.client.map(time.sleep, [60.0, 60.1, 60.2, 60.3])
        eventually(lambda: o.adapter.tasks.assigned)
        o.client.restart()
    del futures
    o.assert_tree("restarted cancellation 0.0.. tasks=5 memory=1 cancelled=4")
    with span("afterwards"):
        o.client.submit(lambda x: x, 2).result()
    o.quiet()
    assert o.named("afterwards").result == "success"


@pytest.mark.options(processes=True, n_workers=2)
def test_a_run_whose_input_is_lost_is_repeated_and_not_lost(o):
    """It waits on a worker that is there for what was on one that died."""
    scheduler = o.scheduler
    pids = o.client.run(os.getpid)
    victim, stopped = pids
    with span("input"):
        first = o.client.submit(inc, 1, workers=[victim], allow_other_workers=True)
        wait(first)
    os.kill(pids[stopped], signal.SIGSTOP)
    try:
        with span("output"):
            second = o.client.submit(
                operator.neg, first, workers=[stopped], allow_other_workers=True
            )
            eventually(lambda: second.key in o.adapter.tasks.assigned)
            os.kill(pids[victim], signal.SIGKILL)
            eventually(lambda: victim not in scheduler.workers)
    finally:
        os.kill(pids[stopped], signal.SIGCONT)
    assert second.result() == -2
    o.quiet()
    assert o.named("output").counts.lost == lost_runs(o) == 0
    assert o.counted(LOST) == {}
    assert {k[-1]: v for k, v in o.counted(RETRIED).items()} == {"worker_lost": 1, "recomputed": 1}


@pytest.mark.options
def test_results_lost_after_the_export_are_recomputed_in_a_continuation(o):
    with span("lost"):
        results = o.client.map(inc, range(4))
        summed = o.client.submit(sum, results)
    assert summed.result() == 10
    del results
    o.quiet()
    o.close_worker_of(summed)
    assert summed.result() == 10
    o.quiet()
    # Its inputs had been released: they are computed again, too.
    o.assert_tree("""
        lost success 0.0.. tasks=5 memory=5
          lost#2 success 0.0.. tasks=5 memory=5 recomputed=5
    """)


def test_a_task_that_asks_to_be_rescheduled_starts_with_its_first_run(o, tmp_path, flag):
    with span("moved"):
        future = o.client.submit(reschedule_once, str(tmp_path / "flag"), flag)
        eventually(lambda: o.running() == 1)
        began = time.monotonic()
        eventually(lambda: o.adapter.tasks.under_way.seen, what="a heartbeat lists the run")
        time.sleep(0.5)  # what the first run goes on for
        ran = time.monotonic() - began
        flag.touch()
    assert future.result() == 1
    o.assert_tree("moved success 0.5.. tasks=1 memory=1 rescheduled=1")
    assert o.counted(RETRIED) == {(("moved",), "reschedule_once", "rescheduled"): 1}
    moved = o.named("moved")
    assert moved.incidents == ()
    # Seen by a heartbeat: Dask sends no times of such a run.
    assert moved.stop - moved.first_start >= ran - o.witness.skew
    (group,) = moved.groups
    assert group.stop - group.start >= ran - o.witness.skew
    # Dask's word for the time of a run that gave no result.
    assert moved.activities["cancelled"] >= ran


@pytest.mark.options(n_workers=1, config={"distributed.scheduler.worker-saturation": "inf"})
def test_work_stealing_and_a_cancellation_of_stolen_tasks(o, flag):
    scheduler = o.scheduler
    with span("stolen"), o.held():
        done = o.client.map(inc, range(2))
        wait(done)
        # None of it ends before it is cancelled, however late the second worker comes.
        futures = o.client.map(wait_for_file, [str(flag)] * 150, pure=False)
        (first,) = scheduler.workers
        eventually(lambda: len(scheduler.workers[first].processing) == 150)
        o.cluster.scale(2)
        eventually(lambda: len(scheduler.workers) == 2)
        second = next(ws for a, ws in scheduler.workers.items() if a != first)
        eventually(lambda: len(second.processing) > 2, what="stealing")

        async def truth():
            return {
                ts.key: ts.processing_on.address
                for ts in scheduler.tasks.values()
                if ts.state == "processing"
            }, {key: ws.address for key, (ws, _, _) in o.adapter.tasks.assigned.items()}

        dask_says, we_say = o.client.sync(truth)
        assert we_say == dask_says
        o.client.cancel(futures)
        eventually(lambda: len(scheduler.tasks) <= 2)
    flag.touch()
    o.assert_tree("stolen cancellation 0.0.. tasks=152 memory=2 cancelled=150")


# ------------------------------------------------------------- spans that are used again


def test_the_same_function_again_under_other_spans_while_futures_live(o):
    with span("first"):
        kept = o.client.map(inc, range(3))
    wait(kept)
    o.quiet()
    with span("second"):
        again = o.client.map(inc, range(3))  # is no work
        again += o.client.map(inc, range(10, 12))
    wait(again)
    o.quiet()
    outside = o.client.map(inc, range(20, 21))
    wait(outside)
    o.quiet()
    # As Dask books it: the task group belongs to the first span for life.
    o.assert_tree("""
        first success 0.0.. tasks=3 memory=3
          first#2 success 0.0.. tasks=2 memory=2 requested=second
          first#3 success 0.0.. tasks=1 memory=1 requested=default
    """)
    assert o.counted("dask.span.collided") == {(("second",),): 1, (("default",),): 1}


# ------------------------------------------------------------------- other kinds of work


@pytest.mark.options
def test_scattered_data_is_no_work(o):
    data = o.client.scatter([1, 2, 3])
    with span("uses"):
        assert o.client.submit(sum, data).result() == 6
    del data
    o.quiet()
    wanted = "uses success 0.0.. tasks=1 memory=1"
    # Newer releases put the group of the scattered data into a default span, which never
    # works; older ones into the consumer's.
    if o.scheduler.extensions["spans"].spans_search_by_name["default",]:
        wanted += "\ndefault success 0.0.."
    o.assert_tree(wanted)


class Unreadable:
    """Can be pickled, but not loaded."""

    def __reduce__(self):
        return int, ("this is no number",)


@pytest.mark.options(protocol="tcp")
def test_a_graph_that_fails_to_materialise_is_counted(o):
    with span("never"):
        future = o.client.submit(str, Unreadable())
    with pytest.raises(Exception, match="deserializ"):
        future.result()
    o.assert_tree("")
    # Dask tells its client first.
    eventually(lambda: o.counted("dask.otel.dropped") == {("traces", "graph_failed"): 1})

"""How Dask spans live and die on real clusters, and what is exported of them.

Each test ends with the tree of what was exported: name (``#2``: the second generation),
result, least length in seconds, and the counts that are not zero. How long a span may be at most
is no number of seconds: it must not be longer than its work, as the scheduler saw it.
"""

from __future__ import annotations

import collections
import operator
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import dask
import pytest
from distributed import Client, Queue, Reschedule, Variable, fire_and_forget, span, wait
from distributed import secede as leave_pool

from dask_otel import semconv
from dask_otel._dask.tasks import LONGEST_TRACEBACK
from dask_otel.core.traces.translate import translate
from tests.cluster.observed import observed
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

RETRIED = semconv.TASK_RETRIED.name
LOST = semconv.TASK_LOST.name


# What tasks do. Nested functions and lambdas would do as well; these are pickled by reference
# in threads, and by value for processes.


def inc(x, delay=0.0):
    time.sleep(delay)
    return x + 1


def boom(x, delay=0.0):
    time.sleep(delay)
    raise KeyError(x)


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


def die_once(flag):
    path = Path(flag)
    if not path.exists():
        path.touch()
        os._exit(1)
    return 1


def die_with_file(flag):
    wait_for_file(flag)
    os._exit(1)


def reschedule_once(flag, after=None):
    path = Path(flag)
    if after is not None:
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


class Counter:
    """An actor."""

    def __init__(self):
        self.n = 0

    def add(self):
        self.n += 1
        return self.n


# ------------------------------------------------------------------------ how spans nest


def test_single_nested_and_default_spans():
    with observed() as o:
        with o.held():
            with span("root"):
                with span("load"):
                    loaded = o.client.map(inc, range(4), delay=0.2)
                with span("empty", "nested"):
                    total = o.client.submit(sum, loaded)
            assert total.result() == 10
        del loaded, total
        o.client.submit(operator.neg, 1).result()
        o.quiet()
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
        dask_says = {s.name[-1]: s.start for s in o.adapter.spans.extension.spans.values()}
        close = 0.1 + 2 * o.witness.skew
        assert starts == {name: pytest.approx(dask_says[name], abs=close) for name in starts}


def test_a_block_without_tasks_is_no_span():
    with observed() as o:
        with span("nothing"):
            pass
        with span("something"):
            o.client.submit(inc, 1).result()
        o.quiet()
        o.assert_tree("something success 0.0.. tasks=1 memory=1")


# --------------------------------------------------------------------------------- failures


def test_all_tasks_erred_has_its_real_length():
    with observed() as o:
        with span("bad"):
            futures = o.client.map(boom, range(4), delay=0.3)
        wait(futures)
        o.quiet()
        o.assert_tree("bad failure 0.6.. tasks=4 erred=4")
        failure = o.named("bad").failures[0]
        assert failure.text in {f"KeyError({n})" for n in range(4)}
        assert failure.prefix == "boom"
        names = {ws.address: str(ws.name) for ws in workers(o)}
        assert failure.worker_name == names[failure.worker]
        assert "raise KeyError" in failure.traceback
        assert o.named("bad").activities["failed"] >= 1.2
        (group,) = o.named("bad").groups
        assert group.stop - group.start >= 0.6 - o.witness.skew


def ping(depth):
    if not depth:
        raise KeyError("deep")
    pong(depth - 1)


def pong(depth):
    # In turns, or Python would shorten the traceback.
    ping(depth)


def test_of_a_traceback_as_much_is_kept_as_can_be_shown():
    with observed() as o:
        with span("deep"):
            future = o.client.submit(ping, 300)
        wait(future)
        o.quiet()
        (failure,) = o.named("deep").failures
        # Some 600 frames are more, and the last one is what a reader needs.
        assert len(failure.traceback) == LONGEST_TRACEBACK
        assert failure.traceback.rstrip().endswith('raise KeyError("deep")')


def test_an_error_that_a_retry_heals_is_none(tmp_path):
    with observed() as o:
        with span("healed"):
            future = o.client.submit(fail_once, str(tmp_path / "flag"), 0.2, retries=2)
        assert future.result() == 1
        o.quiet()
        o.assert_tree("healed success 0.4.. tasks=1 memory=1 retried=1")
        (incident,) = o.named("healed").incidents
        assert incident.attributes["dask.task.retry.reason"] == "error"
        # The first start is the first run's: what failed was no waiting.
        healed = o.named("healed")
        assert incident.time - healed.first_start >= 0.2 - o.witness.skew
        (group,) = healed.groups
        assert group.start == healed.first_start
        assert group.stop - group.start >= 0.4 - o.witness.skew


def slow_down(folder, number):
    """Fail with what an overloaded service says, then with what it says when it is gone."""
    tries = len(list(folder.glob(f"{number}-*")))
    (folder / f"{number}-{tries}").touch()
    if tries < 3:
        raise OSError(f"503 Slow Down ({number})")
    if tries < 4:
        raise ConnectionError("reset")
    return tries


def test_why_runs_were_repeated_is_on_the_events(tmp_path):
    with observed() as o:
        with span("fetch"):
            futures = o.client.map(slow_down, [tmp_path] * 2, range(2), retries=4)
        assert o.client.gather(futures) == [4, 4]
        del futures
        o.quiet()
        (record, *_) = translate(o.named("fetch"))
        said = collections.Counter(
            (e.attributes["exception.type"], e.attributes["exception.message"])
            for e in record.events
            if e.name == "dask.task.retried"
        )
        assert said == {
            ("OSError", "503 Slow Down (0)"): 3,
            ("OSError", "503 Slow Down (1)"): 3,
            ("ConnectionError", "reset"): 2,
        }
        assert o.count("dask.task.retried", ("fetch",), "slow_down", "error") == 8


def test_client_retry_before_the_export_heals(tmp_path):
    with observed() as o:
        with o.held():
            with span("healed"):
                future = o.client.submit(fail_once, str(tmp_path / "flag"))
                dependent = o.client.submit(inc, future)
            wait(dependent)
            o.client.retry([dependent])
            assert dependent.result() == 2
        o.quiet()
        o.assert_tree("healed success 0.0.. tasks=2 memory=2 retried=1")
        assert o.count("dask.task.retried", ("healed",), "fail_once", "client") == 1


def test_client_retry_after_the_export_is_a_continuation(tmp_path):
    with observed() as o:
        with o.held():
            with span("failed"):
                future = o.client.submit(fail_once, str(tmp_path / "flag"))
                dependent = o.client.submit(inc, future)
            wait(dependent)
        o.quiet()
        o.client.retry([dependent])
        assert dependent.result() == 2
        o.quiet()
        o.assert_tree("""
            failed failure 0.0.. tasks=2 erred=1
              failed#2 success 0.0.. tasks=2 memory=2 retried=1
        """)
        assert o.count("dask.task.retried", ("failed",), "fail_once", "client") == 1


def test_what_is_submitted_onto_a_failure_is_counted():
    with observed() as o:
        with span("source"):
            source = o.client.submit(boom, 1)
        wait(source)
        with span("sink"):
            sinks = o.client.map(operator.add, [source] * 3, range(3))
        wait(sinks)
        o.quiet()
        o.assert_tree("""
            source failure 0.0.. tasks=1 erred=1
            sink success 0.0.. tasks=3
        """)


def test_dependents_of_a_failure_are_no_failures(flag):
    with observed() as o:
        with span("root"):
            with span("source"):
                source = o.client.submit(fail_with_file, str(flag))
            with span("sink"):
                sinks = o.client.map(operator.add, [source] * 3, range(3))
        eventually(lambda: len(o.cluster.scheduler.tasks) == 4)
        time.sleep(0.2)
        flag.touch()
        wait(sinks)
        o.quiet()
        o.assert_tree("""
            root failure 0.2.. tasks=4 erred=1
              source failure 0.2.. tasks=1 erred=1
              sink success 0.2.. tasks=3
        """)


def lost_runs(o):
    """What Dask tells of the runs that were lost with their workers."""
    events = [event for _, event in o.cluster.scheduler.get_events("all")]
    removed = [event for event in events if event.get("action") == "remove-worker"]
    return sum(len(event["processing-tasks"]) for event in removed)


def counted(o, metric):
    """By the labels beside the span's: what was counted in all."""
    return {k[3:]: v for k, v in o.observer.increments.items() if k[0] == metric and v}


@contextmanager
def killed(flag, allowed_failures, n_workers):
    """Let a task kill every worker that runs it, the first one while a heartbeat lists the run.

    Gives what was observed, the task's future, and when the first worker died, at the earliest.
    """
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": allowed_failures}),
        observed(processes=True, n_workers=n_workers) as o,
    ):
        with span("deadly"):
            future = o.client.submit(die_with_file, str(flag))
            eventually(
                lambda: o.adapter.tasks.under_way.seen, what="a heartbeat that lists the run"
            )
            died = time.time()
            flag.touch()
        wait(future)
        yield o, future, died


def test_killed_workers(flag):
    """Every run is lost, also the last one, after which Dask gives the task up."""
    with killed(flag, allowed_failures=1, n_workers=2) as (o, future, died):
        assert future.status == "error"
        o.quiet()
        o.assert_tree("deadly failure 0.0.. tasks=1 erred=1 retried=1 lost=2")
        assert lost_runs(o) == 2
        assert counted(o, LOST) == {(): 2}
        assert counted(o, RETRIED) == {("worker_lost",): 1}
        deadly = o.named("deadly")
        assert [i.attributes["dask.task.retry.reason"] for i in deadly.incidents] == ["worker_lost"]
        assert deadly.failures[0].scheduler_error == "KilledWorker"
        # It has left by now, and is still called by its name.
        assert deadly.failures[0].worker_name in ("0", "1")
        assert 0.0 < deadly.first_start < died


def test_a_killed_run_that_no_other_follows(flag):
    """The last one before Dask gives a task up has a start, too, if a heartbeat listed it."""
    with killed(flag, allowed_failures=0, n_workers=1) as (o, _, died):
        o.quiet()
        o.assert_tree("deadly failure 0.0.. tasks=1 erred=1 lost=1")
        assert 0.0 < o.named("deadly").first_start < died
        assert o.named("deadly").worker_count == 1


def test_no_valid_worker():
    with (
        dask.config.set({"distributed.scheduler.no-workers-timeout": "1s"}),
        observed() as o,
    ):
        with span("hopeless"):
            future = o.client.submit(inc, 1, resources={"GPU": 1})
        wait(future)
        o.quiet()
        o.assert_tree("hopeless failure 1.0.. tasks=1 erred=1")
        assert o.named("hopeless").failures[0].scheduler_error == "NoValidWorkerError"


def test_an_actor_whose_worker_leaves():
    with observed() as o:
        with span("acting"):
            actor = o.client.submit(Counter, actor=True)
            proxy = actor.result()
            assert proxy.add().result() == 1
            address = next(iter(o.client.who_has([actor]).values()))[0]
            worker = next(w for w in o.cluster.workers.values() if w.address == address)
            o.client.sync(worker.close)
        eventually(lambda: actor.status == "error")
        o.quiet()
        o.assert_tree("acting failure 0.0.. tasks=1 erred=1")
        assert o.named("acting").failures[0].scheduler_error == "RuntimeError"


def test_an_actor_whose_worker_leaves_after_the_export():
    with observed() as o:
        with span("acting"):
            actor = o.client.submit(Counter, actor=True)
            actor.result()
        o.quiet()
        address = next(iter(o.client.who_has([actor]).values()))[0]
        worker = next(w for w in o.cluster.workers.values() if w.address == address)
        o.client.sync(worker.close)
        eventually(lambda: actor.status == "error")
        o.quiet()
        o.assert_tree("""
            acting success 0.0.. tasks=1 memory=1
              acting#2 failure 0.0.. tasks=1 erred=1
        """)


# ------------------------------------------------------------------------------- cancelled


def test_cancelled_futures_that_run_on_in_their_threads(flag):
    with observed() as o:
        with span("cancelled"):
            futures = o.client.map(wait_for_file, [str(flag)] * 6, pure=False)
            eventually(lambda: sum(len(ws.processing) for ws in workers(o)) >= 2)
            eventually(lambda: running(o) == 2)
            began, seen = time.monotonic(), time.time()
            o.client.cancel(futures)
        eventually(lambda: not o.cluster.scheduler.tasks)
        eventually(
            lambda: not o.adapter.tasks.under_way._cancelled, what="heartbeats that list the runs"
        )
        ran_on = time.monotonic() - began
        flag.touch()
        o.quiet()
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


def workers(o):
    return list(o.cluster.scheduler.workers.values())


def running(o):
    return sum(len(w.state.executing) for w in o.cluster.workers.values())


def test_a_client_that_closes(flag):
    with observed() as o:
        with Client(o.cluster, set_as_default=False) as other, span("left"):
            futures = other.map(wait_for_file, [str(flag)] * 4, pure=False)
            eventually(lambda: running(o) == 2)
            del futures
        eventually(lambda: not o.cluster.scheduler.tasks)
        flag.touch()
        o.quiet()
        o.assert_tree("left cancellation 0.0.. tasks=4 cancelled=4")


VANISHING = """
import os, sys
from distributed import Client, span
from tests.cluster.test_lifecycle import wait_for_file
client = Client(sys.argv[1])
with span("vanished"):
    futures = client.map(wait_for_file, [sys.argv[2]] * 4, pure=False)
while not any(client.processing().values()):
    pass
os._exit(1)
"""


def test_a_client_that_vanishes(flag):
    with observed(protocol="tcp") as o:
        address = o.cluster.scheduler_address
        subprocess.run([sys.executable, "-c", VANISHING, address, str(flag)], timeout=120)
        eventually(lambda: o.adapter.lifecycle.open or o.exported)
        eventually(lambda: not o.cluster.scheduler.tasks)
        flag.touch()
        o.quiet()
        o.assert_tree("vanished cancellation 0.0.. tasks=4 cancelled=4")


def test_fire_and_forget_and_published_data_outlive_their_client():
    with observed() as o:
        with Client(o.cluster, set_as_default=False) as other:
            with span("forgotten"):
                fire_and_forget(other.submit(inc, 1, delay=0.6))
            with span("published"):
                other.publish_dataset(data=other.submit(time.sleep, 0.6))
        o.quiet()
        o.assert_tree("""
            forgotten success 0.6.. tasks=1 memory=1
            published success 0.6.. tasks=1 memory=1
        """)


# ------------------------------------------------------------------------ lost and restarted


def test_client_restart(tmp_path):
    with observed(processes=True) as o:
        with span("restarted"), o.held():
            done = o.client.submit(lambda x: x, 1)
            wait(done)
            futures = o.client.map(time.sleep, [60.0, 60.1, 60.2, 60.3])
            eventually(lambda: o.adapter.tasks.assigned)
            o.client.restart()
        del futures
        o.quiet()
        o.assert_tree("restarted cancellation 0.0.. tasks=5 memory=1 cancelled=4")
        with span("afterwards"):
            o.client.submit(lambda x: x, 2).result()
        o.quiet()
        assert o.named("afterwards").result == "success"


def test_restart_workers(tmp_path):
    flag = str(tmp_path / "flag")
    with observed(processes=True, n_workers=1) as o:
        with span("interrupted"):
            future = o.client.submit(wait_for_file, flag)
            eventually(lambda: o.adapter.tasks.assigned)
            o.client.restart_workers(list(o.cluster.scheduler.workers))
            Path(flag).touch()
        assert future.result() == 1
        o.quiet()
        o.assert_tree("interrupted success 0.1.. tasks=1 memory=1 retried=1 lost=1")
        assert counted(o, LOST) == {(): lost_runs(o)}


def test_a_run_whose_input_is_lost_is_repeated_and_not_lost():
    """It waits on a worker that is there for what was on one that died."""
    with observed(processes=True, n_workers=2) as o:
        scheduler = o.cluster.scheduler
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
        assert counted(o, LOST) == {}
        assert counted(o, RETRIED) == {("worker_lost",): 1, ("recomputed",): 1}


def test_a_worker_killed_with_running_and_finished_tasks(tmp_path):
    flag = str(tmp_path / "flag")
    with observed(processes=True, n_workers=2) as o:
        scheduler = o.cluster.scheduler
        with span("first"):
            results = o.client.map(lambda x: x + 1, range(8))
            wait(results)
        with span("second"):
            pids = o.client.run(os.getpid)
            victim = next(a for a in pids if scheduler.workers[a].has_what)
            future = o.client.submit(
                wait_for_file, flag, workers=[victim], allow_other_workers=True
            )
            eventually(lambda: o.adapter.tasks.assigned)
            eventually(
                lambda: o.adapter.tasks.under_way.seen, what="a heartbeat that lists the run"
            )
            lost = len(scheduler.workers[victim].has_what)
            killed = time.time()
            os.kill(pids[victim], signal.SIGKILL)
            eventually(lambda: victim not in scheduler.workers)
            Path(flag).touch()
        assert future.result() == 1
        assert o.client.gather(results) == list(range(1, 9))
        o.quiet()
        assert lost > 0
        trees = [s for s in o.exported if s.identity.tags == ("first",)]
        assert sum(s.counts.recomputed for s in trees) == lost
        second = o.named("second")
        assert (second.counts.tasks, second.counts.retried, second.counts.lost) == (1, 1, 1)
        assert second.result == "success"
        # The lost run was seen, too: it is its start, and its worker is one of two.
        assert second.first_start < killed
        assert second.worker_count == 2
        reasons = {i.attributes["dask.task.retry.reason"] for s in trees for i in s.incidents}
        assert reasons == {"recomputed"}


def test_results_lost_after_the_export_are_recomputed_in_a_continuation():
    with observed() as o:
        with span("lost"):
            results = o.client.map(inc, range(4))
            summed = o.client.submit(sum, results)
        assert summed.result() == 10
        del results
        o.quiet()
        address = o.client.who_has([summed])[summed.key][0]
        worker = next(w for w in o.cluster.workers.values() if w.address == address)
        o.client.sync(worker.close, nanny=False)
        assert summed.result() == 10
        o.quiet()
        # Its inputs had been released: they are computed again, too.
        o.assert_tree("""
            lost success 0.0.. tasks=5 memory=5
              lost#2 success 0.0.. tasks=5 memory=5 recomputed=5
        """)


def test_scale_to_zero_and_back_while_work_is_queued():
    with observed() as o:
        o.cluster.scale(0)
        eventually(lambda: not o.cluster.scheduler.workers)
        with span("patient"):
            futures = o.client.map(inc, range(4))
        eventually(lambda: len(o.cluster.scheduler.tasks) == 4)
        time.sleep(0.7)
        assert len(o.adapter.lifecycle.open) == 1, "open while it waits"
        o.cluster.scale(1)
        assert o.client.gather(futures) == [1, 2, 3, 4]
        o.quiet()
        o.assert_tree("patient success 0.7.. tasks=4 memory=4")
        queued = o.named("patient").first_start - o.named("patient").start
        assert queued >= 0.7 - o.witness.skew


def test_a_task_that_asks_to_be_rescheduled(tmp_path):
    with observed() as o:
        with span("moved"):
            assert o.client.submit(reschedule_once, str(tmp_path / "flag")).result() == 1
        o.quiet()
        o.assert_tree("moved success 0.0.. tasks=1 memory=1 rescheduled=1")
        assert o.named("moved").incidents == ()
        reasons = {k[3]: v for k, v in o.observer.increments.items() if k[0] == RETRIED}
        assert reasons == {"rescheduled": 1}


def test_a_task_that_is_rescheduled_after_a_while_starts_with_its_first_run(tmp_path, flag):
    with observed() as o:
        with span("moved"):
            future = o.client.submit(reschedule_once, str(tmp_path / "flag"), flag)
            eventually(lambda: running(o) == 1)
            began = time.monotonic()
            eventually(lambda: o.adapter.tasks.under_way.seen, what="a heartbeat lists the run")
            time.sleep(0.5)  # what the first run goes on for
            ran = time.monotonic() - began
            flag.touch()
        assert future.result() == 1
        o.quiet()
        o.assert_tree("moved success 0.5.. tasks=1 memory=1 rescheduled=1")
        moved = o.named("moved")
        # Seen by a heartbeat: Dask sends no times of such a run.
        assert moved.stop - moved.first_start >= ran - o.witness.skew
        (group,) = moved.groups
        assert group.stop - group.start >= ran - o.witness.skew
        # Dask's word for the time of a run that gave no result.
        assert moved.activities["cancelled"] >= ran


def test_work_stealing_and_a_cancellation_of_stolen_tasks(flag):
    with (
        dask.config.set({"distributed.scheduler.worker-saturation": "inf"}),
        observed(n_workers=1) as o,
    ):
        scheduler = o.cluster.scheduler
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
                }, {key: ws.address for key, ws in o.adapter.tasks.assigned.items()}

            dask_says, we_say = o.client.sync(truth)
            assert we_say == dask_says
            o.client.cancel(futures)
            eventually(lambda: len(scheduler.tasks) <= 2)
        flag.touch()
        o.quiet()
        o.assert_tree("stolen cancellation 0.0.. tasks=152 memory=2 cancelled=150")


# ------------------------------------------------------------- spans that are used again


def test_the_same_function_again_under_other_spans_while_futures_live():
    with observed() as o:
        with span("first"):
            kept = o.client.map(inc, range(3))
        wait(kept)
        o.quiet()
        with span("second"):
            more = o.client.map(inc, range(10, 12))
        wait(more)
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


def test_a_resubmission_of_finished_keys_is_no_work():
    with observed() as o:
        with span("once"):
            kept = o.client.map(inc, range(3))
        wait(kept)
        o.quiet()
        with span("again"):
            same = o.client.map(inc, range(3))
        assert o.client.gather(same) == [1, 2, 3]
        o.quiet()
        o.assert_tree("once success 0.0.. tasks=3 memory=3")


def test_a_span_that_goes_on_within_its_linger():
    with observed() as o:
        with span("notebook"), o.held():
            assert o.client.submit(inc, 1).result() == 2
            assert o.client.submit(operator.neg, 1).result() == -1
            o.client.submit(inc, 5).result()
        o.quiet()
        o.assert_tree("notebook success 0.0.. tasks=3 memory=3")


def test_a_span_that_goes_on_after_its_export():
    with observed() as o:
        with span("notebook"):
            with span("cell"):
                o.client.submit(inc, 1).result()
            o.quiet()
            with span("cell"):
                o.client.submit(operator.neg, 1).result()
            o.quiet()
            o.client.submit(operator.pos, 1).result()
            o.quiet()
        o.assert_tree("""
            notebook success 0.0.. tasks=1 memory=1
              cell success 0.0.. tasks=1 memory=1
              cell success 0.0.. tasks=1 memory=1 late
              notebook#2 success 0.0.. tasks=1 memory=1
        """)


# ------------------------------------------------------------------- other kinds of work


# Dask's own words on spans and dataframes.
@pytest.mark.filterwarnings("ignore:Dask annotations:UserWarning")
def test_p2p_shuffle():
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame({"x": range(200), "y": 1.0})
    with observed() as o:
        with span("shuffle"):
            df = dd.from_pandas(frame, npartitions=4)
            assert df.shuffle("x", npartitions=3, force=True).compute().y.sum() == 200.0
        o.quiet()
        shuffled = o.named("shuffle")
        assert shuffled.result == "success"
        assert shuffled.counts.tasks == shuffled.counts.memory >= 4 + 3
        # Output tasks move to the worker that has their part: as they wish, no trouble.
        assert shuffled.counts.retried == shuffled.counts.lost == 0
        assert shuffled.counts.rescheduled >= 1
        assert shuffled.incidents == ()
        reasons = {k[3]: v for k, v in o.observer.increments.items() if k[0] == RETRIED}
        assert reasons == {"rescheduled": shuffled.counts.rescheduled}


def test_scattered_data_is_no_work():
    with observed() as o:
        data = o.client.scatter([1, 2, 3])
        with span("uses"):
            assert o.client.submit(sum, data).result() == 6
        del data
        o.quiet()
        wanted = "uses success 0.0.. tasks=1 memory=1"
        # Newer releases put the group of the scattered data into a default span, which never
        # works; older ones into the consumer's.
        if o.cluster.scheduler.extensions["spans"].spans_search_by_name["default",]:
            wanted += "\ndefault success 0.0.."
        o.assert_tree(wanted)


def test_variables_and_queues():
    with observed() as o:
        variable, queue = Variable("v"), Queue("q")
        with span("shared"):
            future = o.client.submit(inc, 1, delay=0.1)
            variable.set(future)
            queue.put(future)
        del future
        assert variable.get().result() == 2
        assert queue.get().result() == 2
        variable.delete()
        queue.close()
        o.quiet()
        o.assert_tree("shared success 0.1.. tasks=1 memory=1")


class Unreadable:
    """Can be pickled, but not loaded."""

    def __reduce__(self):
        return int, ("this is no number",)


def test_a_graph_that_fails_to_materialise_is_counted():
    with observed(protocol="tcp") as o:
        with span("never"):
            future = o.client.submit(str, Unreadable())
        with pytest.raises(Exception, match="deserializ"):
            future.result()
        o.quiet()
        o.assert_tree("")
        # Dask tells its client first.
        eventually(lambda: o.count("dask.otel.dropped", "traces", "graph_failed") == 1)


def test_tasks_that_leave_the_pool_and_tasks_that_submit():
    from distributed import worker_client

    def long_running(x):
        leave_pool()
        time.sleep(0.3)
        return x

    def outer():
        with worker_client() as client:
            return sum(client.gather(client.map(operator.neg, range(3))))

    with observed() as o:
        with span("seceded"):
            futures = o.client.map(long_running, range(4))
        with span("outer"):
            outer_future = o.client.submit(outer)
        assert outer_future.result() == -3
        assert o.client.gather(futures) == [0, 1, 2, 3]
        o.quiet()
        o.assert_tree("""
            seceded success 0.3.. tasks=4 memory=4
            outer success 0.0.. tasks=4 memory=4
        """)


# -------------------------------------------------------------------------------- the end


def test_close_exports_what_is_open(flag):
    with observed() as o:
        with span("done"):
            o.client.submit(operator.neg, 1).result()
        with span("cut"), span("off"):
            futures = o.client.map(wait_for_file, [str(flag)] * 3, pure=False)
        eventually(lambda: running(o) == 2)
        o.close()
        flag.touch()
        o.assert_tree("""
            done success 0.0.. tasks=1 memory=1
            cut unknown 0.0.. tasks=3 incomplete
              off unknown 0.0.. tasks=3 incomplete
        """)
        # The scheduler goes on. (Where it closes: test_put_on_again.)
        o.check()
        del futures

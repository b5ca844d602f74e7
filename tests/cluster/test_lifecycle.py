"""What only real processes show of how spans end: kills, nannies, and pickles.

The rest is in `tests/simulated/test_lifecycle.py`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import dask
import pytest
from distributed import span, wait

from dask_otel import semconv
from tests.cluster.observed import observed
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

RETRIED = semconv.TASK_RETRIED.name
LOST = semconv.TASK_LOST.name


def wait_for_file(flag):
    while not Path(flag).exists():
        time.sleep(0.01)
    return 1


def die_with_file(flag):
    wait_for_file(flag)
    os._exit(1)


@pytest.fixture
def flag(tmp_path):
    """A file that lets tasks go on; they do at the end, whatever happens."""
    path = tmp_path / "go"
    yield path
    path.touch()


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
                lambda: o.adapter.task_events.under_way.seen, what="a heartbeat that lists the run"
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


@pytest.mark.options(processes=True)
def test_client_restart(o, tmp_path):
    with span("restarted"), o.held():
        done = o.client.submit(lambda x: x, 1)
        wait(done)
        futures = o.client.map(time.sleep, [60.0, 60.1, 60.2, 60.3])
        eventually(lambda: o.adapter.task_events.assigned)
        o.client.restart()
    del futures
    o.assert_tree("restarted cancellation 0.0.. tasks=5 memory=1 cancelled=4")
    with span("afterwards"):
        o.client.submit(lambda x: x, 2).result()
    o.quiet()
    assert o.named("afterwards").result == "success"


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

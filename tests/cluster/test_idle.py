"""Idle seconds against ground truth: the tasks' own start and stop times.

A closed sum is no evidence that idle is true, so both are checked: the sum at every export
(`Bridged.exported`), and idle, lost and excess against what the tasks themselves saw.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster, secede, span, wait
from distributed.metrics import context_meter

from tests.cluster.conftest import Start
from tests.cluster.ground_truth import (
    BESIDE,
    FAST,
    RUNS,
    TOLERANCE,
    Truth,
    check,
    cluster_time,
    fail,
    held,
    idle_points,
    recorded,
    reported_time,
    running,
    watched,
    work,
)
from tests.cluster.processes import cluster
from tests.cluster.truth import assert_closed, assert_monotone
from tests.receiver import receiver
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


def long_running(before: float, after: float) -> None:
    with recorded():
        time.sleep(before)
        secede()
    with recorded(BESIDE):
        time.sleep(after)


def until(flag: str) -> None:
    Path(flag).with_name("began").touch()
    while not Path(flag).exists():
        time.sleep(0.05)


def book_too_much(seconds: float) -> None:
    with recorded():
        context_meter.digest_metric("made up", 1000.0, "seconds")
        time.sleep(seconds)


def test_one_long_task_on_two_threads(start: Start) -> None:
    """Idle grows by one second a second from start to end; Dask's own climbs to twice that."""
    with watched(start, n_workers=1, threads_per_worker=2) as bridged:
        with span("long"):
            assert bridged.client.submit(work, 4).result() == 4
        # One thread is free for certain: no heartbeat is needed to know.
        checked = check(bridged, "long", at_once=True)
        received, truth = bridged.received, checked.truth
        points = [p for p in idle_points(received) if p[1] > 0]
        before = truth.begin
        for (t0, v0), (t1, v1) in pairwise(points):
            # An export tells of the time up to some moment after the one before it.
            assert v1 - v0 <= (t1 - before) + checked.within, (before, t0, v0, t1, v1)
            before = t0
        (exported,) = [s for s in received.spans if s.name == "long"]
        idle = truth.idle() - checked.overhead
        close = checked.within + 2 * bridged.watch.skew
        assert exported.attributes["dask.span.idle.time"] == pytest.approx(idle, abs=close)
        # Dask's own ends with the task, not when the scheduler hears of it.
        heard = 2 * (truth.end - RUNS[0].stop)
        assert idle - heard - close <= exported.attributes["dask.span.dask.idle.time"]
        assert exported.attributes["dask.span.dask.idle.time"] <= idle + close
        # One thread of two was free.
        # Before and after the run both were, and a busy machine lets it sleep for longer.
        beside = 2 * (RUNS[0].start - truth.begin) + heard + (RUNS[0].seconds - 4)
        assert truth.idle() == pytest.approx(4, abs=beside + TOLERANCE)


SCENARIOS: dict[str, Callable[[Client], Any]] = {
    "short": lambda client: client.gather(client.map(work, [0.05] * 100, pure=False)),
    "failing": lambda client: wait(client.map(fail, [0.3] * 8, pure=False)),
    "retried": lambda client: wait(client.map(fail, [0.2] * 3, pure=False, retries=2)),
    "uneven": lambda client: client.gather(client.map(work, [0.1, 2.0, 0.2, 0.1], pure=False)),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_idle_is_true(start: Start, scenario: str) -> None:
    with watched(start, n_workers=2, threads_per_worker=2) as bridged:
        with span(scenario):
            kept = SCENARIOS[scenario](bridged.client)
        check(bridged, scenario)
        del kept


def test_a_cancelled_task_that_runs_on_is_not_idle(start: Start, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with watched(start, n_workers=1, threads_per_worker=2) as bridged:
        with span("cancelled"):
            future = bridged.client.submit(held, str(go))
        running(bridged, 1)
        began = time.time()
        eventually(lambda: time.time() > began + 1.0)
        asked = time.time()
        future.cancel()
        eventually(lambda: not bridged.scheduler.tasks)
        told = time.time()
        eventually(lambda: time.time() > told + 1.0)
        go.touch()
        eventually(lambda: RUNS, what="the task ends in its thread")
        # One thread was free until the work was cancelled; after that there was no work.
        checked = check(bridged, "cancelled")
        assert asked - began - TOLERANCE <= checked.truth.idle()
        cancelled = cluster_time(bridged.received, "cancelled")
        ran = RUNS[0].seconds
        assert ran - TOLERANCE <= cancelled <= ran + checked.overhead + TOLERANCE


def test_seceded_seconds_are_excess(start: Start) -> None:
    with watched(start, n_workers=1, threads_per_worker=1) as bridged:
        with span("seceding"):
            bridged.client.submit(long_running, 0.5, 1.5).result()
        # The thread was free, and there was nothing else to do: idle, beside the task's own.
        checked = check(bridged, "seceding")
        assert checked.truth.idle() >= 1.5


def test_what_users_book_too_much_pushes_nothing_below_zero(start: Start) -> None:
    with watched(start, n_workers=1, threads_per_worker=2) as bridged:
        with span("boasting"):
            futures = bridged.client.map(book_too_much, [1.0, 2.0], pure=False)
            bridged.client.gather(futures)
        # Dask takes what users book for a part of the task's time.
        check(bridged, "boasting", boasted=2000.0)
        assert cluster_time(bridged.received, "made up") == pytest.approx(2000, rel=1e-9)


def test_two_tenants_are_not_each_others_idle_time(start: Start) -> None:
    """One has a thread idle beside it; the other's share comes from its own waiting."""
    with watched(start, n_workers=1, threads_per_worker=3) as bridged:
        with span("alice"):
            alice = bridged.client.submit(work, 3, key="alice-1")
        with span("bob"):
            # A group of its own: the same function would be booked on alice's span.
            bob = bridged.client.submit(work, 1, key="bob-1")
        wait([alice, bob])
        checked = check(bridged, "alice")
        idle = {
            dict(k)["dask.span.name"]: v
            for k, v in checked.received.last("dask.span.idle.time").items()
        }
        # Of 3 threads one is free for a second, shared by both, then two for two seconds.
        both = Truth.of(bridged, "bob")
        shared = (both.idle(), checked.truth.idle(both.begin), checked.overhead, checked.within)
        assert idle["bob"] == pytest.approx(both.idle() / 2, abs=sum(shared[2:])), shared
        rest = checked.truth.idle() - both.idle() / 2
        assert idle["alice"] == pytest.approx(rest, abs=sum(shared[2:])), shared
        assert rest > 4.0


def test_scaling_up_and_down(start: Start) -> None:
    """Capacity is the integral of the threads; queued work without workers has none."""
    with watched(start, n_workers=0, threads_per_worker=1) as bridged:
        local: LocalCluster = bridged.cluster
        with span("queued"):
            futures = bridged.client.map(work, [0.5] * 8, pure=False)
        eventually(lambda: len(bridged.scheduler.tasks) == 8)
        local.scale(4)
        bridged.client.gather(futures)
        # Results that are wanted would have to be computed again.
        del futures
        eventually(lambda: not bridged.scheduler.tasks)
        local.scale(0)
        eventually(lambda: not bridged.scheduler.workers)
        received = check(bridged, "queued").received
        history = bridged.scheduler.total_nthreads_history
        capacity = sum((after[0] - before[0]) * before[1] for before, after in pairwise(history))
        exported = received.last("dask.cluster.capacity.time")[()]
        assert exported == pytest.approx(capacity, abs=TOLERANCE)
        assert received.last("dask.cluster.thread.count")[()] == 0


def test_a_killed_workers_seconds_are_lost_not_idle(tmp_path: Path) -> None:
    with receiver() as received, cluster(tmp_path) as dask:
        dask.start_scheduler(
            "--preload",
            "dask_otel.preload",
            env={**received.environ, **FAST, "DASK_OTEL__SPANS__LINGER": "200ms"},
        )
        victim = dask.start_worker("victim", nthreads=2)
        with Client(dask.address) as client:
            client.wait_for_workers(1)
            submitted = time.monotonic()
            with span("killed"):
                future = client.submit(until, str(tmp_path / "go"), retries=0)
            eventually((tmp_path / "began").exists)
            begun = time.monotonic()
            time.sleep(1.5)
            killed = time.monotonic()
            os.kill(victim.popen.pid, signal.SIGKILL)
            eventually(lambda: not client.run_on_scheduler(worker_count))
            gone = time.monotonic()
            received.wait_for(lambda r: cluster_time(r, "lost") > 0)
            lost = cluster_time(received, "lost")
            assert killed - begun - TOLERANCE <= lost <= gone - submitted + TOLERANCE
            (tmp_path / "go").touch()
            dask.start_worker("heir", nthreads=2)
            future.result()
            received.wait_for(lambda r: [s for s in r.spans if s.name == "killed"])
            (exported,) = [s for s in received.spans if s.name == "killed"]
            assert exported.attributes["dask.span.result"] == "success"
            assert exported.attributes["dask.task.lost.count"] == 1
        assert_closed(received, over=False)
        assert_monotone(received)


def test_a_worker_that_is_stopped_and_goes_on(tmp_path: Path) -> None:
    """The pause falls between the end of tasks and their report: no phantom idle."""
    with receiver() as received, cluster(tmp_path) as dask:
        dask.start_scheduler(
            "--preload",
            "dask_otel.preload",
            env={**received.environ, **FAST, "DASK_OTEL__SPANS__LINGER": "200ms"},
        )
        worker = dask.start_worker("w", nthreads=1)
        with Client(dask.address) as client:
            client.wait_for_workers(1)
            begin = time.monotonic()
            with span("stopped"):
                future = client.submit(time.sleep, 2)
            eventually(lambda: client.run_on_scheduler(is_processing))
            time.sleep(1.0)
            os.kill(worker.popen.pid, signal.SIGSTOP)
            time.sleep(2.5)
            os.kill(worker.popen.pid, signal.SIGCONT)
            future.result()
            end = time.monotonic()
            received.wait_for(lambda r: [s for s in r.spans if s.name == "stopped"])
            eventually(lambda: received.last("dask.cluster.inflight.time")[()] == 0)
            # The only thread had a task all the time.
            assert cluster_time(received, "idle") <= (end - begin) - 2 + TOLERANCE
            busy = reported_time(received)
            assert cluster_time(received, "idle") + busy <= (end - begin) + TOLERANCE
        assert_closed(received, over=False)
        assert_monotone(received)


def is_processing(dask_scheduler: Any) -> bool:
    return any(ws.processing for ws in dask_scheduler.workers.values())


def worker_count(dask_scheduler: Any) -> int:
    return len(dask_scheduler.workers)

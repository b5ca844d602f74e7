"""Idle, lost and excess seconds against ground truth: the tasks' own start and stop times.

A closed sum is no evidence that idle is true. Every scenario checks, at every export: the closed
sum, that no counter goes back, and that idle is what the tasks' own times leave: never more, and
not much later. The rules of the accounting are proven in `tests/unit/test_accounting*`, on clusters
that are made up; the tests here show that real ones behave like these.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, Future, Reschedule, rejoin, secede, span, wait, worker_client
from distributed.core import Status

from tests.cluster.conftest import Start
from tests.cluster.ground_truth import (
    BESIDE,
    RUNS,
    TOLERANCE,
    Run,
    Watched,
    at_rest,
    check,
    cluster_time,
    fail,
    held,
    idle_points,
    recorded,
    running,
    watched,
    work,
)
from tests.receiver import Receiver
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


def pause(seconds: float) -> None:
    """Let this much time pass, whatever the machine does meanwhile."""
    began = time.time()
    eventually(lambda: time.time() > began + seconds)


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
            # An export covers the time up to some moment after the previous export.
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


# ------------------------------------------------------------------------- kinds of tasks


async def coroutine(seconds: float) -> None:
    """It holds a thread's place, and runs without it."""
    with recorded():
        await asyncio.sleep(seconds)


def gives_up_once(folder: Path) -> None:
    with recorded():
        time.sleep(0.8)
    try:
        (folder / "seen").touch(exist_ok=False)
    except FileExistsError:
        return
    raise Reschedule


def client_in_a_task() -> None:
    with ExitStack() as seceded:
        with recorded():
            time.sleep(0.5)
            # It secedes, and waits without a thread.
            client = seceded.enter_context(worker_client())
        seceded.enter_context(recorded(BESIDE))
        client.submit(work, 1.0, pure=False).result()
        # It gets a thread of the pool again, but Dask counts it as seceded.
        seceded.callback(time.sleep, 0.5)


def seceding(before: float, after: float, rejoins: bool = False) -> None:
    """What it does after it seceded is beside the threads, also when it has come back."""
    with recorded():
        time.sleep(before)
        secede()
    with recorded(BESIDE):
        time.sleep(after)
        if rejoins:
            rejoin()
            time.sleep(0.5)


Program = Callable[[Client, Path], Any]
#: Workers, threads of each, and what is done there.
SCENARIOS: dict[str, tuple[int, int, Program]] = {
    # Dask meters the worker's own work for a task as the task's: this much is not idle.
    "tiny": (1, 4, lambda client, _: wait(client.map(work, [0.002] * 1000, pure=False))),
    "short": (2, 2, lambda client, _: wait(client.map(work, [0.05] * 100, pure=False))),
    "retried": (2, 2, lambda client, _: wait(client.map(fail, [0.2] * 8, pure=False, retries=2))),
    "uneven": (2, 2, lambda client, _: wait(client.map(work, [0.1, 2.0, 0.2, 0.1], pure=False))),
    "async": (1, 2, lambda client, _: wait(client.map(coroutine, [1.0, 2.5, 0.5], pure=False))),
    "again": (1, 2, lambda client, folder: wait(client.submit(gives_up_once, folder))),
    "by worker_client": (1, 1, lambda client, _: wait(client.submit(client_in_a_task))),
    "seceding": (1, 2, lambda client, _: wait(client.submit(seceding, 0.5, 1.5))),
    "coming back": (1, 1, lambda client, _: wait(client.submit(seceding, 0.5, 1.0, True))),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_idle_is_true(start: Start, scenario: str, tmp_path: Path) -> None:
    workers, threads, program = SCENARIOS[scenario]
    with watched(start, n_workers=workers, threads_per_worker=threads) as bridged:
        with span(scenario):
            kept = program(bridged.client, tmp_path)
        checked = check(bridged, scenario)
        del kept
    assert checked.overhead > 0 or scenario != "tiny"


def test_a_cancelled_task_that_runs_on_is_not_idle(start: Start, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with watched(start, n_workers=1, threads_per_worker=2) as bridged:
        with span("cancelled"):
            future = bridged.client.submit(held, str(go))
        running(bridged, 1)
        began = time.time()
        pause(1.0)
        asked = time.time()
        future.cancel()
        eventually(lambda: not bridged.scheduler.tasks)
        pause(1.0)
        go.touch()
        eventually(lambda: RUNS, what="the task ends in its thread")
        # One thread was free until the work was cancelled; after that there was no work.
        checked = check(bridged, "cancelled")
        assert asked - began - TOLERANCE <= checked.truth.idle()
        cancelled = cluster_time(bridged.received, "cancelled")
        ran = RUNS[0].seconds
        assert ran - TOLERANCE <= cancelled <= ran + checked.overhead + TOLERANCE


class Sleeper:
    """An actor."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def unused(received: Receiver) -> tuple[float, float, float]:
    """Return the last exported unused seconds, with the moments that they may be of.

    An export covers the time up to some moment after the previous export.
    """
    points = idle_points(received, "unused")
    return points[-2][0], *points[-1]


def test_actor_calls_hold_no_thread(start: Start) -> None:
    """They run in a pool of their own and are metered nowhere."""
    with watched(start, n_workers=1, threads_per_worker=2) as bridged:
        with span("making"):
            actor = bridged.client.submit(Sleeper, actor=True).result()
        # On a busy machine the threads wait for it for a while.
        making = idle_points(at_rest(bridged))[-1][1]
        with span("actor"):
            call = actor.sleep(2.0)
            bridged.client.submit(work, 2.0).result()
            call.result()
        earliest, latest, before = unused(at_rest(bridged))
        actor.sleep(1.0).result()
        end = time.time()
        eventually(lambda: unused(bridged.received)[0] > end)
        since, until, after = unused(bridged.received)
        # Nothing is computed meanwhile, and nothing could be.
        assert 2 * (since - latest) - TOLERANCE <= after - before
        assert after - before <= 2 * (until - earliest) + TOLERANCE
        check(bridged, "actor", earlier=making)


def test_pool_that_is_not_as_large_as_the_worker(start: Start) -> None:
    """What waits in a smaller pool holds its place on the worker: Dask meters it as busy.

    A larger one runs no more at a time than the worker has threads.
    """
    with ThreadPoolExecutor(1) as narrow, ThreadPoolExecutor(8) as wide:
        pools = {"narrow": narrow, "wide": wide}
        with watched(start, n_workers=1, threads_per_worker=2, executor=pools) as bridged:
            with span("pools"):
                for name in pools:
                    with dask.annotate(executor=name):
                        wait(bridged.client.map(work, [0.7] * 3, pure=False, key=name))
            waited = cluster_time(at_rest(bridged), "executor")
            # Two wait for another one each.
            assert waited >= 1.4
            # When they did. What was waited in the larger one is Dask's own, as elsewhere.
            first, second, third = RUNS[:3]
            RUNS.append(Run(None, first.start, second.start))
            RUNS.append(Run(None, first.stop, third.start))
            check(bridged, "pools")


# ------------------------------------------------------------------- heartbeats and workers


class Post:
    """The heartbeats' way to the scheduler, on which some are late or lost.

    Parameters
    ----------
    fate
        Gives the seconds that the next one takes; None if it never arrives.
    """

    def __init__(self, bridged: Watched, fate: Callable[[], float | None]) -> None:
        self.fate = fate
        self.watch = bridged.watch
        self.lost = self.late = 0
        bridged.client.sync(self._intercept, bridged.scheduler)

    async def _intercept(self, scheduler: Any) -> None:
        original = scheduler.handlers["heartbeat_worker"]

        async def heartbeat_worker(**message: Any) -> Any:
            takes = self.fate()
            if takes is None:
                self.lost += 1
                self.watch.lost(message)
                # The worker logs this, and goes on.
                raise OSError("the connection broke")
            self.late += takes > 0.5
            await asyncio.sleep(takes)
            return original(**message)

        scheduler.handlers["heartbeat_worker"] = heartbeat_worker


def test_lost_heartbeats(start: Start) -> None:
    """What they would have reported is lost, not idle: also of failures that are retried."""
    fates = iter([0.0, None, None, 0.0, None])
    with watched(start, n_workers=1, threads_per_worker=2) as bridged:
        post = Post(bridged, lambda: next(fates, 0.0))
        with span("unheard"):
            wait(bridged.client.map(fail, [0.3] * 5, pure=False, retries=3))
        assert post.lost == 3
        check(bridged, "unheard")
        assert len(RUNS) == 20
        assert bridged.watch.unheard > 1.0


def set_status(status: str) -> Callable[..., None]:
    def change(dask_worker: Any) -> None:
        dask_worker.status = Status.lookup[status]

    return change


@pytest.mark.parametrize("status", ["paused", "closing_gracefully"])
def test_worker_that_starts_no_tasks(start: Start, status: str) -> None:
    """Its threads are capacity like others, and idle while work waits."""
    # Without a limit no memory monitor ends the pause.
    with watched(start, n_workers=1, threads_per_worker=2, memory_limit=0) as bridged:
        client = bridged.client
        with span("paused"):
            futures = client.map(work, [1.0, 1.0, 0.5, 0.5, 0.5], pure=False)
            running(bridged, 2)
            client.run(set_status(status))
            eventually(lambda: len(RUNS) == 2)
            pause(2.0)
            assert len(RUNS) == 2
            client.run(set_status("running"))
            wait(futures)
        assert check(bridged, "paused").truth.idle() > 4.0


@pytest.mark.parametrize("how", ["retired", "closed"])
def test_worker_that_leaves_while_its_tasks_run(start: Start, tmp_path: Path, how: str) -> None:
    """What they had run is lost, and what they run on in their threads is nobody's."""
    go = tmp_path / "go"
    with watched(start, n_workers=2, threads_per_worker=2) as bridged:
        client = bridged.client
        with span("leaving"):
            futures = client.map(held, [str(go)] * 4, pure=False)
            running(bridged, 4)
            pause(1.2)
            leaving = [next(iter(bridged.scheduler.workers))]
            if how == "retired":
                client.retire_workers(leaving)
            else:
                client.run(close, workers=leaving, wait=False)
            eventually(lambda: len(bridged.scheduler.workers) == 1)
            go.touch()
            wait(futures)
        eventually(lambda: len(RUNS) == 6, what="abandoned runs end too")
        check(bridged, "leaving")
        assert cluster_time(bridged.received, "lost") > 2.0


async def close(dask_worker: Any) -> None:
    await dask_worker.close_gracefully()


def test_everything_at_once(start: Start) -> None:
    """Whatever comes together, and late: no idle that was not there, and none taken back."""
    rng = random.Random(1)
    with watched(start, n_workers=2, threads_per_worker=2) as bridged:
        client = bridged.client
        Post(bridged, lambda: rng.choice([0.0, 0.0, 0.05, 0.3, 1.5]))
        futures: list[Future] = []

        def submit(task: Callable[..., Any], seconds: list[float], **options: Any) -> None:
            times = rng.choices(seconds, k=rng.randint(0, 4))
            futures.extend(client.map(task, times, pure=False, **options))

        with span("chaos"):
            for step in range(8):
                submit(work, [0.02, 0.1, 0.4, 0.9])
                submit(fail, [0.05, 0.3], retries=rng.randint(0, 2))
                submit(coroutine, [0.2, 0.6])
                futures.append(client.submit(seceding, 0.2, 0.5, pure=False))
                cancelled = rng.sample(futures, 2)
                client.cancel(cancelled)
                futures = [future for future in futures if future not in cancelled]
                if step == 4:
                    bridged.cluster.scale(3)
                pause(0.25)
            wait(futures)
        check(bridged, "chaos", in_order=False)

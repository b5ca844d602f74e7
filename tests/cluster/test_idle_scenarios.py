"""Idle, lost and excess seconds against ground truth in what clusters do beside plain work.

Every scenario checks, at every export: the closed sum, that no counter goes back, and that idle
is what the tasks' own start and stop times leave: never more, and not much later.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Future, Reschedule, get_worker, rejoin, secede, span, wait, worker_client
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


# ------------------------------------------------------------------- very short tasks


def test_thousands_of_tiny_tasks(start: Start) -> None:
    """Dask meters the worker's own work for a task as the task's: this much is not idle.

    Not even that is lost: idle is exactly what the capacity leaves beside Dask's seconds.
    """
    with watched(start, n_workers=1, threads_per_worker=4) as bridged:
        with span("tiny"):
            futures = bridged.client.map(work, [0.002] * 3000, pure=False)
            wait(futures)
        del futures
        assert check(bridged, "tiny").overhead > 0.0


# ------------------------------------------------------------------- heartbeats' way


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


@pytest.mark.parametrize("task", ["works", "fails"])
def test_lost_heartbeats(start: Start, task: str) -> None:
    """What they would have reported is lost, not idle: also of failures that are retried."""
    fates = iter([0.0, None, None, 0.0, None])
    with watched(start, n_workers=1, threads_per_worker=2) as bridged:
        post = Post(bridged, lambda: next(fates, 0.0))
        with span("unheard"):
            if task == "works":
                futures = bridged.client.map(work, [0.3] * 20, pure=False)
            else:
                futures = bridged.client.map(fail, [0.3] * 5, pure=False, retries=3)
            wait(futures)
        assert post.lost == 3
        check(bridged, "unheard")
        assert len(RUNS) == 20
        assert bridged.watch.unheard > 1.0


def test_late_heartbeats(start: Start) -> None:
    """Idle settles late, all at once, and is never taken back."""
    with watched(start, n_workers=2, threads_per_worker=2) as bridged:
        delays = iter([0.0, 0.9, 0.1, 1.4, 0.0, 3.0, 0.7, 0.0, 1.2] * 20)
        post = Post(bridged, lambda: next(delays))
        with span("late"):
            wait(bridged.client.map(work, [0.2, 0.9, 0.4, 1.3, 0.1] * 4, pure=False))
        assert post.late >= 2
        check(bridged, "late")


def test_many_workers_with_slow_heartbeats(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed.scheduler.heartbeat_interval", lambda workers: 2.5)
    with watched(start, n_workers=20, threads_per_worker=1) as bridged:
        with span("many"):
            wait(bridged.client.map(work, [0.3, 1.1, 0.6, 0.2] * 20, pure=False))
        assert len({run.worker for run in RUNS}) == 20
        check(bridged, "many")


# ---------------------------------------------------------------------------- workers


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
            ended = time.time()
            eventually(lambda: time.time() > ended + 2.0)
            assert len(RUNS) == 2
            client.run(set_status("running"))
            wait(futures)
        assert check(bridged, "paused").truth.idle() > 4.0


def test_retiring_a_worker_without_work(start: Start) -> None:
    with watched(start, n_workers=2, threads_per_worker=2) as bridged:
        client = bridged.client
        with span("retired"):
            futures = [client.submit(work, 3.0, workers=0), client.submit(work, 1.0, workers=1)]
            wait(futures[1])
            (idle,) = [w for w, ws in bridged.scheduler.workers.items() if not ws.processing]
            client.retire_workers([idle])
            retired = time.time()
            wait(futures)
        truth = check(bridged, "retired").truth
        assert truth.end - retired > 1.0, "the other worker's threads left too late to matter"


@pytest.mark.parametrize("how", ["retired", "closed"])
def test_worker_that_leaves_while_its_tasks_run(start: Start, tmp_path: Path, how: str) -> None:
    """What they had run is lost, and what they run on in their threads is nobody's."""
    go = tmp_path / "go"
    with watched(start, n_workers=2, threads_per_worker=2) as bridged:
        client = bridged.client
        with span("leaving"):
            futures = client.map(held, [str(go)] * 4, pure=False)
            running(bridged, 4)
            began = time.time()
            eventually(lambda: time.time() > began + 1.2)
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


@pytest.mark.parametrize("how", ["restart", "restart_workers"])
def test_restart(start: Start, tmp_path: Path, how: str) -> None:
    """`Client.restart` takes the work away, `restart_workers` gives it to others."""
    with watched(start, n_workers=2, threads_per_worker=1, processes=True) as bridged:
        client = bridged.client
        # The workers import this module.
        client.run(read, tmp_path)
        with span("restarted"):
            futures = client.map(written, [2.0] * 2, path=str(tmp_path), pure=False)
            eventually(lambda: len(list(tmp_path.iterdir())) == 2)
            began = time.time()
            eventually(lambda: time.time() > began + 1.2)
            if how == "restart":
                client.restart()
            else:
                client.restart_workers([next(iter(bridged.scheduler.workers))])
                wait(futures)
            RUNS.extend(read(tmp_path))
            removed = [
                when
                for when, event in bridged.scheduler.get_events("all")
                if event.get("action") == "remove-worker"
            ]
        # The first worker's task is the scheduler's to run again, or nobody's.
        assert len(RUNS) == (2 if how == "restart" else 3)
        assert len(removed) == (2 if how == "restart" else 1)
        check(bridged, "restarted")
        assert cluster_time(bridged.received, "lost") > 1.0


def written(seconds: float, path: str) -> None:
    """A run of which a killed process leaves a trace."""
    file = Path(path, f"{time.time()}-{id(path)}")
    with file.open("w") as record:
        worker = get_worker()
        key = worker.get_current_task()
        print(worker.address, key, time.time(), file=record, flush=True)
        time.sleep(seconds)
        print(time.time(), file=record)


def read(folder: Path) -> list[Run]:
    """The runs of which there is a trace; what was killed never stopped."""
    texts = [file.read_text().split() for file in folder.iterdir()]
    return [
        Run(worker, float(start), float(stop[0]) if stop else inf, key)
        for worker, key, start, *stop in texts
    ]


# ------------------------------------------------------------------------------ tasks


def test_stolen_tasks(start: Start) -> None:
    """A steal is no transition: a new worker takes what another one had been given."""
    with (
        dask.config.set({"distributed.scheduler.worker-saturation": inf}),
        watched(start, n_workers=1, threads_per_worker=1) as bridged,
    ):
        scheduler = bridged.scheduler
        with span("stolen"):
            futures = bridged.client.map(work, [0.2] * 24, pure=False)
            running(bridged, 1)
            (victim,) = scheduler.workers.values()
            eventually(lambda: len(victim.processing) > 20)
            bridged.cluster.scale(3)
            wait(futures)
        log = [event for _, event in scheduler.get_events("stealing")]
        assert sum(1 for event in log if event[0] == "confirm") > 5
        assert len({run.worker for run in RUNS}) == 3
        check(bridged, "stolen")


class Sleeper:
    """An actor."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def unused(received: Receiver) -> tuple[float, float, float]:
    """Return the last exported unused seconds, with the moments that they may be of.

    An export tells of the time up to some moment after the one before it.
    """
    points = [
        (point.time_ns / 1e9, point.value)
        for point in received.points
        if point.metric == "dask.cluster.time" and point.attributes["dask.activity"] == "unused"
    ]
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


def timed(seconds: float) -> tuple[float, float]:
    began = time.time()
    time.sleep(seconds)
    return began, time.time()


def test_process_pool(start: Start) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        # Starting its processes takes longer than the tasks.
        list(pool.map(timed, [0.5, 0.5]))
        with watched(
            start, n_workers=1, threads_per_worker=2, executor={"processes": pool}
        ) as bridged:
            with span("pool"), dask.annotate(executor="processes"):
                futures = bridged.client.map(timed, [0.5, 2.0, 0.5], pure=False)
                times = bridged.client.gather(futures)
            RUNS.extend(Run(None, *run) for run in times)
            check(bridged, "pool")


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


def seceding_and_rejoining() -> None:
    with recorded():
        time.sleep(0.5)
        secede()
    with recorded(BESIDE):
        time.sleep(1.0)
        rejoin()
        time.sleep(0.5)


@pytest.mark.parametrize(
    ("task", "threads"), [(client_in_a_task, 1), (client_in_a_task, 2), (seceding_and_rejoining, 1)]
)
def test_seceding_and_coming_back(start: Start, task: Callable[[], None], threads: int) -> None:
    """What it does after it seceded is beside the threads."""
    with watched(start, n_workers=1, threads_per_worker=threads) as bridged:
        with span("seceding"):
            wait(bridged.client.submit(task))
        check(bridged, "seceding")
        assert sum(run.seconds for run in BESIDE) >= 1.5


async def coroutine(seconds: float) -> None:
    with recorded():
        await asyncio.sleep(seconds)


def test_coroutines(start: Start) -> None:
    """They hold a thread's place, and run without it."""
    with watched(start, n_workers=1, threads_per_worker=2) as bridged:
        with span("async"):
            wait(bridged.client.map(coroutine, [1.0, 2.5, 0.5], pure=False))
        check(bridged, "async")


def gives_up_once(folder: str) -> None:
    with recorded():
        time.sleep(0.8)
    try:
        Path(folder, "seen").touch(exist_ok=False)
    except FileExistsError:
        return
    raise Reschedule


def test_task_that_asks_to_run_again(start: Start, tmp_path: Path) -> None:
    with watched(start, n_workers=1, threads_per_worker=2) as bridged:
        with span("again"):
            wait(bridged.client.submit(gives_up_once, str(tmp_path)))
        assert len(RUNS) == 2
        check(bridged, "again")


@pytest.mark.parametrize("threads", [1, 2])
def test_cancelled_tasks_beside_others(start: Start, threads: int) -> None:
    """While cancelled ones run on, others wait for their threads or run beside them."""
    with watched(start, n_workers=1, threads_per_worker=threads) as bridged:
        client = bridged.client
        with span("cancelled"):
            futures: list[Future] = client.map(work, [2.0] * threads, pure=False)
            others = client.map(work, [0.5, 0.7], pure=False, key="other")
            running(bridged, threads)
            began = time.time()
            eventually(lambda: time.time() > began + 0.7)
            client.cancel(futures[:1])
            wait(others)
        check(bridged, "cancelled")


def seceding(before: float, after: float) -> None:
    with recorded():
        time.sleep(before)
        secede()
    with recorded(BESIDE):
        time.sleep(after)


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
                paused = time.time()
                eventually(lambda: time.time() > paused + 0.25)  # noqa: B023
            wait(futures)
        check(bridged, "chaos", in_order=False)

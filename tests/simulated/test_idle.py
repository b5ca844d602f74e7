"""Idle, lost and excess seconds in histories whose answer is known.

Beside what each test says, everything is compared with the truth, all the way and at the end; see
`Simulated.compare`. Failures, retries, cancellations, lost heartbeats, pauses and workers that
leave are in random programs, `test_histories.py`; the rules are in `tests/unit/test_accounting.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import dask
import pytest
from distributed import rejoin, secede, wait
from lab.programs import flaky

from dask_otel import span
from dask_otel.lab.executor import LabThreadPoolExecutor
from tests.simulated.observed import Simulated
from tests.simulated.tasks import nap

#: Floats, added up.
STEPS = 1e-4

EXACT = {"within": STEPS}


async def coroutine(seconds: float) -> None:
    """It holds a thread's place, and runs without it."""
    await asyncio.sleep(seconds)


def seceding(seconds: float) -> None:
    """What it does after it seceded is beside the threads, also when it has come back."""
    time.sleep(seconds)
    secede()
    time.sleep(seconds)
    rejoin()
    time.sleep(seconds)


@pytest.mark.options(workers=1, **EXACT)
def test_one_long_task_on_two_threads(o: Simulated) -> None:
    """Idle grows by one second a second from start to end; Dask's own climbs to twice that."""
    with span("long"):
        wait(o.client.submit(nap, 4))
    o.quiet()
    (long,) = o.exported
    assert long.idle == pytest.approx(4, abs=STEPS)
    assert long.capacity == pytest.approx(8, abs=STEPS)
    assert long.dask_idle == pytest.approx(4, abs=STEPS)
    # One thread is free for certain: no heartbeat is needed to know.
    assert len(o.samples) >= 8
    for when, idle in o.samples:
        assert idle == pytest.approx(o.truth.seconds(when).idle, abs=STEPS)


@pytest.mark.options(workers=1, **EXACT)
@pytest.mark.parametrize("task", [coroutine, seceding])
def test_what_random_programs_do_not_do(o: Simulated, task: Callable[..., Any]) -> None:
    """The fixture compares the seconds with the truth."""
    with span("others"):
        wait([o.client.submit(task, *one, pure=False) for one in [(1.0,), (2.5,), (0.5,)]])
    time.sleep(3)


@pytest.mark.options(workers=0, **EXACT)
def test_pool_that_is_not_as_large_as_the_worker(o: Simulated) -> None:
    """What waits in a smaller pool holds its place on the worker: Dask meters it as busy.

    A larger one runs no more at a time than the worker has threads.
    """
    worker = o.cluster.add_worker("pools")
    for name, threads in {"narrow": 1, "wide": 8}.items():
        worker.executors[name] = LabThreadPoolExecutor(o.cluster.pool, threads)
        with span("pools"), dask.annotate(executor=name):
            wait(o.client.map(nap, [0.7] * 3, pure=False, key=name))
    o.quiet()
    waited = o.counted("dask.cluster.time", "executor")
    # Two wait for another one each.
    assert sum(waited.values()) == pytest.approx(1.4, abs=STEPS)


def test_two_users_share_idle_seconds(o: Simulated) -> None:
    """Each has one of four threads; the rest is divided while both have work."""

    def work(name: str, seconds: float) -> Callable[[Any], None]:
        def user(client: Any) -> None:
            with span(name):
                wait(client.submit(nap, seconds, key=name))

        return user

    users = [o.cluster.user("a", work("a", 1.0)), o.cluster.user("b", work("b", 3.0))]
    for one in users:
        one.result()
    o.quiet()
    idle = {name: o.named(name).idle for name in "ab"}
    assert idle == pytest.approx({"a": 2 * 1.0 / 2, "b": 2 * 1.0 / 2 + 3 * 2.0}, abs=0.05)


@pytest.mark.options(workers=1, latency=0.02, within=0.02)
def test_a_task_that_is_released_on_its_way_to_the_worker(o: Simulated) -> None:
    """The worker runs it all the same, after a heartbeat that does not list it."""
    with span("released"):
        # At each 12 ms between two heartbeats.
        for number in range(42):
            future = o.client.submit(nap, 0.4, key=f"released-{number}")
            time.sleep(0.012)
            future.cancel()
            time.sleep(0.5)
    time.sleep(3)


@pytest.mark.options(workers=1, latency=0.002, within=0.02)
def test_tasks_that_begin_again_on_a_full_worker(o: Simulated) -> None:
    """With a heartbeat at each 10 ms around the second begin, which a block delays.

    Heartbeats take longer than other messages, so that one can list a run whose end is known.
    """
    o.cluster.heartbeats["w0"] = cycle([0.0, 0.005, 0.005]).__next__
    machine = o.cluster.machines["w0"]
    for number in range(20):
        time.sleep((0.1 + number / 100 - o.cluster.loop.now) % 0.5)
        futures = o.client.map(flaky, [0.8] * 2, pure=False, retries=1)
        futures += o.client.map(nap, [0.3] * 2, pure=False)
        time.sleep(0.75)
        machine.block(0.1)
        wait(futures)
        del futures
    time.sleep(3)
    assert o.sums()["excess"] == pytest.approx(0.0, abs=0.01)

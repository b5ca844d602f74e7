"""Row 2: the event loop's time per tick, with much and with little history."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from benchmarks.naive import poll
from benchmarks.results import Row, verdict
from benchmarks.simulated import Observer, SimulatedCluster

#: Spans that end in each tick.
BUSY = 20


async def _observer(cluster: SimulatedCluster, history: int) -> Observer:
    observer = Observer(cluster)
    for i in range(history):
        keys = cluster.submit((f"span {i % 50}",))
        if i < 10_000:  # enough for the naive peer to read
            cluster.heartbeat(cluster.addresses[0], cluster.metered(keys, 10))
        cluster.finish(keys)
        if i % 1000 == 999:
            await observer.settle()
    return observer


def _tick(observer: Observer) -> float:
    """Return the seconds of one tick and one hand-over of metrics, with some spans to end."""
    cluster = observer.cluster
    for i in range(BUSY):
        cluster.finish(cluster.submit((f"span {i}",)))
    observer.beat()
    observer.tick()
    began = time.thread_time()
    observer.tick()
    observer.adapter.swap(time.time_ns())
    return time.thread_time() - began


async def measure(large: int, ticks: int) -> tuple[float, float, float]:
    """Return seconds per tick with 100 and with many finished spans, and of the naive poll."""
    few, many = [], []
    async with SimulatedCluster(4) as one, SimulatedCluster(4) as other:
        small, big = await _observer(one, 100), await _observer(other, large)
        for _ in range(ticks):
            few.append(_tick(small))
            many.append(_tick(big))
        spans = other.scheduler.extensions["spans"].spans
        while len(spans) > 10_000:
            spans.popitem()
        began = time.thread_time()
        poll(other.scheduler)
        polled = time.thread_time() - began
    return median(few), median(many), polled


def run(quick: bool) -> list[Row]:
    """Measure ticks of two schedulers in turn."""
    large = 10_000 if quick else 100_000
    few, many, polled = asyncio.run(measure(large, 100 if quick else 400))
    what = f"tick with {large:,} finished spans over one with 100"
    figure = f"{many / few:.2f} ({1e6 * many:.0f} µs over {1e6 * few:.0f} µs)"
    return [
        Row(
            "2", what, "≤ 1.1", figure, verdict(many / few <= 1.1),
            {"few": few, "many": many, "history": large},
        ),
        Row(
            "2", f"peer: naive bridge, one poll of {min(large, 10_000):,} spans", "",
            f"{1000 * polled:.0f} ms", "peer", {"seconds": polled},
        ),
    ]  # fmt: skip

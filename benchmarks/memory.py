"""Row 4: what the bridge keeps of spans that are open, and of spans that were."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc
import types
from typing import Any

from benchmarks.results import Row, verdict
from benchmarks.simulated import Observer, SimulatedCluster

_OURS = tracemalloc.Filter(True, "*/dask_otel/*", all_frames=False)
_SPANS = tracemalloc.Filter(True, "*/distributed/*", all_frames=False)


def _traced(filter_: tracemalloc.Filter) -> int:
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces([filter_])
    return sum(trace.size for trace in snapshot.traces)


async def per_open_span(count: int) -> tuple[float, float]:
    """Return bytes per open span that the bridge and that Dask allocated."""
    async with SimulatedCluster(4) as cluster:
        observer = Observer(cluster)
        cluster.submit(("warm up",))
        tracemalloc.start()
        ours, dask = _traced(_OURS), _traced(_SPANS)
        for i in range(count):
            keys = cluster.submit((f"span {i % 50}",))
            cluster.heartbeat(cluster.addresses[i % 4], cluster.metered(keys, 10))
        # The metrics so far go with the next export: they are no part of an open span.
        observer.adapter.swap(time.time_ns())
        ours, dask = _traced(_OURS) - ours, _traced(_SPANS) - dask
        tracemalloc.stop()
    return ours / count, dask / count


def size_of(adapter: Any, scheduler: Any) -> int:
    """Return the bytes of everything that the bridge holds, but for Dask's objects."""
    dask = {id(scheduler), id(scheduler.extensions["spans"])}
    skipped = (type, types.ModuleType, types.FunctionType, types.MethodType)
    seen: set[int] = set()
    waiting: list[Any] = [adapter]
    total = 0
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or id(thing) in dask or isinstance(thing, skipped):
            continue
        if type(thing).__module__.startswith(("distributed", "asyncio", "tornado")):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        waiting.extend(gc.get_referents(thing))
    return total


async def over_history(checkpoints: list[int]) -> list[int]:
    """Return the bridge's bytes after so many exported spans."""
    sizes = []
    async with SimulatedCluster(2) as cluster:
        observer = Observer(cluster)
        for thousand in range(1, checkpoints[-1] // 1000 + 1):
            for number in range(1000):
                cluster.finish(cluster.submit((f"span {number % 50}",)))
            await observer.settle()
            cluster.forget_spans()
            # The bridge counts on Dask keeping them.
            observer.adapter.spans._seen = 0
            if 1000 * thousand in checkpoints:
                sizes.append(size_of(observer.adapter, cluster.scheduler))
    return sizes


def run(quick: bool) -> list[Row]:
    """Measure open spans, then a long history."""
    ours, dask = asyncio.run(per_open_span(1000 if quick else 10_000))
    end = 100_000 if quick else 1_000_000
    points = [20_000, end // 2, end]
    sizes = asyncio.run(over_history(points))
    growth = sizes[-1] - sizes[0]
    return [
        Row("4", "memory per open span", "≤ 4 KiB", f"{ours / 1024:.1f} KiB",
            verdict(ours <= 4096), {"bytes": ours}),
        Row("4", "peer: Dask's own memory per open span and its task", "",
            f"{dask / 1024:.1f} KiB", "peer", {"bytes": dask}),
        Row("4", f"growth from {points[0]:,} to {end:,} exported spans", "flat",
            f"{growth / 1024:+.0f} KiB of {sizes[-1] / 1024:,.0f} KiB",
            verdict(growth < 64 * 1024), {"spans": points, "bytes": sizes}),
    ]  # fmt: skip

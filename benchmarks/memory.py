"""Row 4: what the bridge keeps of spans that are open."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import tracemalloc
import types
from typing import Any

from benchmarks.instructions import observed
from benchmarks.results import Row, verdict
from benchmarks.simulated import SimulatedCluster

#: Spans before those that are measured.
WARM = 100


def _traced() -> tuple[int, int]:
    gc.collect()
    return tracemalloc.get_traced_memory()[0], len(gc.get_objects())


async def per_open_span(count: int, settings: dict[str, Any] | None) -> tuple[float, float]:
    """Return what an open span with a task takes, with a bridge of these settings or none.

    All bytes, wherever they were allocated: the code that a dataclass generates has no file, and
    an object can get the memory that other code has freed. And the objects that Python's garbage
    collector visits.
    """
    async with SimulatedCluster(4) as cluster:
        bridge, _ = observed(cluster, settings)
        if bridge is not None:
            # A bridge has a sampler from its start on.
            bridge.adapter.decide_with(lambda trace: True)
        tracemalloc.start()
        for i in range(WARM + count):
            if i == WARM:
                before = _traced()
            keys = cluster.submit((f"span {i % 50}",))
            cluster.heartbeat(cluster.addresses[i % 4], cluster.metered(keys, 10))
        if bridge is not None:
            # The metrics so far go with the next export: they are no part of an open span.
            bridge.adapter.swap(time.time_ns())
        after = _traced()
        tracemalloc.stop()
    return (after[0] - before[0]) / count, (after[1] - before[1]) / count


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


def run(quick: bool) -> list[Row]:
    """Measure open spans."""
    spans = 1000 if quick else 10_000
    dask, visited = asyncio.run(per_open_span(spans, None))
    both, all_visited = asyncio.run(per_open_span(spans, {}))
    ours = both - dask
    return [
        Row("4", "memory per open span", "≤ 2 KiB", f"{ours / 1024:.1f} KiB",
            verdict(ours <= 2048), {"bytes": ours}),
        Row("4", "peer: Dask's own memory per open span and its task", "",
            f"{dask / 1024:.1f} KiB", "peer", {"bytes": dask}),
        Row("4", "objects per open span and its task that Python's collector visits", "",
            f"{all_visited - visited:.1f} beside {visited:.1f} of Dask", "info",
            {"bridge": all_visited - visited, "dask": visited}),
    ]  # fmt: skip

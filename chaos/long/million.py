"""A million tasks and twenty thousand spans through real processes."""

from __future__ import annotations

import operator
import os
import time
from collections import Counter, deque
from typing import Any

from benchmarks.memory import size_of
from distributed import span
from tests.receiver import decode_spans
from tests.waiting import eventually

from chaos.scenario import HTTP, progress, scenario
from chaos.world import PATIENCE, World

#: `CHAOS_TASKS=20000 CHAOS_SPANS=400` for a try.
_TASKS = int(os.environ.get("CHAOS_TASKS", "1000000"))
_SPANS = int(os.environ.get("CHAOS_SPANS", "20000"))
_EACH = _TASKS // _SPANS
#: Names of spans: each has many.
_NAMES = 50
#: Spans that are under way at a time.
_AT_ONCE = 30
_ENV = {
    # Through queues and intervals closer to the defaults.
    "OTEL_METRIC_EXPORT_INTERVAL": "10000",
    "OTEL_BSP_SCHEDULE_DELAY": "1000",
    # The table of exported spans has its full size early.
    "DASK_OTEL__SPANS__REMEMBER": str(max(1, _SPANS // 50)),
}


class Seen:
    """Sums over the spans that the collector got: they are too many to keep."""

    def __init__(self) -> None:
        self.spans: Counter[str] = Counter()
        self.ids: set[int] = set()
        self.tasks = self.again = 0

    def take(self, signal: str, request: Any) -> None:
        """Add up a request."""
        for one in decode_spans(request) if signal == "traces" else ():
            self.again += one.span_id in self.ids
            self.ids.add(one.span_id)
            if one.type == "span":
                assert one.attributes["dask.span.complete"], one.name
                self.spans[one.name] += 1
                self.tasks += one.attributes["dask.task.count"]


def bridge_size(dask_scheduler: Any) -> int:
    """Return the bytes of what the bridge holds. Runs on the scheduler."""
    adapter = dask_scheduler.plugins["dask-otel"].bridge.adapter
    return size_of(adapter, dask_scheduler)


def _run(world: World, numbers: range) -> int:
    """Run spans of these numbers; returns the bytes that the bridge holds then."""
    under_way: deque[list[Any]] = deque()
    for number in numbers:
        # Each block is a span of its own, and each has a group of its own.
        with span(f"load {number % _NAMES}"):
            keys = [(f"neg-{number:08x}x", index) for index in range(_EACH)]
            under_way.append(world.client.map(operator.neg, range(_EACH), key=keys))
        while len(under_way) > _AT_ONCE:
            world.wait(under_way.popleft())
    while under_way:
        world.wait(under_way.popleft())
    progress(f"{numbers.stop} spans")
    return int(world.client.run_on_scheduler(bridge_size))


@scenario(
    "million",
    section="Load",
    fault=f"{_TASKS:,} tasks in {_SPANS:,} spans run through a scheduler and two workers of two "
    "threads",
    promise="Each span arrives once, with all of its tasks; every counter is what Dask itself "
    "has counted; nothing is dropped; the bridge keeps a bounded table of exported "
    "spans, and no more than that after half of them",
    protocols=(HTTP,),
)
def _million(world: World) -> str:
    seen = Seen()
    world.collector.judge = seen.take
    world.collector.keeps = frozenset({"metrics"})
    world.start(_ENV)
    began = time.monotonic()
    half = _SPANS // 2
    held = [_run(world, numbers) for numbers in (range(half), range(half, _SPANS))]
    seconds = time.monotonic() - began
    tasks = _EACH * _SPANS
    world.submitted = {"all": tasks}
    world.all_tasks_counted()
    expected = Counter(f"load {number % _NAMES}" for number in range(_SPANS))
    eventually(lambda: seen.spans == expected, PATIENCE, "each span has arrived")
    assert seen.again == 0, f"{seen.again} spans came twice"
    assert seen.tasks == tasks, f"the spans have {seen.tasks} of {tasks} tasks"
    dropped = sum(world.collector.last("dask.otel.dropped").values())
    assert dropped == 0, f"{dropped} items were dropped"
    assert held[1] < held[0] + 256 * 1024, f"the bridge holds {held} bytes"
    world.clean_log()
    return (
        f"{seen.spans.total():,} of {expected.total():,} spans, {seen.tasks:,} of {tasks:,} "
        f"tasks, by the spans and by the counters, in {seconds:.0f} s ({tasks / seconds:.0f} "
        f"tasks/s); the bridge holds {held[0] / 1024:.0f} KiB after half of it and "
        f"{held[1] / 1024:.0f} KiB at the end"
    )

"""Row 15: what it costs the event loop to follow what bounds a span, and what is in memory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks.cluster import answer
from benchmarks.instructions import chain, count_work, counted, run_tasks
from benchmarks.results import Row, verdict
from benchmarks.simulated import Needs

#: Leaves of a tree.
LEAVES: Final = 512


def tree(number: int) -> Iterable[int]:
    """Let each task after the leaves need two: those of the level before, in their order."""
    first = 2 * (number - LEAVES)
    return range(first, first + 2) if first >= 0 else ()


#: What is followed, tasks of a span, which of them one needs, and the most instructions a task.
SHAPES: Final[dict[str, tuple[str, int, Needs | None, int]]] = {
    "1,000 independent tasks": ("path", 1000, None, 5000),
    "a tree of 512 leaves": ("path", 2 * LEAVES - 1, tree, 5000),
    "a chain of 60": ("path", 60, chain, 10_000),
    "a chain of 1,000": ("path", 1000, chain, 10_000),
    "1,000 independent tasks, each with a result": ("memory", 1000, None, 5000),
}
#: Pairs without the path and with it, of which the last ones count: Python adapts to the others.
PAIRS: Final = 10
WARM: Final = 5


async def _pairs(pairs: int) -> None:
    for what, tasks, needs, _ in SHAPES.values():
        settings_of: tuple[dict[str, Any], ...] = {"spans": {what: False}}, {}
        for _ in range(pairs):
            for settings in settings_of:
                work = partial(run_tasks, tasks=tasks, needs=needs)
                await count_work(settings, lambda cluster, _, work=work: work(cluster))


def run(quick: bool) -> list[Row]:
    """Count the instructions of the path for a task, in spans of some shapes."""
    pairs = PAIRS - 3 if quick else PAIRS
    _, sums = counted("benchmarks.path", pairs)
    rows = []
    for number, (shape, (followed, tasks, _, limit)) in enumerate(SHAPES.items()):
        own = sums[2 * (pairs * number + WARM) : 2 * pairs * (number + 1)]
        added = sorted((on - off) / tasks for off, on in zip(own[::2], own[1::2], strict=True))
        per_task = median(added)
        figure = f"{per_task:,.0f} ({added[0]:,.0f} to {added[-1]:,.0f})"
        what = f"instructions per task that the {followed} takes: {shape} (event loop)"
        rows.append(
            Row("15", what, f"≤ {limit:,}", figure, verdict(per_task <= limit), {"pairs": added})
        )
    return rows


if __name__ == "__main__":
    answer(asyncio.run(_pairs(int(sys.argv[1]))))

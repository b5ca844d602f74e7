"""Rows 15 to 17: what the path, the graph log, and the ledger of memory cost the event loop."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks.instructions import chain, count_work, counted, run_tasks
from benchmarks.results import Row, verdict
from benchmarks.simulated import Needs

#: Leaves of a tree.
LEAVES: Final = 512


def tree(number: int) -> Iterable[int]:
    """Let each task after the leaves need two: those of the level before, in their order."""
    first = 2 * (number - LEAVES)
    return range(first, first + 2) if first >= 0 else ()


#: Tasks of a span, which of them one needs, and the most instructions a task of each row.
SHAPES: Final[dict[str, tuple[int, Needs | None, dict[str, int]]]] = {
    "1,000 independent tasks": (1000, None, {"15": 5000, "16": 500, "17": 600}),
    "a tree of 512 leaves": (2 * LEAVES - 1, tree, {"15": 5000, "16": 1000}),
    "a chain of 60": (60, chain, {"15": 10_000}),
    "a chain of 1,000": (1000, chain, {"15": 10_000}),
}
#: Pairs without the feature and with it. Only the last ones count: Python adapts to the first ones.
PAIRS: Final = 10
WARM: Final = 5
#: By row, the feature, and the settings without it and with it.
_FEATURES: Final[dict[str, tuple[str, tuple[dict[str, Any], ...]]]] = {
    "15": ("the path takes", ({"spans": {"path": False}}, {})),
    "16": ("the graph log takes", ({}, {"report": {"record": "always"}})),
    "17": ("the ledger of memory takes", ({"spans": {"memory": False}}, {})),
}


async def _pairs(row: str, pairs: int) -> None:
    for tasks, needs, limits in SHAPES.values():
        for _ in range(pairs if row in limits else 0):
            for settings in _FEATURES[row][1]:
                work = partial(run_tasks, tasks=tasks, needs=needs)
                await count_work(settings, lambda cluster, _, work=work: work(cluster))


def run(quick: bool, row: str = "15") -> list[Row]:
    """Count the instructions of a feature for a task, in spans of some shapes."""
    pairs = PAIRS - 3 if quick else PAIRS
    _, sums = counted(_pairs, row, pairs)
    rows = []
    for shape, (tasks, _, limits) in SHAPES.items():
        if row not in limits:
            continue
        own, sums = sums[2 * WARM : 2 * pairs], sums[2 * pairs :]
        added = sorted((on - off) / tasks for off, on in zip(own[::2], own[1::2], strict=True))
        per_task, limit = median(added), limits[row]
        figure = f"{per_task:,.0f} ({added[0]:,.0f} to {added[-1]:,.0f})"
        what = f"instructions per task that {_FEATURES[row][0]}: {shape} (event loop)"
        verdict_of = verdict(per_task <= limit)
        rows.append(Row(row, what, f"≤ {limit:,}", figure, verdict_of, {"pairs": added}))
    return rows

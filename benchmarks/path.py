"""Row 15: what it costs the event loop to follow what bounds a span."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks.cluster import answer
from benchmarks.instructions import count_work, counted, run_tasks
from benchmarks.results import Row, verdict

#: Tasks of a span, and whether each needs the one before.
SHAPES: Final = {
    "1,000 independent tasks": (1000, False),
    "a chain of 60": (60, True),
    "a chain of 1,000": (1000, True),
}
#: Pairs without the path and with it, of which the last ones count: Python adapts to the others.
PAIRS: Final = 10
WARM: Final = 5
#: Instructions a task.
LIMIT: Final = 5000
_SETTINGS: Final[tuple[dict[str, Any], ...]] = ({"spans": {"path": False}}, {})


async def _pairs(pairs: int) -> None:
    for tasks, chained in SHAPES.values():
        for _ in range(pairs):
            for settings in _SETTINGS:
                work = partial(run_tasks, tasks=tasks, chained=chained)
                await count_work(settings, lambda cluster, _, work=work: work(cluster))


def run(quick: bool) -> list[Row]:
    """Count the instructions of the path for a task, in three shapes of a span."""
    pairs = PAIRS - 3 if quick else PAIRS
    _, sums = counted("benchmarks.path", pairs)
    rows = []
    for number, (shape, (tasks, _)) in enumerate(SHAPES.items()):
        own = sums[2 * (pairs * number + WARM) : 2 * pairs * (number + 1)]
        added = sorted((on - off) / tasks for off, on in zip(own[::2], own[1::2], strict=True))
        per_task = median(added)
        figure = f"{per_task:,.0f} ({added[0]:,.0f} to {added[-1]:,.0f})"
        what = f"instructions per task that the path takes: {shape} (event loop)"
        rows.append(
            Row("15", what, f"≤ {LIMIT:,}", figure, verdict(per_task <= LIMIT), {"pairs": added})
        )
    return rows


if __name__ == "__main__":
    answer(asyncio.run(_pairs(int(sys.argv[1]))))

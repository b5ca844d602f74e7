"""Rows 15 to 17: what the path, the graph log, and the ledger of memory cost the event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks.instructions import chain, count, count_work, counted, run_tasks, write_sum
from benchmarks.results import Row, verdict
from benchmarks.simulated import Needs
from dask_otel._dask.graphs import Graphs

#: Leaves of a tree.
LEAVES: Final = 512


def tree(number: int) -> Iterable[int]:
    """Let each task after the leaves need two: those of the level before, in their order."""
    first = 2 * (number - LEAVES)
    return range(first, first + 2) if first >= 0 else ()


#: Tasks of a span, which of them one needs, and the most instructions a task of each row.
SHAPES: Final[dict[str, tuple[int, Needs | None, dict[str, int]]]] = {
    "1,000 independent tasks": (1000, None, {"15": 5000, "16": 500, "17": 600}),
    "a tree of 512 leaves": (2 * LEAVES - 1, tree, {"15": 5000, "16": 500}),
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
#: What the graph log does on the event loop; and so many small spans come first, as Python adapts.
_CALLS: Final = ("submitted", "ended", "of", "exported")
_SMALL: Final = 20


async def _pairs(row: str, pairs: int) -> None:
    for tasks, needs, limits in SHAPES.values():
        for _ in range(pairs if row in limits else 0):
            for settings in _FEATURES[row][1]:
                work = partial(run_tasks, tasks=tasks, needs=needs)
                await count_work(settings, lambda cluster, _, work=work: work(cluster))


def _counting(function: Callable[..., Any], made: list[object]) -> Callable[..., Any]:
    """Return a function whose calls callgrind counts, and `made` notes."""

    def call(*arguments: Any) -> Any:
        made.append(function)
        found = []
        count(lambda: found.append(function(*arguments)))
        return found[0]

    return call


async def _calls(runs: int) -> None:
    """Count the graph log's calls in some spans, and as many calls of nothing after each."""
    made = list[object]()
    for name in _CALLS:
        setattr(Graphs, name, _counting(getattr(Graphs, name), made))
    nothing = _counting(lambda *_: None, [])
    shapes = [(tasks, needs) for tasks, needs, limits in SHAPES.values() if "16" in limits]
    for tasks, needs in [(_SMALL, chain)] * _SMALL + [one for one in shapes for _ in range(runs)]:
        made.clear()
        work = partial(run_tasks, tasks=tasks, needs=needs)
        recorded = _FEATURES["16"][1][1]
        await count_work(recorded, lambda cluster, _, work=work: work(cluster), lambda run: run())
        for _ in made:
            nothing()
        write_sum()


def run_graphs(quick: bool) -> list[Row]:
    """Count what the graph log does for a task, in spans of some shapes.

    It is too little for the difference of two whole runs, and a run without it also frees the
    records that a graph log keeps.
    """
    runs = 1 if quick else 3
    _, sums = counted(_calls, runs)
    return _rows("16", [*zip(sums[1::2], sums[::2], strict=True)][_SMALL:], runs)


def run(quick: bool, row: str = "15") -> list[Row]:
    """Count the instructions of a feature for a task, in spans of some shapes."""
    pairs = PAIRS - 3 if quick else PAIRS
    _, sums = counted(_pairs, row, pairs)
    return _rows(row, [*zip(sums[::2], sums[1::2], strict=True)], pairs, WARM)


def _rows(row: str, sums: list[tuple[int, int]], pairs: int, warm: int = 0) -> list[Row]:
    """Return the rows of sums without and with a feature: so many pairs of each shape."""
    rows = []
    for shape, (tasks, _, limits) in SHAPES.items():
        if row not in limits:
            continue
        own, sums = sums[warm:pairs], sums[pairs:]
        added = sorted((on - off) / tasks for off, on in own)
        per_task, limit = median(added), limits[row]
        figure = f"{per_task:,.0f} ({added[0]:,.0f} to {added[-1]:,.0f})"
        what = f"instructions per task that {_FEATURES[row][0]}: {shape} (event loop)"
        verdict_of = verdict(per_task <= limit)
        rows.append(Row(row, what, f"≤ {limit:,}", figure, verdict_of, {"pairs": added}))
    return rows

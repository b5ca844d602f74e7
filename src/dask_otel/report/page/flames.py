"""The flame graph of a run for the page's script: a tree as rows, packed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dask_otel import semconv
from dask_otel.core.profiles.stacks import Frame
from dask_otel.core.profiles.tree import Node
from dask_otel.core.traces.values import in_threads
from dask_otel.report.page.payload import pack
from dask_otel.report.profiles import cautions, merged, spans_of
from dask_otel.report.seconds import add, span_activities
from dask_otel.report.telemetry.model import Session

#: The smallest share of all time that has a row.
_SMALLEST: Final = 1 / 2000
_CPU: Final = ("thread-cpu", "thread-noncpu")


@dataclass
class Flame:
    """The script's data, the sampled seconds, their share of the threads', and the gaps."""

    packed: str
    seconds: float
    coverage: float | None
    cautions: list[str]


def flame(session: Session) -> Flame | None:
    """Return the flame graph of a run; None without profiles."""
    stacks = spans_of(session.profiles)
    if not stacks:
        return None
    tree = merged(stacks)
    totals: dict[int, int] = {}
    whole = _total(tree, totals)
    frames: dict[Frame, int] = {}
    rows = [
        [frames.setdefault(frame, len(frames)), depth, totals[id(node)],
         sum(cost.micros for cost in node.lines.values()),
         max(node.lines, key=lambda line: node.lines[line].micros, default=0)]
        for frame, depth, node in _rows(tree, totals, whole * _SMALLEST)
    ]  # fmt: skip
    sampled = {(one.trace_id, one.span_id) for one in stacks}
    own = [span_activities(span) for span in session.of_type("span") if span.key in sampled]
    ran = sum(map(in_threads, own))
    data = {"whole": whole, "frames": [*frames], "nodes": rows, "cpu": _cpu(session)}
    coverage = whole / 1e6 / ran if ran else None
    return Flame(pack(data), whole / 1e6, coverage, [*cautions(session.profiles)])


def _total(node: Node, totals: dict[int, int]) -> int:
    """Return the microseconds of a node with its callees, and note them by its address."""
    own = sum(cost.micros for cost in node.lines.values())
    totals[id(node)] = own + sum(_total(one, totals) for one in node.callees.values())
    return totals[id(node)]


def _rows(
    node: Node, totals: dict[int, int], least: float, depth: int = 0
) -> Iterator[tuple[Frame, int, Node]]:
    """Yield the frames that are wide enough, the widest first."""
    found = sorted(node.callees.items(), key=lambda item: -totals[id(item[1])])
    for frame, below in found:
        if totals[id(below)] >= least:
            yield frame, depth, below
            yield from _rows(below, totals, least, depth + 1)


def _cpu(session: Session) -> dict[str, list[float]]:
    """Return the seconds on and off the CPU of each span, and of each of its prefixes."""
    labels = (semconv.SPAN_NAME, semconv.TASK_PREFIX, semconv.ACTIVITY)
    found: dict[str, dict[str, float]] = {}
    metered = session.metrics.sums(semconv.SPAN_EXECUTE_TIME.name, *labels)
    for (name, prefix, activity), took in metered.items():
        for key in (name, f"{name}\n{prefix}"):
            add(found.setdefault(key, {}), activity, took)
    return {
        key: [round(one.get(activity, 0.0), 6) for activity in _CPU]
        for key, one in found.items()
        if {*_CPU} & one.keys()
    }

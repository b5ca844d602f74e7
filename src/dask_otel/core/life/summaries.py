"""The sums of a Dask span's own work over all its generations, even after its export.

They answer the client's questions. Dask keeps the metrics; these are the facts that Dask forgets or
does not know: outcomes, true ends, idle seconds. `Generations` remembers those of exported spans.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from dask_otel.core.life.completion import earliest
from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.records import TaskCounts
from dask_otel.core.sums import known_sum

#: The same object for all spans: thousands are remembered, and Python's collector visits each.
NOBODY: Final[frozenset[str]] = frozenset()


@dataclass(slots=True)
class SpanSummary:
    """Own work of one Dask span. Times are seconds since the epoch."""

    #: First start and last end; 0.0 if nothing started or ended.
    first_start: float = 0.0
    stop: float = 0.0
    counts: TaskCounts = field(default_factory=TaskCounts)
    #: Idle and capacity seconds; None if not measured.
    idle: float | None = None
    capacity: float | None = None
    #: Workers that had not sent their last report at the settle timeout.
    unreported: frozenset[str] = NOBODY
    #: Whether tasks may have ended unobserved, before the bridge was installed or while it was
    #: removed.
    partial: bool = False
    #: Of the whole tree: seconds by `semconv.PATH_PARTS` that bounded the exported generations;
    #: None if one is unknown.
    path: tuple[float, ...] | None = ()
    #: Seconds that tasks outside of the tree computed meanwhile; see `computing`.
    elsewhere: float = 0.0

    def add(self, other: SpanSummary) -> None:
        """Add another generation, or another span."""
        self.first_start = earliest(self.first_start, other.first_start)
        self.stop = max(self.stop, other.stop)
        self.counts.add(other.counts)
        self.idle = known_sum((self.idle, other.idle))
        self.capacity = known_sum((self.capacity, other.capacity))
        if other.unreported:
            self.unreported |= other.unreported
        self.partial = self.partial or other.partial
        self.path = join_paths(self.path, other.path)
        self.elsewhere += other.elsewhere


def join_paths(
    one: tuple[float, ...] | None, other: tuple[float, ...] | None
) -> tuple[float, ...] | None:
    """Return the sum of the paths of two generations; None if one is unknown."""
    if one is None or other is None:
        return None
    return tuple(map(sum, zip_longest(one, other, fillvalue=0.0)))


def total(summaries: Iterable[SpanSummary | None]) -> SpanSummary:
    """Return the sum of the summaries that are known."""
    whole = SpanSummary()
    for one in filter(None, summaries):
        whole.add(one)
    return whole


def summarize(
    span: OpenSpan,
    idle: float | None,
    capacity: float | None,
    elsewhere: float,
    path: tuple[float, ...] | None = (),
) -> SpanSummary:
    """Return the summary of one generation, settled or cut off; `path` if it is exported."""
    summary = SpanSummary(
        first_start=span.first_start,
        stop=span.last_stop,
        counts=TaskCounts.of(*span.groups),
        idle=idle,
        capacity=capacity,
        unreported=frozenset(span.owing or NOBODY),
        partial=span.partial or span.unfinished > 0,
        path=path,
        elsewhere=elsewhere,
    )
    for group in span.groups:
        # If the bridge is removed, the next one counts the tasks that continue.
        summary.counts.tasks -= max(0, group.unfinished)
    return summary

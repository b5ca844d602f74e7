"""The sums of a Dask span's own work over all its generations, even after its export.

They answer the client's questions. Dask keeps the metrics; these are the facts that Dask forgets or
does not know: outcomes, true ends, idle seconds. The table is bounded. A forgotten span has no
outcome here, rather than a wrong one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from dask_otel.core.life.completion import earliest
from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.records import TaskCounts


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
    unreported: frozenset[str] = frozenset()
    #: Whether tasks may have ended unobserved, before the bridge was installed or while it was
    #: removed.
    partial: bool = False

    def add(self, other: SpanSummary) -> None:
        """Add another generation, or another span."""
        self.first_start = earliest(self.first_start, other.first_start)
        self.stop = max(self.stop, other.stop)
        self.counts.add(other.counts)
        self.idle = _sum(self.idle, other.idle)
        self.capacity = _sum(self.capacity, other.capacity)
        self.unreported |= other.unreported
        self.partial = self.partial or other.partial


def _sum(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return one + other


def summarize(span: OpenSpan, idle: float | None, capacity: float | None) -> SpanSummary:
    """Return the summary of one generation, settled or cut off."""
    summary = SpanSummary(
        first_start=span.first_start,
        stop=span.last_stop,
        counts=span.own_counts(),
        idle=idle,
        capacity=capacity,
        unreported=frozenset(span.owing or ()),
        partial=span.partial or span.unfinished > 0,
    )
    for group in span.groups:
        # If the bridge is removed, the next one counts the tasks that continue.
        summary.counts.tasks -= max(0, group.unfinished)
    return summary


class Summaries:
    """Summaries of exported spans; discards the oldest ones.

    Parameters
    ----------
    remember
        Limit of the Dask spans.
    """

    def __init__(self, remember: int) -> None:
        self._remember = remember
        self._spans: OrderedDict[str, SpanSummary] = OrderedDict()

    def __len__(self) -> int:
        return len(self._spans)

    def resume(self, remember: int) -> None:
        """Continue with another limit: the bridge was removed, and is installed again."""
        self._remember = remember
        self._forget()

    def _forget(self) -> None:
        while len(self._spans) > self._remember:
            self._spans.popitem(last=False)

    def knows(self, dask_id: str) -> bool:
        """Whether an exported generation of a span is remembered."""
        return dask_id in self._spans

    def keep(self, dask_id: str, summary: SpanSummary) -> None:
        """Add an exported generation."""
        earlier = self._spans.get(dask_id)
        if earlier is not None:
            earlier.add(summary)
            self._spans.move_to_end(dask_id)
            return
        self._spans[dask_id] = summary
        self._forget()

    def of(self, dask_id: str, present: SpanSummary | None) -> SpanSummary | None:
        """Return the sum of a span's generations; None if it is unknown.

        Parameters
        ----------
        present
            The generation that has not been exported, if there is one.
        """
        kept = self._spans.get(dask_id)
        if kept is None and present is None:
            return None
        total = SpanSummary()
        for part in (kept, present):
            if part is not None:
                total.add(part)
        return total

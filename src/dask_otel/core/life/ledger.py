"""What results take of the workers' memory: bytes now, bytes over time, and the largest sum.

When a result comes or goes, only the `Moves` of its task group change: O(1). `read` adds them to
all sums: of the group, the span, the spans above it, and the series of the metrics. Peaks are the
largest sums of all readings. So a result that comes and goes between two readings is in the bytes
over time, and in no peak.

The bytes over time need no clock that ticks: from ``sum(change * time)`` over all changes,
``bytes * now - that sum`` is the integral up to any time after the last change.

Memory is bounded by the groups with results in memory or in an open span, the spans of these and
those above, and `MAX_PREFIXES` of each root.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from heapq import nlargest
from operator import itemgetter
from typing import Any, Final
from weakref import WeakValueDictionary

from dask_otel import semconv
from dask_otel.core.life.open_span import Group, OpenSpan
from dask_otel.core.memory.fullest import FullestWorkers
from dask_otel.core.memory.sums import Holding, Moves, Series, SpanSum, Sum
from dask_otel.core.records import SpanMemory, Tags

#: Prefixes of a root whose results are summed by prefix; the others are one sum.
MAX_PREFIXES: Final = 128
#: Prefixes of a root that are exported with its peak.
MAX_AT_PEAK: Final = 8


class Ledger:
    """The results of one scheduler's tasks in memory. Belongs to its event loop.

    Parameters
    ----------
    spans
        The open spans by Dask's id. Each keeps its sums.
    groups
        The groups of open spans; whatever has them feeds it.
    """

    def __init__(
        self, spans: Mapping[str, OpenSpan], groups: Container[Hashable] = frozenset()
    ) -> None:
        self._open, self.open_groups = spans, groups
        #: A monotonic clock, in seconds.
        self.clock: Callable[[], float] = float
        #: Returns Dask's span of a group, if it has one, and the group's prefix.
        self.owner: Callable[[Any], tuple[Any, str]]
        #: By group, the moves that are not in the sums yet, but for those of `came`.
        self.moves: defaultdict[Any, Moves] = defaultdict(Moves)
        #: The groups with moves of their own: see `Group.came`.
        self.came: list[Group] = []
        self.holdings: dict[Hashable, Holding] = {}
        #: The groups of data without a span, and their sum.
        self.spanless: set[Hashable] = set()
        self.scattered = Series()
        #: Of the workers' heartbeats, the memory in use, and the tasks that run.
        self.workers, self.running = FullestWorkers(), FullestWorkers()
        self._spans: WeakValueDictionary[str, SpanSum] = WeakValueDictionary()
        self._series: WeakValueDictionary[tuple[Tags, str], Series] = WeakValueDictionary()
        #: Series of forgotten groups, until they are exported.
        self._ending: set[Series] = set()

    def __repr__(self) -> str:
        return f"<Ledger: {self.held:,} bytes, {self.scattered.bytes:,} without a span>"

    @property
    def held(self) -> int:
        """The results of all spans."""
        return sum([one.bytes for one in self._series.values()])

    # ------------------------------------------------------------------------- changes

    def move(self, group: Hashable, size: int, now: float) -> None:
        """Note that results of a group came, or went. It may get a span later."""
        self._holding(group)
        self.moves[group].add(size, size * now)

    def _holding(self, group: Hashable) -> Holding:
        """Return the results of a group; begin to hold some if it has none."""
        if (one := self.holdings.get(group)) is not None:
            return one
        owner, prefix = self.owner(group)
        if owner is None:
            self.spanless.add(group)
            one = Holding(Sum(), self.scattered)
        else:
            series = self._series.setdefault((owner.name, prefix), Series())
            span = self._span(owner)
            spans = (span, *span.above)
            known = spans[-1].prefixes
            if len(known) >= MAX_PREFIXES and prefix not in known:
                prefix = semconv.FOLDED
            known[prefix] += 0
            one = Holding(Sum(), series, spans, prefix)
        self.holdings[group] = one
        return one

    def _span(self, owner: Any) -> SpanSum:
        if (known := self._spans.get(owner.id)) is None:
            above = None if owner.parent is None else self._span(owner.parent)
            known = SpanSum(above=() if above is None else (above, *above.above))
            self._spans[owner.id] = known
            if (span := self._open.get(owner.id)) is not None:
                span.results = known
                known.quiet = span.work_done
        return known

    def begin(self, group: Hashable) -> None:
        """Begin a generation of a group, which may have got a span for its data."""
        self.read()
        now = self.clock()
        if group in self.spanless:
            self.spanless.discard(group)
            size = self.holdings.pop(group).known.bytes
            self.scattered.add(-size, -size * now)
            self.move(group, size, now)
            self.read()
        if (one := self.holdings.get(group)) is not None:
            one.known.begin(now)

    def recount(self, sizes: Mapping[Hashable, int]) -> None:
        """Correct all groups: these are the true sizes; others have nothing."""
        self._add()
        missed, now = Counter(sizes), self.clock()
        missed.subtract({group: one.known.bytes for group, one in self.holdings.items()})
        for group, size in missed.items():
            self.move(group, size, now)
        self.read()

    def _add(self) -> dict[Hashable, Holding]:
        """Add all moves to the sums; return the holdings of their groups."""
        for one in self.came:
            self.moves[one.source].add(one.came, one.moment)
            one.came, one.moment = 0, 0.0
        self.came.clear()
        changed = {group: self._holding(group) for group in self.moves}
        for group, holding in changed.items():
            holding.add(self.moves.pop(group))
        return changed

    # ------------------------------------------------------------------------- readings

    def read(self) -> None:
        """Add all moves to the sums, and note new peaks. O(changed groups x their depth)."""
        if self.moves or self.came:
            for group, one in self._add().items():
                for known in (one.known, *one.spans):
                    known.rise()
                self.forget(group)

    def forget(self, group: Hashable) -> None:
        """Forget a group without results, unless its generation is open."""
        one = self.holdings.get(group)
        if one is not None and not (
            one.known.bytes or group in self.moves or group in self.open_groups
        ):
            del self.holdings[group]
            self.spanless.discard(group)
            self._ending.add(one.series)

    def series(self) -> Iterator[tuple[tuple[Tags, str], int, float]]:
        """Yield the series, and the bytes and bytes over time that are new since the last time."""
        self.read()
        now = self.clock()
        for labels, one in [*self._series.items()]:
            size = one.bytes - one.exported
            spent = max(0.0, one.bytes * now - one.moment - one.exported_time)
            one.exported += size
            one.exported_time += spent
            self._ending.discard(one)
            yield labels, size, spent

    # ---------------------------------------------------------------- workers and spans

    def opened(self, span: OpenSpan) -> None:
        """Begin a generation of a span."""
        span.heartbeats_before = self.workers.number
        self.read()
        # It counts as done until its first work: data without tasks has none.
        span.work_done = self.clock()
        span.results = self._spans.get(span.identity.dask_id)
        if span.results is not None:
            span.results.quiet = span.work_done
            span.results.begin(span.work_done)

    def busy(self, span: OpenSpan) -> None:
        """A span has work again, in itself or below."""
        span.work_done = 0.0
        if span.results is not None:
            span.results.quiet = 0.0

    def quiet(self, span: OpenSpan) -> None:
        """The work of a span and of those below is done."""
        peak, most = (one.since(span.heartbeats_before) for one in (self.workers, self.running))
        span.worker_peak = peak and most and peak._replace(tasks=int(most.share))
        self.read()
        span.work_done = self.clock()
        if span.results is not None:
            span.results.quiet = span.work_done

    def of_span(self, span: OpenSpan) -> SpanMemory | None:
        """Return the figures of a span's generation; None if it had nothing in memory."""
        self.read()
        one = span.results
        if one is None:
            return None
        largest = nlargest(MAX_AT_PEAK, one.at_peak, itemgetter(1))
        return one.figures(self.clock(), one.quiet, tuple(part for part in largest if part[1]))

    def of_group(self, group: Group) -> SpanMemory | None:
        """Return the figures of a group's generation; None if it had nothing in memory."""
        self.read()
        one = self.holdings.get(group.source)
        if one is None or not one.spans:
            return None
        return one.known.figures(self.clock(), one.spans[0].quiet)

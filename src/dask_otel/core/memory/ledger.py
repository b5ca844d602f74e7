"""What results take of the workers' memory: bytes now, bytes over time, and the largest sum.

When a result comes or goes, only the `moves` of its task group change: O(1). `add` adds them to all
sums: of the group, the span, the spans above it, and the series of the metrics. `read` does so for
all groups, and peaks are the largest sums of all readings. So a result that comes and goes between
two readings is in the bytes over time, and in no peak.

The bytes over time need no clock that ticks: from ``sum(change * time)`` over all changes,
``bytes * now - that sum`` is the integral up to any time after the last change.

Memory is bounded by the groups with results in memory or in an open span, the spans of these and
those above, and `MAX_PREFIXES` of each root.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from dask_otel import semconv
from dask_otel.core.memory.fullest import FullestWorkers
from dask_otel.core.records import SpanIdentity, SpanMemory, Tags, WorkerPeak

#: Prefixes of a root whose results are summed by prefix; the others are one sum.
MAX_PREFIXES: Final = 128


class Owner(Protocol):
    """A Dask span."""

    id: str
    name: Tags
    parent: Any


class Generation(Protocol):
    """An open span; see `OpenSpan`."""

    identity: SpanIdentity
    heartbeats_before: int
    worker_peak: WorkerPeak | None


class Moves:
    """Results that came and went; those that go count as negative."""

    __slots__ = ("bytes", "moment")

    def __init__(self) -> None:
        self.bytes = 0
        #: The sum of ``change * time``.
        self.moment = 0.0


class Sum(Moves):
    """Bytes over time."""

    __slots__ = ("base", "peak", "until")

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        #: The negative of `moment` when the present generation began.
        self.base = 0.0
        #: The bytes over time when the work was done, if something has changed since.
        self.until: float | None = None

    def begin(self, now: float) -> None:
        """Begin a generation: its peak and its bytes over time."""
        self.peak, self.until = self.bytes, None
        self.base = self.bytes * now - self.moment

    def change(self, size: int, moment: float, span: SpanSum | None) -> None:
        """Add some bytes; `span` is the one that its generation ends with."""
        if span is not None and span.quiet < inf and self.until is None:
            self.until = self.spent(span.quiet)
            span.ended.append(self)
        self.bytes += size
        self.moment += moment

    def rise(self) -> None:
        """Note a new peak."""
        self.peak = max(self.peak, self.bytes)

    def spent(self, until: float) -> float:
        """Return the bytes over time of the generation, up to now or to the end of its work."""
        return self.bytes * until - self.moment - self.base if self.until is None else self.until


class SpanSum(Sum):
    """The results of a span and of those below it."""

    __slots__ = ("above", "dask_id", "ended", "peaks", "prefixes", "quiet", "users")

    def __init__(self, dask_id: str, above: tuple[SpanSum, ...]) -> None:
        super().__init__()
        self.dask_id, self.above = dask_id, above
        #: When its work was done; infinite before.
        self.quiet = inf
        #: The sums that have changed since.
        self.ended: list[Sum] = []
        #: How often its peak has risen.
        self.peaks = 0
        #: Of a root: the results of the tree.
        self.prefixes: dict[str, PrefixSum] = {}
        #: Number of holdings and of spans just below that are added to it.
        self.users = 0

    def rise(self) -> None:
        """Note a new peak."""
        if self.bytes > self.peak:
            self.peak = self.bytes
            self.peaks += 1


class PrefixSum(Sum):
    """The results of one prefix in the tree of a root."""

    __slots__ = ("at_peak", "peaks", "root")

    def __init__(self, root: SpanSum) -> None:
        super().__init__()
        self.root = root
        #: Its bytes at the root's peak, and the number of that peak.
        self.at_peak = self.peaks = 0

    def change(self, size: int, moment: float, span: SpanSum | None) -> None:
        """Add some bytes; those that were there until now are those of the last peak."""
        self.at_peak, self.peaks = self.bytes_at_peak, self.root.peaks
        super().change(size, moment, span)

    @property
    def bytes_at_peak(self) -> int:
        """Its bytes when the tree's sum was the largest."""
        return self.bytes if self.peaks != self.root.peaks else self.at_peak


class SeriesSum(Sum):
    """The results of one series of the metrics, and what was exported of them."""

    __slots__ = ("exported", "exported_time", "users")

    def __init__(self) -> None:
        super().__init__()
        self.exported, self.exported_time, self.users = 0, 0.0, 0


class Holding:
    """The results of a task group, and all sums that they are added to."""

    __slots__ = ("group", "known", "sums")

    def __init__(self, group: Hashable) -> None:
        self.group, self.known = group, Sum()
        #: Each sum with the span that its generation ends with.
        self.sums: list[tuple[Sum, SpanSum | None]] = []


class Change(NamedTuple):
    """What a series has grown by since the last export."""

    tags: Tags
    prefix: str
    bytes: int
    byte_seconds: float


class Ledger:
    """The results of one scheduler's tasks in memory. Belongs to its event loop.

    Parameters
    ----------
    spans
        The open spans by Dask's id.
    groups
        The groups of open spans; whatever has them feeds it.
    """

    def __init__(self, spans: Container[str], groups: Container[Hashable] = ()) -> None:
        self._open, self.open_groups = spans, groups
        #: A monotonic clock, in seconds.
        self.clock: Callable[[], float] = float
        #: Returns the span of a group, if it has one, and the group's prefix.
        self.owner: Callable[[Any], tuple[Owner | None, str]]
        #: By group, the moves that are not in the sums yet: those of `move`, and of tasks that end.
        self.moves: defaultdict[Any, Moves] = defaultdict(Moves)
        self.holdings: dict[Hashable, Holding] = {}
        #: The results of all spans, and data without a span.
        self.held, self.scattered = Sum(), Sum()
        self.workers = FullestWorkers()
        #: The groups of data without a span.
        self.spanless: set[Hashable] = set()
        self._changed: set[Holding] = set()
        self._spans: dict[str, SpanSum] = {}
        self._series: dict[tuple[Tags, str], SeriesSum] = {}

    def __repr__(self) -> str:
        return f"<Ledger: {self.held.bytes:,} bytes, {self.scattered.bytes:,} without a span>"

    # ------------------------------------------------------------------------- changes

    def move(self, group: Hashable, size: int, now: float) -> None:
        """Note that results of a group came, or went."""
        moves = self.moves[group]
        moves.bytes += size
        moves.moment += size * now

    def add(self, group: Hashable) -> None:
        """Add the moves of a group to the sums. O(depth of its span)."""
        moves = self.moves.pop(group)
        one = self.holdings.get(group) or self._hold(group)
        for part, span in one.sums:
            part.change(moves.bytes, moves.moment, span)
        self._changed.add(one)

    def _hold(self, group: Hashable) -> Holding:
        """Begin to hold results of a group."""
        one = self.holdings[group] = Holding(group)
        span, prefix = self.owner(group)
        if span is None:
            self.spanless.add(group)
            one.sums = [(self.scattered, None), (one.known, None)]
            return one
        own = self._span(span)
        series = self._series.setdefault((span.name, prefix), SeriesSum())
        own.users += 1
        series.users += 1
        nodes = (own, *own.above)
        root = nodes[-1]
        if len(root.prefixes) >= MAX_PREFIXES and prefix not in root.prefixes:
            prefix = semconv.FOLDED
        share = root.prefixes.setdefault(prefix, PrefixSum(root))
        one.sums = [(self.held, None), (series, None), (share, None), (one.known, own)]
        one.sums += [(node, node) for node in nodes]
        return one

    def _span(self, span: Owner) -> SpanSum:
        known = self._spans.get(span.id)
        if known is None:
            parent = None if span.parent is None else self._span(span.parent)
            above = () if parent is None else (parent, *parent.above)
            known = self._spans[span.id] = SpanSum(span.id, above)
            if parent is not None:
                parent.users += 1
        return known

    def begin(self, group: Hashable) -> None:
        """Begin a generation of a group, which may have got a span for its data."""
        self.read()
        now = self.clock()
        if group in self.spanless:
            self.spanless.discard(group)
            size = self.holdings.pop(group).known.bytes
            self.scattered.change(-size, -size * now, None)
            self.move(group, size, now)
            self.read()
        if (one := self.holdings.get(group)) is not None:
            one.known.begin(now)

    def recount(self, sizes: Mapping[Hashable, int]) -> None:
        """Correct all groups: these are the true sizes; others have nothing."""
        for group in [*self.moves]:
            self.add(group)
        missed, now = Counter(sizes), self.clock()
        missed.subtract({group: one.known.bytes for group, one in self.holdings.items()})
        for group, size in missed.items():
            self.move(group, size, now)
        self.read()

    # ------------------------------------------------------------------------- readings

    def read(self) -> None:
        """Add all moves to the sums, and note new peaks. O(changed groups x their depth)."""
        for group in [*self.moves]:
            self.add(group)
        changed, self._changed = self._changed, set()
        for one in changed:
            for part, span in one.sums:
                if span is not None and span.quiet == inf:
                    part.rise()
            self.forget(one.group)

    def series(self) -> Iterator[Change]:
        """Yield what the series have grown by since the last time."""
        self.read()
        now = self.clock()
        for (tags, prefix), one in [*self._series.items()]:
            size, spent = one.bytes - one.exported, max(0.0, one.spent(now) - one.exported_time)
            one.exported += size
            one.exported_time += spent
            if size or spent:
                yield Change(tags, prefix, size, spent)
            if not one.users:
                del self._series[tags, prefix]

    # ---------------------------------------------------------------------------- spans

    def opened(self, one: Generation) -> None:
        """Begin a generation of a span."""
        one.heartbeats_before = self.workers.number
        self.read()
        if (span := self._spans.get(one.identity.dask_id)) is not None:
            self.busy(one)
            span.begin(self.clock())
            span.peaks += 1

    def busy(self, one: Generation) -> None:
        """A span has work again, in itself or below."""
        span = self._spans.get(one.identity.dask_id)
        if span is not None and span.quiet < inf:
            span.quiet = inf
            for part in span.ended:
                part.until = None
                part.rise()
            span.ended.clear()

    def quiet(self, one: Generation) -> None:
        """The work of a span and of those below is done."""
        one.worker_peak = self.workers.since(one.heartbeats_before)
        self.read()
        if (span := self._spans.get(one.identity.dask_id)) is not None:
            span.quiet = self.clock()

    def of_span(self, dask_id: str) -> SpanMemory | None:
        """Return the figures of a span's generation; None if it had nothing in memory."""
        self.read()
        span = self._spans.get(dask_id)
        if span is None:
            return None
        sizes = {prefix: one.bytes_at_peak for prefix, one in span.prefixes.items()}
        largest = max(sizes, key=sizes.__getitem__, default=None)
        size = None if largest is None else sizes[largest]
        return self._figures(span, span, largest, size)

    def of_group(self, group: Hashable, dask_id: str) -> SpanMemory | None:
        """Return the figures of a group's generation; None if it had nothing in memory."""
        self.read()
        one, span = self.holdings.get(group), self._spans.get(dask_id)
        return None if one is None or span is None else self._figures(one.known, span)

    def _figures(
        self, one: Sum, span: SpanSum, prefix: str | None = None, size: int | None = None
    ) -> SpanMemory | None:
        spent = max(0.0, one.spent(min(self.clock(), span.quiet)))
        if not one.peak:
            # All came and went between two readings.
            return SpanMemory(None, spent) if spent else None
        return SpanMemory(one.peak, spent, prefix, size)

    def forget(self, group: Hashable) -> None:
        """Forget a group without results, unless its generation is open."""
        one = self.holdings.get(group)
        if one is None or one.known.bytes or group in self.moves or group in self.open_groups:
            return
        del self.holdings[group]
        self.spanless.discard(group)
        for part, span in one.sums:
            if isinstance(part, SeriesSum):
                part.users -= 1
            if part is one.known and span is not None:
                span.users -= 1
                self.exported(span.dask_id)

    def exported(self, dask_id: str) -> None:
        """Forget a span that is not open, if it holds nothing, and those above it."""
        span = self._spans.get(dask_id)
        while span is not None and not span.users and span.dask_id not in self._open:
            del self._spans[span.dask_id]
            span = span.above[0] if span.above else None
            if span is not None:
                span.users -= 1

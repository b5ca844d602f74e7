"""What results take of the workers' memory: bytes now, bytes over time, and the largest sum.

Each task group has a `Holding`, which is changed whenever a result comes or goes: O(1). `read` adds
what has changed since the last time to all sums: of the span, the spans above it, and the series of
the metrics. Peaks are the largest sums of all readings. So a result that comes and goes between two
readings is in the bytes over time, and in no peak.

The bytes over time need no clock that ticks: from ``sum(change * time)`` over all changes,
``bytes * now - that sum`` is the integral up to any time after the last change.

Memory is bounded by the groups with results in memory or in an open span, the spans of these and
those above, and `MAX_PREFIXES` of each root.
"""

from __future__ import annotations

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


class Sum:
    """Bytes over time."""

    __slots__ = ("base", "bytes", "moment", "peak", "until")

    def __init__(self) -> None:
        self.bytes = self.peak = 0
        #: The sum of ``change * time``; its negative when the present generation began.
        self.moment = self.base = 0.0
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

    __slots__ = ("told", "told_time", "users")

    def __init__(self) -> None:
        super().__init__()
        self.told, self.told_time, self.users = 0, 0.0, 0


class Holding:
    """The results of a task group in memory; changed by `Ledger.change`, and where tasks end."""

    __slots__ = ("bytes", "group", "known", "moment", "sums", "unread")

    def __init__(self, group: Hashable) -> None:
        self.group = group
        self.bytes, self.moment = 0, 0.0
        #: Whether it has changed since the last reading; its state at that.
        self.unread = False
        self.known = Sum()
        #: The sums that it is added to, each with the span that its generation ends with.
        self.sums: list[tuple[Sum, SpanSum | None]] = []


class Holdings(dict[Any, Holding]):
    """The holdings by group; `begin` makes a missing one."""

    def __init__(self, begin: Callable[[Any], Holding]) -> None:
        super().__init__()
        self._begin = begin

    def __missing__(self, group: Any) -> Holding:
        return self._begin(group)


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
        #: A monotonic clock, in seconds, and its time at the last change.
        self.clock: Callable[[], float] = float
        self.now = 0.0
        self.holdings: dict[Hashable, Holding] = {}
        #: The results of all spans, and data without a span.
        self.held, self.scattered = Sum(), Sum()
        self.workers = FullestWorkers()
        #: The groups of data without a span.
        self.spanless: set[Hashable] = set()
        self._unread: list[Holding] = []
        self._spans: dict[str, SpanSum] = {}
        self._series: dict[tuple[Tags, str], SeriesSum] = {}

    def __repr__(self) -> str:
        return f"<Ledger: {self.held.bytes:,} bytes, {self.scattered.bytes:,} without a span>"

    # ------------------------------------------------------------------------- changes

    def change(self, one: Holding, size: int) -> None:
        """Add bytes to a group, now."""
        one.bytes += size
        one.moment += size * self.now
        if not one.unread:
            self.unread(one)

    def unread(self, one: Holding) -> None:
        """Add a group to what the next reading adds up."""
        one.unread = True
        self._unread.append(one)

    def hold(self, group: Hashable, span: Owner | None, prefix: str) -> Holding:
        """Begin to hold results of a group, which may have no span."""
        made = self.holdings[group] = Holding(group)
        self._assign(made, span, prefix)
        return made

    def _assign(self, one: Holding, span: Owner | None, prefix: str) -> None:
        if span is None:
            self.spanless.add(one.group)
            one.sums = [(self.scattered, None), (one.known, None)]
            return
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

    def _span(self, span: Owner) -> SpanSum:
        known = self._spans.get(span.id)
        if known is None:
            parent = None if span.parent is None else self._span(span.parent)
            above = () if parent is None else (parent, *parent.above)
            known = self._spans[span.id] = SpanSum(span.id, above)
            if parent is not None:
                parent.users += 1
        return known

    def begin(self, group: Hashable, span: Owner, prefix: str) -> None:
        """Begin a generation of a group, which may have got a span for its data."""
        one = self.holdings.get(group)
        if one is not None:
            self.read()
            self.now = self.clock()
            if group in self.spanless:
                self.spanless.discard(group)
                self.scattered.change(-one.bytes, -one.bytes * self.now, None)
                one.known, one.moment = Sum(), one.bytes * self.now
                self._assign(one, span, prefix)
                self.change(one, 0)
                self.read()
            one.known.begin(self.now)

    def recount(self, sizes: Mapping[Hashable, int]) -> None:
        """Correct all groups that are held: these are the true sizes; others have nothing."""
        self.now = self.clock()
        for group, one in self.holdings.items():
            self.change(one, sizes.get(group, 0) - one.bytes)
        self.read()

    # ------------------------------------------------------------------------- readings

    def read(self) -> None:
        """Add what has changed to the sums. O(changed groups x depth of their spans)."""
        changed, self._unread = self._unread, []
        spans: dict[SpanSum, None] = {}
        for one in changed:
            one.unread, known = False, one.known
            size, moment = one.bytes - known.bytes, one.moment - known.moment
            for part, span in one.sums:
                part.change(size, moment, span)
                if part is span:
                    spans[span] = None
                elif part is known and span is not None and span.quiet == inf:
                    known.rise()
        for span in spans:
            if span.quiet == inf:
                span.rise()
        for one in changed:
            if not one.bytes:
                self.forget(one.group)

    def series(self) -> Iterator[Change]:
        """Yield what the series have grown by since the last time."""
        self.read()
        self.now = self.clock()
        for (tags, prefix), one in [*self._series.items()]:
            size, spent = one.bytes - one.told, max(0.0, one.spent(self.now) - one.told_time)
            one.told += size
            one.told_time += spent
            if size or spent:
                yield Change(tags, prefix, size, spent)
            if not one.users:
                del self._series[tags, prefix]

    # ---------------------------------------------------------------------------- spans

    def opened(self, one: Generation) -> None:
        """Begin a generation of a span."""
        self.now = self.clock()
        one.heartbeats_before = self.workers.number
        if (span := self._spans.get(one.identity.dask_id)) is not None:
            self.busy(one)
            self.read()
            span.begin(self.now)
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
        if (span := self._spans.get(one.identity.dask_id)) is not None:
            self.read()
            span.quiet = self.now = self.clock()

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
        if one is None or one.bytes or one.unread or group in self.open_groups:
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

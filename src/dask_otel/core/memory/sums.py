"""Sums of results in memory: bytes now, bytes over time, and the largest sum. See `life.ledger`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from dask_otel.core.records import SpanMemory


class _Referable:
    """Has a slot for weak references."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True, eq=False)
class Moves(_Referable):
    """Results that came and went; those that go count as negative."""

    bytes: int = 0
    #: The sum of ``change * time``.
    moment: float = 0.0

    def add(self, size: int, moment: float) -> None:
        """Add some moves."""
        self.bytes += size
        self.moment += moment


@dataclass(slots=True, eq=False)
class Series(Moves):
    """The results of one series of the metrics, and what was exported of them."""

    exported: int = 0
    exported_time: float = 0.0


@dataclass(slots=True, eq=False)
class Sum(Moves):
    """The results of one generation."""

    peak: int = 0
    #: The negative of `moment` when the generation began.
    base: float = 0.0
    #: What the bytes over time have changed by since a time when the work was done.
    late: float = 0.0
    late_since: float = 0.0

    def begin(self, now: float) -> None:
        """Begin a generation: its peak and its bytes over time."""
        self.peak, self.base = 0, self.bytes * now - self.moment
        self.rise()

    def change(self, size: int, moment: float, quiet: float) -> None:
        """Add some moves; the work was done at `quiet`, if it is not 0.0."""
        self.add(size, moment)
        if quiet:
            if self.late_since != quiet:
                self.late, self.late_since = 0.0, quiet
            self.late += moment - size * quiet

    def rise(self) -> None:
        """Note a new peak."""
        self.peak = max(self.peak, self.bytes)

    def figures(
        self, now: float, quiet: float, at_peak: tuple[tuple[str, int], ...] = ()
    ) -> SpanMemory | None:
        """Return the figures, the bytes over time until `quiet`; None if it had nothing."""
        spent = self.bytes * (quiet or now) - self.moment - self.base
        if quiet and self.late_since == quiet:
            spent += self.late
        if not self.peak:
            # All came and went between two readings.
            return SpanMemory(None, spent) if spent > 0.0 else None
        return SpanMemory(self.peak, max(0.0, spent), at_peak)


@dataclass(slots=True, eq=False, repr=False)
class SpanSum(Sum):
    """The results of a span and of those below it."""

    above: tuple[SpanSum, ...] = ()
    #: When its work was done; 0.0 before.
    quiet: float = 0.0
    #: Of a root: the bytes of the tree by prefix, now and at the peak.
    prefixes: Counter[str] = field(default_factory=Counter)
    at_peak: tuple[tuple[str, int], ...] = ()

    def rise(self) -> None:
        """Note a new peak."""
        if self.bytes > self.peak:
            self.peak = self.bytes
            self.at_peak = tuple(self.prefixes.items())


class Holding(NamedTuple):
    """The results of a task group, and where they are added, too."""

    known: Sum
    series: Series
    #: Its span and those above it, and its prefix in the root; none without a span.
    spans: tuple[SpanSum, ...] = ()
    prefix: str = ""

    def add(self, moves: Moves) -> None:
        """Add some moves to all sums. O(depth of its span)."""
        size, moment = moves.bytes, moves.moment
        self.series.add(size, moment)
        self.known.change(size, moment, self.spans[0].quiet if self.spans else 0.0)
        for span in self.spans:
            span.change(size, moment, span.quiet)
        if self.spans:
            self.spans[-1].prefixes[self.prefix] += size

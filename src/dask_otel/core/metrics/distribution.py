"""Durations counted by bucket where they arise: what takes no memory for each of them."""

from __future__ import annotations

from bisect import bisect_left
from math import inf
from typing import Final

from dask_otel import semconv

_BOUNDS: Final = semconv.DURATION_BOUNDS


class Distribution:
    """How many durations lay between which bounds (`semconv.DURATION_BOUNDS`), in seconds."""

    __slots__ = ("counts", "high", "low", "sum")

    def __init__(self) -> None:
        #: One more than there are bounds.
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0
        self.low = inf
        self.high = -inf

    def add(self, seconds: float) -> None:
        """Count one duration. A negative one is a clock that stepped back: it counts as 0."""
        if seconds < 0.0:
            seconds = 0.0
        self.counts[bisect_left(_BOUNDS, seconds)] += 1
        self.sum += seconds
        if seconds < self.low:
            self.low = seconds
        if seconds > self.high:
            self.high = seconds

    def merge(self, other: Distribution) -> None:
        """Count what another one has counted, too."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)

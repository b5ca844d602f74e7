"""The running total of one series, and the points that it is exported as.

A series lives between two exports and belongs to one thread. Its total is the sum of what
was reported; what is exported of a counter is the highest value that the total ever had,
so that it never goes back when a user's own metering books a negative number.

Epochs count exports: the epoch of a series is that of the export that carries its last
change.
"""

from __future__ import annotations

from bisect import bisect_left
from math import inf
from typing import Final, TypeAlias

from dask_otel import semconv
from dask_otel.core.metrics.distribution import Distribution
from dask_otel.core.records import (
    Attributes,
    Exemplar,
    HistogramPoint,
    NumberPoint,
)

#: (trace id, span id)
Ids: TypeAlias = tuple[int, int]

#: OTLP's integers have 64 bits.
_INT64_MAX: Final = 2**63 - 1
#: The start time of a series lies that long before its zero point: backends that make a
#: sample of the start time must not find two at one time.
START_LEAD_NS: Final = 1_000_000

_BOUNDS: Final = semconv.DURATION_BOUNDS
_NO_COUNTS: Final = (0,) * (len(_BOUNDS) + 1)


def number(value: object) -> int | float | None:
    """Return a reported value as a plain finite number, or None if it is none."""
    if type(value) is int:
        return value if -_INT64_MAX <= value <= _INT64_MAX else None
    try:
        result = value if type(value) is float else float(value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - users' code runs here
        return None
    return result if result - result == 0 else None  # cheaper than math.isfinite


class Series:
    """What all series share: identity, times, and the last measurement."""

    __slots__ = (
        "attributes",
        "changed_ns",
        "confirmed_ns",
        "epoch",
        "exemplar",
        "identity",
        "pinned",
        "sent_ns",
        "start_ns",
    )

    #: Whether it is born with a zero point and may be exported as deltas.
    monotone = True

    def __init__(self, keys: tuple[str, ...], identity: tuple[str, ...]) -> None:
        #: The label values in the order of `keys`.
        self.identity = identity
        self.attributes: Attributes = dict(zip(keys, identity, strict=True))
        self.epoch = 0
        #: Time of the first export with the last change.
        self.changed_ns = 0
        #: -1 until the first export.
        self.start_ns = -1
        #: Delta temporality: time of the last point that was accepted, and was sent.
        self.confirmed_ns = 0
        self.sent_ns = 0
        #: The last measurement since the previous export: ids, value, time.
        self.exemplar: tuple[Ids, float, int] | None = None
        #: Never retires.
        self.pinned = False

    def is_due(self) -> bool:
        """Return whether it may retire, once it is old enough and its end was exported."""
        return not self.pinned

    def begin(self, zero_ns: int) -> None:
        """Fix the start time at the first export."""
        self.start_ns = max(zero_ns - START_LEAD_NS, 0) if self.monotone else zero_ns
        self.confirmed_ns = zero_ns

    def take_exemplar(self, time_ns: int) -> tuple[Exemplar, ...]:
        """Return the last measurement as exemplar and forget it."""
        if self.exemplar is None:
            return ()
        (trace_id, span_id), value, measured_ns = self.exemplar
        self.exemplar = None
        if not 0 < measured_ns < time_ns:
            measured_ns = time_ns
        return (Exemplar(int(trace_id), span_id, float(value), measured_ns),)


class NumberSeries(Series):
    """A counter."""

    __slots__ = ("confirmed", "integer", "sent", "total", "value")

    def __init__(self, keys: tuple[str, ...], identity: tuple[str, ...], integer: bool) -> None:
        super().__init__(keys, identity)
        self.integer = integer
        #: The sum of everything reported.
        self.total: int | float = 0
        #: What is exported: the highest total so far.
        self.value: int | float = 0
        #: Delta temporality: the value of the last point that was accepted, and was sent.
        self.confirmed: int | float = 0
        self.sent: int | float = 0

    def add(self, value: int | float, epoch: int, ids: Ids | None, time_ns: int) -> bool:
        """Add a reported value; False if the sum would not be finite."""
        total = self.total + value
        if total - total != 0:  # too large: infinite
            return False
        self.total = total
        if total > self.value:
            self.value = total
        self.epoch = epoch
        if ids is not None:
            self.exemplar = (ids, value, time_ns)
        return True

    def exported(self) -> int | float:
        """Return the value in its final type."""
        if self.integer:
            return max(-_INT64_MAX, min(round(self.value), _INT64_MAX))
        return float(self.value)

    def zero_point(self, zero_ns: int) -> NumberPoint:
        """Return the point that the series is born with."""
        zero = 0 if self.integer else 0.0
        return NumberPoint(self.attributes, self.start_ns, zero_ns, zero)

    def point(self, time_ns: int) -> NumberPoint:
        """Return the cumulative point of this export."""
        exemplars = () if self.exemplar is None else self.take_exemplar(time_ns)
        return NumberPoint(self.attributes, self.start_ns, time_ns, self.exported(), exemplars)

    def delta_point(self, time_ns: int) -> NumberPoint | None:
        """Return what came since the last accepted point, or None if nothing did."""
        value = self.exported()
        if value == self.confirmed:
            return None
        self.sent, self.sent_ns = value, time_ns
        return NumberPoint(
            self.attributes,
            self.confirmed_ns,
            time_ns,
            value - self.confirmed,
            self.take_exemplar(time_ns),
        )

    def confirm(self) -> None:
        """Note that the last delta point was accepted."""
        self.confirmed, self.confirmed_ns = self.sent, self.sent_ns


class LevelSeries(NumberSeries):
    """An up-down counter or a gauge: born without a zero point, may go down."""

    __slots__ = ("ended", "gauge", "measured")

    monotone = False

    def __init__(
        self, keys: tuple[str, ...], identity: tuple[str, ...], integer: bool, gauge: bool
    ) -> None:
        super().__init__(keys, identity, integer)
        #: Whether its values have no meaningful sum.
        self.gauge = gauge
        #: Whether it is measured again and again, so that it can be out of date.
        self.measured = False
        #: Whether what it measured is there no longer.
        self.ended = False

    def add(
        self,
        value: int | float,
        epoch: int,
        ids: Ids | None,  # noqa: ARG002 - levels have no exemplars
        time_ns: int,  # noqa: ARG002
    ) -> bool:
        """Add an increment of an up-down counter; False if the sum would not be finite."""
        return self._become(self.total + value, epoch)

    def set(self, value: int | float, epoch: int) -> None:
        """Take a present value."""
        self.measured = True
        self.ended = False
        self._become(value, epoch)

    def _become(self, value: int | float, epoch: int) -> bool:
        if value - value != 0:
            return False
        self.total = self.value = value
        self.epoch = epoch
        return True

    def is_due(self) -> bool:
        """Return whether it may retire: a sum of increments only when it is back at 0."""
        return not self.pinned and (self.measured or self.value == 0)

    def end(self, epoch: int) -> bool:
        """Go to 0 before retirement; False if it was there already."""
        return self.value != 0 and self._become(0, epoch)


class HistogramSeries(Series):
    """A histogram of durations."""

    __slots__ = ("confirmed", "counts", "extremes", "recent", "sent", "sum", "unconfirmed")

    def __init__(self, keys: tuple[str, ...], identity: tuple[str, ...]) -> None:
        super().__init__(keys, identity)
        self.counts = [0] * len(_NO_COUNTS)
        self.sum = 0.0
        #: Smallest and largest value: of all time, since the last export, and of what
        #: was exported as delta but not accepted.
        self.extremes = self.recent = self.unconfirmed = (inf, -inf)
        #: Delta temporality: counts and sum of the last point accepted, and sent.
        self.confirmed: tuple[tuple[int, ...], float] = (_NO_COUNTS, 0.0)
        self.sent = self.confirmed

    def add(self, value: int | float, epoch: int, ids: Ids | None, time_ns: int) -> bool:
        """Add a measurement; False if the sum would not be finite.

        A negative duration is a clock that stepped back: it counts as 0, because a sum of
        durations never goes back.
        """
        if value < 0:
            value = 0.0
        total = self.sum + value
        if total - total != 0:
            return False
        self.sum = total
        self.counts[bisect_left(_BOUNDS, value)] += 1
        self.recent = _wider(self.recent, (value, value))
        self.epoch = epoch
        if ids is not None:
            self.exemplar = (ids, value, time_ns)
        return True

    def merge(self, durations: Distribution, epoch: int) -> bool:
        """Add durations that were counted elsewhere; False if the sum would not be finite."""
        total = self.sum + durations.sum
        if total - total != 0:
            return False
        self.sum = total
        self.counts = [a + b for a, b in zip(self.counts, durations.counts, strict=True)]
        self.recent = _wider(self.recent, (durations.low, durations.high))
        self.epoch = epoch
        return True

    def zero_point(self, zero_ns: int) -> HistogramPoint:
        """Return the point that the series is born with."""
        return self._make(zero_ns, self.start_ns, _NO_COUNTS, 0.0, (0.0, 0.0), ())

    def point(self, time_ns: int) -> HistogramPoint:
        """Return the cumulative point of this export."""
        self.extremes = _wider(self.extremes, self.recent)
        self.recent = (inf, -inf)
        exemplars = self.take_exemplar(time_ns)
        counts = tuple(self.counts)
        return self._make(time_ns, self.start_ns, counts, self.sum, self.extremes, exemplars)

    def delta_point(self, time_ns: int) -> HistogramPoint | None:
        """Return what came since the last accepted point, or None if nothing did."""
        counts = tuple(self.counts)
        old_counts, old_sum = self.confirmed
        if counts == old_counts:
            return None
        self.sent, self.sent_ns = (counts, self.sum), time_ns
        self.unconfirmed = _wider(self.unconfirmed, self.recent)
        self.recent = (inf, -inf)
        return self._make(
            time_ns,
            self.confirmed_ns,
            tuple([new - old for new, old in zip(counts, old_counts, strict=True)]),
            self.sum - old_sum,
            self.unconfirmed,
            self.take_exemplar(time_ns),
        )

    def confirm(self) -> None:
        """Note that the last delta point was accepted."""
        self.confirmed, self.confirmed_ns = self.sent, self.sent_ns
        self.unconfirmed = (inf, -inf)

    def _make(
        self,
        time_ns: int,
        start_ns: int,
        counts: tuple[int, ...],
        total: float,
        extremes: tuple[float, float],
        exemplars: tuple[Exemplar, ...],
    ) -> HistogramPoint:
        low, high = extremes if sum(counts) else (0.0, 0.0)
        return HistogramPoint(
            self.attributes,
            start_ns,
            time_ns,
            sum(counts),
            float(total),
            float(low),
            float(high),
            counts,
            _BOUNDS,
            exemplars,
        )


def _wider(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return min(one[0], other[0]), max(one[1], other[1])

"""The running total of one series, and its exported points.

A series belongs to one thread. Its total is the sum of the reported values. A counter exports its
highest total so far, so that it never decreases if a user's own metering books a negative number.

Epochs count exports: the epoch of a series is the number of the export with its last change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

from dask_otel import semconv
from dask_otel.core.metrics.batch import Distribution
from dask_otel.core.records import (
    Attributes,
    Exemplar,
    HistogramPoint,
    NumberPoint,
)
from dask_otel.semconv import Metric

#: (trace id, span id)
Ids: TypeAlias = tuple[int, int]

#: OTLP's integers have 64 bits.
_INT64_MAX: Final = 2**63 - 1
#: Time from the start of a series to its zero point. Some backends make a sample of the start time;
#: there must not be two samples at one time.
START_LEAD_NS: Final = 1_000_000


def number(value: object) -> int | float | None:
    """Return a reported value as a plain finite number; None if it is not one."""
    if type(value) is int:
        return value if -_INT64_MAX <= value <= _INT64_MAX else None
    try:
        result = value if type(value) is float else float(value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - users' code runs here
        return None
    return result if result - result == 0 else None  # cheaper than math.isfinite


@dataclass(slots=True, eq=False)
class Series:
    """The common part of all series: identity, times, and the last measurement."""

    #: Whether it begins with a zero point and may be exported as deltas.
    monotone: ClassVar[bool] = True

    #: The label values in the order of the metric's keys.
    identity: tuple[str, ...]
    attributes: Attributes
    metric: Metric
    epoch: int = 0
    #: Time of the first export with the last change.
    changed_ns: int = 0
    #: -1 until the first export.
    start_ns: int = -1
    #: Delta temporality: times of the last accepted point and the last sent point.
    confirmed_ns: int = 0
    sent_ns: int = 0
    #: The last measurement since the previous export: ids, value, time.
    exemplar: tuple[Ids, float, int] | None = None
    #: Never retires.
    pinned: bool = False

    def add(self, value: int | float, epoch: int, ids: Ids | None, time_ns: int) -> bool:
        """Add a reported value; False if the sum would not be finite."""
        if not self._take(value):
            return False
        self.epoch = epoch
        if ids is not None:
            self.exemplar = (ids, value, time_ns)
        return True

    def _take(self, value: int | float) -> bool:
        """Add a value to the sum, unless the sum would not be finite."""
        raise NotImplementedError

    def is_due(self) -> bool:
        """Return whether it may retire, once it is old enough and its last value was exported."""
        return not self.pinned

    def begin(self, zero_ns: int) -> None:
        """Fix the start time at the first export."""
        self.start_ns = max(zero_ns - START_LEAD_NS, 0) if self.monotone else zero_ns
        self.confirmed_ns = zero_ns

    def take_exemplar(self, time_ns: int) -> tuple[Exemplar, ...]:
        """Return the last measurement as an exemplar, once."""
        if self.exemplar is None:
            return ()
        (trace_id, span_id), value, measured_ns = self.exemplar
        self.exemplar = None
        if not 0 < measured_ns < time_ns:
            measured_ns = time_ns
        # A clock that was set back makes a negative duration.
        return (Exemplar(int(trace_id), span_id, max(float(value), 0.0), measured_ns),)


@dataclass(slots=True, eq=False)
class NumberSeries(Series):
    """A counter."""

    #: The sum of the reported values.
    total: int | float = 0
    #: The exported value: the highest total so far.
    value: int | float = 0
    #: Delta temporality: values at the last accepted point and the last sent point.
    confirmed: int | float = 0
    sent: int | float = 0

    def _take(self, value: int | float) -> bool:
        total = self.total + value
        if total - total != 0:  # infinite
            return False
        self.total = total
        if total > self.value:
            self.value = total
        return True

    def exported(self) -> int | float:
        """Return the value in its final type."""
        if self.metric.integer:
            return max(-_INT64_MAX, min(round(self.value), _INT64_MAX))
        return float(self.value)

    def zero_point(self, zero_ns: int) -> NumberPoint:
        """Return the first point, 0."""
        zero = 0 if self.metric.integer else 0.0
        return NumberPoint(self.attributes, self.start_ns, zero_ns, zero)

    def point(self, time_ns: int) -> NumberPoint:
        """Return the cumulative point of this export."""
        exemplars = self.take_exemplar(time_ns)
        return NumberPoint(self.attributes, self.start_ns, time_ns, self.exported(), exemplars)

    def delta_point(self, time_ns: int) -> NumberPoint | None:
        """Return the increase since the last accepted point, or None if there is none."""
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
        """Record that the last delta point was accepted."""
        self.confirmed, self.confirmed_ns = self.sent, self.sent_ns


@dataclass(slots=True, eq=False)
class LevelSeries(NumberSeries):
    """An up-down counter or a gauge: begins without a zero point, may decrease."""

    monotone = False

    #: Whether its values are set, not added: such a series can be out of date.
    measured: bool = False
    #: Whether its subject is gone.
    ended: bool = False

    def _take(self, value: int | float) -> bool:
        return self._become(self.total + value)

    def set(self, value: int | float, epoch: int) -> None:
        """Set the present value."""
        self.measured = True
        self.ended = False
        if self._become(value):
            self.epoch = epoch

    def _become(self, value: int | float) -> bool:
        if value - value != 0:
            return False
        self.total = self.value = value
        return True

    def is_due(self) -> bool:
        """Return whether it may retire: a sum of increments only if it is back at 0."""
        return not self.pinned and (self.measured or self.value == 0)

    def end(self, epoch: int) -> bool:
        """Set it to 0 before retirement; False if it is 0 already."""
        if self.value == 0:
            return False
        self.total = self.value = 0
        self.epoch = epoch
        return True


@dataclass(slots=True, eq=False)
class HistogramSeries(Series):
    """A histogram of durations."""

    #: All durations; with delta temporality, those since the last point.
    total: Distribution = field(default_factory=Distribution)
    #: With delta temporality: those of the last point and of others that were not accepted.
    sent: Distribution = field(default_factory=Distribution)

    def _take(self, value: int | float) -> bool:
        if not self._is_finite_with(value):
            return False
        self.total.add(value)
        return True

    def merge(self, durations: Distribution, epoch: int) -> bool:
        """Add durations that were counted elsewhere; False if the sum would not be finite."""
        if not self._is_finite_with(durations.sum):
            return False
        self.total.merge(durations)
        self.epoch = epoch
        return True

    def zero_point(self, zero_ns: int) -> HistogramPoint:
        """Return the first point, 0."""
        return self._make(self.start_ns, zero_ns, Distribution(), ())

    def point(self, time_ns: int) -> HistogramPoint:
        """Return the cumulative point of this export."""
        return self._make(self.start_ns, time_ns, self.total, self.take_exemplar(time_ns))

    def delta_point(self, time_ns: int) -> HistogramPoint | None:
        """Return the measurements since the last accepted point, or None if there are none."""
        self.sent.merge(self.total)
        self.total = Distribution()
        if not any(self.sent.counts):
            return None
        self.sent_ns = time_ns
        return self._make(self.confirmed_ns, time_ns, self.sent, self.take_exemplar(time_ns))

    def confirm(self) -> None:
        """Record that the last delta point was accepted."""
        self.sent, self.confirmed_ns = Distribution(), self.sent_ns

    def _is_finite_with(self, seconds: float) -> bool:
        total = self.total.sum + self.sent.sum + seconds
        return total - total == 0

    def _make(
        self, start_ns: int, time_ns: int, durations: Distribution, exemplars: tuple[Exemplar, ...]
    ) -> HistogramPoint:
        count = sum(durations.counts)
        return HistogramPoint(
            self.attributes,
            start_ns,
            time_ns,
            count,
            float(durations.sum),
            float(durations.low) if count else 0.0,
            float(durations.high) if count else 0.0,
            tuple(durations.counts),
            semconv.DURATION_BOUNDS,
            exemplars,
        )

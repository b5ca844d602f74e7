"""The state of all metrics: totals since the start, and the points of each export.

The SDK's own metric state never frees a series, starts every series at its first value
and cannot send a zero point before it. So the bridge keeps its own totals, by the contract's
rules for points (docs/telemetry.md):

- One export (`MetricState.collect`) has one timestamp, later than the previous export's, whatever
  the clock does. Only zero points are earlier.
- A new counter or histogram begins with a zero point at the time of the previous export,
  in the same request as its first value, so that ``rate()`` sees that value. It is sent once:
  a repeated zero point can make a backend refuse whole requests.
- Cumulative data is never queued: the next export has everything. Deltas that were not accepted are
  sent with the next ones; each request of an export is settled by itself.
- Names and series are capped (`dask_otel.core.metrics.cardinality`). A series retires if it has
  not changed for long and its last value was accepted. If it returns, it starts again from zero.

One thread at a time may use a state, but batches may be added between the points of an export.
`MetricState.apply` costs as much as there are changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Final

from dask_otel import semconv
from dask_otel.core.metrics.batch import Distribution, MetricBatch, RawSeries, SpanDeltas
from dask_otel.core.metrics.cardinality import SeriesLimits
from dask_otel.core.metrics.families import AnySeries, Families, Family
from dask_otel.core.metrics.labels import LabelRules
from dask_otel.core.metrics.series import HistogramSeries, Ids, LevelSeries, number
from dask_otel.core.records import (
    HistogramPoint,
    MetricRecord,
    NumberPoint,
    Temporality,
)
from dask_otel.core.text import Sanitizer
from dask_otel.semconv import Metric

_SECOND_NS: Final = 1_000_000_000
#: The greatest age of a zero point; one interval if that is shorter. Backends without an
#: out-of-order window refuse older points.
_MAX_ZERO_AGE_NS: Final = 60 * _SECOND_NS
#: The least time between two exports. It is more than `series.START_LEAD_NS`, so that a series
#: that returns starts after its last point.
_MIN_STEP_NS: Final = 2_000_000


class MetricState:
    """Totals of every series of one bridge, from batches to points.

    Parameters
    ----------
    start_time_ns
        When the bridge started: the earliest time of a zero point. It must be later than the
        last export of an earlier bridge under the same resource.
    temporality
        For counters and histograms; other metrics are always cumulative.
    limits
        Caps, retirement, and the export interval.
    sanitizer
        Counts changed values; `collect` exports its counts.
    sampled
        Whether a trace is sampled, by its id: exemplars point to sampled traces only. None for
        all traces.
    rules
        Users' rules for labels.
    on_folded
        Called when a cap folds a value: see `Families`.
    breathe
        Called after each small piece of work, to let other threads run.
    """

    def __init__(
        self,
        start_time_ns: int,
        *,
        limits: SeriesLimits,
        temporality: Temporality = "cumulative",
        sanitizer: Sanitizer | None = None,
        sampled: Callable[[int], bool] | None = None,
        rules: LabelRules | None = None,
        on_folded: Callable[[str, str], None] | None = None,
        breathe: Callable[[], None] = lambda: None,
    ) -> None:
        self._breathe = breathe
        self._limits = limits
        self._delta = temporality == "delta"
        self._sampled = sampled
        self._sanitizer = sanitizer or Sanitizer()
        self._families = Families(self._limits, self._sanitizer, rules, on_folded)
        self._last_ns = start_time_ns
        age = min(self._limits.interval_ns, _MAX_ZERO_AGE_NS)
        # An export is usually a little late; the zero point must still be at the previous one.
        self._max_zero_age_ns = age + age // 4 + _SECOND_NS
        # Numbers of the next export, the last sent export, and the last accepted export.
        self._epoch = 1
        self._sent_epoch = 0
        self._accepted_epoch = 0
        #: The series with deltas in each record that was made and is not settled, in order.
        self._sent: deque[list[AnySeries]] = deque()
        self._sent_zeros = False

    # ------------------------------------------------------------------------------- input

    def apply(self, batch: MetricBatch) -> None:
        """Add a batch. Bad values are discarded and counted; none raises."""
        time_ns = batch.time_ns
        breathe = self._breathe
        for deltas in batch.span_deltas.values():
            breathe()
            self._guard(self._apply_span, deltas, time_ns)
        of_cluster, of_raw = self._families.of_cluster, self._families.of_raw
        for find, key, value, ids in chain(
            ((of_cluster, key, value, None) for key, value in batch.cluster_deltas.items()),
            ((of_raw, raw, value, None) for raw, value in batch.increments.items()),
            ((of_raw, (one.metric, *one.labels), one.value, one.ids) for one in batch.observations),
        ):
            breathe()
            self._guard(self._add, find, key, value, ids, time_ns)
        self._take_levels(batch)
        for raw, durations in batch.distributions.items():
            self._guard(self._merge, raw, durations)

    def _take_levels(self, batch: MetricBatch) -> None:
        """Set the present values of a batch, and end the levels whose subject is gone.

        Several levels can belong to one series, if their clean names are equal or beyond a cap.
        The series then has their sum; a gauge has no meaningful sum, so it ends.

        A level that is not set again for `SeriesLimits.retire_after_ns` is set to 0 and retires. A
        sum of increments retires only if it is back at 0.
        """
        found: dict[LevelSeries, list[int | float]] = {}
        present = {raw: (value,) for raw, value in batch.levels.items()}
        for raw, given in {**present, **dict.fromkeys(batch.ended, ())}.items():
            self._breathe()
            self._guard(self._gather, found, raw, given)
        # A folded name may now have its own place, or be gone: then the folded series' value is
        # out of date.
        for metric in {raw[0] for raw in present} | {raw[0] for raw in batch.ended}:
            for series in self._families.folded_levels(metric):
                found.setdefault(series, [])
        for series, values in found.items():
            if values and (len(values) == 1 or series.metric.instrument != "gauge"):
                series.set(sum(values), self._epoch)
            else:
                series.ended = True

    def _gather(
        self, found: dict[LevelSeries, list[int | float]], raw: RawSeries, given: tuple[float, ...]
    ) -> None:
        """Add a level's values to its series; an ended level has none."""
        checked = [one for value in given if (one := number(value)) is not None]
        if len(checked) < len(given):
            self._sanitizer.count("value")
            return
        series = self._families.of_raw(raw)
        if isinstance(series, LevelSeries):
            found.setdefault(series, []).extend(checked)
        else:
            self._sanitizer.count("shape")

    def keep(self, raw: RawSeries) -> None:
        """Create a series, at 0 if it is new, that never retires."""
        self._families.of_raw(raw).pinned = True

    def _guard(self, call: Callable[..., None], *args: object) -> None:
        # One bad item of a user, whose code runs here, must not lose the rest of the batch.
        try:
            call(*args)
        except Exception:  # noqa: BLE001
            self._sanitizer.count("error")

    def _apply_span(self, deltas: SpanDeltas, time_ns: int) -> None:
        find = partial(self._families.of_span, self._families.label(deltas.tags))
        for key, value in deltas.values.items():
            self._guard(self._add, find, key, value, deltas.ids, time_ns)

    def _add(
        self,
        find: Callable[..., AnySeries | None],
        key: Hashable,
        value: float,
        ids: Ids | None,
        time_ns: int,
    ) -> None:
        """Add a value to a series; a bad value does not create one."""
        checked = number(value)
        if checked is None:
            self._sanitizer.count("value")
            return
        series = find(key)
        if ids and self._sampled is not None and not self._sampled(ids[0]):
            ids = None
        if series is not None and not series.add(checked, self._epoch, ids, time_ns):
            self._sanitizer.count("value")

    def _merge(self, raw: RawSeries, durations: Distribution) -> None:
        series = self._families.of_raw(raw)
        if not isinstance(series, HistogramSeries) or not series.merge(durations, self._epoch):
            self._sanitizer.count("shape")

    # ------------------------------------------------------------------------------ output

    def collect(
        self, time_ns: int, limit: int | None = None, age_ns: int | None = None
    ) -> Iterator[MetricRecord]:
        """Begin an export, and return its points, which are made on demand.

        All points at once would be thousands of objects for the whole export: memory, and work for
        Python's garbage collector.

        Parameters
        ----------
        time_ns
            The present time; a later one is used if it is not after the previous export.
            `settled` must follow before the next export; else this one counts as not accepted.
        limit
            Limit of a record's points; a metric with more points has several records. The points
            of one series (0, then its value) stay together.
        age_ns
            The present time of a monotonic clock, for the age of a series. By default `time_ns`.
        """
        self._count_own()
        time_ns = max(time_ns, self._last_ns + _MIN_STEP_NS)
        zero_ns = max(self._last_ns, time_ns - self._max_zero_age_ns)
        self._sent = deque()
        self._sent_zeros = False
        # Now, not with the points: the caller may stop before the last point.
        age_ns = time_ns if age_ns is None else age_ns
        retired = [self._retire(family, age_ns) for family in self._families if family.retires]
        if any(retired):
            # A cached route would continue to fill a retired series.
            self._families.forget_routes()
        self._last_ns = time_ns
        self._sent_epoch = self._epoch
        self._epoch += 1
        return self._records(time_ns, zero_ns, limit)

    def part_settled(self, count: int, ok: bool) -> None:
        """Record the result for the next `count` records of the present export: its deltas.

        Without it, `settled` decides about all of them.
        """
        for _ in range(count):
            for series in self._sent.popleft():
                if ok:
                    series.confirm()

    def settled(self, ok: bool, *, rejected: bool = False) -> bool:
        """Record the result of the last export.

        Parameters
        ----------
        ok
            Whether it was accepted; False if there was no answer.
        rejected
            Whether the backend refused it as invalid (HTTP 400), so that it stored nothing.

        Returns
        -------
        Whether to collect and send again now: it was refused and had zero points, which a second
        collection does not repeat.
        """
        again = rejected and not ok and self._sent_zeros
        if ok and self._sent_epoch:
            self._accepted_epoch = self._sent_epoch
            self.part_settled(len(self._sent), True)
        self._sent_zeros = False
        self._sent_epoch = 0
        return again

    def totals(self, prefix: str) -> dict[tuple[str, ...], float]:
        """Return the totals of counters and levels by metric and label values. On any thread.

        Parameters
        ----------
        prefix
            The prefix of the metrics' names.
        """
        # Copies, each made in one step, because the state's own thread continues.
        return {
            (family.metric.name, *identity): float(series.value)
            for family in list(self._families)
            if family.metric.name.startswith(prefix)
            for identity, series in list(family.series.items())
            if not isinstance(series, HistogramSeries)
        }

    def _count_own(self) -> None:
        """Add the counts of sanitised and folded values since the last export."""
        counts: tuple[tuple[Metric, Mapping[str, int]], ...] = (
            (semconv.OTEL_SANITIZED, self._sanitizer.drain()),
            (semconv.OTEL_FOLDED, self._families.folded.drain()),
        )
        for metric, by_kind in counts:
            for kind, count in by_kind.items():
                self._add(self._families.of_raw, (metric.name, kind), count, None, 0)

    def _retire(self, family: Family, age_ns: int) -> bool:
        """Retire the old series; return whether there are any."""
        after = self._limits.retire_after_ns
        epoch, accepted = self._epoch, self._accepted_epoch
        retired = False
        for series in list(family.series.values()):
            self._breathe()
            drop = False
            if isinstance(series, LevelSeries) and series.ended:
                # A gauge has no value that means "gone". A sum is set to 0 first, in this export.
                drop = family.metric.instrument == "gauge" or (
                    not series.end(epoch) and series.epoch <= accepted
                )
            elif series.epoch == epoch or series.start_ns < 0:
                series.changed_ns = age_ns
            # A last value that was not accepted yet must not be lost.
            elif (
                age_ns - series.changed_ns >= after and series.epoch <= accepted and series.is_due()
            ):
                # A level exports a 0 first, and retires when the 0 is accepted.
                drop = not (isinstance(series, LevelSeries) and series.end(epoch))
            if drop:
                self._families.drop(family, series)
                retired = True
        return retired

    def _records(self, time_ns: int, zero_ns: int, limit: int | None) -> Iterator[MetricRecord]:
        for family in [*self._families]:
            points: list[NumberPoint | HistogramPoint] = []
            deltas: list[AnySeries] = []
            for series in [*family.series.values()]:
                self._breathe()
                if limit is not None and points and len(points) + 2 > limit:
                    yield self._record(family.metric, points, deltas)
                    points, deltas = [], []
                self._add_points(points, deltas, series, time_ns, zero_ns)
            if points:
                yield self._record(family.metric, points, deltas)

    def _add_points(
        self,
        points: list[NumberPoint | HistogramPoint],
        deltas: list[AnySeries],
        series: AnySeries,
        time_ns: int,
        zero_ns: int,
    ) -> None:
        monotone = series.monotone
        if series.start_ns < 0:
            series.begin(zero_ns)
            if monotone:
                points.append(series.zero_point(zero_ns))
                self._sent_zeros = True
        if self._delta and monotone:
            point = series.delta_point(time_ns)
            if point is not None:
                deltas.append(series)
                points.append(point)
        else:
            points.append(series.point(time_ns))

    def _record(
        self,
        metric: Metric,
        points: list[NumberPoint | HistogramPoint],
        deltas: list[AnySeries],
    ) -> MetricRecord:
        self._sent.append(deltas)
        monotone = metric.instrument in ("counter", "histogram")
        return MetricRecord(
            name=metric.name,
            unit=metric.unit,
            description=metric.description,
            instrument=metric.instrument,
            temporality="delta" if self._delta and monotone else "cumulative",
            points=tuple(points),  # type: ignore[arg-type]  # one kind for each instrument
        )

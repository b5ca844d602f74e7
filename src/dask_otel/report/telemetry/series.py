"""The series of one run: totals of counters, last values, and the history of some."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from dask_otel import semconv
from dask_otel.core.sums import joined, summed

#: Metrics of the charts over time, and of diagnoses: their points are kept, up to a limit.
_DRAWN: Final = frozenset(
    metric.name
    for metric in (
        semconv.CLUSTER_TIME,
        semconv.CLUSTER_CAPACITY_TIME,
        semconv.WORKER_MEMORY_USAGE,
        semconv.WORKER_MEMORY_LIMIT,
        semconv.WORKER_MEMORY_SPILLED,
        semconv.WORKER_CPU_UTILIZATION,
        semconv.WORKER_THREAD_COUNT,
        semconv.SPAN_MEMORY_USAGE,
        semconv.CLUSTER_MEMORY_USAGE,
        semconv.CLUSTER_MEMORY_SPILLED,
        semconv.CLUSTER_TRANSFER_TIME,
        semconv.EVENT_LOOP_BLOCKED_TIME,
        semconv.EVENT_LOOP_CPU_TIME,
        semconv.EVENT_LOOP_STARVED_TIME,
    )
)
#: Times and values, in order of time.
History: TypeAlias = list[tuple[int, float]]

#: Most points of one series; beyond it, every other one is dropped.
MOST_POINTS: Final = 2_000
#: Most series of one run; further ones are counted as skipped.
MOST_SERIES: Final = 20_000
_LAST_NS: Final = 2**63
#: Most separate intervals of one series of deltas; beyond it, the two nearest are joined.
MOST_TIMES: Final = 1_000


class Point(NamedTuple):
    """One data point; `start_ns` is 0 if it has none, as in a gauge."""

    start_ns: int
    time_ns: int
    value: float


#: A data point with its series: the parameters of `Metrics.add`.
Measured: TypeAlias = tuple[str, dict[str, str], Point, bool, bool]


_NONE: Final = Point(0, 0, 0.0)


@dataclass(slots=True)
class Series:
    """One series of one metric."""

    labels: dict[str, str]
    monotone: bool
    delta: bool
    drawn: bool
    #: Of a counter, the last point of each start; of deltas, their sum; of others, the last point.
    last: dict[int, Point] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    #: Intervals of the added deltas, as (start, end), sorted; adjacent ones are joined.
    times: list[tuple[float, float]] = field(default_factory=list)
    #: The delta added last.
    newest: Point = _NONE

    def add(self, point: Point) -> None:
        """Add a point. Points may come in any order and more than once."""
        if self.delta:
            if not self._is_new(point):
                return
            known, self.newest = self.newest, point
            if point.start_ns == known.start_ns > 0:
                # The earlier export failed halfway: this point includes its seconds.
                point = point._replace(value=point.value - known.value)
            _, time_ns, total = self.last.get(0, _NONE)
            self.last[0] = Point(0, max(time_ns, point.time_ns), total + point.value)
        else:
            key = point.start_ns if self.monotone else 0
            if point.time_ns >= self.last.get(key, _NONE).time_ns:
                self.last[key] = point
        if self.drawn:
            if self._goes_on(point):
                self.points.pop()
            self.points.append(point)
            if len(self.points) > 2 * MOST_POINTS:
                self._thin()

    def _is_new(self, point: Point) -> bool:
        """Record a delta's interval; return whether it was not covered before."""
        end = point.time_ns
        begin = point.start_ns if 0 < point.start_ns < end else end - 1
        place = bisect_right(self.times, (begin, _LAST_NS))
        if place and end <= self.times[place - 1][1]:
            return False
        # Join it with adjacent intervals.
        near = slice(max(0, place - 1), place + 1)
        self.times[near] = joined([*self.times[near], (begin, end)])
        if len(self.times) > MOST_TIMES:
            gaps = [after[0] - before[1] for before, after in itertools.pairwise(self.times)]
            nearest = gaps.index(min(gaps))
            self.times[nearest : nearest + 2] = [
                (self.times[nearest][0], self.times[nearest + 1][1])
            ]
        return True

    def _goes_on(self, point: Point) -> bool:
        """Return whether a level is that of its last two points, so that one is enough."""
        points = self.points
        return (
            not self.monotone
            and len(points) > 1
            and points[-2].value == points[-1].value == point.value
            and points[-2].time_ns < points[-1].time_ns < point.time_ns
        )

    def _thin(self) -> None:
        self.points.sort(key=lambda point: point.time_ns)
        if self.delta:
            pairs = [self.points[place : place + 2] for place in range(0, len(self.points), 2)]
            self.points = [
                Point(pair[0].start_ns, pair[-1].time_ns, sum(one.value for one in pair))
                for pair in pairs
            ]
        else:
            # Keep the last point, which is the total, the last one before a new start, and a peak.
            largest = max(self.points, key=lambda point: point.value)
            self.points = [
                point
                for index, (point, after) in enumerate(
                    zip(self.points, [*self.points[1:], _NONE], strict=True)
                )
                if index % 2
                or after.start_ns != point.start_ns
                or after is _NONE
                or point is largest
            ]

    @property
    def value(self) -> float:
        """The total of a counter over all its starts; for other metrics, the last value."""
        return sum(point.value for point in self.last.values())

    def history(self) -> History:
        """Return (time, value) in order; for a counter, the total until then."""
        result: dict[int, float] = {}
        total, start, current = 0.0, None, 0.0
        for point in sorted(self.points, key=lambda point: (point.time_ns, point.start_ns)):
            if self.delta or (self.monotone and point.start_ns != start):
                # What was counted until then.
                total += current
            start, current = point.start_ns, point.value
            result[point.time_ns] = total + current
        return list(result.items())


def at(history: History, time_ns: int) -> float:
    """Return a history's last value at a time; 0 before the first."""
    index = bisect_right(history, (time_ns, float("inf")))
    return history[index - 1][1] if index else 0.0


@dataclass
class Metrics:
    """All series of one run, by metric name."""

    series: dict[str, dict[tuple[tuple[str, str], ...], Series]] = field(default_factory=dict)
    count: int = 0
    start_ns: int | None = None
    end_ns: int | None = None

    def add(
        self, name: str, labels: dict[str, str], point: Point, monotone: bool, delta: bool
    ) -> bool:
        """Add a point of a series; return False if the limit of series is reached."""
        family = self.series.setdefault(name, {})
        key = tuple(sorted(labels.items()))
        series = family.get(key)
        if series is None:
            if self.count >= MOST_SERIES:
                return False
            self.count += 1
            series = family[key] = Series(labels, monotone, delta, name in _DRAWN)
        series.add(point)
        begin = point.start_ns or point.time_ns
        self.start_ns = begin if self.start_ns is None else min(self.start_ns, begin)
        self.end_ns = point.time_ns if self.end_ns is None else max(self.end_ns, point.time_ns)
        return True

    def drop_sums(self) -> None:
        """Keep the last values alone: some deltas are missing, so the sums would be too small."""
        self.series = {
            name: {key: one for key, one in family.items() if not one.delta}
            for name, family in self.series.items()
        }

    @property
    def seconds(self) -> float:
        """From the start of the first series to the last point."""
        return max(0, (self.end_ns or 0) - (self.start_ns or 0)) / 1e9

    def of(self, name: str) -> Iterator[Series]:
        """Yield the series of a metric."""
        return iter(self.series.get(name, {}).values())

    def histories(self, name: str, label: str) -> dict[str, History]:
        """Return the histories of a metric by the values of a label that tells its series apart."""
        return {one.labels.get(label, ""): one.history() for one in self.of(name)}

    def total(self, name: str) -> float | None:
        """Return the sum over all series of a metric; None if it has none."""
        return self.sums(name).get(())

    def sums(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Return the sums of a metric by the values of some labels."""
        return summed(
            {tuple(series.labels.get(label, "") for label in labels): series.value}
            for series in self.of(name)
        )

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the sums of a metric by the values of one label."""
        return {key: value for (key,), value in self.sums(name, label).items()}

"""Where the thread-seconds went: of the cluster, of each span, and over time.

Sums are what the metrics say. Where a file has none, those of a span are what its own spans say;
those of the cluster are absent then.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dask_otel import semconv
from dask_otel.report.meanings import PART_TITLES, part_of
from dask_otel.report.telemetry.model import Run, Span, text

IDLE: Final = "idle"
UNUSED: Final = "unused"
LOST: Final = "lost"

_ACTIVITY = semconv.SPAN_ACTIVITY_TIME + "."
_DURATION = semconv.TASK_GROUP_DURATION + "."


@dataclass
class ClusterTime:
    """The sum that closes: activities with idle, unused and lost + in flight = capacity + excess.

    None is what was not exported.
    """

    activities: dict[str, float]
    in_flight: float | None
    capacity: float | None
    excess: float | None

    @property
    def used(self) -> float:
        """What is accounted for, each second once."""
        return sum(self.activities.values())

    @property
    def remainder(self) -> float | None:
        """By how much the sum does not close; None where a part of it is missing."""
        if self.in_flight is None or self.capacity is None or self.excess is None:
            return None
        return self.used + self.in_flight - self.capacity - self.excess

    def parts(self) -> dict[str, float]:
        """Return the seconds of each part, in the order of the dashboards."""
        return parts(self.activities)


@dataclass
class SpanTime:
    """Where the time of all spans of one name went."""

    name: str
    root: str
    activities: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, float] = field(default_factory=dict)
    #: By task prefix. Empty where there are no metrics.
    prefixes: dict[str, dict[str, float]] = field(default_factory=dict)
    idle: float | None = None
    capacity: float | None = None
    measured: bool = True

    @property
    def seconds(self) -> float:
        """Of all activities together, and idle."""
        return sum(self.activities.values()) + (self.idle or 0.0)

    def parts(self) -> dict[str, float]:
        """Return the seconds of each part, idle among them."""
        with_idle = self.activities if self.idle is None else {**self.activities, IDLE: self.idle}
        return parts(with_idle)


def parts(activities: dict[str, float]) -> dict[str, float]:
    """Return the seconds of each part; all parts are there."""
    result = dict.fromkeys(PART_TITLES, 0.0)
    for activity, seconds in activities.items():
        result[part_of(activity).title] += seconds
    return result


def cluster_time(run: Run) -> ClusterTime | None:
    """Return the cluster's sum; None where a run has no metrics of it."""
    activities = run.metrics.by(semconv.CLUSTER_TIME.name, semconv.ACTIVITY)
    if not activities:
        return None
    total = run.metrics.total
    return ClusterTime(
        activities,
        total(semconv.CLUSTER_INFLIGHT_TIME.name),
        total(semconv.CLUSTER_CAPACITY_TIME.name),
        total(semconv.CLUSTER_EXCESS_TIME.name),
    )


def run_parts(run: Run) -> dict[str, float]:
    """Return the seconds of each part of a run: the cluster's, or else those of its spans."""
    cluster = cluster_time(run)
    return cluster.parts() if cluster else merged("", span_times(run)).parts()


def span_times(run: Run) -> list[SpanTime]:
    """Return the time of each span's name, in the order in which the spans began."""
    found = _from_metrics(run)
    from_spans = _from_spans(run)
    for name, entry in from_spans.items():
        found.setdefault(name, entry)
    order = {name: number for number, name in enumerate(from_spans)}
    return sorted(found.values(), key=lambda entry: order.get(entry.name, len(order)))


def _from_metrics(run: Run) -> dict[str, SpanTime]:
    found: dict[str, SpanTime] = {}

    def entry(labels: dict[str, str]) -> SpanTime:
        name = labels.get(semconv.SPAN_NAME, "")
        return found.setdefault(name, SpanTime(name, labels.get(semconv.SPAN_ROOT_NAME, "")))

    for series in run.metrics.of(semconv.SPAN_EXECUTE_TIME.name):
        span = entry(series.labels)
        activity = series.labels.get(semconv.ACTIVITY, "")
        _add(span.activities, activity, series.value)
        prefix = span.prefixes.setdefault(series.labels.get(semconv.TASK_PREFIX, ""), {})
        _add(prefix, activity, series.value)
    for series in run.metrics.of(semconv.SPAN_EXECUTE_IO.name):
        _add(entry(series.labels).bytes, series.labels.get(semconv.ACTIVITY, ""), series.value)
    for metric, name in (
        (semconv.SPAN_IDLE_TIME, "idle"),
        (semconv.SPAN_CAPACITY_TIME, "capacity"),
    ):
        for series in run.metrics.of(metric.name):
            span = entry(series.labels)
            setattr(span, name, (getattr(span, name) or 0.0) + series.value)
    return found


def _from_spans(run: Run) -> dict[str, SpanTime]:
    found: dict[str, SpanTime] = {}
    for span in run.of_type("span"):
        root = text(span.attributes.get(semconv.SPAN_ROOT_NAME))
        entry = found.setdefault(span.full_name, SpanTime(span.full_name, root, measured=False))
        for activity, seconds in span_activities(span).items():
            _add(entry.activities, activity, seconds)
        for key, name in ((semconv.SPAN_IDLE, "idle"), (semconv.SPAN_CAPACITY, "capacity")):
            value = span.number(key)
            if value is not None:
                setattr(entry, name, (getattr(entry, name) or 0.0) + value)
    return found


def span_activities(span: Span) -> dict[str, float]:
    """Return the seconds of each activity that a span says it took itself."""
    return {
        key.removeprefix(_ACTIVITY): float(value)
        for key, value in span.attributes.items()
        if key.startswith(_ACTIVITY)
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
    }


def by_function(run: Run) -> dict[str, tuple[float, float]]:
    """Return the tasks of each prefix and their thread-seconds; of groups without metrics."""
    tasks = run.metrics.by(semconv.TASK_FINISHED.name, semconv.TASK_PREFIX)
    seconds = run.metrics.by(semconv.SPAN_EXECUTE_TIME.name, semconv.TASK_PREFIX)
    if not tasks:
        seconds = {}
        for group in run.of_type("group"):
            prefix = text(group.attributes.get(semconv.TASK_PREFIX))
            _add(tasks, prefix, group.number(semconv.TASK_COUNT) or 0.0)
            for key in group.attributes:
                if key.startswith(_DURATION):
                    _add(seconds, prefix, group.number(key) or 0.0)
    return {prefix: (count, seconds.get(prefix, 0.0)) for prefix, count in tasks.items() if count}


def merged(name: str, entries: Iterable[SpanTime]) -> SpanTime:
    """Return several spans' times as one."""
    result = SpanTime(name, name)
    for entry in entries:
        into = [(result.activities, entry.activities), (result.bytes, entry.bytes)]
        for prefix, activities in entry.prefixes.items():
            into.append((result.prefixes.setdefault(prefix, {}), activities))
        for sums, values in into:
            for activity, value in values.items():
                _add(sums, activity, value)
        if entry.idle is not None:
            result.idle = (result.idle or 0.0) + entry.idle
        if entry.capacity is not None:
            result.capacity = (result.capacity or 0.0) + entry.capacity
        result.measured = result.measured and entry.measured
    return result


def by_root(entries: Iterable[SpanTime]) -> list[SpanTime]:
    """Return the times of each root with all below it."""
    roots: dict[str, list[SpanTime]] = {}
    for entry in entries:
        roots.setdefault(entry.root or entry.name, []).append(entry)
    return [merged(name, below) for name, below in roots.items()]


@dataclass(frozen=True)
class Flow:
    """What threads did over time: for each interval and part, threads on average."""

    #: Limits of the intervals in nanoseconds, one more than there are intervals.
    edges: list[int]
    parts: dict[str, list[float]]
    threads: list[float]

    def unused(self, begin_ns: int, end_ns: int) -> float:
        """Return for how many seconds, at least, no thread had work between two times."""
        most, found = max(self.threads, default=0.0), 0.0
        edges = itertools.pairwise(self.edges)
        for (begin, end), threads in zip(edges, self.parts[part_of(UNUSED).title], strict=True):
            within = min(end, end_ns) - max(begin, begin_ns)
            if most and within > 0:
                # It may all have been in that part of the interval which is outside.
                outside = end - begin - within
                found += max(0.0, threads / most * (end - begin) - outside) / 1e9
        return found


def flow(run: Run, most: int = 240) -> Flow | None:
    """Return what threads did over time; None where there are fewer than two exports."""
    histories: dict[str, list[list[tuple[int, float]]]] = {}
    for series in run.metrics.of(semconv.CLUSTER_TIME.name):
        part = part_of(series.labels.get(semconv.ACTIVITY, "")).title
        histories.setdefault(part, []).append(series.history())
    times = sorted({time for every in histories.values() for one in every for time, _ in one})
    if len(times) < 2:
        return None
    step = max(1, -(-(len(times) - 1) // most))
    edges = [*times[:-1:step], times[-1]]
    widths = [(end - begin) / 1e9 for begin, end in itertools.pairwise(edges)]
    result = {}
    for title in PART_TITLES:
        grown = [0.0] * len(widths)
        for history in histories.get(title, ()):
            for index, seconds in enumerate(_increments(history, edges)):
                grown[index] += seconds / widths[index]
        result[title] = grown
    capacity = [0.0] * len(widths)
    for series in run.metrics.of(semconv.CLUSTER_CAPACITY_TIME.name):
        for index, seconds in enumerate(_increments(series.history(), edges)):
            capacity[index] += seconds / widths[index]
    return Flow(edges, result, capacity)


def _increments(history: list[tuple[int, float]], edges: list[int]) -> list[float]:
    """Return what a counter grew by in each interval; before its first point it was 0."""
    times = [time for time, _ in history]
    totals = []
    for edge in edges:
        index = bisect_right(times, edge)
        totals.append(history[index - 1][1] if index else 0.0)
    return [max(0.0, after - before) for before, after in itertools.pairwise(totals)]


def _add(into: dict[str, float], key: str, value: float) -> None:
    into[key] = into.get(key, 0.0) + value

"""Thread-seconds by activity: of the cluster, of each span, and over time.

Sums come from the metrics. Without metrics, a span's sums come from the spans themselves, and the
cluster's are absent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final

from dask_otel import semconv
from dask_otel.core.sums import known_sum, summed
from dask_otel.report.meanings import PART_TITLES, part_of
from dask_otel.report.telemetry.model import Session, Span, grouped
from dask_otel.report.telemetry.series import History, at

IDLE: Final = "idle"
UNUSED: Final = "unused"
LOST: Final = "lost"

_ACTIVITY = semconv.SPAN_ACTIVITY_TIME + "."
#: A smaller share of the metrics is rounded; if they differ more from a span of their name, they
#: are of others, too.
_LEAST: Final = 0.001


@dataclass
class ClusterTime:
    """The closed sum: activities with idle, unused and lost + in flight = capacity + excess.

    None if a term was not exported.
    """

    activities: dict[str, float]
    in_flight: float | None
    capacity: float | None
    excess: float | None

    @property
    def used(self) -> float:
        """The seconds accounted for, each once."""
        return sum(self.activities.values())

    @property
    def remainder(self) -> float | None:
        """The error of the closed sum; None if a term is missing."""
        if self.in_flight is None or self.capacity is None or self.excess is None:
            return None
        return self.used + self.in_flight - self.capacity - self.excess


@dataclass
class SpanTime:
    """The time of all spans of one name."""

    name: str
    root: str
    activities: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, float] = field(default_factory=dict)
    #: What tasks metered in units of their own.
    units: dict[str, float] = field(default_factory=dict)
    idle: float | None = None
    capacity: float | None = None
    measured: bool = True
    #: Bytes over time of its results in memory.
    memory: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds of all activities and idle together."""
        return sum(self.activities.values()) + (self.idle or 0.0)

    def parts(self) -> dict[str, float]:
        """Return the seconds of each part, with idle."""
        with_idle = self.activities if self.idle is None else {**self.activities, IDLE: self.idle}
        return parts(with_idle)


def parts(activities: dict[str, float]) -> dict[str, float]:
    """Return the seconds of every part."""
    found = ({part_of(activity).title: seconds} for activity, seconds in activities.items())
    return summed([dict.fromkeys(PART_TITLES, 0.0), *found])


def cluster_time(session: Session) -> ClusterTime | None:
    """Return the cluster's sum; None if the run has no metrics of it."""
    activities = session.metrics.by(semconv.CLUSTER_TIME.name, semconv.ACTIVITY)
    if not activities:
        return None
    total = session.metrics.total
    return ClusterTime(
        activities,
        total(semconv.CLUSTER_INFLIGHT_TIME.name),
        total(semconv.CLUSTER_CAPACITY_TIME.name),
        total(semconv.CLUSTER_EXCESS_TIME.name),
    )


def span_times(session: Session) -> list[SpanTime]:
    """Return the time of each span name, in the order of the spans' starts."""
    measured, from_spans = (
        {entry.name: entry for entry in merged_by((one.name, one) for one in found)}
        for found in (_from_metrics(session), _from_spans(session))
    )
    held = session.metrics.by(semconv.SPAN_MEMORY_TIME.name, semconv.SPAN_NAME)
    measured = {name: replace(entry, memory=held.get(name)) for name, entry in measured.items()}
    lacking = [entry for name, entry in from_spans.items() if name not in measured]
    if measured and any(entry.capacity or entry.seconds for entry in lacking):
        # The names of labels are other ones: by rules, since they are long, or since they are many.
        return [*_each_once(measured, from_spans)]
    unknown = [entry for name, entry in measured.items() if name not in from_spans]
    return [*(measured.get(name, entry) for name, entry in from_spans.items()), *unknown]


def _each_once(
    measured: dict[str, SpanTime], from_spans: dict[str, SpanTime]
) -> Iterator[SpanTime]:
    """Yield spans by their names, then what metrics have besides these spans, by the root."""
    agreed = {
        name
        for name, entry in from_spans.items()
        if name in measured
        and abs((measured[name].capacity or 0.0) - (entry.capacity or 0.0))
        <= _LEAST * (entry.capacity or 0.0)
    }
    yield from ((measured if name in agreed else from_spans)[name] for name in from_spans)
    sides = [
        [one for name, one in side.items() if name not in agreed] for side in (from_spans, measured)
    ]
    own_roots, other_roots = ({one.root for one in side} for side in sides)
    roots = sorted((own_roots & other_roots) - {""})
    for root in (*roots, ""):
        known, whole = (
            merged("", [one for one in side if (one.root if one.root in roots else "") == root])
            for side in sides
        )
        busy = sum(whole.activities.values()) - sum(known.activities.values())
        idle, capacity = (
            None if took is None else max(0.0, took - (of_spans or 0.0))
            for took, of_spans in ((whole.idle, known.idle), (whole.capacity, known.capacity))
        )
        name = f"{root}/{semconv.FOLDED}" if root else semconv.FOLDED
        rest = replace(
            whole, name=name, root=root, activities={semconv.FOLDED: max(0.0, busy)},
            idle=idle, capacity=capacity,
        )  # fmt: skip
        least = _LEAST * (whole.capacity or whole.seconds)
        if max(rest.seconds, capacity or 0.0) > least or rest.bytes or rest.units or rest.memory:
            yield rest


#: Dask's own units, no unit, and several.
_NO_UNITS: Final = ("seconds", "bytes", "count", "", semconv.EMPTY, semconv.FOLDED)


def _from_metrics(session: Session) -> Iterator[SpanTime]:
    names = (semconv.SPAN_NAME, semconv.SPAN_ROOT_NAME)
    by_activity, sums = (*names, semconv.ACTIVITY), session.metrics.sums
    counted = {
        "activities": sums(semconv.SPAN_EXECUTE_TIME.name, *by_activity),
        "bytes": sums(semconv.SPAN_EXECUTE_IO.name, *by_activity),
        "units": units(session, *names),
        "idle": sums(semconv.SPAN_IDLE_TIME.name, *names),
        "capacity": sums(semconv.SPAN_CAPACITY_TIME.name, *names),
    }
    for which, found in counted.items():
        for (name, root, *key), value in found.items():
            term: dict[str, Any] = {which: {key[0]: value} if key else value}
            yield SpanTime(name, root, **term)


def units(session: Session, *labels: str) -> dict[tuple[str, ...], float]:
    """Return what tasks metered in units of their own, by some labels and the name of the unit."""
    names = (*labels, semconv.ACTIVITY, semconv.UNIT)
    metered = session.metrics.sums(semconv.SPAN_CUSTOM.name, *names)
    return summed(
        {(*of, unit if name == unit else f"{name} ({unit})"): count}
        for (*of, name, unit), count in metered.items()
        if unit not in _NO_UNITS
    )


def _from_spans(session: Session) -> Iterator[SpanTime]:
    return (
        SpanTime(
            span.full_name,
            span.text(semconv.SPAN_ROOT_NAME),
            span_activities(span),
            idle=span.number(semconv.SPAN_IDLE),
            capacity=span.number(semconv.SPAN_CAPACITY),
            measured=False,
        )
        for span in session.of_type("span")
    )


def span_activities(span: Span) -> dict[str, float]:
    """Return a span's own seconds of each activity."""
    keys = [key for key in span.attributes if key.startswith(_ACTIVITY)]
    found = {key.removeprefix(_ACTIVITY): span.number(key) for key in keys}
    return {name: value for name, value in found.items() if value is not None}


def own_parts(span: Span) -> dict[str, float]:
    """Return a span's own seconds of each part, with idle."""
    return parts({**span_activities(span), IDLE: span.number(semconv.SPAN_IDLE) or 0.0})


def merged(name: str, entries: Iterable[SpanTime]) -> SpanTime:
    """Return several spans' times as one."""
    found = [*entries]
    return SpanTime(
        name,
        found[0].root if found else name,
        summed(one.activities for one in found),
        summed(one.bytes for one in found),
        summed(one.units for one in found),
        known_sum(one.idle for one in found),
        known_sum(one.capacity for one in found),
        all(one.measured for one in found),
        known_sum(one.memory for one in found),
    )


def merged_by(named: Iterable[tuple[str, SpanTime]]) -> list[SpanTime]:
    """Return the times under each name as one."""
    same = grouped(named, itemgetter(0))
    return [merged(name, (entry for _, entry in found)) for name, found in same.items()]


def largest(entries: Iterable[SpanTime], most: int) -> list[SpanTime]:
    """Return those of the largest times, and the others as one."""
    found = sorted((one for one in entries if one.seconds > 0), key=lambda one: -one.seconds)
    rest = found[most:]
    return [*found[:most], *([merged(f"{len(rest)} others", rest)] if rest else [])]


def by_root(entries: Iterable[SpanTime]) -> list[SpanTime]:
    """Return the time of each root, with all spans below it."""
    return merged_by((entry.root or entry.name, entry) for entry in entries)


def flow(
    session: Session, most: int = 240
) -> tuple[list[int], dict[str, list[float]], list[float]]:
    """Return the bounds of intervals in nanoseconds, and the mean threads in each, by part and all.

    There are no intervals with fewer than two exports.
    """
    same = grouped(
        session.metrics.of(semconv.CLUSTER_TIME.name),
        lambda one: part_of(one.labels.get(semconv.ACTIVITY, "")).title,
    )
    parts = {title: [one.history() for one in same.get(title, ())] for title in PART_TITLES}
    times = sorted({time for every in parts.values() for one in every for time, _ in one})
    step = max(1, -(-(len(times) - 1) // most))
    edges = [*times[:-1:step], *times[-1:]]
    capacity = [one.history() for one in session.metrics.of(semconv.CLUSTER_CAPACITY_TIME.name)]
    by_part = {title: _rates(found, edges) for title, found in parts.items()}
    return edges, by_part, _rates(capacity, edges)


def _rates(counters: list[History], edges: list[int]) -> list[float]:
    """Return the growth of counters per second in each interval; they begin at 0."""
    return [
        sum(max(0.0, at(one, end) - at(one, begin)) for one in counters) / ((end - begin) / 1e9)
        for begin, end in itertools.pairwise(edges)
    ]


def add(into: dict[str, float], key: str, value: float | None) -> None:
    """Add to a term; None changes nothing."""
    if value is not None:
        into[key] = into.get(key, 0.0) + value

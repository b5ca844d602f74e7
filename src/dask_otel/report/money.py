"""The cost of a run in thread-hours: of all capacity, each root span and each tag."""

from __future__ import annotations

from dataclasses import dataclass

from dask_otel import semconv
from dask_otel.report.seconds import LOST, UNUSED, by_root, cluster_time, span_times
from dask_otel.report.telemetry.model import Run


@dataclass(frozen=True)
class Price:
    """The price of a thread-hour."""

    amount: float
    currency: str = ""

    def of(self, seconds: float) -> float:
        """Return the cost of thread-seconds."""
        return self.amount * seconds / 3600

    def text(self, seconds: float) -> str:
        """Return the cost of thread-seconds as text."""
        value = self.of(seconds)
        digits = 2 if abs(value) >= 1 or not value else 4 if abs(value) >= 0.01 else 6
        return f"{value:,.{digits}f} {self.currency}".rstrip()


@dataclass(frozen=True)
class Cost:
    """The thread-seconds of one root or tag. None if they were not exported."""

    name: str
    capacity: float
    idle: float | None


@dataclass(frozen=True)
class Bill:
    """The capacity of a run by root, and by one tag.

    `unassigned` is the rest, which no root has: unused, lost and in flight, less the excess.
    """

    capacity: float | None
    roots: list[Cost]
    tags: list[Cost]
    unused: float | None
    lost: float | None

    @property
    def unassigned(self) -> float | None:
        """The capacity that belongs to no span; None if the capacity is unknown."""
        if self.capacity is None:
            return None
        return self.capacity - sum(cost.capacity for cost in self.roots)


def bill(run: Run, tag: str = "team") -> Bill:
    """Return the capacity of a run by root and tag.

    Spans with a tag ``<tag>:<value>`` are summed by the value of the outermost such tag; the
    others, under an empty name.
    """
    names = span_times(run)
    roots = [
        Cost(root.name, root.capacity, root.idle)
        for root in by_root(names)
        if root.capacity is not None
    ]
    tags_of = {
        span.full_name: span.attributes.get(semconv.SPAN_TAGS) for span in run.of_type("span")
    }
    tagged: dict[str, tuple[float, float]] = {}
    for entry in names:
        if entry.capacity is None:
            continue
        tags = tags_of.get(entry.name)
        tags = tags if isinstance(tags, tuple) else tuple(entry.name.split("/"))
        values = [str(one)[len(tag) + 1 :] for one in tags if str(one).startswith(f"{tag}:")]
        value = values[0] if values else ""
        capacity, idle = tagged.get(value, (0.0, 0.0))
        tagged[value] = (capacity + entry.capacity, idle + (entry.idle or 0.0))
    cluster = cluster_time(run)
    return Bill(
        capacity=cluster.capacity if cluster else None,
        roots=sorted(roots, key=lambda cost: -cost.capacity),
        tags=[
            Cost(value, capacity, idle)
            for value, (capacity, idle) in sorted(tagged.items(), key=lambda item: -item[1][0])
        ]
        if set(tagged) - {""}
        else [],
        unused=cluster.activities.get(UNUSED) if cluster else None,
        lost=cluster.activities.get(LOST) if cluster else None,
    )

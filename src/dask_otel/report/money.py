"""The cost of a run, in thread-hours and GiB-hours: of all, each root span and each tag."""

from __future__ import annotations

from dataclasses import dataclass

from dask_otel import semconv
from dask_otel.report import words
from dask_otel.report.memory import provided
from dask_otel.report.seconds import (
    LOST,
    UNUSED,
    SpanTime,
    by_root,
    cluster_time,
    merged_by,
    span_times,
)
from dask_otel.report.telemetry.model import Session, texts


@dataclass(frozen=True)
class Price:
    """The price of a thread-hour, and that of a GiB-hour of memory."""

    amount: float
    currency: str = ""
    memory: float = 0.0

    def of(self, seconds: float | None, byte_seconds: float | None = None) -> float | None:
        """Return the cost of thread-seconds and of bytes over time; None without thread-seconds."""
        if seconds is None:
            return None
        return (self.amount * seconds + self.memory * (byte_seconds or 0.0) / 2**30) / 3600

    def text(self, seconds: float | None, byte_seconds: float | None = None) -> str:
        """Return the cost as text; empty if it is unknown."""
        value = self.of(seconds, byte_seconds)
        if value is None:
            return ""
        digits = 2 if abs(value) >= 1 or not value else 4 if abs(value) >= 0.01 else 6
        # Nothing that is rounded to 0 has a sign.
        return f"{round(value, digits) + 0.0:,.{digits}f} {self.currency}".rstrip()


@dataclass(frozen=True)
class Bill:
    """The capacity of a run by root, and by the values of one tag, all of them known.

    `unassigned` is the rest, which no root has: unused, lost and in flight. The `excess` was booked
    beyond the capacity.
    """

    capacity: float | None
    roots: list[SpanTime]
    tags: list[SpanTime]
    unused: float | None
    lost: float | None
    #: The bytes over time that the workers had, of which results of spans took some.
    memory: float | None = None
    excess: float | None = None

    @property
    def unassigned(self) -> float | None:
        """The time that belongs to no span; None if the capacity is unknown."""
        if self.capacity is None:
            return None
        return (
            self.capacity + (self.excess or 0.0) - sum(root.capacity or 0.0 for root in self.roots)
        )

    @property
    def unassigned_memory(self) -> float:
        """The bytes over time that no result of a span took; negative if many were spilled."""
        return (self.memory or 0.0) - sum(root.memory or 0.0 for root in self.roots)


def bill(session: Session, tag: str = "team") -> Bill:
    """Return the capacity of a run by root and tag.

    Spans with a tag ``<tag>:<value>`` are summed by the value of the outermost such tag; the
    others, under an empty name.
    """
    # A span without thread-time can have results in memory.
    entries = span_times(session)
    tags_of = {
        span.full_name: span.attributes.get(semconv.SPAN_TAGS) for span in session.of_type("span")
    }

    def value_of(entry: SpanTime) -> str:
        tags = texts(tags_of.get(entry.name)) or entry.name.split("/")
        values = (one[len(tag) + 1 :] for one in tags if one.startswith(f"{tag}:"))
        return next(values, "")

    tags = _known(merged_by((value_of(entry), entry) for entry in entries))
    cluster = cluster_time(session)
    return Bill(
        capacity=cluster.capacity if cluster else None,
        roots=_known(by_root(entries)),
        tags=tags if any(entry.name for entry in tags) else [],
        unused=cluster.activities.get(UNUSED) if cluster else None,
        lost=cluster.activities.get(LOST) if cluster else None,
        memory=provided(session),
        excess=cluster.excess if cluster else None,
    )


def table(found: Bill, price: Price, tag: str) -> list[list[str]]:
    """Return the headings of the costs, those of numbers with a ``#``, and the rows."""
    costs = [(one.name, one.capacity, one.memory, one.idle) for one in found.roots]
    if found.capacity is not None:
        rest = found.unassigned, found.unassigned_memory, found.unused
        costs.append(("of no span", *rest))
        if found.excess and found.excess >= 0.0005:
            costs.append(("booked beyond the threads", -found.excess, 0.0, None))
        costs.append(("all", found.capacity, found.memory, None))
    costs += [
        (f"{tag}: {one.name or 'none'}", one.capacity, one.memory, one.idle) for one in found.tags
    ]
    heads = ["root span", "#thread-time", "#cost", "#idle or unused", "#for memory"]
    rows = [
        [
            words.one_line(name),
            _time(seconds),
            price.text(seconds, memory),
            price.text(idle),
            price.text(0.0, memory),
        ]
        for name, seconds, memory, idle in costs
    ]
    return [row if price.memory else row[:-1] for row in (heads, *rows)]


def _time(seconds: float | None) -> str:
    # Negative if spans took more than there was: see the sum, with its excess.
    if seconds is not None and seconds <= -0.0005:
        return words.signed(seconds)
    return words.known(seconds and abs(seconds))


def _known(entries: list[SpanTime]) -> list[SpanTime]:
    """Return those of a known capacity, the largest first."""
    known = [entry for entry in entries if entry.capacity is not None]
    return sorted(known, key=lambda entry: -(entry.capacity or 0.0))

"""The units of work that tasks metered, such as events: how many, and what they took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dask_otel import semconv
from dask_otel.report import words
from dask_otel.report.evidence import opened
from dask_otel.report.money import Price
from dask_otel.report.seconds import SpanTime, by_root
from dask_otel.report.telemetry.model import Session, grouped


class Work(NamedTuple):
    """The units of all spans of one name: of a root with the spans below it, or of a span inside.

    `seconds` are those in which at least one of the spans was open, `capacity` the thread-seconds,
    `memory` the bytes of results over time.
    """

    span: str
    unit: str
    total: float
    seconds: float
    capacity: float | None
    memory: float | None

    def figures(self, price: Price | None) -> dict[str, float | None]:
        """Return the total, and the units per second, thread-second and unit of money."""
        taken = {
            "per_second": self.seconds,
            "per_thread_second": self.capacity,
            "per_cost": price.of(self.capacity, self.memory) if price else None,
        }
        return {"total": self.total} | {
            name: self.total / amount if amount else None for name, amount in taken.items()
        }


def work(session: Session, spans: Sequence[SpanTime]) -> list[Work]:
    """Return the work of each root, then of each span inside."""
    roots = grouped(session.roots(), lambda span: span.text(semconv.SPAN_ROOT_NAME))
    named = grouped(session.of_type("span"), lambda span: span.full_name)
    inside = [entry for entry in spans if entry.root not in ("", entry.name)]
    return [
        Work(
            entry.name,
            unit,
            total,
            opened(of.get(entry.name, [])),
            entry.capacity,
            entry.memory,
        )
        for entries, of in ((by_root(spans), roots), (inside, named))
        for entry in entries
        for unit, total in entry.units.items()
    ]


def table(found: Iterable[Work], price: Price | None) -> list[list[str]]:
    """Return the headings of a table, those of numbers with a ``#``, and its rows."""
    money = [f"#per {price.currency or 'unit of money'}"] if price else []
    head = ["span", "unit", "#total", "#per second", "#per thread-second", *money]
    rows = (
        [one.span, one.unit, *map(words.quantity, one.figures(price).values())] for one in found
    )
    return [head, *([words.one_line(cell) for cell in row[: len(head)]] for row in rows)]

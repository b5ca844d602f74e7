"""Promises that hold whatever the input is; several targets check them."""

from __future__ import annotations

import math
from typing import Any, Final

from dask_otel import semconv
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.records import AttributeValue, HistogramPoint, MetricRecord, SpanRecord
from dask_otel.core.text import ATTRIBUTE_LIMIT, STACKTRACE_LIMIT

T: Final = 1_700_000_000.0
T_NS: Final = 1_700_000_000 * 10**9
_EXECUTED: Final = semconv.SPAN_EXECUTE_TIME.name


def check(holds: bool, promise: str, *seen: object) -> None:
    """Raise where a promise is broken; also with ``python -O``."""
    if not holds:
        raise AssertionError(f"{promise}: {seen!a}"[:2000])


def small(value: AttributeValue, limit: int, *what: object) -> None:
    """Check a value as it is exported."""
    if isinstance(value, tuple):
        check(len(value) <= 64, "an array is bounded", len(value), *what)
        for item in value:
            small(item, limit, *what)
    elif isinstance(value, str):
        check(len(value) <= limit, "a text is bounded", len(value), *what)
        check("\0" not in value, "no text has a NUL", *what)
        value.encode()
    elif isinstance(value, float):
        check(math.isfinite(value), "a number is finite", value, *what)
    else:
        check(-(2**63) <= value < 2**63, "a number has 64 bits", value, *what)


def check_span(record: SpanRecord) -> None:
    """Check a span that is exported."""
    small(record.name, ATTRIBUTE_LIMIT)
    small(record.error or "", ATTRIBUTE_LIMIT)
    check(bool(record.name), "a span has a name")
    check(0 <= record.start_ns < record.end_ns < 2**64, "it ends after it starts", record)
    check(len(record.attributes) < 150, "attributes are bounded", len(record.attributes))
    check(len(record.events) < 100, "events are bounded", len(record.events))
    for attributes in (record.attributes, *(event.attributes for event in record.events)):
        for key, value in attributes.items():
            limit = STACKTRACE_LIMIT if key == semconv.EXCEPTION_STACKTRACE else ATTRIBUTE_LIMIT
            small(key, ATTRIBUTE_LIMIT)
            small(value, limit, key)


class Exports:
    """Exports of one cluster's metrics, each of which is checked.

    Each batch has one valid increment of 1.5 s of ``dask.span.execute.time`` of the span
    "good".

    Parameters
    ----------
    state
        Since `T_NS`.
    """

    def __init__(self, state: MetricState) -> None:
        self._state = state
        self._turn = 0
        self._before: dict[Any, float] = {}

    @property
    def time_ns(self) -> int:
        """When the next batch ends."""
        return T_NS + (self._turn + 1) * 10**10

    def check(self, batch: MetricBatch) -> None:
        """Export the next batch: valid increments are counted, and no total goes back."""
        time_ns = self.time_ns
        self._turn += 1
        self._state.apply(batch)
        now = counters(list(self._state.collect(time_ns + 1)))
        self._state.settled(True)
        for series, value in self._before.items():
            check(now.get(series, value) >= value, "no total goes back", series, value)
        found = [
            value
            for (name, labels), value in now.items()
            if (name, dict(labels).get("dask.span.name")) == (_EXECUTED, "good")
        ]
        check(found == [1.5 * self._turn], "valid increments are counted", found)
        self._before = now


def counters(records: list[MetricRecord]) -> dict[Any, float]:
    """Return the last value of each counter and histogram."""
    found: dict[Any, float] = {}
    for record in records:
        for point in record.points:
            for key, value in point.attributes.items():
                small(value, 255, key)
            check(point.start_ns <= point.time_ns, "a point ends after it starts", point)
            value = point.count if isinstance(point, HistogramPoint) else point.value
            if isinstance(point, HistogramPoint):
                check(sum(point.bucket_counts) == point.count, "buckets sum up", point)
                small(point.sum, 0)
            small(value, 0, record.name)
            if record.instrument in ("counter", "histogram"):
                found[record.name, tuple(point.attributes.items())] = value
    return found

"""Records as the core makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dask_otel.core.records import (
    Event,
    Exemplar,
    HistogramPoint,
    Link,
    LogRecord,
    MetricRecord,
    NumberPoint,
    SpanRecord,
)

TRACE_ID = 0x5B8EFFF798038103D269B633813FC60C
SECOND = 1_000_000_000

ROOT = SpanRecord(
    trace_id=TRACE_ID,
    span_id=0xEEE19B7EC3C1B174,
    parent_span_id=None,
    name="nightly",
    kind="server",
    start_ns=1_700_000_000 * SECOND,
    end_ns=1_700_000_002 * SECOND,
    attributes={
        "dask.task.count": 3,
        "dask.span.queue.time": 2.0,
        "dask.span.complete": True,
        "dask.span.tags": ("a", "b"),
        "dask.span.name": "a/b",
    },
    events=(Event("dask.span.start", 1_700_000_001 * SECOND, {"n": 1}),),
    links=(Link(7, 8),),
    error=None,
)
CHILD = replace(
    ROOT,
    span_id=0xEEE19B7EC3C1B175,
    parent_span_id=ROOT.span_id,
    name="load",
    kind="internal",
    attributes={},
    events=(),
    links=(),
    error="KeyError: 'x'",
)

LOG = LogRecord(1_700_000_000 * SECOND, "dask.test", 9, "A test", {}, None, None)


def number(value: float, time: int = 2, start: int = 1, **attributes: Any) -> NumberPoint:
    return NumberPoint(attributes, start * SECOND, time * SECOND, value)


def counter(*points: NumberPoint, name: str = "dask.test", **changes: Any) -> MetricRecord:
    return replace(MetricRecord(name, "s", "A test", "counter", "cumulative", points), **changes)


HISTOGRAM = HistogramPoint(
    {"dask.span.result": "success"},
    1 * SECOND,
    3 * SECOND,
    count=2,
    sum=2.5,
    min=0.5,
    max=2.0,
    bucket_counts=(1, 1, 0),
    bounds=(1.0, 5.0),
    exemplars=(Exemplar(TRACE_ID, 9, 2.0, 2 * SECOND),),
)

"""The bytes of OTLP: the same messages as those of OpenTelemetry's own encoder."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import Exemplar as SdkExemplar
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from dask_otel import semconv
from dask_otel._otel.sdk.encode import Encoder, reread, span_name
from dask_otel.core.context import Caller, Traceparent
from dask_otel.core.records import (
    Event,
    Exemplar,
    HistogramPoint,
    Link,
    MetricRecord,
    NumberPoint,
    Origin,
    Row,
    SpanRecord,
)
from dask_otel.core.trace import Trace
from tests.otlp.records import CHILD, HISTOGRAM, ROOT, SECOND, TRACE_ID, counter, number

RESOURCE = {"service.name": "dask", "a": ("x", "y"), "n": 1, "f": 0.5, "b": True}
SCOPE = InstrumentationScope(semconv.SCOPE_NAME, "1.2.3", semconv.SCHEMA_URL)
KINDS = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}


def context(trace_id: int, span_id: int, remote: bool, state: str = "") -> SpanContext:
    kept = TraceState.from_header([state]) if state else None
    return SpanContext(trace_id, span_id, remote, TraceFlags(1), kept)


def readable(record: SpanRecord) -> ReadableSpan:
    """Return the SDK's span, made without anything of ours."""
    trace = Trace.of(record.trace_id)
    parent = record.parent_span_id
    error = record.error
    return ReadableSpan(
        name=record.name,
        context=context(int(trace), record.span_id, False, trace.state),
        parent=None if parent is None else context(int(trace), parent, record.remote_parent),
        resource=Resource(RESOURCE),
        attributes=dict(record.attributes),
        events=[SdkEvent(e.name, dict(e.attributes), e.time_ns) for e in record.events],
        links=[SdkLink(context(one.trace_id, one.span_id, False)) for one in record.links],
        kind=KINDS[record.kind],
        status=Status() if error is None else Status(StatusCode.ERROR, error),
        start_time=record.start_ns,
        end_time=record.end_ns,
        instrumentation_scope=SCOPE,
    )


def corpus() -> list[SpanRecord]:
    dice = random.Random(1)
    values: list[Any] = ["", "x" * 300, "Zoë 日本", 0, -1, 2**62, 0.0, -1.5, 1e300, True, False,
                         ("a", "b"), (), ("x" * 200,), float("inf")]  # fmt: skip
    traced = Trace(TRACE_ID, "nightly", Caller(Traceparent(TRACE_ID, 99, 1), "a=b,c=d"))
    records = [
        ROOT,
        CHILD,
        replace(ROOT, trace_id=traced, parent_span_id=99, remote_parent=True),
        replace(CHILD, error=""),
        replace(CHILD, name="", start_ns=0, end_ns=2**63),
    ]
    for index in range(200):
        attributes = {f"key.{n}": dice.choice(values) for n in range(dice.randrange(40))}
        records.append(
            replace(
                dice.choice((ROOT, CHILD)),
                span_id=index + 1,
                attributes=attributes,
                events=tuple(Event(f"e{n}", n, attributes) for n in range(dice.randrange(3))),
                links=tuple(Link(n + 1, n + 2) for n in range(dice.randrange(3))),
            )
        )
    return records


def test_spans_are_those_of_the_sdks_encoder() -> None:
    records = corpus()
    encoder = Encoder(RESOURCE, "1.2.3")
    made = encoder.request([Row(encoder.span(record)) for record in records])
    expected = encode_spans([readable(record) for record in records])
    found = ExportTraceServiceRequest.FromString(made)
    for resource in expected.resource_spans:
        for scope in resource.scope_spans:
            # The encoder of SDK 1.28 leaves it out.
            scope.schema_url = semconv.SCHEMA_URL
    assert found == expected


def _sdk_point(point: NumberPoint | HistogramPoint) -> Any:
    common: dict[str, Any] = {
        "attributes": dict(point.attributes),
        "start_time_unix_nano": point.start_ns,
        "time_unix_nano": point.time_ns,
        "exemplars": [
            SdkExemplar({}, e.value, e.time_ns, e.span_id, e.trace_id) for e in point.exemplars
        ],
    }
    if isinstance(point, NumberPoint):
        return sdk.NumberDataPoint(value=point.value, **common)
    return sdk.HistogramDataPoint(
        count=point.count, sum=point.sum, min=point.min, max=point.max,
        bucket_counts=list(point.bucket_counts), explicit_bounds=list(point.bounds), **common,
    )  # fmt: skip


def _sdk_metric(record: MetricRecord) -> sdk.Metric:
    points = [_sdk_point(point) for point in record.points]
    temporality = sdk.AggregationTemporality[record.temporality.upper()]
    data: Any = sdk.Sum(points, temporality, record.instrument == "counter")
    if record.instrument == "histogram":
        data = sdk.Histogram(points, temporality)
    elif record.instrument == "gauge":
        data = sdk.Gauge(points)
    return sdk.Metric(record.name, record.description, record.unit, data)


def test_metrics_are_those_of_the_sdks_encoder() -> None:
    exemplar = Exemplar(TRACE_ID, 5, 0.5, 2 * SECOND)
    counted = Exemplar(TRACE_ID, 6, 1, 2 * SECOND)
    many = [number(float(n), time=n, a="x" * n, b=n, c=n % 2 == 0) for n in range(300)]
    records = [
        counter(NumberPoint({"a": "x"}, SECOND, 3 * SECOND, 2.5, (exemplar, counted))),
        counter(number(0), number(-7), name="dask.u", instrument="updowncounter"),
        counter(HISTOGRAM, name="dask.h", instrument="histogram", temporality="delta"),
        counter(*many, name="dask.many", temporality="delta"),
        # A gauge has no start; the SDK leaves it out.
        counter(number(0.25, start=0), name="dask.g", instrument="gauge", unit=""),
    ]
    made = Encoder(RESOURCE, "1.2.3").metrics(records, lambda: None)
    scope = sdk.ScopeMetrics(SCOPE, [_sdk_metric(record) for record in records], SCOPE.schema_url)
    data = sdk.MetricsData([sdk.ResourceMetrics(Resource(RESOURCE), [scope], "")])
    expected = encode_metrics(data)
    for resource in expected.resource_metrics:
        for one in resource.scope_metrics:
            one.schema_url = semconv.SCHEMA_URL
    assert ExportMetricsServiceRequest.FromString(made) == expected


def test_text_that_is_no_unicode_is_an_error_of_its_span_alone() -> None:
    """The core cleans all text; if it did not, the pump would drop that one span."""
    for bad in (
        replace(CHILD, name="\ud800"),
        replace(CHILD, error="\ud800"),
        replace(CHILD, attributes={"bad": "\ud800"}),
        replace(CHILD, events=(Event("\ud800", 1, {}),)),
    ):
        with pytest.raises((TypeError, ValueError)):
            Encoder({}, "1").span(bad)


def test_rows_of_several_runs_each_keep_their_resource_and_version() -> None:
    encoder, other = Encoder({"run": "now"}, "2"), Encoder({"run": "before"}, "1")
    rows = [
        Row(encoder.span(ROOT)),
        Row(other.span(CHILD), other.origin),
        Row(encoder.span(replace(CHILD, span_id=7))),
        # From a file: equal, and another object.
        Row(other.span(replace(CHILD, span_id=8)), Origin(*other.origin)),
    ]
    request = ExportTraceServiceRequest.FromString(encoder.request(rows))
    found = [
        (
            resource.resource.attributes[0].value.string_value,
            resource.scope_spans[0].scope.version,
            [int.from_bytes(span.span_id, "big") for span in resource.scope_spans[0].spans],
        )
        for resource in request.resource_spans
    ]
    assert found == [("now", "2", [ROOT.span_id, 7]), ("before", "1", [CHILD.span_id, 8])]


ORIGIN = Encoder({"service.name": "dask-scheduler"}, "1").origin


@pytest.mark.parametrize("body", [b"", b"\xff\xff", b"no span at all", None, 3, "text"])
def test_what_is_no_span_is_known_as_such(body: Any) -> None:
    assert reread(body, 0, ORIGIN) is None
    assert span_name(body) is None


def test_a_span_from_a_file_is_sent_as_it_is_or_with_a_later_end() -> None:
    body = Encoder({}, "1").span(ROOT)
    assert span_name(body) == "nightly"
    assert reread(body, 0, ORIGIN) == reread(body, ROOT.end_ns, ORIGIN) == body
    assert reread(body, ROOT.end_ns + 5, ORIGIN) == Encoder({}, "1").span(
        replace(ROOT, end_ns=ROOT.end_ns + 5)
    )
    assert reread(body[:10], 0, ORIGIN) is None


def test_a_span_of_a_damaged_resource_or_scope_is_left_out_of_the_others_request() -> None:
    body = Encoder({}, "1").span(ROOT)
    for damaged in (Origin(ORIGIN.resource[:-1], ORIGIN.scope), Origin(ORIGIN.resource, b"\xff")):
        assert reread(body, 0, damaged) is None

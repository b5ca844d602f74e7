"""OTLP/JSON as the specification wants it, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status, TracesData

from dask_otel.cli import otlp_json


def request(number: int) -> ExportTraceServiceRequest:
    link = Span.Link(trace_id=b"\xff" * 16, span_id=b"\xfe" * 8)
    span = Span(
        trace_id=bytes(range(16)),
        span_id=bytes([number] * 8),
        parent_span_id=b"\xab" * 8,
        kind=Span.SPAN_KIND_SERVER,
        name="Zoë\n",
        start_time_unix_nano=1_700_000_000_123_456_789,
        status=Status(code=Status.STATUS_CODE_ERROR, message="m"),
        links=[link],
        attributes=[
            # A name like a field's, and bytes that are no id.
            KeyValue(key="traceId", value=AnyValue(string_value="not hex")),
            KeyValue(key="raw", value=AnyValue(bytes_value=b"\x00\xff")),
        ],
    )
    result = ExportTraceServiceRequest()
    result.resource_spans.add().scope_spans.add().spans.append(span)
    return result


def test_encoding_follows_the_specification():
    text = otlp_json.to_json(request(1))
    assert "\n" not in text
    span = json.loads(text)["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert span["traceId"] == "000102030405060708090a0b0c0d0e0f"
    assert span["spanId"] == "01" * 8
    assert span["parentSpanId"] == "ab" * 8
    assert span["links"][0] == {"traceId": "ff" * 16, "spanId": "fe" * 8}
    assert span["kind"] == 2
    assert span["status"] == {"message": "m", "code": 2}
    assert span["startTimeUnixNano"] == "1700000000123456789"
    assert span["attributes"][0] == {"key": "traceId", "value": {"stringValue": "not hex"}}


def test_reading_back_gives_the_same_message():
    read = ExportTraceServiceRequest()
    otlp_json.from_json(otlp_json.to_json(request(1)), read)
    assert read == request(1)


@pytest.mark.parametrize("text", ["{", '{"nonsense": 1}'])
def test_what_is_no_otlp_is_an_error(text):
    with pytest.raises(ValueError):
        otlp_json.from_json(text, TracesData())


def test_traces_are_one_object_on_one_line(tmp_path):
    path = tmp_path / "t.json"
    otlp_json.write_traces(path, [request(1), request(2)])
    line, end = path.read_text(encoding="utf-8").split("\n")
    assert end == ""
    read = TracesData()
    otlp_json.from_json(line, read)
    assert [r.scope_spans[0].spans[0].span_id[0] for r in read.resource_spans] == [1, 2]


def test_metrics_are_one_request_a_line(tmp_path):
    path = tmp_path / "m.json"
    requests = [ExportMetricsServiceRequest(), ExportMetricsServiceRequest()]
    for number, item in enumerate(requests):
        point = item.resource_metrics.add().scope_metrics.add().metrics.add(name="m").sum
        point.data_points.add(as_int=number, time_unix_nano=5 + number)
    otlp_json.write_metrics(path, requests)
    read = []
    for line in path.read_text(encoding="utf-8").splitlines():
        read.append(ExportMetricsServiceRequest())
        otlp_json.from_json(line, read[-1])
    assert read == requests


@pytest.mark.parametrize(
    ("traces", "metrics"),
    [("x-traces.json", "x-metrics.json"), ("d/x.json", "d/x-metrics.json"), ("x", "x-metrics")],
)
def test_metrics_go_beside_the_traces(traces, metrics):
    assert otlp_json.metrics_path(Path(traces)) == Path(metrics)

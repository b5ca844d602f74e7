"""OTLP/JSON, read back."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status, TracesData

from dask_otel._otel.sdk.otlp_json import lines
from tests.otlp.json_reading import from_json


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
    resource = result.resource_spans.add()
    resource.resource.SetInParent()
    scope = resource.scope_spans.add(spans=[span])
    scope.scope.name = "tests"
    return result


def line(number: int) -> str:
    """Return a request as the exporter's own writer makes it."""
    (made,) = lines(request(number), lambda: None)
    return made


def test_reading_back_gives_the_same_message():
    read = ExportTraceServiceRequest()
    from_json(line(1), read)
    assert read == request(1)


@pytest.mark.parametrize("text", ["{", '{"nonsense": 1}'])
def test_what_is_no_otlp_is_an_error(text):
    with pytest.raises(ValueError):
        from_json(text, TracesData())

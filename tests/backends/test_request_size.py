"""No request of the Collector is larger than a backend takes.

The sink stands for a backend whose limit nobody has raised: a real OTLP receiver over gRPC with the
default of 4 MiB. That is the receiver that Tempo has, and Tempo's limit without the line in
deploy/tempo; it says nothing else about Tempo.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from dask_otel import semconv
from dask_otel._otel.sdk.encode import Encoder
from dask_otel.core.records import Failure, Row
from dask_otel.core.traces.translate import translate
from dask_otel.scheduler.wiring import make_pump
from dask_otel.settings.keys import Settings
from tests.otlp.pipeline import Export, T, make_span
from tests.waiting import eventually

from .clients import JaegerClient, PrometheusClient, spans_of_file
from .conftest import Start
from .servers import Running, backends, start_collector, start_sink
from .telemetry import (
    SECOND,
    cluster_of,
    counter,
    export_metrics,
    failed_spans,
    new_resource,
    now_ns,
    span_exporter,
)

pytestmark = pytest.mark.backend

#: What gRPC takes by default.
DEFAULT_LIMIT = 4 * 2**20
#: Spans in one request of the bridge, by default.
BATCH = 128


def _size(spans: Sequence[ReadableSpan]) -> int:
    return encode_spans(spans).ByteSize()


@pytest.fixture
def sink(start: Start) -> Running:
    """A sink of the test's own: reading megabytes again would take others' time."""
    return start(start_sink)


@pytest.fixture
def collector(start: Start, sink: Running) -> Running:
    """A Collector of the test's own, with the sink behind it and no Prometheus."""
    return start(start_collector, backends(sink.grpc, sink.http))


def _send(
    collector: Running, protocol: str, spans: Sequence[ReadableSpan], batch: int
) -> dict[int, str]:
    """Send so many spans a request; return the name of each span by its id."""
    exporter = span_exporter(protocol, collector)
    for first in range(0, len(spans), batch):
        assert exporter.export(spans[first : first + batch]) is SpanExportResult.SUCCESS
    exporter.shutdown()
    return {span.get_span_context().span_id: span.name for span in spans}


def _check(sink: Running, sent: dict[int, str]) -> None:
    def arrived(path: Path) -> bool:
        # Without an assertion, whose message would take longer than all the rest.
        return {one.span_id: one.name for one in spans_of_file(path)} == sent

    for path in sink.files:
        eventually(lambda path=path: arrived(path), 150, "all spans are there")


def _requests(path: Path) -> int:
    """How many requests have come: the sink writes a line for each."""
    return len(path.read_text(encoding="utf-8").splitlines())


def test_failed_spans_are_not_merged_beyond_the_limit(collector: Running, sink: Running) -> None:
    """Five requests that every backend takes, and that one request would be too large for."""
    spans = failed_spans(601, new_resource())
    assert _size(spans[:BATCH]) < DEFAULT_LIMIT < _size(spans)
    _check(sink, _send(collector, "grpc", spans, BATCH))


def test_small_requests_are_merged(collector: Running, sink: Running) -> None:
    spans = failed_spans(200, new_resource(), stacktrace=100)
    _check(sink, _send(collector, "http", spans, 1))
    assert _requests(sink.files[1]) < 50


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_request_that_is_too_large_by_itself_is_split(
    protocol: str, collector: Running, sink: Running
) -> None:
    spans = failed_spans(1500, new_resource())
    assert 2 * DEFAULT_LIMIT < _size(spans) < 4 * DEFAULT_LIMIT
    _check(sink, _send(collector, protocol, spans, len(spans)))
    assert _requests(sink.files[1]) >= 3


def test_the_bridge_halves_a_batch_that_the_collector_does_not_take(
    collector: Running, sink: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen long failures on each of 128 spans are more than the 16 MiB that it takes."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.grpc)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    failure = Failure(T, "load-1", "load", None, "KeyError('" + "x" * 2000, "in load\n" * 1200)
    spans = [make_span(f"span-{number}", failures=(failure,) * 16) for number in range(BATCH)]
    encoder = Encoder(new_resource().attributes, "0")
    rows = [Row(encoder.span(record)) for span in spans for record in translate(span)]
    assert len(encoder.request(rows)) > 16 * 2**20
    made = make_pump(Settings(), "Scheduler-1", time.time_ns())
    assert made is not None
    export = Export(made.pump)
    assert all(export.spans(*spans))
    made.pump.start()
    try:
        _check(sink, {one.identity.span_id: "workflow" for one in spans})
    finally:
        export.close()


def test_jaeger_gets_all_of_them(
    start: Start, jaeger: Running, jaeger_client: JaegerClient
) -> None:
    collector = start(start_collector, backends(jaeger.grpc))
    spans = failed_spans(1500, new_resource())
    sent = _send(collector, "grpc", spans, len(spans))
    trace_id = spans[0].get_span_context().trace_id
    eventually(
        lambda: {one.span_id: one.name for one in jaeger_client.trace(trace_id)} == sent,
        what="all of them",
    )


def test_prometheus_takes_a_large_request_as_it_is(
    start: Start, sink: Running, prometheus: Running, prometheus_client: PrometheusClient
) -> None:
    """Metrics are neither merged nor split."""
    collector = start(start_collector, backends(sink.grpc, sink.http, prometheus.otlp))
    resource, now, count = new_resource(), now_ns(), 20_000
    metrics = [
        counter(
            semconv.SPAN_EXECUTE_TIME,
            [(now, 1.0)],
            {semconv.SPAN_NAME: f"{number:0200}"},
            now - SECOND,
        )
        for number in range(count)
    ]
    export_metrics(collector, resource, metrics)
    name = "dask_span_execute_time_seconds_total"
    query = f'count({name}{{dask_cluster_name="{cluster_of(resource)}"}})'
    eventually(lambda: prometheus_client.value(query) == count)

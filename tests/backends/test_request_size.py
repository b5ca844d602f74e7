"""No request of the Collector is larger than a backend takes.

The sink stands for a backend whose limit nobody has raised: a real OTLP receiver over gRPC with the
default of 4 MiB. That is the receiver that Tempo has, and Tempo's limit without the line in
deploy/tempo; it says nothing else about Tempo.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from dask_otel import semconv
from dask_otel._otel.sdk.encode import Encoder
from dask_otel.core.records import Failure, Row
from dask_otel.core.traces.translate import translate
from dask_otel.scheduler.wiring import make_pump
from dask_otel.settings.keys import Settings
from tests.otlp.pipeline import Export, T, make_span

from .clients import JaegerClient, PrometheusClient, spans_of_file
from .processes import eventually, free_ports
from .servers import (
    Collector,
    Jaeger,
    Prometheus,
    Sink,
    behind_collector,
    local,
    start_collector,
    start_sink,
)
from .telemetry import (
    cluster_of,
    counter,
    failed_spans,
    metric_exporter,
    metrics_data,
    new_resource,
    now_ns,
    span_exporter,
)

pytestmark = pytest.mark.backend

Start = Callable[[Callable[[Path], Any]], Any]

#: What gRPC takes by default.
DEFAULT_LIMIT = 4 * 2**20
#: Spans in one request of the bridge, by default.
BATCH = 128


def _size(spans: Sequence[ReadableSpan]) -> int:
    return encode_spans(spans).ByteSize()


def _nowhere() -> str:
    return local(free_ports(1)[0])


@pytest.fixture
def sink(start: Start) -> Sink:
    """A sink of the test's own: reading megabytes again would take others' time."""
    return start(start_sink)


@pytest.fixture
def collector(start: Start, sink: Sink) -> Collector:
    """A Collector of the test's own, with the sink behind it and no Prometheus."""
    return start(
        lambda folder: start_collector(folder, behind_collector(sink, f"http://{_nowhere()}"))
    )


def _send(
    collector: Collector, protocol: str, spans: Sequence[ReadableSpan], batch: int
) -> dict[str, str]:
    """Send so many spans a request; return the name of each span by its id."""
    exporter = span_exporter(protocol, collector.grpc, collector.http)
    for first in range(0, len(spans), batch):
        assert exporter.export(spans[first : first + batch]) is SpanExportResult.SUCCESS
    exporter.shutdown()
    return {f"{span.get_span_context().span_id:016x}": span.name for span in spans}


def _arrived(path: Path, sent: dict[str, str]) -> dict[str, str]:
    """Those of the spans that are in a file of the sink."""
    return {one.span_id: one.name for one in spans_of_file(path) if one.span_id in sent}


def _check(sink: Sink, sent: dict[str, str]) -> None:
    for path in (sink.first, sink.second):
        eventually(lambda path=path: len(_arrived(path, sent)) >= len(sent), timeout=30)
        assert _arrived(path, sent) == sent


def _requests(path: Path, sent: dict[str, str]) -> int:
    """How many requests brought them: the sink writes a line for each."""
    lines = path.read_text(encoding="utf-8").splitlines()
    trace_id = next(one.trace_id for one in spans_of_file(path) if one.span_id in sent)
    return sum(trace_id in line for line in lines)


def test_failed_spans_are_not_merged_beyond_the_limit(collector: Collector, sink: Sink) -> None:
    """Five requests that every backend takes, and that one request would be too large for."""
    spans = failed_spans(601, new_resource())
    assert _size(spans[:BATCH]) < DEFAULT_LIMIT < _size(spans)
    _check(sink, _send(collector, "grpc", spans, BATCH))


def test_small_requests_are_merged(collector: Collector, sink: Sink) -> None:
    spans = failed_spans(200, new_resource(), stacktrace=100)
    sent = _send(collector, "http", spans, 1)
    _check(sink, sent)
    assert _requests(sink.second, sent) < 50


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_request_that_is_too_large_by_itself_is_split(
    protocol: str, collector: Collector, sink: Sink
) -> None:
    spans = failed_spans(1500, new_resource())
    assert 2 * DEFAULT_LIMIT < _size(spans) < 4 * DEFAULT_LIMIT
    sent = _send(collector, protocol, spans, len(spans))
    _check(sink, sent)
    assert _requests(sink.second, sent) >= 3


def test_the_bridge_halves_a_batch_that_the_collector_does_not_take(
    collector: Collector, sink: Sink, monkeypatch: pytest.MonkeyPatch
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
    sent = {f"{one.identity.span_id:016x}": "workflow" for one in spans}
    try:
        _check(sink, sent)
    finally:
        export.close()


def test_jaeger_gets_all_of_them(start: Start, jaeger: Jaeger, jaeger_client: JaegerClient) -> None:
    variables = {
        "JAEGER_OTLP_ENDPOINT": jaeger.grpc.removeprefix("http://"),
        "TEMPO_OTLP_ENDPOINT": _nowhere(),
        "PROMETHEUS_OTLP_ENDPOINT": f"http://{_nowhere()}",
    }
    collector: Collector = start(lambda folder: start_collector(folder, variables))
    spans = failed_spans(1500, new_resource())
    sent = _send(collector, "grpc", spans, len(spans))
    trace_id = f"{spans[0].get_span_context().trace_id:032x}"
    found = eventually(
        lambda: [one for one in [jaeger_client.trace(trace_id)] if len(one) >= len(sent)]
    )[0]
    assert {one.span_id: one.name for one in found} == sent


def test_prometheus_takes_a_large_request_as_it_is(
    start: Start, sink: Sink, prometheus: Prometheus, prometheus_client: PrometheusClient
) -> None:
    """Metrics are neither merged nor split."""
    collector: Collector = start(
        lambda folder: start_collector(folder, behind_collector(sink, prometheus.otlp))
    )
    resource, now, count = new_resource(), now_ns(), 20_000
    metrics = [
        counter(
            semconv.SPAN_EXECUTE_TIME,
            [(now, 1.0)],
            {semconv.SPAN_NAME: f"{number:0200}"},
            now - 1_000_000_000,
        )
        for number in range(count)
    ]
    exporter = metric_exporter("grpc", collector.grpc, collector.http)
    assert exporter.export(metrics_data(resource, metrics)) is MetricExportResult.SUCCESS
    exporter.shutdown()
    name = "dask_span_execute_time_seconds_total"
    query = f'count({name}{{dask_cluster_name="{cluster_of(resource)}"}})'
    eventually(lambda: prometheus_client.value(query) == count)

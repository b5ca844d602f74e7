"""No request of the Collector is larger than a backend takes.

The sink stands for a backend whose limit nobody has raised: a real OTLP receiver over gRPC with the
default of 4 MiB. That is the receiver that Tempo has, and Tempo's limit without the line in
deploy/tempo; it says nothing else about Tempo.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dask_otel import semconv
from dask_otel.core.records import SpanRecord
from tests.waiting import eventually

from .clients import PrometheusClient
from .conftest import Start
from .servers import Running, backends, start_collector, start_sink
from .telemetry import (
    SECOND,
    counter,
    export_metrics,
    failed_spans,
    new_resource,
    now_ns,
    request,
    send,
)

pytestmark = pytest.mark.backend

#: What gRPC takes by default.
DEFAULT_LIMIT = 4 * 2**20
#: Spans in one request of the bridge, by default.
BATCH = 128


@pytest.fixture
def sink(start: Start) -> Running:
    """A sink of the test's own: reading megabytes again would take others' time."""
    return start(start_sink)


@pytest.fixture
def collector(start: Start, sink: Running) -> Running:
    """A Collector of the test's own, with the sink behind it and no Prometheus."""
    return start(start_collector, backends(sink.grpc, sink.http))


def _send(collector: Running, protocol: str, spans: list[SpanRecord], batch: int) -> set[str]:
    """Send so many spans a request; return their ids."""
    parts = [spans[first : first + batch] for first in range(0, len(spans), batch)]
    resource = new_resource()
    send(collector, "traces", *(request(part, resource) for part in parts), protocol=protocol)
    return {f"{span.span_id:016x}" for span in spans}


def _check(sink: Running, sent: set[str]) -> None:
    def arrived(path: Path) -> bool:
        # Without an assertion, whose message would take longer than all the rest.
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return {*re.findall(r'"spanId":"(\w+)"', text)} == sent

    for path in sink.files:
        eventually(lambda path=path: arrived(path), what="all spans are there")


def _requests(path: Path) -> int:
    """How many requests have come: the sink writes a line for each."""
    return len(path.read_text(encoding="utf-8").splitlines())


def test_requests_are_merged_and_split_up_to_the_limit(collector: Running, sink: Running) -> None:
    _check(sink, sent := _send(collector, "http", failed_spans(200, stacktrace=100), 1))
    assert _requests(sink.files[1]) < 50
    # Five requests that every backend takes, and that one request would be too large for.
    batches = failed_spans(601)
    assert len(request(batches[:BATCH], {})) < DEFAULT_LIMIT < len(request(batches, {}))
    _check(sink, sent := sent | _send(collector, "grpc", batches, BATCH))
    # One request that is too large by itself.
    before, whole = _requests(sink.files[1]), failed_spans(601)
    _check(sink, sent | _send(collector, "grpc", whole, len(whole)))
    assert _requests(sink.files[1]) >= before + 2


def test_prometheus_takes_a_large_request_as_it_is(
    start: Start, sink: Running, prometheus: Running, prometheus_client: PrometheusClient
) -> None:
    """Metrics are neither merged nor split."""
    collector = start(start_collector, backends(sink.grpc, sink.http, prometheus.http))
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
    query = f'count({name}{{dask_cluster_name="{resource["dask.cluster.name"]}"}})'
    eventually(lambda: prometheus_client.value(query) == count)

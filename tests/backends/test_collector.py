"""The Collector with deploy/collector/config.yaml: nothing is lost, and everybody gets it all.

The traces go on to a second Collector that writes files, so these tests need no traces backend;
Jaeger behind the Collector is in test_traces.py, the bridge's metrics through it in
test_bridge_prometheus.py.
"""

from __future__ import annotations

import urllib.request

import pytest

from dask_otel import semconv
from dask_otel.core.records import SpanRecord
from tests.waiting import eventually

from .clients import PrometheusClient, spans_of_file
from .conftest import Start
from .servers import DEPLOY, Running, backends, start_collector, start_prometheus, start_sink
from .telemetry import (
    SECOND,
    counter,
    export_metrics,
    new_resource,
    new_tree,
    now_ns,
    request,
    send,
)

pytestmark = pytest.mark.backend

CONFIG = DEPLOY / "collector" / "config.yaml"
TAIL_SAMPLING = DEPLOY / "collector" / "tail-sampling.yaml"
#: Tries a backend that was down again at once, so that a test need not wait for the backoff.
FAST = [
    f"yaml:exporters::{name}::retry_on_failure::{setting}"
    for name in ("otlp_grpc/jaeger", "otlp_grpc/tempo", "otlp_http/prometheus")
    for setting in ("initial_interval: 200ms", "max_interval: 500ms")
]


def test_the_log_has_no_deprecation(collector: Running) -> None:
    assert "Everything is ready" in collector.server.log
    assert "deprecated" not in collector.server.log.lower()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_accepted_survives_the_end_of_the_collector_while_the_backends_are_down(
    end: str, start: Start, prometheus: Running
) -> None:
    sink = start(start_sink)
    sink.server.stop()
    behind = backends(sink.grpc, sink.http, prometheus.http)
    collector = start(start_collector, behind, [CONFIG, *FAST])
    sent = {span.span_id for tree in [_send(collector) for _ in range(3)] for span in tree}
    # Nothing is between the receiver and the queue, and the queue is what survives.
    for backend in ("otlp_grpc/jaeger", "otlp_grpc/tempo"):
        eventually(lambda backend=backend: _queued(collector, backend) >= 1)
    eventually(lambda: _own_metric(collector, "otelcol_receiver_accepted_spans") == len(sent))

    collector.restart(kill=end == "kill")
    assert [spans_of_file(path) for path in sink.files] == [[], []]
    sink.server.start()
    for path in sink.files:
        eventually(lambda path=path: {span.span_id for span in spans_of_file(path)} == sent)


def test_metrics_survive_an_outage_of_prometheus_and_a_restart(start: Start) -> None:
    """One consumer keeps the order, and the window forgives what a restart does to it."""
    prometheus = start(start_prometheus)
    collector = start(start_collector, backends(prometheus=prometheus.http), [CONFIG, *FAST])
    prometheus.server.stop()
    count = 60
    _send_in_sequence(collector, count)
    collector.restart()
    prometheus.server.start()
    client = PrometheusClient(prometheus.url)

    def settled() -> bool:
        (series,) = client.query("dask_span_execute_time_seconds_total[10m]") or [None]
        newest_is_there = series is not None and series.value == count - 1
        return newest_is_there and _queued(collector, "otlp_http/prometheus") == 0

    eventually(settled)
    (series,) = client.query("dask_span_execute_time_seconds_total[10m]")
    assert len(series.points) == count


def _send_in_sequence(collector: Running, count: int) -> None:
    """Send `count` values of one counter, a second apart and in the past, each by itself."""
    now = now_ns()
    points = [(now - (count - number) * SECOND, float(number)) for number in range(count)]
    began = now - (count + 1) * SECOND
    requests = [[counter(semconv.SPAN_EXECUTE_TIME, [point], {}, began)] for point in points]
    export_metrics(collector, new_resource(), *requests)


def test_a_bad_point_of_one_cluster_costs_the_others_nothing(
    collector: Running, prometheus_client: PrometheusClient
) -> None:
    now = now_ns()
    hours_ago = now - 7200 * SECOND
    bad, good = new_resource(), new_resource()
    for resource, times in [(bad, [now, hours_ago]), (good, [now])]:
        points = [(time_ns, 1.0) for time_ns in times]
        began = hours_ago - SECOND
        requests = [[counter(semconv.SPAN_EXECUTE_TIME, [point], {}, began)] for point in points]
        export_metrics(collector, resource, *requests)
    for resource in (good, bad):
        cluster = resource["dask.cluster.name"]
        query = f'dask_span_execute_time_seconds_total{{dask_cluster_name="{cluster}"}}[3h]'
        (series,) = eventually(lambda query=query: prometheus_client.query(query))
        assert series.points == ((now / SECOND, 1.0),)


def _own_metric(collector: Running, name: str, label: str = "") -> float:
    """The sum of one of the Collector's own metrics; 0 while it has none."""
    with urllib.request.urlopen(collector.metrics, timeout=5) as response:
        lines = response.read().decode().splitlines()
    found = [line for line in lines if line.startswith(f"{name}{{") and label in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def _queued(collector: Running, exporter: str) -> float:
    """Requests that wait for `exporter`, the one that is being sent included."""
    return _own_metric(collector, "otelcol_exporter_queue_size", f'exporter="{exporter}"')


def test_tail_sampling_keeps_failed_traces_whole(
    start: Start, sink: Running, prometheus: Running
) -> None:
    variables = {"OTELCOL_SAMPLING_WAIT": "1s", "OTELCOL_SAMPLING_PERCENTAGE": "0"}
    behind = backends(sink.grpc, sink.http, prometheus.http) | variables
    collector = start(start_collector, behind, [CONFIG, TAIL_SAMPLING])
    good = {_send(collector)[0].trace_id for _ in range(3)}
    bad = _send(collector, failed=True)[0].trace_id

    def arrived() -> list[int]:
        return [span.trace_id for span in spans_of_file(sink.files[0])]

    eventually(lambda: arrived().count(bad) == 2)
    # The good ones came first and were decided at the latest with the bad one.
    assert not good & {*arrived()}


def _send(collector: Running, failed: bool = False) -> tuple[SpanRecord, SpanRecord]:
    tree = new_tree(failed)
    send(collector, "traces", request(tree, new_resource()))
    return tree

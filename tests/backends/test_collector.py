"""The Collector with deploy/collector/config.yaml: nothing is lost, and everybody gets it all.

The traces go on to a second Collector that writes files, so these tests need no traces backend;
Jaeger and Tempo behind the Collector are in test_traces.py.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import MetricExportResult

from dask_otel import semconv

from .clients import PrometheusClient, StoredSpan, spans_of_file
from .processes import eventually, free_ports
from .servers import (
    DEPLOY,
    Collector,
    Prometheus,
    Sink,
    behind_collector,
    local,
    start_collector,
    start_prometheus,
    start_sink,
)
from .telemetry import (
    cluster_of,
    counter,
    metric_exporter,
    metrics_data,
    new_resource,
    now_ns,
    send_tree,
    span_exporter,
)

pytestmark = pytest.mark.backend

SECOND = 1_000_000_000
CONFIG = DEPLOY / "collector" / "config.yaml"
TAIL_SAMPLING = DEPLOY / "collector" / "tail-sampling.yaml"
#: Tries a backend that was down again at once, so that a test need not wait for the backoff.
TO_PROMETHEUS = "yaml:exporters::otlp_http/prometheus"
FAST = [
    f"yaml:exporters::{name}::retry_on_failure::{setting}"
    for name in ("otlp_grpc/jaeger", "otlp_grpc/tempo", "otlp_http/prometheus")
    for setting in ("initial_interval: 200ms", "max_interval: 500ms")
]
#: Ends a test's own server with the test; see the fixture `start`.
Start = Callable[[Callable[[Path], Any]], Any]


def _trace(path: Path, trace_id: str) -> list[StoredSpan]:
    return [span for span in spans_of_file(path) if span.trace_id == trace_id]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_spans_go_to_both_trace_backends(protocol: str, collector: Collector, sink: Sink) -> None:
    exporter = span_exporter(protocol, collector.grpc, collector.http)
    tree = send_tree(exporter, new_resource(), failed=True)
    for path in (sink.first, sink.second):
        eventually(lambda path=path: len(_trace(path, tree.trace_id)) == 2)
        spans = {span.name: span for span in _trace(path, tree.trace_id)}
        root, child = spans[tree.name], spans["load"]
        assert (root.span_id, root.parent_id) == (tree.root_id, "")
        assert (child.span_id, child.parent_id) == (tree.child_id, tree.root_id)
        assert (root.error, child.error) == (True, False)
        assert root.service == "dask-scheduler"
        # Types survive: a count is an int, seconds are a double, tags are a list.
        assert root.attributes[semconv.TASK_COUNT] == 7
        assert root.attributes["dask.span.idle.time"] == 90.5
        assert child.attributes[semconv.SPAN_TAGS] == [tree.name, "load"]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_metrics_reach_prometheus_with_their_values_and_times(
    protocol: str, collector: Collector, prometheus_client: PrometheusClient
) -> None:
    resource, now = new_resource(), now_ns()
    before = now - 10 * SECOND
    points = [(before, 0.0), (now, 2.5)]
    exporter = metric_exporter(protocol, collector.grpc, collector.http)
    data = metrics_data(
        resource, [counter(semconv.SPAN_EXECUTE_TIME, points, {}, before - 1_000_000)]
    )
    assert exporter.export(data) is MetricExportResult.SUCCESS
    exporter.shutdown()

    selector = f'dask_span_execute_time_seconds_total{{dask_cluster_name="{cluster_of(resource)}"}}'
    (series,) = eventually(lambda: prometheus_client.query(f"{selector}[5m]"))
    assert [value for _, value in series.points] == [0.0, 2.5]
    assert [when for when, _ in series.points] == pytest.approx(
        [before / SECOND, now / SECOND], abs=0.001
    )
    assert series.labels["deployment_environment_name"] == "staging"
    assert series.labels["job"] == "dask-scheduler"


def test_the_log_has_no_deprecation(collector: Collector) -> None:
    log = collector.server.log.read_text(encoding="utf-8")
    assert "Everything is ready" in log
    assert "deprecated" not in log.lower()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_accepted_survives_the_end_of_the_collector_while_the_backends_are_down(
    end: str, start: Start, prometheus: Prometheus
) -> None:
    sink: Sink = start(start_sink)
    sink.stop()
    collector: Collector = start(
        lambda folder: start_collector(
            folder, behind_collector(sink, prometheus.otlp), [CONFIG, *FAST]
        )
    )
    exporters = [span_exporter("grpc", collector.grpc, collector.http) for _ in range(3)]
    trees = [send_tree(exporter, new_resource(), failed=False) for exporter in exporters]
    sent = {span for tree in trees for span in (tree.root_id, tree.child_id)}
    # Nothing is between the receiver and the queue, and the queue is what survives.
    for backend in ("otlp_grpc/jaeger", "otlp_grpc/tempo"):
        eventually(lambda backend=backend: _queued(collector, backend) >= 1)
    eventually(lambda: _accepted(collector) == len(sent))

    if end == "kill":
        collector.server.kill()
    collector.restart()
    assert spans_of_file(sink.first) == spans_of_file(sink.second) == []
    sink.server.start()
    for path in (sink.first, sink.second):
        eventually(lambda path=path: {span.span_id for span in spans_of_file(path)} == sent)


@pytest.mark.parametrize(
    ("consumers", "window", "restarted", "whole"),
    [
        pytest.param("1", "30m", True, True, id="as deployed"),
        pytest.param("10", "0s", False, False, id="neither"),
        pytest.param("1", "0s", True, False, id="no window, restarted"),
    ],
)
def test_metrics_after_an_outage_of_prometheus(
    consumers: str, window: str, restarted: bool, whole: bool, start: Start, tmp_path: Path
) -> None:
    """One consumer keeps the order, and the window forgives what a restart does to it."""
    config = tmp_path / "prometheus.yml"
    deployed = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    assert "out_of_order_time_window: 30m" in deployed
    config.write_text(deployed.replace("time_window: 30m", f"time_window: {window}"))
    prometheus: Prometheus = start(lambda folder: start_prometheus(folder, config))
    down = local(free_ports(1)[0])
    variables = {
        "JAEGER_OTLP_ENDPOINT": down,
        "TEMPO_OTLP_ENDPOINT": down,
        "PROMETHEUS_OTLP_ENDPOINT": prometheus.otlp,
    }
    configs = [CONFIG, *FAST]
    if consumers != "1":
        configs.append(f"{TO_PROMETHEUS}::sending_queue::num_consumers: {consumers}")
    collector: Collector = start(lambda folder: start_collector(folder, variables, configs))

    prometheus.stop()
    count = 60
    _send_in_sequence(collector, count)
    if restarted:
        collector.restart()
    prometheus.server.start()
    client = PrometheusClient(prometheus.url)

    def settled() -> bool:
        (series,) = client.query("dask_span_execute_time_seconds_total[10m]") or [None]
        newest_is_there = series is not None and series.value == count - 1
        return newest_is_there and _queued(collector, "otlp_http/prometheus") == 0

    eventually(settled, timeout=60)
    (series,) = client.query("dask_span_execute_time_seconds_total[10m]")
    assert (len(series.points) == count) is whole, len(series.points)


def _send_in_sequence(collector: Collector, count: int) -> None:
    """Send `count` values of one counter, a second apart and in the past, each by itself."""
    exporter = metric_exporter("grpc", collector.grpc, collector.http)
    resource, now = new_resource(), now_ns()
    start_ns = now - (count + 1) * SECOND
    for number in range(count):
        point = (now - (count - number) * SECOND, float(number))
        data = counter(semconv.SPAN_EXECUTE_TIME, [point], {}, start_ns)
        assert exporter.export(metrics_data(resource, [data])) is MetricExportResult.SUCCESS
    exporter.shutdown()


def test_a_bad_point_of_one_cluster_costs_the_others_nothing(
    collector: Collector, prometheus_client: PrometheusClient
) -> None:
    exporter = metric_exporter("grpc", collector.grpc, collector.http)
    now = now_ns()
    hours_ago = now - 7200 * SECOND
    bad, good = new_resource(), new_resource()
    for resource, times in [(bad, [now, hours_ago]), (good, [now])]:
        for time_ns in times:
            data = counter(semconv.SPAN_EXECUTE_TIME, [(time_ns, 1.0)], {}, hours_ago - SECOND)
            assert exporter.export(metrics_data(resource, [data])) is MetricExportResult.SUCCESS
    exporter.shutdown()
    for resource in (good, bad):
        query = (
            f'dask_span_execute_time_seconds_total{{dask_cluster_name="{cluster_of(resource)}"}}'
        )
        (series,) = eventually(lambda query=query: prometheus_client.query(f"{query}[3h]"))
        assert series.points == ((now / SECOND, 1.0),)


def _own_metric(collector: Collector, name: str, label: str = "") -> float:
    """The sum of one of the Collector's own metrics; 0 while it has none."""
    with urllib.request.urlopen(collector.metrics, timeout=5) as response:
        lines = response.read().decode().splitlines()
    found = [line for line in lines if line.startswith(f"{name}{{") and label in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def _queued(collector: Collector, exporter: str) -> float:
    """Requests that wait for `exporter`, the one that is being sent included."""
    return _own_metric(collector, "otelcol_exporter_queue_size", f'exporter="{exporter}"')


def _accepted(collector: Collector) -> float:
    return _own_metric(collector, "otelcol_receiver_accepted_spans")


def test_tail_sampling_keeps_failed_traces_whole(
    start: Start, sink: Sink, prometheus: Prometheus
) -> None:
    variables = {"OTELCOL_SAMPLING_WAIT": "1s", "OTELCOL_SAMPLING_PERCENTAGE": "0"}
    collector: Collector = start(
        lambda folder: start_collector(
            folder, behind_collector(sink, prometheus.otlp, **variables), [CONFIG, TAIL_SAMPLING]
        )
    )

    def send(failed: bool) -> Any:
        exporter = span_exporter("grpc", collector.grpc, collector.http)
        return send_tree(exporter, new_resource(), failed=failed)

    good = [send(failed=False) for _ in range(3)]
    bad = send(failed=True)
    eventually(lambda: len(_trace(sink.first, bad.trace_id)) == 2)
    # The good ones came first and were decided at the latest with the bad one.
    for tree in good:
        assert _trace(sink.first, tree.trace_id) == []


def test_a_backend_that_is_down_does_not_hold_up_the_others(start: Start, sink: Sink) -> None:
    (closed,) = free_ports(1)
    variables = behind_collector(sink, f"http://{local(closed)}") | {
        "JAEGER_OTLP_ENDPOINT": local(closed)
    }
    collector: Collector = start(lambda folder: start_collector(folder, variables))
    exporter = span_exporter("http", collector.grpc, collector.http)
    tree = send_tree(exporter, new_resource(), failed=False)
    eventually(lambda: len(_trace(sink.second, tree.trace_id)) == 2)

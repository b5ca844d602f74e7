"""Prometheus 3 with its OTLP receiver, configured by deploy/prometheus/prometheus.yml."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from dask_otel import semconv
from dask_otel._otel.sdk.encode import Encoder
from dask_otel._otel.sdk.exporters import Destination
from dask_otel._otel.sdk.foreign import ForeignExporter
from dask_otel._otel.sdk.sink import ExporterMetricSink
from dask_otel.core.metrics.cardinality import MIN_RETIRE_AFTER_NS, SeriesLimits
from dask_otel.core.metrics.state import MetricState

from .clients import PrometheusClient, QueryError
from .servers import Prometheus
from .telemetry import cluster_of, counter, metrics_data, new_resource, now_ns

pytestmark = pytest.mark.backend

SECOND = 1_000_000_000
LABELS = {
    semconv.SPAN_NAME: "nightly/load",
    semconv.SPAN_ROOT_NAME: "nightly",
    semconv.TASK_PREFIX: "read-parquet",
    semconv.ACTIVITY: "thread-cpu",
}


@pytest.fixture
def exporter(prometheus: Prometheus) -> Iterator[MetricExporter]:
    exporter = OTLPMetricExporter(endpoint=prometheus.otlp_metrics)
    yield exporter
    exporter.shutdown()


def _meter_provider(exporter: MetricExporter, resource: Resource) -> MeterProvider:
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    return MeterProvider([reader], resource=resource)


def test_runs_with_the_deployed_configuration(prometheus_client: PrometheusClient) -> None:
    config = prometheus_client.config()
    assert "out_of_order_time_window: 30m" in config
    assert "- k8s.namespace.name" in config
    assert "max_exemplars: 100000" in config


def test_translates_names_and_units(
    exporter: MetricExporter, prometheus_client: PrometheusClient
) -> None:
    resource = new_resource()
    provider = _meter_provider(exporter, resource)
    meter = provider.get_meter(semconv.SCOPE_NAME)
    for metric, value in [
        (semconv.SPAN_EXECUTE_TIME, 1.5),
        (semconv.SPAN_EXECUTE_IO, 4096),
        (semconv.SPAN_EXECUTE_OPERATIONS, 3),
        (semconv.TASK_FINISHED, 7),
    ]:
        meter.create_counter(metric.name, metric.unit).add(value, LABELS)
    running = semconv.OTEL_RUNNING
    meter.create_up_down_counter(running.name, running.unit).add(1)
    meter.create_histogram(semconv.SPAN_DURATION.name, semconv.SPAN_DURATION.unit).record(2.0)
    meter.create_gauge("dask.worker.cpu.utilization", "1").set(0.25)
    provider.shutdown()

    selector = f'{{dask_cluster_name="{cluster_of(resource)}", __name__!="target_info"}}'
    found = {series.name: series for series in prometheus_client.query(selector)}
    buckets = {name for name in found if name.endswith("_bucket")}
    assert found.keys() - buckets == {
        "dask_span_execute_time_seconds_total",
        "dask_span_execute_io_bytes_total",
        "dask_span_execute_operations_total",
        "dask_task_finished_total",
        "dask_otel_running",
        "dask_span_duration_seconds_sum",
        "dask_span_duration_seconds_count",
        "dask_worker_cpu_utilization_ratio",
    }
    assert buckets == {"dask_span_duration_seconds_bucket"}
    time_series = found["dask_span_execute_time_seconds_total"]
    assert time_series.value == 1.5
    assert time_series.labels == {
        "dask_span_name": "nightly/load",
        "dask_span_root_name": "nightly",
        "dask_task_prefix": "read-parquet",
        "dask_activity": "thread-cpu",
        "dask_cluster_name": cluster_of(resource),
        "job": "dask-scheduler",
        "instance": resource.attributes["service.instance.id"],
    }


def test_promotes_the_chosen_resource_attributes_and_no_others(
    exporter: MetricExporter, prometheus_client: PrometheusClient
) -> None:
    resource = new_resource(
        **{
            "service.namespace": "research",
            "service.version": "2026.8.0",
            "deployment.environment.name": "production",
            "k8s.namespace.name": "dask",
            "k8s.pod.name": "scheduler-0",
        }
    )
    provider = _meter_provider(exporter, resource)
    provider.get_meter("test").create_counter("dask.task.finished", "{task}").add(1)
    provider.shutdown()

    cluster = cluster_of(resource)
    (series,) = prometheus_client.query(
        f'dask_task_finished_total{{dask_cluster_name="{cluster}"}}'
    )
    assert series.labels == {
        "dask_cluster_name": cluster,
        "service_namespace": "research",
        "service_version": "2026.8.0",
        "deployment_environment_name": "production",
        "k8s_namespace_name": "dask",
        "job": "research/dask-scheduler",
        "instance": resource.attributes["service.instance.id"],
    }
    (target,) = prometheus_client.query(f'target_info{{instance="{series.labels["instance"]}"}}')
    assert target.labels["k8s_pod_name"] == "scheduler-0"


def test_keeps_exemplars_of_counters(
    exporter: MetricExporter, prometheus_client: PrometheusClient
) -> None:
    resource = new_resource()
    provider = _meter_provider(exporter, resource)
    tracer = TracerProvider(resource=resource).get_tracer("test")
    counter_ = provider.get_meter("test").create_counter("dask.span.idle.time", "s")
    with tracer.start_as_current_span("nightly") as span:
        counter_.add(12.5)
        trace_id = trace.format_trace_id(span.get_span_context().trace_id)
    provider.shutdown()

    cluster = cluster_of(resource)
    now = time.time()
    (exemplar,) = prometheus_client.exemplars(
        f'dask_span_idle_time_seconds_total{{dask_cluster_name="{cluster}"}}', now - 60, now + 60
    )
    assert exemplar["labels"]["trace_id"] == trace_id
    assert float(exemplar["value"]) == 12.5


def test_a_zero_point_before_the_first_value_makes_increase_see_it(
    exporter: MetricExporter, prometheus_client: PrometheusClient
) -> None:
    resource, now = new_resource(), now_ns()
    start = now - 60 * SECOND
    with_zero = counter(
        semconv.SPAN_EXECUTE_TIME, [(start, 0.0), (now, 5.0)], LABELS, start - 1_000_000
    )
    without = counter(semconv.SPAN_P2P_TIME, [(now, 5.0)], {}, start)
    result = exporter.export(metrics_data(resource, [with_zero, without]))
    assert result is MetricExportResult.SUCCESS

    cluster = cluster_of(resource)
    with_zero_samples = _samples(prometheus_client, "dask_span_execute_time_seconds_total", cluster)
    assert with_zero_samples == [(start / SECOND, 0.0), (now / SECOND, 5.0)]
    increase = (
        f'increase(dask_span_execute_time_seconds_total{{dask_cluster_name="{cluster}"}}[10m])'
    )
    assert prometheus_client.value(increase, at=now / SECOND) >= 5.0
    alone = f'increase(dask_span_p2p_time_seconds_total{{dask_cluster_name="{cluster}"}}[10m])'
    assert prometheus_client.query(alone, at=now / SECOND) == []


def test_takes_points_out_of_order_within_half_an_hour(
    exporter: MetricExporter, prometheus_client: PrometheusClient
) -> None:
    resource, now = new_resource(), now_ns()
    start = now - 7200 * SECOND
    for age, value in [(0, 30.0), (600, 20.0), (1500, 10.0)]:
        data = counter(semconv.SPAN_EXECUTE_TIME, [(now - age * SECOND, value)], LABELS, start)
        assert exporter.export(metrics_data(resource, [data])) is MetricExportResult.SUCCESS
    samples = _samples(
        prometheus_client, "dask_span_execute_time_seconds_total", cluster_of(resource)
    )
    assert [value for _, value in samples] == [10.0, 20.0, 30.0]


def test_one_point_too_old_loses_the_whole_request(
    exporter: MetricExporter, prometheus_client: PrometheusClient
) -> None:
    resource, now = new_resource(), now_ns()
    start = now - 7200 * SECOND
    first = counter(semconv.SPAN_EXECUTE_TIME, [(now, 30.0)], LABELS, start)
    assert exporter.export(metrics_data(resource, [first])) is MetricExportResult.SUCCESS
    old = counter(semconv.SPAN_EXECUTE_TIME, [(now - 3600 * SECOND, 1.0)], LABELS, start)
    good = counter(semconv.SPAN_P2P_TIME, [(now, 5.0)], {}, start)
    assert exporter.export(metrics_data(resource, [old, good])) is MetricExportResult.FAILURE
    cluster = cluster_of(resource)
    assert _samples(prometheus_client, "dask_span_p2p_time_seconds_total", cluster) == []


def test_a_refused_query_says_why(prometheus_client: PrometheusClient) -> None:
    with pytest.raises(QueryError, match=r"400 .*parse error"):
        prometheus_client.query("sum(")


def _samples(client: PrometheusClient, name: str, cluster: str) -> list[tuple[float, float]]:
    """The raw samples of the last two hours; times with the milliseconds of Prometheus."""
    found = client.query(f'{name}{{dask_cluster_name="{cluster}"}}[2h]', at=time.time() + 1)
    assert len(found) <= 1
    return [point for series in found for point in series.points]


def test_a_series_that_retires_and_returns_is_counted_once(
    exporter: MetricExporter, prometheus_client: PrometheusClient
) -> None:
    """By the bridge's own totals and sink, with a clock that is 28 minutes behind at first."""
    resource, now = new_resource(), now_ns()
    minutes = 28
    start = now - minutes * 60 * SECOND
    destination = Destination("Prometheus", ForeignExporter("metrics", exporter, {}))
    sink = ExporterMetricSink(destination, Encoder(resource.attributes, "test"))
    state = MetricState(start, limits=SeriesLimits(retire_after_ns=MIN_RETIRE_AFTER_NS))
    series = (semconv.TASK_FINISHED.name, ("nightly",), "inc", "memory")
    #: Tasks by the minute in which they finish: the series retires between them.
    finished = {1: 10, 2: 5, 25: 7, 26: 1}
    exported = []
    for minute in range(1, minutes + 1):
        if minute in finished:
            state.increment(series, finished[minute])
        records = list(state.collect(start + minute * 60 * SECOND))
        if any(record.name == semconv.TASK_FINISHED.name for record in records):
            exported.append(minute)
        assert not records or sink.send(records, 60).taken
        state.settled(True)
    assert exported == [*range(1, 17), *range(25, 29)]

    cluster = cluster_of(resource)
    selector = f'dask_task_finished_total{{dask_cluster_name="{cluster}"}}'
    truth = sum(finished.values())
    # The ends of the range are samples: nothing is extrapolated.
    increase = prometheus_client.value(f"increase({selector}[{minutes * 60 + 1}s])", now / 1e9)
    assert increase == pytest.approx(truth, rel=0.01)
    (steps,) = prometheus_client.query_range(
        f"increase({selector}[2m])", start / 1e9, now / 1e9, 60.0
    )
    # No step shows what an earlier one has shown: extrapolation doubles it at most.
    largest = max(value for at, value in steps.points if at > start / 1e9 + 20 * 60)
    assert 0 < largest <= 2 * 7
    assert all(value >= 0 for _, value in steps.points)

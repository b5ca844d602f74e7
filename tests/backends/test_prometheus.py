"""Prometheus 3 with its OTLP receiver, configured by deploy/prometheus/prometheus.yml.

Names, labels, promoted attributes, exemplars and first values are tested with the bridge's own
data, in test_bridge_prometheus.py; late points in test_collector.py.
"""

from __future__ import annotations

import pytest
import requests
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from dask_otel import semconv
from dask_otel._otel.sdk.encode import Encoder
from dask_otel._otel.sdk.sampling import TraceSampler
from dask_otel._otel.sdk.sink import ExporterSink
from dask_otel._otel.sdk.transport import HttpTransport
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.pump.destination import Destination
from tests.limits import make_series_limits, make_state

from .clients import PrometheusClient
from .servers import Running
from .telemetry import SECOND, new_resource, now_ns

pytestmark = pytest.mark.backend


def test_a_series_that_retires_and_returns_is_counted_once(
    prometheus: Running, prometheus_client: PrometheusClient
) -> None:
    """By the bridge's own totals and sink, with a clock that is 28 minutes behind at first."""
    resource, now = new_resource(), now_ns()
    minutes = 28
    start = now - minutes * 60 * SECOND
    transport = HttpTransport("metrics", {}, 10, requests.Session, f"{prometheus.http}/v1/metrics")
    encoder = Encoder(resource, "test")
    sampler = TraceSampler(ALWAYS_ON)
    sink = ExporterSink(encoder, sampler, "metrics", Destination("Prometheus"), transport)
    state = make_state(start, limits=make_series_limits(retire_after_ns=15 * 60 * 10**9))
    series = (semconv.TASK_FINISHED.name, ("nightly",), "inc", "memory")
    #: Tasks by the minute in which they finish: the series retires between them.
    finished = {1: 10, 2: 5, 25: 7, 26: 1}
    exported = []
    for minute in range(1, minutes + 1):
        if minute in finished:
            state.apply(MetricBatch(increments={series: finished[minute]}))
        records = list(state.collect(start + minute * 60 * SECOND))
        if any(record.name == semconv.TASK_FINISHED.name for record in records):
            exported.append(minute)
        assert not records or sink.send(records, 60).taken
        state.settled(True)
    sink.close()
    assert exported == [*range(1, 17), *range(25, 29)]

    selector = f'dask_task_finished_total{{dask_cluster_name="{resource["dask.cluster.name"]}"}}'
    # The ends of the range are samples: nothing is extrapolated.
    increase = prometheus_client.value(f"increase({selector}[{minutes * 60 + 1}s])", now / 1e9)
    assert increase == pytest.approx(sum(finished.values()), rel=0.01)
    (steps,) = prometheus_client.query_range(
        f"increase({selector}[2m])", start / 1e9, now / 1e9, 60.0
    )
    # No step shows what an earlier one has shown: extrapolation doubles it at most.
    assert 0 < max(value for at, value in steps.points if at > start / 1e9 + 20 * 60) <= 2 * 7
    assert all(value >= 0 for _, value in steps.points)

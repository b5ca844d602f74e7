"""Files of OTLP/JSON, read by the Collector and sent on to Jaeger and Prometheus."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dask_otel import semconv
from dask_otel.core import identity
from dask_otel.core.records import ClusterEvent
from dask_otel.scheduler.wiring import make_pump
from dask_otel.settings.keys import FileSettings, Settings
from tests.otlp.json_reading import logs_of
from tests.otlp.pipeline import make_batch, make_span
from tests.unit.pumps import closes
from tests.waiting import eventually

from .clients import JaegerClient, PrometheusClient
from .conftest import Start
from .servers import DEPLOY, Running, backends, start_collector

pytestmark = pytest.mark.backend

READS = """
receivers:
  otlp_json_file/traces:
    include: ["{folder}/*-traces.jsonl"]
    start_at: beginning
  otlp_json_file/metrics:
    include: ["{folder}/*-metrics.jsonl"]
    start_at: beginning
  otlp_json_file/logs:
    include: ["{folder}/*-logs.jsonl"]
    start_at: beginning
exporters:
  file/logs:
    path: {folder}/collected.json
    flush_interval: 100ms
service:
  pipelines:
    traces:
      receivers: [otlp_json_file/traces]
    metrics:
      receivers: [otlp_json_file/metrics]
    logs:
      receivers: [otlp, otlp_json_file/logs]
      exporters: [file/logs]
"""


def test_the_collector_reads_what_the_bridge_writes(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    jaeger: Running,
    jaeger_client: JaegerClient,
    prometheus: Running,
    prometheus_client: PrometheusClient,
) -> None:
    # Files of one run have all of this in common.
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"long={'x' * 2000}")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    event = ClusterEvent(1.5, semconv.CLIENT_ADDED, {semconv.CLIENT_ID: "Client-1"})
    cluster = f"files-{time.time_ns()}"
    folder = tmp_path / "files"
    # A rule of the configuration would not let files be so small.
    files = FileSettings(path=str(folder), max_size=20_000, max_files=1000)
    made = make_pump(
        Settings(files=files, cluster_name=cluster), "Scheduler-1", time.time_ns() - 10**9
    )
    assert made is not None
    made.pump.start()
    names = [f"{cluster}-{number}" for number in range(20)]
    assert all(made.pump.spans.offer(make_span(name, groups=3)) for name in names)
    made.pump.offer_metrics(make_batch(2.5, spans=40))
    made.pump.logs.offer(event)
    closes(made.pump, 60)
    assert len(list(folder.glob("*-traces.jsonl"))) > 2

    # The Collector would take it for its own.
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES")
    config = tmp_path / "files.yaml"
    config.write_text(READS.format(folder=folder))
    behind = backends(jaeger.grpc, prometheus=prometheus.http)
    collector = start(start_collector, behind, [DEPLOY / "collector" / "config.yaml", config])
    for name in names:
        trace = identity.trace_id(name)
        eventually(lambda trace=trace: len(jaeger_client.trace(trace)) == 4)
        stored = jaeger_client.trace(trace)
        (root,) = [span for span in stored if span.span_id == identity.span_id(name)]
        assert root.parent_id is None
        assert root.attributes["dask.task.count"] == 3
    series = eventually(
        lambda: prometheus_client.query(
            f'dask_span_execute_time_seconds_total{{dask_cluster_name="{cluster}"}}'
        )
    )
    assert [one.value for one in series] == [2.5] * 40
    log = collector.server.log.splitlines()
    assert [line for line in log if "otlp_json_file" in line and "\tinfo\t" not in line] == []
    # The field of the name has to survive, too; a record over the network is the same.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", collector.grpc)
    again = make_pump(Settings(cluster_name=cluster), "Scheduler-1", time.time_ns())
    assert again is not None
    again.pump.start()
    again.pump.logs.offer(event)
    closes(again.pump, 60)
    collected = folder / "collected.json"
    eventually(lambda: len(logs_of([collected])) == 2)
    of_file, sent = sorted(logs_of([collected]), key=lambda one: -len(one.attributes))
    # The receiver of files adds it.
    del of_file.attributes["log.file.name"]
    assert (of_file.name, of_file.body) == (semconv.CLIENT_ADDED, "Client Client-1 connected.")
    of_file.resource = sent.resource
    assert of_file == sent

"""Files of OTLP/JSON, read by the Collector and sent on to Jaeger and Prometheus."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dask_otel.core import identity
from dask_otel.scheduler.wiring import make_pump
from dask_otel.settings.keys import FileSettings, Settings
from tests.otlp.pipeline import Export, make_batch, make_span
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
service:
  pipelines:
    traces:
      receivers: [otlp_json_file/traces]
    metrics:
      receivers: [otlp_json_file/metrics]
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
    cluster = f"files-{time.time_ns()}"
    folder = tmp_path / "files"
    # A rule of the configuration would not let files be so small.
    files = FileSettings(path=str(folder), max_size=20_000, max_files=1000)
    made = make_pump(
        Settings(files=files, cluster_name=cluster), "Scheduler-1", time.time_ns() - 10**9
    )
    assert made is not None
    made.pump.start()
    export = Export(made.pump)
    names = [f"{cluster}-{number}" for number in range(20)]
    export.spans(*(make_span(name, groups=3) for name in names))
    export.metrics(make_batch(2.5, spans=40))
    export.close(60)
    assert len(list(folder.glob("*-traces.jsonl"))) > 2

    # The Collector would take it for its own.
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES")
    config = tmp_path / "files.yaml"
    config.write_text(READS.format(folder=folder))
    behind = backends(jaeger.grpc, prometheus=prometheus.otlp)
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

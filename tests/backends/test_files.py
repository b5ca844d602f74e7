"""Files of OTLP/JSON, read by the Collector and sent on to Jaeger and Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dask_otel.core import identity
from dask_otel.scheduler.wiring import make_pump
from dask_otel.settings.keys import FileSettings, Settings
from tests.otlp.pipeline import Export, make_batch, make_span

from .clients import JaegerClient, PrometheusClient
from .processes import eventually, free_ports
from .servers import DEPLOY, Collector, Jaeger, Prometheus, local, start_collector

pytestmark = pytest.mark.backend

Start = Callable[[Callable[[Path], Any]], Any]

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
    jaeger: Jaeger,
    jaeger_client: JaegerClient,
    prometheus: Prometheus,
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
    variables = {
        "JAEGER_OTLP_ENDPOINT": jaeger.grpc.removeprefix("http://"),
        "TEMPO_OTLP_ENDPOINT": local(free_ports(1)[0]),
        "PROMETHEUS_OTLP_ENDPOINT": prometheus.otlp,
    }
    collector: Collector = start(
        lambda place: start_collector(
            place, variables, [DEPLOY / "collector" / "config.yaml", config]
        )
    )
    for name in names:
        trace = f"{identity.trace_id(name):032x}"
        stored = eventually(
            lambda trace=trace: (found := jaeger_client.trace(trace)) and len(found) == 4 and found,
            timeout=60,
        )
        (root,) = [span for span in stored if span.span_id == f"{identity.span_id(name):016x}"]
        assert root.parent_id == ""
        assert root.attributes["dask.task.count"] == 3
    series = eventually(
        lambda: prometheus_client.query(
            f'dask_span_execute_time_seconds_total{{dask_cluster_name="{cluster}"}}'
        ),
        timeout=60,
    )
    assert [one.value for one in series] == [2.5] * 40
    log = collector.server.log.read_text("utf-8").splitlines()
    assert [line for line in log if "otlp_json_file" in line and "\tinfo\t" not in line] == []

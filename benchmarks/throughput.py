"""Row 5: finished Dask spans per second through the bridge, and bare spans through the SDK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from statistics import median

from benchmarks.results import Row, verdict
from benchmarks.sink import Sink
from dask_otel.core import identity
from dask_otel.core.records import FinishedSpan, SpanIdentity, TaskCounts
from dask_otel.core.translate import translate

COUNT = 20_000


def finished(number: int) -> FinishedSpan:
    """Return a span as workflows have them, without group spans."""
    dask_id = f"{number:08x}-0000-4000-8000-000000000000"
    return FinishedSpan(
        identity=SpanIdentity(
            dask_id, dask_id, ("etl", "load"), 1, identity.trace_id(dask_id),
            identity.span_id(dask_id), None,
        ),
        start=1.7e9, stop=1.7e9 + 5, first_start=1.7e9 + 1, result="success", complete=True,
        counts=TaskCounts(tasks=100, memory=100), output_bytes=12345, group_count=2,
        worker_count=2, thread_count=4, active_cpu=20.0, dask_idle=10.0,
        activities={"thread-cpu": 5.0, "thread-noncpu": 1.0, "executor": 0.2, "other": 0.1},
        collections=("Array",),
    )  # fmt: skip


def bridge() -> float:
    """Return spans per second through the bridge's pump."""
    from dask_otel.exporting import make_pump
    from dask_otel.settings import Settings

    made = make_pump(Settings.from_config({}), "benchmark", time.time_ns())
    assert made is not None
    spans = [finished(i) for i in range(COUNT)]
    made.pump.start()
    began = time.perf_counter()
    for one in spans:
        assert made.pump.offer_span(one)
    made.pump.request_close(120)
    while not made.pump.closed:
        time.sleep(0.01)
    return COUNT / (time.perf_counter() - began)


def sdk() -> float:
    """Return spans per second through the SDK's tracer, processor and exporter."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=COUNT))
    tracer = provider.get_tracer("benchmark")
    record = translate(finished(0))[0]
    began = time.perf_counter()
    for _ in range(COUNT):
        tracer.start_span(record.name, attributes=dict(record.attributes)).end()
    provider.force_flush(120_000)
    return COUNT / (time.perf_counter() - began)


def _run(kind: str, environment: dict[str, str]) -> float:
    command = [sys.executable, "-m", "benchmarks.throughput", kind]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, check=True, timeout=240
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def run(quick: bool) -> list[Row]:
    """Measure both in turn; check that everything arrived."""
    rates: dict[str, list[float]] = {"sdk": [], "bridge": []}
    with Sink() as sink:
        environment = sink.environment() | {
            "OTEL_BSP_MAX_QUEUE_SIZE": str(COUNT),
            "OTEL_METRICS_EXPORTER": "none",
        }
        for _ in range(2 if quick else 6):
            for kind, found in rates.items():
                found.append(_run(kind, environment))
    ratio = median(b / s for b, s in zip(rates["bridge"], rates["sdk"], strict=True))
    figure = (
        f"{ratio:.2f} ({median(rates['bridge']):,.0f} Dask spans/s; "
        f"SDK {median(rates['sdk']):,.0f} spans/s)"
    )
    return [Row("5", "export throughput over the SDK's", "≥ 0.9", figure,
                verdict(ratio >= 0.9), rates)]  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(bridge() if sys.argv[1] == "bridge" else sdk()))

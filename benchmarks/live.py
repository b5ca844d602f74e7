"""Rows 6, 7 and 8: freshness, what a scrape and an export carry, and the scheduler's start."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path
from statistics import median
from typing import Any

from distributed import span, wait
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.cluster.processes import Process
from tests.receiver import decode_points, decode_spans

from benchmarks.cluster import cluster, environment
from benchmarks.results import Row, percentile, verdict
from benchmarks.sink import Sink
from dask_otel.scheduler.bridge import TICK

PRELOAD = ("--preload", "dask_otel.preload")
LINGER, SCHEDULE_DELAY = 2.0, 1.0
#: Two heartbeats at most, of 0.5 s each with few workers.
SETTLE = 1.0


def _inc(x: int) -> int:
    return x + 1


def freshness(count: int) -> list[float]:
    """Return the seconds from each span's end to its arrival."""
    with Sink() as sink, cluster(sink.environment(), 2, *PRELOAD) as client:
        sink.take()
        for i in range(count):
            with span(f"fresh-{i}"):
                wait(client.submit(_inc, i, key=f"inc-{uuid.uuid4().hex}"))
            time.sleep(0.37)  # no rhythm with heartbeats and ticks
        time.sleep(2 * (SETTLE + LINGER + SCHEDULE_DELAY))
        return [
            when - one.end_ns / 1e9
            for when, method, body in sink.take()
            if method.endswith("TraceService/Export")
            for one in decode_spans(ExportTraceServiceRequest.FromString(body))
            if one.parent_id is None
        ]


def _pages(dask_scheduler: Any) -> list[str]:
    """Return the addresses of all pages for Prometheus."""
    ports = [dask_scheduler.http_server.port]
    ports += [ws.services["dashboard"] for ws in dask_scheduler.workers.values() if ws.services]
    return [f"http://127.0.0.1:{port}/metrics" for port in ports]


def scrape_and_export(spans: int, prefixes: int) -> dict[str, int]:
    """Return bytes and series of Dask's own pages, and of one export of the bridge."""
    more = {"OTEL_METRIC_EXPORT_INTERVAL": "4000"}
    with Sink() as sink, cluster(sink.environment() | more, 2, *PRELOAD) as client:
        for i in range(spans):
            with span(f"span-{i}"):
                prefix = f"prefix{i % prefixes}"
                wait(client.submit(_inc, i, key=f"{prefix}-{uuid.uuid4().hex}"))
        time.sleep(5)
        sink.take()
        time.sleep(5)
        pages = [
            urllib.request.urlopen(url, timeout=10).read()
            for url in client.run_on_scheduler(_pages)
        ]
        arrivals = [a for a in sink.take() if a[1].endswith("MetricsService/Export")]
    # One export may be several requests: those of its second.
    last = [body for when, _, body in arrivals if when > arrivals[-1][0] - 1]
    return {
        "scrape bytes": sum(map(len, pages)),
        "scrape series": sum(
            bool(line) and not line.startswith(b"#") for page in pages for line in page.splitlines()
        ),
        "pages": len(pages),
        "export bytes": sum(map(len, last)),
        "export series": sum(
            1 for body in last for _ in decode_points(ExportMetricsServiceRequest.FromString(body))
        ),
    }


def _start_seconds(*args: str, more: dict[str, str]) -> float:
    """Return the seconds until a scheduler listens."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        process = Process(
            Path(folder) / "log", "scheduler", "--host", "127.0.0.1", "--port", "0",
            "--dashboard-address", "127.0.0.1:0", *args, env=environment(more),
        )  # fmt: skip
        while "Scheduler at:" not in process.output and time.perf_counter() < began + 60:
            time.sleep(0.005)
        took = time.perf_counter() - began
        process.kill()
        if took >= 60:
            raise RuntimeError(process.output)
    return took


def start(pairs: int) -> dict[str, list[float]]:
    """Return seconds until the scheduler listens, and of importing distributed."""
    found: dict[str, list[float]] = {"without": [], "with": [], "import distributed": []}
    with Sink() as sink:
        more = sink.environment()
        for _ in range(pairs):
            found["without"].append(_start_seconds(more=more))
            found["with"].append(_start_seconds(*PRELOAD, more=more))
            began = time.perf_counter()
            command = [sys.executable, "-c", "import distributed"]
            subprocess.run(command, env=environment({}), check=True)
            found["import distributed"].append(time.perf_counter() - began)
    return found


def run_freshness(quick: bool) -> list[Row]:
    """Row 6."""
    ages = freshness(5 if quick else 30)
    limit = SETTLE + LINGER + SCHEDULE_DELAY + TICK
    figure = f"{median(ages):.2f} s median, {percentile(ages, 0.95):.2f} s p95"
    what = f"span's end to arrival (settle {SETTLE} + linger {LINGER} + delay {SCHEDULE_DELAY} s)"
    met = verdict(median(ages) < limit)
    return [Row("6", what, f"< {limit:.1f} s", figure, met, {"seconds": ages})]


def run_scrape(quick: bool) -> list[Row]:
    """Row 7."""
    d = scrape_and_export(*((20, 5) if quick else (100, 20)))
    size = "20 spans, 5 prefixes" if quick else "100 spans, 20 prefixes"
    return [
        Row("7", f"one export of metrics, {size}", "", f"{d['export bytes']:,} bytes, "
            f"{d['export series']:,} series", "info", d),
        Row("7", f"peer: Dask's /metrics, {d['pages']} pages", "", f"{d['scrape bytes']:,} bytes, "
            f"{d['scrape series']:,} series", "peer"),
    ]  # fmt: skip


def run_start(quick: bool) -> list[Row]:
    """Row 8."""
    found = start(2 if quick else 7)
    pairs = zip(found["with"], found["without"], strict=True)
    added = 1000 * median(b - a for b, a in pairs)
    figure = (
        f"{added:.0f} ms ({median(found['without']):.2f} s without; "
        f"import distributed {median(found['import distributed']):.2f} s)"
    )
    what = "start of the scheduler, added by the preload"
    return [Row("8", what, "≤ 300 ms", figure, verdict(added <= 300), found)]

"""Row 8: the scheduler's start."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from tests.cluster.processes import Process

from benchmarks.cluster import environment
from benchmarks.results import Row, verdict
from benchmarks.sink import Sink

PRELOAD = ("--preload", "dask_otel.preload")


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


def run_start(quick: bool) -> list[Row]:
    """Measure the seconds until the scheduler listens, with the preload and without."""
    found: dict[str, list[float]] = {"without": [], "with": []}
    with Sink() as sink:
        more = sink.environment()
        for _ in range(2 if quick else 7):
            found["without"].append(_start_seconds(more=more))
            found["with"].append(_start_seconds(*PRELOAD, more=more))
    pairs = zip(found["with"], found["without"], strict=True)
    added = 1000 * median(b - a for b, a in pairs)
    figure = f"{added:.0f} ms ({median(found['without']):.2f} s without)"
    what = "start of the scheduler, added by the preload"
    return [Row("8", what, "≤ 300 ms", figure, verdict(added <= 300), found)]

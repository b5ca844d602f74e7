"""Row 19: a block of many tasks with this report, with Dask's, and without one."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any, Final

import distributed
from tests.environment import OFF

import dask_otel
from benchmarks.cluster import cluster, environment, many_tasks, run_apart
from benchmarks.results import Row

TASKS: Final = 20_000
#: By its name: makes the block. Each repetition has all of them, each time in another order.
KINDS: Final[dict[str, Callable[[str], AbstractContextManager[Any]]]] = {
    "none": lambda _: nullcontext(),
    "dask": distributed.performance_report,
    "ours": dask_otel.performance_report,
}
_WITH: Final = {"none": "no report", "dask": "Dask's", "ours": "this one"}
#: Dask's default lets each task of no length wait for the scheduler.
_MORE: Final = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION": "inf", **OFF}
#: The measured value, with its unit.
_MEASURED: Final = {
    "scheduler": "CPU seconds of the scheduler",
    "client": "CPU seconds of the client, with the page",
    "scheduler_peak": "peak memory of the scheduler, MB",
    "client_peak": "peak memory of the client, MB",
    "page": "the page, MB",
}


def _used() -> dict[str, float]:
    """Return CPU seconds and the peak of the memory, in MB, of this process."""
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return {"cpu": time.process_time(), "peak": int(peak) / 1000}


def measure(kind: str, tasks: int) -> dict[str, float]:
    """Run a block on a cluster of its own, after a small one; return what it took."""
    with tempfile.TemporaryDirectory() as folder, cluster(_MORE) as client:
        page = Path(folder) / "run.html"
        for count in (100, tasks):
            before = client.run_on_scheduler(_used), _used()
            with KINDS[kind](str(page)):
                many_tasks(client, count)
        scheduler, own = client.run_on_scheduler(_used), _used()
        return {
            "scheduler": scheduler["cpu"] - before[0]["cpu"],
            "client": own["cpu"] - before[1]["cpu"],
            "scheduler_peak": scheduler["peak"],
            "client_peak": own["peak"],
            "page": page.stat().st_size / 1e6 if page.exists() else 0.0,
        }


def run(quick: bool) -> list[Row]:
    """Measure all kinds in turn, each in processes of its own."""
    kinds, repeats, tasks = [*KINDS], 2 if quick else 7, TASKS // 10 if quick else TASKS
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for number in range(repeats):
        for kind in kinds[number % 3 :] + kinds[: number % 3]:
            runs[kind].append(run_apart(measure, kind, tasks, more=environment({})))
    return rows(runs, tasks)


def rows(runs: dict[str, list[dict[str, float]]], tasks: int) -> list[Row]:
    """Return medians, and the medians of the ratios to the runs without a report beside them."""
    found = []
    for name, what in _MEASURED.items():
        values = {kind: [one[name] for one in some] for kind, some in runs.items()}
        figures = [_figure(kind, some, values["none"]) for kind, some in values.items()]
        what = f"a block of {tasks:,} tasks: {what}"
        found.append(Row("19", what, "", "; ".join(figures), "info", values))
    return found


def _figure(kind: str, values: list[float], bare: list[float]) -> str:
    ratios = [one / none for one, none in zip(values, bare, strict=True) if none]
    times = f" (× {median(ratios):.2f})" if ratios and kind != "none" else ""
    shown = f"{median(values):.3g}" if any(values) else "–"
    return f"{_WITH[kind]} {shown}{times}"

"""Row 1's peers: what else one can load, beside the bridge, on one scheduler in turn.

All arms have the same scheduler, with the same history of finished spans, and take turns
forwards and backwards: A B C D E, E D C B A.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from statistics import median

from distributed import Client

from benchmarks import meter, naive
from benchmarks.cluster import cluster, environment
from benchmarks.cpu import (
    MOST_LOAD,
    SOON,
    bridge,
    many_spans,
    many_tasks,
    measure,
    nothing,
    switched,
    until,
)
from benchmarks.results import Row, Verdict
from benchmarks.sink import Sink

#: Seconds between two polls, or scrapes.
EVERY = 1.0
PLUGIN = "dask-opentelemetry==0.0.1a0"
#: The last SDK on which that plugin starts.
OLD_SDK = "1.24.0"


@contextlib.contextmanager
def _scraped(client: Client) -> Iterator[None]:
    """Read the scheduler's page again and again, as Prometheus does."""
    port = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.http_server.port)
    url = f"http://127.0.0.1:{port}/metrics"
    page = urllib.request.urlopen(url, timeout=10).read()
    if b"dask_scheduler_tasks" not in page:
        raise RuntimeError(f"no metrics on the scheduler's page: {page[:100]!r}")
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(EVERY):
            urllib.request.urlopen(url, timeout=10).read()

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()


#: What one can load, and take off again.
ARMS = {
    "none": nothing,
    "bridge": partial(bridge, overrides={}),
    "naive": partial(switched, on=naive.install, off=naive.uninstall),
    "prometheus": _scraped,
    "tracing": partial(switched, on=meter.tracing_on, off=meter.tracing_off, where="run"),
}


def _install(folder: str, *packages: str) -> None:
    """Install packages into a folder that only workers will look into."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder]
    done = subprocess.run([*command, *packages], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"it does not install: {done.stderr.strip().splitlines()[-1]}")


def _tracing(folder: str, old: str) -> list[str]:
    """Install the task-tracing plugin with an SDK of its time; return folders for a path."""
    _install(folder, "--no-deps", PLUGIN)
    names = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
    _install(old, *(f"{name}=={OLD_SDK}" for name in names))
    return [folder, old]


def _row(what: str, arm: str, found: dict[str, dict[str, list[float]]]) -> Row:
    figures = []
    for process in ("scheduler", "workers"):
        without, mine = found["none"][process], found[arm][process]
        ratios = [b / a for a, b in zip(without, mine, strict=True)]
        figures.append(
            f"{process} {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}; "
            f"{median(mine) - median(without):+.0f} µs/task)"
        )
    data = {"arm": found[arm], "none": found["none"]}
    kind: Verdict = "info" if arm == "bridge" else "peer"
    return Row("1", what, "", ", ".join(figures), kind, data)


def run(quick: bool) -> list[Row]:
    """Measure all arms, but for those that do not work here."""
    if (load := os.getloadavg()[0]) > MOST_LOAD:
        return [
            Row("1", "the bridge among its peers", "", f"not at a load of {load:.1f}", "skipped")
        ]
    count, rounds, history = (2000, 2, 100) if quick else (5000, 4, 1000)
    after = f"after {history:,} spans, {rounds} rounds"
    names = {
        "bridge": f"the bridge among its peers, {after}",
        "naive": f"peer: naive bridge, a poll each {EVERY:.0f} s, {after}",
        "prometheus": f"peer: Dask's /metrics of the scheduler, read each {EVERY:.0f} s",
        "tracing": f"peer: {PLUGIN} in the workers, opentelemetry-sdk {OLD_SDK}",
    }
    skipped = []
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(2)]
        plugin: list[str] = []
        try:
            plugin = _tracing(*folders)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            skipped.append(Row("1", names.pop("tracing"), "", str(error), "skipped"))
        sink, http = stack.enter_context(Sink()), stack.enter_context(Sink("http/protobuf"))
        to = environment(http.environment(), *plugin)
        client = stack.enter_context(cluster(sink.environment() | SOON, worker_environment=to))
        many_spans(client, history)
        until(client, meter.idle)
        arms = {name: arm for name, arm in ARMS.items() if name in ("none", *names)}
        found = measure(client, arms, many_tasks, count, rounds)
        if "tracing" in names and not any(
            path.endswith("/v1/traces") for _, path, _ in http.take()
        ):
            raise RuntimeError("the task-tracing plugin exported nothing")
    return [*(_row(what, arm, found) for arm, what in names.items()), *skipped]

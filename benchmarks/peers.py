"""Row 1's peers: what else one can load, beside the bridge, on one scheduler in turn.

All arms have the same scheduler, with the same history of finished spans, and take turns
forwards and backwards: A B C D E, E D C B A.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median
from typing import Any

from distributed import Client

from benchmarks import meter
from benchmarks.cluster import cluster, environment
from benchmarks.cpu import SOON, eventually, many_spans, many_tasks, window
from benchmarks.results import Row, Verdict
from benchmarks.sink import Sink

#: Seconds between two polls, or scrapes.
EVERY = 1.0
PLUGIN = "dask-opentelemetry==0.0.1a0"
#: The last SDK on which that plugin starts.
OLD_SDK = "1.24.0"


@dataclass
class Arm:
    """Something to measure, and how to switch it."""

    name: str
    on: Callable[[Client], Any]
    off: Callable[[Client], Any]


class Scraper:
    """What Prometheus does: it reads the scheduler's page, again and again."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.size = 0

    def on(self, client: Client) -> None:
        """Begin."""
        port = client.run_on_scheduler(meter.metrics_port)
        url = f"http://127.0.0.1:{port}/metrics"
        page = urllib.request.urlopen(url, timeout=10).read()
        if b"dask_scheduler_tasks" not in page:
            raise RuntimeError(f"no metrics on the scheduler's page: {page[:100]!r}")
        self.size = len(page)
        self._over.clear()
        self._thread = threading.Thread(target=self._scrape, args=(url,), daemon=True)
        self._thread.start()

    def off(self, client: Client) -> None:
        """End."""
        if self._thread is not None:
            self._over.set()
            self._thread.join()

    def _scrape(self, url: str) -> None:
        while not self._over.wait(EVERY):
            urllib.request.urlopen(url, timeout=10).read()


def _bridge_on(client: Client) -> None:
    client.run_on_scheduler(meter.install)
    eventually(client, meter.connected)


def _arms() -> list[Arm]:
    scraper = Scraper()
    return [
        Arm("none", lambda client: None, lambda client: None),
        Arm(
            "bridge",
            _bridge_on,
            lambda client: client.run_on_scheduler(meter.uninstall),
        ),
        Arm(
            "naive",
            lambda client: client.run_on_scheduler(meter.naive_on),
            lambda client: client.run_on_scheduler(meter.naive_off),
        ),
        Arm("prometheus", scraper.on, scraper.off),
        Arm(
            "tracing",
            lambda client: client.run(meter.tracing_on),
            lambda client: client.run(meter.tracing_off),
        ),
    ]


def _install(folder: str, *packages: str) -> None:
    """Install packages into a folder that only workers will look into."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder]
    done = subprocess.run([*command, *packages], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"it does not install: {done.stderr.strip().splitlines()[-1]}")


@dataclass
class Tracing:
    """What is known of the task-tracing plugin on this machine."""

    #: Why it does not start with the present SDK; empty if it does.
    fails: str
    #: Folders for the workers' path on which it starts.
    folders: list[str]


@contextlib.contextmanager
def tracing() -> Iterator[Tracing]:
    """Install the task-tracing plugin, with an SDK of its time if it needs one.

    Raises
    ------
    RuntimeError
        If it does not install, or start.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as old:
        _install(folder, "--no-deps", PLUGIN)
        fails = _start_failure(folder)
        if not fails:
            yield Tracing("", [folder])
            return
        names = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
        _install(old, *(f"{name}=={OLD_SDK}" for name in names))
        again = _start_failure(folder, old)
        if again:
            raise RuntimeError(f"{fails}; with SDK {OLD_SDK}: {again}")
        yield Tracing(fails, [folder, old])


def _start_failure(*folders: str) -> str:
    """Return why the plugin does not start on a worker; empty if it does."""
    with cluster({}, 1, worker_environment=environment({}, *folders)) as client:
        try:
            client.run(meter.tracing_on)
        except Exception as error:
            return str(error).strip() or repr(error)
    return ""


def _worker_cpu(client: Client) -> float:
    return sum(client.run(meter.cpu).values())


def measure(
    client: Client, arms: list[Arm], count: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Return microseconds per task of each arm and round, of the scheduler and of the workers."""
    found: dict[str, dict[str, list[float]]] = {
        arm.name: {"scheduler": [], "workers": []} for arm in arms
    }
    for number in range(-1, rounds):
        for arm in reversed(arms) if number % 2 else arms:
            arm.on(client)
            before = _worker_cpu(client)
            seconds = window(client, many_tasks, count)
            workers = _worker_cpu(client) - before
            arm.off(client)
            if number >= 0:  # the first one warms up
                found[arm.name]["scheduler"].append(1e6 * seconds / count)
                found[arm.name]["workers"].append(1e6 * workers / count)
    return found


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
    count, rounds, history = (2000, 2, 100) if quick else (5000, 4, 1000)
    why = ""
    with contextlib.ExitStack() as stack:
        arms = _arms()
        plugin = Tracing("", [])
        try:
            plugin = stack.enter_context(tracing())
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            why = str(error)
            arms = arms[:-1]
        sink, http = stack.enter_context(Sink()), stack.enter_context(Sink("http/protobuf"))
        to = environment(http.environment(), *plugin.folders)
        client = stack.enter_context(cluster(sink.environment() | SOON, worker_environment=to))
        many_spans(client, history)
        eventually(client, meter.idle)
        found = measure(client, arms, count, rounds)
        requests = sum(path.endswith("/v1/traces") for _, path, _ in http.take())
    return [*_rows(found, rounds, history, plugin, requests), *_skipped(why)]


def _rows(
    found: dict[str, dict[str, list[float]]],
    rounds: int,
    history: int,
    plugin: Tracing,
    requests: int,
) -> list[Row]:
    after = f"after {history:,} spans, {rounds} rounds"
    names = {
        "bridge": f"the bridge among its peers, {after}",
        "naive": f"peer: naive bridge, a poll each {EVERY:.0f} s, {after}",
        "prometheus": f"peer: Dask's /metrics of the scheduler, read each {EVERY:.0f} s",
        "tracing": f"peer: {PLUGIN} in the workers",
    }
    if plugin.fails:
        names["tracing"] += f", opentelemetry-sdk {OLD_SDK}"
    if "tracing" in found and not requests:
        raise RuntimeError("the task-tracing plugin exported nothing")
    rows = [_row(what, arm, found) for arm, what in names.items() if arm in found]
    if plugin.fails:
        present = version("opentelemetry-sdk")
        what = f"peer: {PLUGIN} in the workers, opentelemetry-sdk {present}"
        rows.append(Row("1", what, "", f"does not start: {plugin.fails}", "skipped"))
    return rows


def _skipped(why: str) -> list[Row]:
    return [Row("1", f"peer: {PLUGIN}", "", why, "skipped")] if why else []

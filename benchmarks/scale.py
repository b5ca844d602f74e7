"""Row 14: the bridge's share with many workers and open spans, beside that of its peers.

Callgrind counts a second of a simulated cluster's life: a thousand tasks, the heartbeats that this
many workers send by Dask's rule, four ticks. It counts a hand-over of metrics, a poll of the naive
bridge and a page of Dask's own metrics for Prometheus, too, each by itself.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from distributed.http.scheduler.prometheus.core import SchedulerMetricCollector
from distributed.scheduler import heartbeat_interval
from prometheus_client import generate_latest

from benchmarks.account import VALGRIND, Callgrind
from benchmarks.cluster import run_apart
from benchmarks.instructions import observed
from benchmarks.naive import poll
from benchmarks.results import Row, verdict
from benchmarks.simulated import SimulatedCluster
from dask_otel.scheduler.bridge import TICK

TASKS: Final = 1000
#: Spans that end, and others that begin, in a second.
TURN_OVER: Final = 10
TICKS: Final = round(1 / TICK)
WORKERS: Final = (10, 1000)
SPANS: Final = (100, 10_000)
#: Spans that come and go before the last second is counted.
ENDED: Final = 10_000
SETTINGS: Final = {"spans": {"linger": "0s"}}
#: Keys in a heartbeat, of two spans: those that a worker measures for their tasks.
KEYS: Final = 20
#: Seconds between two hand-overs, two polls and two pages.
EVERY: Final = {"hand-over": 60, "naive poll": 1, "Dask's /metrics": 15}
#: The share of the largest cluster over that of the smallest.
LIMIT: Final = 1.1


class Life:
    """A simulated cluster with open spans, second by second."""

    def __init__(self, cluster: SimulatedCluster, tick: Callable[[], None]) -> None:
        self.cluster, self._tick = cluster, tick
        self.spans: deque[Any] = deque()
        workers = len(cluster.addresses)
        self._beats = workers / heartbeat_interval(workers)
        self._reports: Iterator[dict[str, Any]] = iter(())

    def open(self, count: int) -> None:
        """Open spans up to this number; all workers report of two each.

        Tasks that find no worker keep open what is more than ten spans for each worker.
        """
        cluster = self.cluster
        running = min(count, 10 * len(cluster.addresses))
        while len(self.spans) < running:
            self.spans += cluster.submit((f"span {len(self.spans) % 50}",))
        for number in range(count - running):
            cluster.submit((f"span {number % 50}",), only_on={"nowhere"})
        reports = []
        for number, address in enumerate(cluster.addresses):
            some = [self.spans[(2 * number + i) % running] for i in range(2)]
            reports.append(cluster.report(address, cluster.metered(some, KEYS)))
        self._reports = cycle(reports)
        self.beat()

    def beat(self) -> None:
        """Let all workers report, and finish what waited for that."""
        for _ in self.cluster.addresses:
            self.cluster.receive(next(self._reports))
        self._tick()

    def turn_over(self, count: int) -> None:
        """End the oldest spans and open others."""
        for number in range(count):
            self.cluster.finish([self.spans.popleft()])
            self.spans += self.cluster.submit((f"span {number % 50}",))

    def second(self) -> None:
        """Live through a second with all its tasks."""
        cluster, beats = self.cluster, 0
        keys = cluster.submit(("benchmark",), TASKS)
        cluster.scheduler.client_desires_keys(keys, "client")
        for done, key in enumerate(keys):
            while beats < self._beats * done / TASKS:
                cluster.receive(next(self._reports))
                beats += 1
            if not done % (TASKS // TURN_OVER):
                self.turn_over(1)
            if not done % (TASKS // TICKS):
                self._tick()
            cluster.finish([key], seconds=1e-5)
        cluster.scheduler.client_releases_keys(keys, "client")


async def _counted(
    callgrind: Callgrind, workers: int, settings: dict[str, Any] | None
) -> dict[str, float]:
    """Count seconds and what comes between them, with a bridge of these settings or without."""
    found: dict[str, float] = {}

    def counted(what: str, call: Callable[[], object]) -> None:
        gc.collect()
        callgrind.begin()
        call()
        found[what] = callgrind.end()["total"]

    async with SimulatedCluster(workers) as cluster:
        scheduler = cluster.scheduler
        bridge, _ = observed(cluster, settings)

        def tick() -> None:
            # As the bridge does, which ends a few spans in a tick.
            while bridge:
                bridge._tick()
                if not bridge.adapter.lifecycle.behind:
                    break

        life = Life(cluster, tick)
        gc.disable()
        for spans in SPANS:
            life.open(spans)
            life.second()
            counted(f"{spans} spans", life.second)
            between: dict[str, Callable[[], object]] = {
                "naive poll": partial(poll, scheduler),
                "Dask's /metrics": partial(generate_latest, SchedulerMetricCollector(scheduler)),
            }
            if bridge:
                between = {"hand-over": lambda steps=bridge.hand_over.steps: list(steps())}
            for what, call in between.items():
                counted(f"{what}, {spans} spans", call)
        for _ in range(ENDED // 1000):
            life.turn_over(1000)
            life.beat()
            life.beat()
        life.second()
        counted("later", life.second)
    return found


async def _both(folder: str, workers: int) -> list[dict[str, float]]:
    """Count a cluster of so many workers without the bridge, and with it."""
    callgrind = Callgrind(os.getpid(), Path(folder))
    return [await _counted(callgrind, workers, settings) for settings in (None, SETTINGS)]


def shares(found: dict[int, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return shares of Dask's instructions in a second, by the size of the cluster.

    Of the bridge with its hand-overs, and of the peers.
    """
    sizes = {}
    for workers, (bare, bridged) in found.items():
        for spans, what in [*((n, f"{n} spans") for n in SPANS), (SPANS[-1], "later")]:
            between = {
                name: (bare | bridged)[f"{name}, {spans} spans"] / seconds / bare[what]
                for name, seconds in EVERY.items()
            }
            bridge = bridged[what] / bare[what] - 1 + between.pop("hand-over")
            name = f"{workers:,} and {spans:,}" + (" later" if what == "later" else "")
            sizes[name] = {"bridge": bridge, **between}
    return sizes


def run(quick: bool) -> list[Row]:
    """Count small clusters and large ones."""
    counts = {}
    for workers in WORKERS:
        with tempfile.TemporaryDirectory() as folder:
            within = (*VALGRIND, f"--callgrind-out-file={folder}/callgrind.out")
            more = {"PYTHONHASHSEED": "0"}
            counts[workers] = run_apart(_both, folder, workers, more=more, within=within)
    found = shares(counts)
    bridge = {size: one["bridge"] for size, one in found.items()}
    first, *_, last = found.values()
    growth = max(bridge.values()) / first["bridge"]
    each = ", ".join(f"{size} {share:.1%}" for size, share in bridge.items())
    return [
        Row(
            "14",
            f"the bridge's share at {TASKS:,} tasks a second, with workers and open spans",
            f"growth ≤ {LIMIT}",
            f"{growth:.2f} ({each})",
            verdict(growth <= LIMIT),
            {"counts": counts, "shares": found},
        ),
        *(
            Row(
                "14",
                f"peer: {peer}, each {seconds} s, with the smallest and the largest",
                "",
                f"{first[peer]:.1%} and {last[peer]:.1%}",
                "peer",
            )
            for peer, seconds in EVERY.items()
            if peer in first
        ),
    ]

"""A month of spans, names and lost workers in minutes: a real scheduler with simulated workers.

No task waits here: what depends on time is exact in the laboratory. A span takes six times as much
CPU time there, and what real workers and clients hold would be in the sizes that are compared.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter

from benchmarks.instructions import observed
from benchmarks.memory import size_of
from benchmarks.simulated import SimulatedCluster
from tests.limits import make_series_limits

from chaos.scenario import SIMULATED, progress, scenario
from chaos.world import World
from dask_otel.core.metrics.state import MetricState
from dask_otel.scheduler.bridge import Bridge

_DAYS = int(os.environ.get("CHAOS_DAYS", "30"))
#: Of a day; of one name; between two exports of metrics, and between two workers that are lost.
_SPANS, _OF_NAME, _EXPORT, _LOSE = 2000, 5, 100, 500
_MINUTE_NS = 60_000_000_000


class Month:
    """What happened to a scheduler, and what the bridge exported of it."""

    def __init__(self) -> None:
        self.truth: Counter[str] = Counter()
        self.shown: Counter[str] = Counter()
        #: The bridge's bytes after each day.
        self.sizes: list[int] = []
        self._now_ns = _MINUTE_NS
        self._limits = make_series_limits(interval_ns=_MINUTE_NS)
        self._state = MetricState(self._now_ns, limits=self._limits)

    async def play(self, days: int, spans: int = _SPANS) -> None:
        """Let so many days pass, and compare."""
        async with SimulatedCluster(6) as cluster:
            bridge, _ = observed(cluster, {"spans": {"linger": "0s"}})
            assert bridge is not None
            for day in range(1, days + 1):
                for number in range(spans):
                    name = f"job {self.truth['spans'] // _OF_NAME}"
                    keys = cluster.submit((name,), 1 + number % 4)
                    cluster.scheduler.client_desires_keys(keys, "user")
                    self.truth.update(spans=1, tasks=len(keys))
                    if number % _LOSE == _LOSE - 1:
                        await self._lose_one(cluster)
                    cluster.finish(keys)
                    cluster.scheduler.client_releases_keys(keys, "user")
                    if not (number + 1) % _EXPORT:
                        self._export(cluster, bridge)
                # The last spans end when those workers have reported that are left.
                self._export(cluster, bridge)
                assert not bridge.adapter.lifecycle.open, bridge.adapter.lifecycle.open
                assert not bridge.boundary.take()
                # Which a scheduler never does, and the bridge counts on.
                cluster.forget_spans()
                bridge.adapter.spans._seen = 0  # noqa: SLF001
                self.sizes.append(size_of([bridge.adapter, self._state], cluster.scheduler))
                progress(f"day {day}: {self.truth['tasks']} tasks, {self.sizes[-1]} bytes")

    async def _lose_one(self, cluster: SimulatedCluster) -> None:
        """Kill a worker with its tasks; another one joins."""
        address = cluster.addresses.pop(0)
        self.truth.update(killed=1, again=len(cluster.scheduler.workers[address].processing))
        await cluster.scheduler.remove_worker(address, stimulus_id="killed")
        cluster.addresses.append(f"tcp://10.1.{self.truth['killed']}.1:1234")
        cluster.join(cluster.addresses[-1])

    def _export(self, cluster: SimulatedCluster, bridge: Bridge) -> None:
        """Take what has ended, and its metrics, as a backend that looks at each point."""
        # All workers report twice, so that finished work is settled.
        for address in 2 * cluster.addresses:
            cluster.heartbeat(address, {})
        bridge.adapter.tick(time.time())
        for span in bridge.adapter.take_finished():
            counts = span.counts
            assert span.complete, span
            self.shown.update(spans=1, tasks=counts.tasks, memory=counts.memory)
            self.shown.update(again=counts.retried)
        self._now_ns += _MINUTE_NS
        self._state.apply(bridge.adapter.swap(self._now_ns))
        for record in self._state.collect(self._now_ns):
            assert len([*record.points]) <= 2 * self._limits.max_series, record
        self._state.settled(True)

    def compare(self) -> str:
        """Compare what was exported with what happened; return that in words."""
        truth, shown = self.truth, self.shown
        wanted = {**truth, "memory": truth["tasks"]}
        assert shown == {what: wanted[what] for what in shown}, (shown, truth)
        # By then the tables of exported spans and of series have their full sizes.
        early, last = self.sizes[(len(self.sizes) - 1) // 3], self.sizes[-1]
        assert last < 1.01 * early, f"the bridge holds {self.sizes} bytes"
        return (
            f"{truth['spans']:,} spans, {truth['tasks']:,} tasks, {truth['again']:,} of them "
            f"again, as {truth['killed']} workers were killed; the bridge holds "
            f"{early / 1024:,.0f} KiB after a third of it, {last / 1024:,.0f} KiB at the end"
        )


@scenario(
    "month",
    section="Load",
    fault=f"{_DAYS} days of a scheduler with simulated workers, without the pauses: {_SPANS:,} "
    "spans a day; metrics are exported for every hundred, as if once a minute, with twenty new "
    "names; workers are killed, and others join",
    promise="Each span arrives once, with all of its tasks and their repeated runs; the bridge "
    "holds as much at the end as after a third of it",
    protocols=(SIMULATED,),
)
def _month(world: World) -> str:
    month = Month()
    asyncio.run(month.play(_DAYS))
    return month.compare()

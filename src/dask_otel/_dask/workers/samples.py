"""Samples the workers' levels, and the time for which event loops were blocked.

It sends no requests to workers: the scheduler has all the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from time import monotonic, thread_time
from typing import Final, TypeAlias

import dask.config
from dask.utils import parse_timedelta
from distributed.metrics import time
from distributed.scheduler import MemoryState, Scheduler, WorkerState

from dask_otel import semconv
from dask_otel._dask.facts import measured, memory_of, reported
from dask_otel.core.life.ledger import Ledger
from dask_otel.core.metrics.batch import Batches, MetricBatch, RawSeries

#: Linux: this thread's nanoseconds on a CPU, and its nanoseconds ready to run without one.
_SCHEDSTAT: Final = "/proc/thread-self/schedstat"

#: What workers with a GPU report: of their own process, by Dask's ``diagnostics.rmm`` and ``cudf``;
#: and of the first device that it sees, by ``diagnostics.nvml``. They do not say which it is.
_OF_PROCESS: Final = {
    semconv.WORKER_RMM_USAGE.name: ("rmm", "rmm-used"),
    semconv.WORKER_RMM_SIZE.name: ("rmm", "rmm-total"),
    semconv.WORKER_CUDF_SPILLED.name: ("cudf", "cudf-spilled"),
}
_OF_DEVICE: Final = {
    semconv.GPU_MEMORY_USAGE.name: "gpu_memory_used",
    semconv.GPU_MEMORY_LIMIT.name: "gpu-memory-total",
}
#: Of a worker: its process, the data on its disk, and unmanaged memory, old and recent.
_Parts: TypeAlias = tuple[int, int, int, int]
_NOTHING: Final[_Parts] = (0, 0, 0, 0)

#: Number of workers in a part of a hand-over's step.
STEP: Final = 10


class WorkerSamples:
    """Levels of the workers at the hand-over of the metrics.

    `max_workers` workers have series of their own; the others are summed under `semconv.FOLDED`.
    All methods belong to the scheduler's event loop.
    """

    def __init__(self, scheduler: Scheduler, max_workers: int) -> None:
        self._scheduler = scheduler
        self._max_workers = max_workers
        #: Names of the workers with series of their own, by address, in the order of arrival.
        self._named: dict[str, str] = {}
        #: The series of the last sample.
        self._series: set[RawSeries] = set()
        #: Addresses and metrics of `_OF_PROCESS` that were above 0 once, so that a 0 is measured.
        self._counted: set[tuple[str, str]] = set()

    def sample(self, batches: Batches, ledger: Ledger | None = None) -> Iterator[None]:
        """Add the present levels and the ended series to the batch, in short steps.

        A thousand workers would be too many for one callback of the loop. After an interruption,
        the next call begins again.
        """
        levels: dict[RawSeries, float] = {}
        disk: float = 0
        wrong = 0
        known: list[_Parts] = []
        names = self._choose()
        counts = Counter(names.values())
        now = time()
        workers = self._scheduler.workers
        self._counted = {known for known in self._counted if known[0] in workers}
        for number, (address, ws) in enumerate(list(workers.items()), 1):
            if address not in workers:
                continue  # It left between two steps.
            name = names.get(address)
            memory, cpu = memory_of(ws), ws.metrics.get("cpu")
            disk += reported(ws, "spilled_bytes", "disk") or 0
            if memory is not None:
                on_disk = ws.metrics["spilled_bytes"]["memory"]
                parts = memory.process, on_disk, memory.unmanaged_old, memory.unmanaged_recent
                if None not in map(measured, parts):
                    known.append(parts)
            # A bad reading must not lose the metrics of the other workers.
            wrong += memory is None and "memory" in ws.metrics
            wrong += cpu is not None and measured(cpu) is None
            folded = semconv.FOLDED if name is None else name
            for series, value in _sums(ws, folded, memory, self._counted).items():
                levels[series] = levels.get(series, 0) + value
            # Dask distinguishes the names 1 and "1".
            if name is not None and counts[name] == 1:
                levels.update(_gauges(ws, name, now, measured(cpu)))
            if not number % STEP:
                yield
        batch = batches.open
        batch.levels.update(levels)
        batch.set_level(semconv.CLUSTER_SPILL_SIZE.name, value=disk)
        if ledger is not None:
            batch.levels.update(self._memory(ledger, known))
        if wrong:
            batch.add(semconv.OTEL_SANITIZED.name, "value", value=wrong)
        batch.ended.extend(self._series - levels.keys())
        self._series = set(levels)

    def _memory(self, ledger: Ledger, known: list[_Parts]) -> dict[RawSeries, float]:
        """Return the cluster's memory by what it is; the sum is that of processes and spilled data.

        Dask's sizes are newer than the last heartbeats, and can be wrong: the difference to the
        sum is unaccounted for.
        """
        ledger.read()
        process, on_disk, old, recent = (
            sum(column) for column in zip(_NOTHING, *known, strict=True)
        )
        held, scattered = ledger.held, ledger.scattered.bytes
        # Dask can have a result that no worker has: scattered to one that leaves at that moment.
        copies = sum([ws.nbytes for ws in self._scheduler.workers.values()])
        managed = max(copies, held + scattered)
        states = {
            "held": held,
            "scattered": scattered,
            "replica": managed - held - scattered,
            "unmanaged_old": old,
            "unmanaged_recent": recent,
            "unaccounted": process + on_disk - managed - old - recent,
        }
        levels: dict[RawSeries, float] = {
            (semconv.CLUSTER_MEMORY_USAGE.name, state): size for state, size in states.items()
        }
        return levels | {(semconv.CLUSTER_MEMORY_SPILLED.name,): on_disk}

    def _choose(self) -> dict[str, str]:
        """Return the names of the workers with series of their own, by address.

        A worker keeps its series until it leaves: a cluster that grows beyond the limit must not
        end all series.
        """
        workers = self._scheduler.workers
        named = {address: name for address, name in self._named.items() if address in workers}
        new = (address for address in workers if address not in named)
        room = max(0, self._max_workers - len(named))
        self._named = named | {a: str(workers[a].name) for a in islice(new, room)}
        return self._named


def _sums(
    ws: WorkerState, name: str, memory: MemoryState | None, counted: set[tuple[str, str]]
) -> dict[RawSeries, float]:
    """Return the levels that can be summed over workers; add to what a library counts.

    RMM's pools count no allocations unless something tracks them, nor cuDF without statistics:
    Dask then reports 0. It reports less where a worker gets data of cuDF from another one: it
    arrives in the host's memory, and is then moved to the GPU.
    """
    levels: dict[RawSeries, float] = {
        (semconv.WORKER_THREAD_COUNT.name, name): ws.nthreads,
        (semconv.WORKER_TASK_COUNT.name, name, "executing"): len(ws.executing),
        (semconv.WORKER_TASK_COUNT.name, name, "processing"): len(ws.processing),
    }
    if memory is not None:
        levels |= {
            (semconv.WORKER_MEMORY_USAGE.name, name): memory.process,
            (semconv.WORKER_MEMORY_MANAGED.name, name): memory.managed,
            (semconv.WORKER_MEMORY_SPILLED.name, name): memory.spilled,
        }
    if ws.memory_limit:  # 0 where there is none
        levels[semconv.WORKER_MEMORY_LIMIT.name, name] = ws.memory_limit
    for metric, keys in _OF_PROCESS.items():
        value = reported(ws, *keys)
        if value is None or value < 0:
            continue
        if value:
            counted.add((ws.address, metric))
        if (ws.address, metric) in counted:
            levels[metric, name] = value
    return levels


def _gauges(ws: WorkerState, name: str, now: float, cpu: float | None) -> dict[RawSeries, float]:
    """Return the levels whose sum has no meaning."""
    levels: dict[RawSeries, float] = {
        (semconv.WORKER_OCCUPANCY.name, name): float(ws.occupancy),
        (semconv.WORKER_LAST_SEEN_AGE.name, name): max(0.0, now - ws.last_seen),
    }
    if cpu is not None and ws.nthreads:
        levels[semconv.WORKER_CPU_UTILIZATION.name, name] = cpu / 100 / ws.nthreads
    if (busy := measured(ws.metrics.get("gpu_utilization"))) is not None:
        levels[semconv.GPU_UTILIZATION.name, name] = busy / 100
    for metric, key in _OF_DEVICE.items():
        if (value := measured(ws.metrics.get(key))) is not None:
            levels[metric, name] = value
    return levels


class LoopHealth:
    """Measures the seconds for which the event loops of scheduler and workers were blocked.

    Dask's tick is due every ``distributed.admin.tick.interval``; a loop that takes longer from
    tick to tick was blocked for the difference. Dask counts the ticks of each
    ``distributed.admin.tick.cycle`` (1 s); workers report their mean interval with each heartbeat.

    Notes
    -----
    All methods belong to the scheduler's event loop.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        configured = dask.config.get("distributed.admin.tick.interval")
        self._configured: float = parse_timedelta(configured, default="ms")
        #: Each worker's last report, the begin of the next report's time, and when it was received.
        self._reports: dict[str, tuple[float | None, float, float]] = {}
        #: The last cycle of ticks; until when, and until which tick, its loop is measured.
        self._cycle: float = scheduler._last_tick_cycle
        self._until: float = self._cycle
        self._ticks: int = scheduler._last_tick_counter
        self._blocked = {"scheduler": 0.0, "worker": 0.0}
        self._thread = thread_times()

    def worker_removed(self, address: str) -> None:
        """Forget a worker."""
        self._reports.pop(address, None)

    def heartbeat(self, ws: WorkerState) -> None:
        """Read a worker's heartbeat, or its registration, which begins its time.

        A report covers the time since the previous one. An unchanged report is old, as heartbeats
        can be more frequent than cycles. This is a sample: a report without a heartbeat before the
        next cycle is lost, and if heartbeats are rarer than cycles, one cycle represents several.
        """
        observed = measured(ws.metrics.get("event_loop_interval"))
        before = self._reports.get(ws.address)
        now = monotonic()
        if before is not None and before[0] == observed:
            if observed is not None and observed <= self._configured:
                # The loop kept its pace, at least until the heartbeat before this one: this one may
                # have been due in a block.
                self._reports[ws.address] = observed, before[2], now
            return
        self._reports[ws.address] = observed, now, now
        if before is not None and observed is not None and observed > self._configured:
            # A cycle has at least one tick, so it was no shorter than the reported interval: a
            # single long block can fill a report.
            seconds = max(now - before[1], observed)
            self._blocked["worker"] += seconds * (1 - self._configured / observed)

    def tick(self) -> None:
        """Read the scheduler's own measurement.

        After a block two cycles can end at once, because Dask's timer keeps its schedule. So this
        uses the ticks of all cycles, not the mean of the last one.
        """
        cycle, ticks = self._scheduler._last_tick_cycle, self._scheduler._last_tick_counter
        if cycle != self._cycle:
            self._cycle = cycle
            self._blocked["scheduler"] += max(0.0, self._late(cycle, ticks))
            self._until, self._ticks = cycle, ticks

    def _late(self, until: float, ticks: int) -> float:
        return (until - self._until) - (ticks - self._ticks) * self._configured

    def add_to(self, batch: MetricBatch) -> None:
        """Add the seconds since the last call to a batch."""
        self.tick()
        # The next batch, with which the report of a block may begin, has nothing of earlier blocks.
        # A tick that is due only now is not late.
        now, ticks = time(), self._scheduler._tick_counter
        if (seconds := self._late(now, ticks)) > self._configured:
            self._blocked["scheduler"] += seconds
            self._until, self._ticks = now, ticks
        for role, seconds in self._blocked.items():
            batch.add(semconv.EVENT_LOOP_BLOCKED_TIME.name, role, value=seconds)
            self._blocked[role] = 0.0
        before, self._thread = self._thread, thread_times()
        for name, seconds in self._thread.items():
            batch.add(name, "scheduler", value=max(0.0, seconds - before.get(name, seconds)))


def thread_times() -> dict[str, float]:
    """Return this thread's CPU seconds, and its seconds of waiting for a CPU if they are known.

    Other processes, other threads or a container's limit cause this wait. A wait for the GIL does
    not count. The call takes 25 µs, once per export.
    """
    times = {semconv.EVENT_LOOP_CPU_TIME.name: thread_time()}
    try:
        with open(_SCHEDSTAT, encoding="ascii") as file:
            used, waited = map(int, file.read().split()[:2])
    except (OSError, ValueError):
        return times  # Not Linux, or hidden.
    if used:  # 0 where the kernel does not count.
        times[semconv.EVENT_LOOP_STARVED_TIME.name] = waited / 1e9
    return times

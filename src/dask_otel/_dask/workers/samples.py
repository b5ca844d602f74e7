"""The scheduler's sampled view of its workers, and how long the event loops were blocked.

The workers are not asked: everything comes from what the scheduler has of them anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any, Final

import dask.config
from dask.utils import parse_timedelta
from distributed.metrics import time

from dask_otel import semconv
from dask_otel._dask.facts import measured, memory_of
from dask_otel.core.metrics.batch import MetricBatch, RawSeries

if TYPE_CHECKING:
    from distributed.scheduler import MemoryState, Scheduler, WorkerState

_USAGE: Final = semconv.WORKER_MEMORY_USAGE.name
_LIMIT: Final = semconv.WORKER_MEMORY_LIMIT.name
_MANAGED: Final = semconv.WORKER_MEMORY_MANAGED.name
_SPILLED: Final = semconv.WORKER_MEMORY_SPILLED.name
_THREADS: Final = semconv.WORKER_THREAD_COUNT.name
_TASKS: Final = semconv.WORKER_TASK_COUNT.name
_CPU: Final = semconv.WORKER_CPU_UTILIZATION.name
_OCCUPANCY: Final = semconv.WORKER_OCCUPANCY.name
_AGE: Final = semconv.WORKER_LAST_SEEN_AGE.name
_BLOCKED: Final = semconv.EVENT_LOOP_BLOCKED_TIME.name
_LOOP_CPU: Final = semconv.EVENT_LOOP_CPU_TIME.name
_STARVED: Final = semconv.EVENT_LOOP_STARVED_TIME.name

#: Linux: nanoseconds on a CPU, and nanoseconds ready to run without one, of this thread.
_SCHEDSTAT: Final = "/proc/thread-self/schedstat"

#: Workers in a step of a hand-over.
STEP: Final = 200


class WorkerSamples:
    """Levels of the workers, taken when the metrics are handed over.

    Parameters
    ----------
    scheduler
        A running scheduler.
    max_workers
        Workers with series of their own; the others are summed under `semconv.FOLDED`.

    Notes
    -----
    All methods belong to the scheduler's event loop.
    """

    def __init__(self, scheduler: Scheduler, max_workers: int) -> None:
        self._scheduler = scheduler
        self._max_workers = max_workers
        #: Workers with series of their own, by address, in the order in which they came.
        self._shown: dict[str, str] = {}
        #: The series of the last sample.
        self._series: set[RawSeries] = set()
        #: What `prepare` has taken, until `sample` passes it on.
        self._taken: dict[RawSeries, float] | None = None
        #: Readings that were left out, as they are no numbers.
        self._wrong = 0

    def sample(self, batch: MetricBatch) -> None:
        """Add the levels to a batch, and which series have ended. O(workers)."""
        for _ in self.prepare():
            pass
        levels, self._taken = self._taken or {}, None
        batch.levels.update(levels)
        if self._wrong:
            batch.add(semconv.OTEL_SANITIZED.name, "value", value=self._wrong)
            self._wrong = 0
        batch.ended.extend(self._series - levels.keys())
        self._series = set(levels)

    def prepare(self) -> Iterator[None]:
        """Take the present levels, ahead of `sample`: a short step for each item.

        A thousand workers would be too many for one callback of the loop. Levels that have
        been taken are not taken again.
        """
        if self._taken is not None:
            return
        levels: dict[RawSeries, float] = {}
        shown = self._choose()
        named = Counter(shown.values())
        now = time()
        workers = self._scheduler.workers
        for number, (address, ws) in enumerate(list(workers.items()), 1):
            if address not in workers:
                continue  # It left between two steps.
            name = shown.get(address)
            memory, cpu = memory_of(ws), ws.metrics.get("cpu")
            # What the metrics of all others would be lost by.
            self._wrong += memory is None and "memory" in ws.metrics
            self._wrong += cpu is not None and measured(cpu) is None
            for series, value in _sums(ws, semconv.FOLDED if name is None else name, memory):
                levels[series] = levels.get(series, 0) + value
            # To Dask, 1 and "1" are two names.
            if name is not None and named[name] == 1:
                levels.update(_gauges(ws, name, now, measured(cpu)))
            if not number % STEP:
                yield
        self._taken = levels

    def _choose(self) -> dict[str, str]:
        """Return the names of the workers that are shown, by address.

        Who is shown stays so until it leaves: a cluster that grows beyond the limit must not
        end everybody's series.
        """
        workers = self._scheduler.workers
        shown = {address: name for address, name in self._shown.items() if address in workers}
        for address, ws in workers.items():
            if len(shown) >= self._max_workers:
                break
            if address not in shown:
                shown[address] = str(ws.name)
        self._shown = shown
        return shown


def _sums(
    ws: WorkerState, name: str, memory: MemoryState | None
) -> Iterator[tuple[RawSeries, float]]:
    """Yield what may be added up over workers."""
    if memory is not None:
        yield (_USAGE, name), memory.process
        yield (_MANAGED, name), memory.managed
        yield (_SPILLED, name), memory.spilled
    if ws.memory_limit:  # 0 where there is none
        yield (_LIMIT, name), ws.memory_limit
    yield (_THREADS, name), ws.nthreads
    yield (_TASKS, name, "executing"), len(ws.executing)
    yield (_TASKS, name, "processing"), len(ws.processing)


def _gauges(
    ws: WorkerState, name: str, now: float, cpu: float | None
) -> Iterator[tuple[RawSeries, float]]:
    """Yield what has no meaningful sum."""
    if cpu is not None and ws.nthreads:
        yield (_CPU, name), cpu / 100 / ws.nthreads
    yield (_OCCUPANCY, name), float(ws.occupancy)
    yield (_AGE, name), max(0.0, now - ws.last_seen)


class LoopHealth:
    """Seconds for which the event loops of scheduler and workers were blocked.

    A tick of Dask's is due every ``distributed.admin.tick.interval``; a loop that takes
    longer from tick to tick was blocked for the difference. Dask counts the ticks of each
    ``distributed.admin.tick.cycle`` (1 s); of its workers, which report it with each
    heartbeat, the mean interval between them is known.

    Notes
    -----
    All methods belong to the scheduler's event loop.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        configured = dask.config.get("distributed.admin.tick.interval")
        self._configured: float = parse_timedelta(configured, default="ms")
        #: Each worker's last report, and when it first came, on our clock.
        self._reports: dict[str, tuple[Any, float]] = {}
        self._cycle: float = scheduler._last_tick_cycle
        self._ticks: int = scheduler._last_tick_counter
        self._blocked = {"scheduler": 0.0, "worker": 0.0}
        self._thread = thread_times()

    def worker_removed(self, address: str) -> None:
        """Forget a worker."""
        self._reports.pop(address, None)

    def heartbeat(self, ws: WorkerState) -> None:
        """Take in a worker's heartbeat, or its registration, with which the time begins.

        A report stands for the time since the one before it. An unchanged one is old: where
        heartbeats are more frequent than cycles, a block shows only in the next report. It is
        a sample, no record: a report that the next cycle replaces before a heartbeat passes it
        on is lost, and where heartbeats are rarer than cycles, one cycle stands for several.
        """
        observed = measured(ws.metrics.get("event_loop_interval"))
        before = self._reports.get(ws.address)
        if before is not None and before[0] == observed:
            return
        now = monotonic()
        self._reports[ws.address] = observed, now
        if before is not None:
            # A cycle has one tick at least, so it was no shorter than what it reports: one long
            # block can come in a report of its own.
            seconds = max(now - before[1], observed or 0.0)
            if observed is not None and observed > self._configured:
                self._blocked["worker"] += seconds * (1 - self._configured / observed)

    def tick(self) -> None:
        """Take in the scheduler's own measurement.

        After a block, two cycles can end one right after the other, for Dask's timer keeps to
        its own beat: the ticks of all of them count, not the mean of the last one.
        """
        cycle, ticks = self._scheduler._last_tick_cycle, self._scheduler._last_tick_counter
        if cycle != self._cycle:
            seconds = (cycle - self._cycle) - (ticks - self._ticks) * self._configured
            self._blocked["scheduler"] += max(0.0, seconds)
            self._cycle, self._ticks = cycle, ticks

    def export(self, batch: MetricBatch) -> None:
        """Add the seconds since the last export to a batch."""
        for role, seconds in self._blocked.items():
            batch.add(_BLOCKED, role, value=seconds)
            self._blocked[role] = 0.0
        before, self._thread = self._thread, thread_times()
        for name, seconds in self._thread.items():
            batch.add(name, "scheduler", value=max(0.0, seconds - before.get(name, seconds)))


def thread_times() -> dict[str, float]:
    """Return what this thread has used of a CPU, and waited for one where the system tells it.

    The wait is all that other processes, other threads and a limit of the container take from it;
    a wait for the GIL is none. It takes 25 µs, once an export.
    """
    times = {_LOOP_CPU: thread_time()}
    try:
        with open(_SCHEDSTAT, encoding="ascii") as file:
            used, waited = map(int, file.read().split()[:2])
    except (OSError, ValueError):
        return times  # Not Linux, or hidden.
    if used:  # 0 where the kernel does not count.
        times[_STARVED] = waited / 1e9
    return times

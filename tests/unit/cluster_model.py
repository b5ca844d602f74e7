"""A cluster in discrete events that knows the truth, to test the accounting against.

The scheduler's side sees only messages, each with its latency; the workers' side knows
when every thread really ran. Truth is integrated step by step, without any of the
accounting's shortcuts.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dask_otel.core.idle.accounting import Accounting, Increments
from dask_otel.core.idle.sharing import IdleSharing
from dask_otel.core.life.clock_offsets import WorkerOffset

#: Two heartbeats of one worker are at least this far apart: each is an event of its loop,
#: and so is what a task does between its disappearance and its metered seconds.
PAUSE = 0.05


@dataclass
class Task:
    """What will happen to one task."""

    at: float = 0.0
    duration: float = 1.0
    span: str = "a"
    root: str | None = None
    #: Index of the worker, modulo the number of live ones.
    worker: int = 0
    #: Seconds before its input has arrived on the worker.
    wait: float = 0.0
    #: Seconds from its disappearance from ``executing`` to its metered seconds.
    gap: float = 1e-4
    #: A heartbeat is cut in that window.
    cut_in_gap: bool = False
    #: It fails once, and is retried.
    fails: bool = False
    #: The scheduler learns for how long it ran when it failed.
    known: bool = True
    #: Seconds after submission at which it is cancelled.
    cancel: float | None = None
    #: Seconds after its start at which it secedes.
    secede: float | None = None
    #: Seconds after submission at which another worker tries to steal it.
    steal: float | None = None
    #: What the user's code meters on top.
    extra: float = 0.0
    key: str = ""


@dataclass(eq=False)
class Run:
    """One run of a task on a worker."""

    task: Task
    worker: Worker
    start: float | None = None
    listed: bool = False
    seceded: bool = False
    cancelled: bool = False


@dataclass(eq=False)
class Worker:
    name: str
    threads: int
    clock: float = 0.0
    #: Message delay of its heartbeats, one after the other.
    latencies: Iterator[float] = field(default_factory=lambda: itertools.repeat(0.001))
    #: What happens to its heartbeats, one after the other: "ok", "dropped", "skipped".
    fates: Iterator[str] = field(default_factory=lambda: itertools.repeat("ok"))
    alive: bool = True
    ready: list[Run] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    digests: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    last_cut: float = -math.inf
    last_arrival: float = 0.0
    #: Smallest delay so far, which no clock can tell from a difference of the clocks.
    quickest: float = math.inf
    #: What of `digests` did not use a thread.
    extra: float = 0.0
    #: What the scheduler knows of its clock.
    offset: WorkerOffset = field(default_factory=WorkerOffset)

    @property
    def occupied(self) -> int:
        return sum(1 for run in self.runs if not run.seceded)


@dataclass
class Totals:
    """Sums of all increments, or the truth."""

    capacity: float = 0.0
    reported: float = 0.0
    idle: float = 0.0
    unused: float = 0.0
    lost: float = 0.0
    excess: float = 0.0
    in_flight: float = 0.0
    span_idle: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    span_capacity: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, step: Increments) -> None:
        """Add an export, and check what must hold for each one."""
        for name in ("capacity", "reported", "idle", "unused", "lost", "excess"):
            value = getattr(step, name)
            assert value >= 0.0, (name, value)
            setattr(self, name, getattr(self, name) + value)
        assert step.in_flight >= 0.0
        self.in_flight = step.in_flight
        for mine, other in (
            (self.span_idle, step.span_idle),
            (self.span_capacity, step.span_idle),
            (self.span_capacity, step.span_reported),
        ):
            for span, value in other.items():
                assert value >= 0.0
                mine[span] += value

    def check(self) -> None:
        """The closed sums, to 1e-6 relative."""
        left = self.reported + self.idle + self.unused + self.lost + self.in_flight
        right = self.capacity + self.excess
        assert abs(left - right) <= 1e-6 * max(1.0, right), (left, right, self)
        spans = sum(self.span_idle.values())
        assert abs(spans - self.idle) <= 1e-6 * max(1.0, self.idle), (spans, self.idle)
        spans = sum(self.span_capacity.values())
        expected = self.idle + self.reported
        assert abs(spans - expected) <= 1e-6 * max(1.0, expected), (spans, expected)


def exported(accounting: Accounting, now: float) -> Increments:
    """Close an interval and settle it at once; the product does so in steps."""
    closed = accounting.begin_export(now)
    accounting.settle()
    return closed


def taken(sharing: IdleSharing) -> tuple[float, float, dict[str, float]]:
    """Close an interval; return its idle and unused seconds, and idle by span."""
    idle, unused = sharing.close()
    sharing.settle()
    shares, sharing.closed_shares = sharing.closed_shares, {}
    return idle, unused, shares


class Cluster:
    """Runs tasks on workers in simulated time and sends the accounting the same events as Dask."""

    def __init__(self, interval: float = 0.5, latency: float = 0.001, batch: float = 0.0) -> None:
        self.now = 0.0
        self.interval = interval
        self.latency = latency
        #: Messages of the ordered streams are delivered this much later.
        self.batch = batch
        self.accounting = Accounting(0.0)
        self.totals = Totals()
        self.truth = Totals()
        self.workers: list[Worker] = []
        self.processing: dict[str, Run] = {}
        self.waiting: list[Task] = []
        self.tasks: list[Task] = []
        self.unfinished: dict[str, int] = defaultdict(int)
        self.roots: dict[str, str] = {}
        #: The largest error of a cut's time that cannot be avoided.
        self.blur = 0.0
        self.stopped = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def __repr__(self) -> str:
        """What a failing example needs to be read."""
        setup = f"interval={self.interval}, latency={self.latency}, batch={self.batch}"
        workers = [(w.name, w.threads, round(w.clock, 2)) for w in self.workers]
        return "\n  ".join([f"Cluster({setup}, {workers})", *map(repr, self.tasks)])

    # ------------------------------------------------------------------------ engine

    def call(self, at: float, function: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(at, self.now), next(self._order), function))

    def run(self, until: float) -> Totals:
        """Let time pass up to `until` and export then."""
        while self._events and self._events[0][0] <= until:
            at, _, function = heapq.heappop(self._events)
            self._integrate(at)
            function()
        self._integrate(until)
        self.totals.add(exported(self.accounting, until))
        self.totals.check()
        return self.totals

    def _integrate(self, at: float) -> None:
        passed, self.now = at - self.now, at
        live = [w for w in self.workers if w.alive]
        self.truth.capacity += passed * sum(w.threads for w in live)
        free = passed * sum(max(0, w.threads - w.occupied) for w in live)
        active = [span for span, count in self.unfinished.items() if count]
        if not active:
            self.truth.unused += free
            return
        self.truth.idle += free
        by_root: dict[str, list[str]] = defaultdict(list)
        for span in active:
            by_root[self.roots[span]].append(span)
        for spans in by_root.values():
            for span in spans:
                self.truth.span_idle[span] += free / len(by_root) / len(spans)

    # ----------------------------------------------------------------------- workers

    def add_worker(self, worker: Worker) -> Worker:
        self.workers.append(worker)
        worker.last_arrival = self.now
        worker.quickest = next(worker.latencies)
        worker.offset.heartbeat(self.now, worker.quickest - worker.clock, None)
        self.accounting.worker_added(worker.name, worker.threads, self.now)
        self.call(self.now + self.interval, lambda: self._beat(worker))
        waiting, self.waiting = self.waiting, []
        for task in waiting:
            self._assign(task)
        return worker

    def kill(self, worker: Worker) -> None:
        """The worker dies, and the scheduler notices at once."""
        if not worker.alive or worker not in self.workers:
            return
        worker.alive = False
        self.truth.lost += sum(worker.digests.values()) - worker.extra
        for run in worker.runs:
            assert run.start is not None
            stop = run.start + (run.task.secede or 0.0) if run.seceded else self.now
            self.truth.lost += stop - run.start
        orphans = [run for run in self.processing.values() if run.worker is worker]
        for run in orphans:
            del self.processing[run.task.key]
            self.accounting.task_released(worker.name, run.task.key, self.now)
        self.accounting.worker_removed(worker.name, self.now)
        worker.runs.clear()
        worker.ready.clear()
        for run in orphans:
            self._assign(run.task)

    def _beat(self, worker: Worker) -> None:
        if not worker.alive or self.stopped:
            return
        self.call(self.now + self.interval, lambda: self._beat(worker))
        self.heartbeat(worker)

    def heartbeat(self, worker: Worker) -> None:
        """Cut the worker now, and send it."""
        if self.now < worker.last_cut + PAUSE:
            return
        worker.last_cut = self.now
        fate = next(worker.fates)
        if fate == "skipped" or not worker.alive:
            return
        seconds, worker.digests = worker.digests, defaultdict(float)
        extra, worker.extra = worker.extra, 0.0
        executing = {
            run.task.key: self.now - run.start
            for run in worker.runs
            if run.listed and run.start is not None
        }
        if fate == "dropped":
            self.truth.lost += sum(seconds.values()) - extra
            return
        sent = self.now + worker.clock
        worker.last_arrival = max(self.now + next(worker.latencies), worker.last_arrival)

        def receive() -> None:
            if worker.alive:
                worker.quickest = min(worker.quickest, self.now - sent + worker.clock)
                self.blur = max(self.blur, worker.quickest)
                self.truth.reported += sum(seconds.values())
                self.truth.excess += extra
                travelled = worker.offset.heartbeat(self.now, self.now - sent, None)
                self.accounting.heartbeat(worker.name, executing, seconds, self.now, travelled)
            else:
                self.truth.lost += sum(seconds.values()) - extra

        self.call(worker.last_arrival, receive)

    # ------------------------------------------------------------------------- tasks

    def submit(self, task: Task) -> None:
        """Schedule a task's whole life from ``task.at`` on."""
        task.key = task.key or f"task-{next(self._order)}"
        self.tasks.append(task)
        self.call(task.at, lambda: self._submit(task))

    def _submit(self, task: Task) -> None:
        self.roots[task.span] = task.root or task.span
        self.unfinished[task.span] += 1
        if self.unfinished[task.span] == 1:
            self.accounting.span_active(self.roots[task.span], task.span, self.now)
        self._assign(task)
        if task.cancel is not None:
            self.call(self.now + task.cancel, lambda: self._cancel(task))
        if task.steal is not None:
            self.call(self.now + task.steal, lambda: self._steal(task))

    def _finish(self, task: Task) -> None:
        self.unfinished[task.span] -= 1
        if not self.unfinished[task.span]:
            self.accounting.span_inactive(task.span, self.now)

    def _assign(self, task: Task) -> None:
        live = [w for w in self.workers if w.alive]
        if not live:
            self.waiting.append(task)
            return
        self._send(task, live[task.worker % len(live)])

    def _send(self, task: Task, worker: Worker, *, assigned: bool = False) -> None:
        run = Run(task, worker)
        self.processing[task.key] = run
        if not assigned:
            self.accounting.task_assigned(worker.name, task.key, task.span, self.now)

        def ready() -> None:
            if worker.alive and not run.cancelled:
                worker.ready.append(run)
                self._start_next(worker)

        self.call(self.now + self.latency + task.wait, ready)

    def _start_next(self, worker: Worker) -> None:
        while worker.ready and worker.occupied < worker.threads:
            run = worker.ready.pop(0)
            run.start, run.listed = self.now, True
            worker.runs.append(run)
            self.call(self.now + run.task.duration, lambda run=run: self._stop(run))
            if run.task.secede is not None and run.task.secede < run.task.duration:
                self.call(self.now + run.task.secede, lambda run=run: self._secede(run))

    def _stop(self, run: Run) -> None:
        if run.worker.alive:
            run.listed = False
            self.call(self.now + run.task.gap, lambda: self._finalize(run))
            if run.task.cut_in_gap:
                self.call(self.now + run.task.gap / 2, lambda: self.heartbeat(run.worker))

    def _finalize(self, run: Run) -> None:
        worker, task = run.worker, run.task
        if not worker.alive:
            return
        assert run.start is not None
        seconds = self.now - run.start
        worker.runs.remove(run)
        extra = task.extra
        if run.seceded:
            assert task.secede is not None
            extra += seconds - task.secede
        worker.digests[task.span] += seconds + task.extra
        worker.extra += extra
        if not run.cancelled:
            self.call(self.now + self.latency + self.batch, lambda: self._done(run, task.duration))
        self._start_next(worker)

    def _done(self, run: Run, seconds: float) -> None:
        task = run.task
        if self.processing.get(task.key) is not run or not run.worker.alive:
            return
        del self.processing[task.key]
        if task.fails:
            task.fails = False
            known = seconds if task.known else None
            self.accounting.task_done(run.worker.name, task.key, known, self.now)
            self._assign(task)
            return
        self.accounting.task_done(run.worker.name, task.key, seconds, self.now)
        self._finish(task)

    def _cancel(self, task: Task) -> None:
        run = self.processing.pop(task.key, None)
        if run is None:
            return
        self.accounting.task_released(run.worker.name, task.key, self.now)
        self._finish(task)

        def arrive() -> None:
            run.cancelled = True
            if run in run.worker.ready:
                run.worker.ready.remove(run)

        self.call(self.now + self.latency, arrive)

    def _secede(self, run: Run) -> None:
        if not run.worker.alive:
            return
        run.seceded = True

        def arrive() -> None:
            if self.processing.get(run.task.key) is run:
                self.accounting.task_seceded(
                    run.worker.name, run.task.key, run.task.secede, self.now
                )

        if not run.cancelled:
            self.call(self.now + self.latency, arrive)
        self._start_next(run.worker)

    def _steal(self, task: Task) -> None:
        run = self.processing.get(task.key)
        if run is None:
            return
        victim = run.worker

        def ask() -> None:
            if run.start is None and not run.cancelled and victim.alive:
                run.cancelled = True
                if run in victim.ready:
                    victim.ready.remove(run)
                self.call(self.now + self.latency, confirm)

        def confirm() -> None:
            live = [w for w in self.workers if w.alive]
            if self.processing.get(task.key) is not run or not victim.alive:
                return
            thief = live[(live.index(victim) + 1) % len(live)]
            self.accounting.task_stolen(task.key, victim.name, thief.name, self.now)
            self._send(task, thief, assigned=True)

        self.call(self.now + self.latency, ask)

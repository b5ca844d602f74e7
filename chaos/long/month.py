"""A month of a scheduler in minutes: the core alone, in simulated time.

The core gets its times with the calls. The calls of a scheduler with workers come from a
small model here, which knows the truth: how many spans and tasks there were, and how long threads
were busy. It keeps nothing of what has ended, so that what grows is the core's.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import os
import random
import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chaos.scenario import SIMULATED, progress, scenario
from chaos.world import World
from dask_otel import semconv
from dask_otel.core.idle.accounting import Accounting
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import Group, GroupFacts, Limits, OpenSpan, SpanFacts
from dask_otel.core.metrics.batch import Batches, Observation
from dask_otel.core.metrics.cardinality import SeriesLimits
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.records import Failure, FinishedSpan, HistogramPoint, SpanIdentity, Tags

_DAYS = int(os.environ.get("CHAOS_DAYS", "30"))
_START = 1_800_000_000.0
_HOUR, _DAY = 3600.0, 86400.0
_BEAT, _TICK, _EXPORT = 20.0, 5.0, 300.0
#: Threads of a worker.
_THREADS = 4
#: Seconds that the last work of a month may take.
_LONGEST = 12 * _HOUR
#: Spans that are known beyond the open ones: later work can come for these.
_KNOWN = 1500


@dataclass(eq=False)
class _Task:
    key: str
    span: str
    prefix: str
    seconds: float
    #: Runs that fail before one succeeds; None if all of them fail.
    failures: int | None = 0


@dataclass(eq=False)
class _Worker:
    name: str
    running: dict[_Task, float] = field(default_factory=dict)
    #: Seconds by span, for the next heartbeat.
    metered: Counter[str] = field(default_factory=Counter)


class Received:
    """What a backend makes of the points of all exports: sums, each increment once."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._last: dict[tuple[Any, ...], tuple[int, float]] = {}
        self._time_ns = 0

    def take(self, records: Any) -> int:
        """Take an export; returns the number of its series."""
        last: dict[tuple[Any, ...], tuple[int, float]] = {}
        points = [(record, point) for record in records for point in record.points]
        for record, point in points:
            series = record.name, *point.attributes.items()
            value = point.count if isinstance(point, HistogramPoint) else point.value
            start, before = last.get(series) or self._last.get(series) or (0, 0.0)
            if record.instrument in ("counter", "histogram"):
                before = before if start == point.start_ns else 0.0
                assert value >= before, f"{series} went back from {before} to {value}"
                self.totals[record.name] += value - before
            last[series] = point.start_ns, value
        latest = max((point.time_ns for _, point in points), default=self._time_ns + 1)
        assert latest > self._time_ns, "two exports of one time"
        self._last, self._time_ns = last, latest
        return len(last)


class Month:
    """A scheduler's core with everything around it, in simulated time.

    Parameters
    ----------
    spans_a_day
        How many Dask spans come on a day, about.
    seed
        Of all random numbers.
    """

    def __init__(self, spans_a_day: int = 4000, seed: int = 15) -> None:
        self.now = _START
        #: What there was, and what was shown of it.
        self.truth: Counter[Any] = Counter()
        self.shown: Counter[Any] = Counter()
        self.received = Received()
        self.series = 0
        limits = Limits(settle_timeout=120.0, remember=2000)
        self.lifecycle = Lifecycle(limits, self)
        self.accounting = Accounting(self.now)
        self.metrics = MetricState(
            int(self.now * 1e9), limits=SeriesLimits(interval_ns=int(_EXPORT * 1e9))
        )
        self.workers: dict[str, _Worker] = {}
        self._batches = Batches()
        self._pause = _DAY / spans_a_day * 2
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._queue: deque[_Task] = deque()
        self._groups: dict[tuple[str, str], Group] = {}
        self._known: dict[str, tuple[Tags, tuple[str, ...]]] = {}
        self._over = False
        self._ids: set[tuple[int, int, int | None]] = set()
        for _ in range(6):
            self._join()
        for seconds, call in (
            (_TICK, self._tick),
            (_EXPORT, self.export),
            (6 * _HOUR, self._lose_worker),
            (_DAY, self._ids.clear),
        ):
            self._every(seconds, call)
        self._in(self._pause, self._job)

    # ------------------------------------------------------------------------ engine

    def _in(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), call))

    def _every(self, seconds: float, call: Callable[[], None]) -> None:
        def run() -> None:
            self._in(seconds, run)
            call()

        self._in(seconds, run)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self._events[0][0] <= until:
            at, _, call = heapq.heappop(self._events)
            self._pass(at - self.now)
            call()
        self._pass(until - self.now)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self.truth["threads"] += self.thread_seconds(self.now - seconds, self.now)

    def end(self) -> None:
        """Let all work end, and export the last of it."""
        self._over = True
        self.run(_LONGEST)
        assert not self.lifecycle.open, f"{len(self.lifecycle.open)} spans are open"
        assert not self._queue
        self.export()

    # --------------------------------------------------------------------- workers

    def _join(self) -> None:
        worker = _Worker(f"w{next(self._numbers)}")
        self.workers[worker.name] = worker
        self.accounting.worker_added(worker.name, _THREADS, self.now)
        self._beat(worker)
        self._dispatch()

    def _beat(self, worker: _Worker) -> None:
        if self.workers.get(worker.name) is not worker:
            return
        self._in(_BEAT, lambda: self._beat(worker))
        seconds, worker.metered = worker.metered, Counter()
        executing = {task.key: self.now - start for task, start in worker.running.items()}
        self.accounting.heartbeat(worker.name, executing, seconds, self.now)
        self.lifecycle.reports.heartbeat(worker.name, self.now, 0)
        batch = self._batches.open
        key = ("execute", "f", "thread-cpu", "seconds")
        for dask_id, value in seconds.items():
            self.truth["seconds"] += value
            batch.add(semconv.CLUSTER_TIME.name, "thread-cpu", value=value)
            known = batch.span_deltas.get(dask_id)
            deltas = known or batch.deltas_of(dask_id, self._known[dask_id][0], None)
            deltas.values[key] = deltas.values.get(key, 0.0) + value
            if span := self.lifecycle.open.get(dask_id):
                span.reported(worker.name, True)
                span.activities["thread-cpu"] = span.activities.get("thread-cpu", 0.0) + value

    def _lose_worker(self) -> None:
        """Kill a worker: the seconds that it has not reported are lost. Another one joins."""
        worker = self._chance.choice([*self.workers.values()])
        self.truth["killed"] += 1
        self.truth["lost"] += worker.metered.total()
        for task, start in worker.running.items():
            self.truth["lost"] += self.now - start
            self.accounting.task_released(worker.name, task.key, self.now)
            self._again(task, "worker_lost", worker.name, start)
        del self.workers[worker.name]
        self.accounting.worker_removed(worker.name, self.now)
        self.lifecycle.reports.left(worker.name)
        self._in(60.0, self._join)
        self._dispatch()

    # ------------------------------------------------------------------------ spans

    def _job(self) -> None:
        if self._over:
            return
        chance = self._chance
        self._in(chance.expovariate(1 / self._pause), self._job)
        day = int((self.now - _START) / _DAY)
        name = f"report of day {day}" if chance.random() < 0.05 else f"job {chance.randrange(40)}"
        root = self._create((name,), ())
        parts = range(chance.randrange(3))
        below = [self._create((name, f"part {number}"), (root,)) for number in parts]
        for dask_id in (root, *below):
            self._submit(dask_id, chance.randint(1, 8))
        if chance.random() < 0.05:
            # Long after the export: a next generation.
            self._in(600.0, lambda: self._submit(root, 2))

    def _create(self, tags: Tags, ancestors: tuple[str, ...]) -> str:
        dask_id = f"s{next(self._numbers)}"
        self._known[dask_id] = tags, ancestors
        self.truth["spans"] += 1
        self.lifecycle.span_created(dask_id, tags, ancestors, self.now)
        over = [old for old in self._known if old not in self.lifecycle.open]
        for old in over[:-_KNOWN]:
            del self._known[old]
        return dask_id

    def _group(self, dask_id: str, prefix: str) -> Group:
        if (dask_id, prefix) not in self._groups:
            span = self.lifecycle.span_reopened(dask_id, *self._known[dask_id], self.now)
            group = self.lifecycle.add_group(span, prefix, prefix, None)
            self._groups[dask_id, prefix] = group
        return self._groups[dask_id, prefix]

    # ------------------------------------------------------------------------ tasks

    def _submit(self, dask_id: str, count: int) -> None:
        chance = self._chance
        for _ in range(count):
            seconds = chance.expovariate(1 / 15)
            if chance.random() < 0.0005:
                seconds = chance.uniform(_HOUR, 8 * _HOUR)
            failures = chance.choice((1, None)) if chance.random() < 0.02 else 0
            task = _Task(f"t{next(self._numbers)}", dask_id, chance.choice("fg"), seconds, failures)
            self.truth["tasks"] += 1
            self.lifecycle.outcomes.added(self._group(dask_id, task.prefix), task.key, self.now)
            self._queue.append(task)
        self._dispatch()

    def _dispatch(self) -> None:
        while self._queue:
            worker = min(self.workers.values(), key=lambda w: len(w.running))
            if len(worker.running) >= _THREADS:
                return
            task = self._queue.popleft()
            worker.running[task] = self.now
            self.accounting.task_assigned(worker.name, task.key, task.span, self.now)
            self._in(task.seconds, lambda t=task, w=worker: self._done(t, w))  # type: ignore[misc]

    def _done(self, task: _Task, worker: _Worker) -> None:
        if self.workers.get(worker.name) is not worker:
            return
        start = worker.running.pop(task)
        seconds = self.now - start
        worker.metered[task.span] += seconds  # type: ignore[assignment]
        self.accounting.task_done(worker.name, task.key, seconds, self.now)
        if task.failures:
            task.failures -= 1
            self._again(task, "error", worker.name, start)
        else:
            self._ended(task, worker.name, start)
        self._dispatch()

    def _ended(self, task: _Task, worker: str, start: float) -> None:
        group = self._group(task.span, task.prefix)
        outcome = "memory" if task.failures is not None else "erred"
        self.truth[outcome] += 1
        tags = group.span.identity.tags
        self._batches.open.add(semconv.TASK_FINISHED.name, tags, task.prefix, outcome)
        if outcome == "memory":
            self.lifecycle.outcomes.finished(group, worker, start, self.now, self.now)
        else:
            what = Failure(self.now, task.key, task.prefix, worker, "ValueError('no')", "  File\n")
            self.lifecycle.outcomes.failed(group, task.key, what, start, self.now, self.now)

    def _again(self, task: _Task, reason: Any, worker: str, start: float) -> None:
        self.truth["again"] += 1
        group = self._group(task.span, task.prefix)
        tasks = self.lifecycle.outcomes
        tasks.ran(group, worker, start, self.now, self.now)
        tasks.interrupted(group, task.key, reason, self.now)
        assert tasks.added(group, task.key, self.now, "recomputed") == reason
        self._queue.append(task)

    # -------------------------------------------------------- calls by the core

    def thread_seconds(self, start: float, stop: float) -> float:
        return self.threads_at(stop) * (stop - start)

    def threads_at(self, time: float) -> int:
        return len(self.workers) * _THREADS

    def group_facts(self, group: Group) -> GroupFacts:
        return GroupFacts(0, {}, ())

    def span_facts(self, span: OpenSpan) -> SpanFacts:
        return SpanFacts(idle=max(0.0, span.idle), capacity=max(0.0, span.capacity))

    def span_opened(self, span: OpenSpan) -> None:
        self.truth["generations"] += 1

    def span_active(self, span: OpenSpan, now: float) -> None:
        self.accounting.span_active(span.identity.root_id, span.identity.dask_id, now)

    def span_inactive(self, span: OpenSpan, now: float) -> None:
        self.accounting.span_inactive(span.identity.dask_id, now)

    def span_exported(self, span: OpenSpan) -> None:
        for group in span.groups:
            del self._groups[span.identity.dask_id, group.name]

    # ------------------------------------------------------------------------ exports

    def _tick(self) -> None:
        self.lifecycle.tick(self.now)
        for sign in self.lifecycle.progress:
            assert sign.start <= sign.stop, sign
            self._once(sign.identity, sign.ordinal)
        for finished in self.lifecycle.finished:
            self._finished(finished)
        self.shown["signs"] += len(self.lifecycle.progress)
        self.lifecycle.progress, self.lifecycle.finished = [], []

    def _finished(self, finished: FinishedSpan) -> None:
        assert finished.complete
        for counts in (group.counts for group in finished.groups):
            there = (counts.tasks, counts.memory, counts.erred, counts.retried)
            names = ("tasks", "memory", "erred", "again")
            self.shown.update(dict(zip(names, there, strict=True)))
        self.shown["generations"] += 1
        if finished.identity.generation == 1:
            self.shown["spans"] += 1
            name, labels = semconv.SPAN_DURATION.name, (finished.identity.tags, finished.result)
            seconds = finished.stop - finished.start
            self._batches.open.observe(Observation(name, labels, seconds, None))
        assert finished.start <= finished.stop, finished
        self._once(finished.identity)

    def _once(self, who: SpanIdentity, sign: int | None = None) -> None:
        ids = who.trace_id, who.span_id, sign
        assert ids not in self._ids, f"{who} came twice"
        self._ids.add(ids)

    def export(self) -> None:
        """Hand over the metrics, as the bridge does at the export interval."""
        batch = self._batches.open
        since = self.accounting.begin_export(self.now)
        self.accounting.settle()
        for metric, shares in (
            (semconv.SPAN_IDLE_TIME, since.span_idle),
            (semconv.SPAN_CAPACITY_TIME, since.span_idle),
            (semconv.SPAN_CAPACITY_TIME, since.span_reported),
        ):
            for dask_id, seconds in shares.items():
                batch.add(metric.name, self._known[dask_id][0], value=seconds)
                if span := self.lifecycle.open.get(dask_id):
                    idle = seconds if metric is semconv.SPAN_IDLE_TIME else 0.0
                    span.credit(idle, seconds - idle)
        for activity, seconds in (
            ("idle", since.idle), ("unused", since.unused), ("lost", since.lost)
        ):  # fmt: skip
            batch.add(semconv.CLUSTER_TIME.name, activity, value=seconds)
            self.shown[activity] += seconds
        batch.add(semconv.CLUSTER_CAPACITY_TIME.name, value=since.capacity)
        batch.add(semconv.CLUSTER_EXCESS_TIME.name, value=since.excess)
        self.metrics.apply(self._batches.swap(int(self.now * 1e9)))
        series = self.received.take(list(self.metrics.collect(int(self.now * 1e9))))
        self.metrics.settled(True)
        self.series = max(self.series, series)
        totals = self.received.totals
        went = totals[semconv.CLUSTER_TIME.name] + since.in_flight
        there = (
            totals[semconv.CLUSTER_CAPACITY_TIME.name] + totals[semconv.CLUSTER_EXCESS_TIME.name]
        )
        assert abs(went - there) <= 1e-6 * max(1.0, there), (went, there)

    def reconcile(self) -> None:
        """Compare the exports with the truth, when all work has ended."""
        truth, shown, totals = self.truth, self.shown, self.received.totals
        for what in ("generations", "spans", "tasks", "memory", "erred", "again"):
            assert shown[what] == truth[what], f"{what}: {shown[what]} of {truth[what]}"
        assert truth["tasks"] == truth["memory"] + truth["erred"]
        for metric, expected in (
            (semconv.TASK_FINISHED, truth["tasks"]),
            (semconv.SPAN_DURATION, truth["spans"]),
            (semconv.SPAN_EXECUTE_TIME, truth["seconds"]),
            (semconv.CLUSTER_CAPACITY_TIME, truth["threads"]),
            (semconv.SPAN_IDLE_TIME, shown["idle"]),
        ):
            found = totals[metric.name]
            assert abs(found - expected) <= 1e-6 * expected, f"{metric.name}: {found}, {expected}"
        free = truth["threads"] - truth["seconds"] - truth["lost"]
        # Of a killed worker it is not known what its threads did since its last heartbeat.
        unknown = truth["killed"] * _THREADS * _BEAT + 1e-6 * free
        assert abs(shown["idle"] + shown["unused"] - free) <= unknown, (shown, free)


def blocks() -> int:
    """Return how many blocks of memory Python has given out."""
    gc.collect()
    return sys.getallocatedblocks()


@scenario(
    "month",
    section="Load",
    fault=f"{_DAYS} days of a scheduler in simulated time: 4,000 spans a day, some of hours and "
    "some that go on after their export; workers are killed, and others join (the core alone, "
    "without Dask and exporters)",
    promise="Each span and each generation once; tasks, runs, seconds and thread-seconds are what "
    "there was; the sum closes at each export; as much memory after the last day as after the "
    "second",
    protocols=(SIMULATED,),
)
def _month(world: World) -> str:
    month = Month()
    sizes = []
    for day in range(1, _DAYS + 1):
        month.run(_DAY)
        sizes.append(blocks())
        progress(
            f"day {day}: {month.truth['spans']} spans, {month.truth['tasks']} tasks, "
            f"{sizes[-1]} blocks of memory"
        )
    month.end()
    month.reconcile()
    second, last = sizes[min(1, len(sizes) - 1)], sizes[-1]
    assert last < second * 1.01, f"{second} blocks of memory after the second day, then {sizes}"
    truth = month.truth
    return (
        f"{truth['spans']:,} spans in {truth['generations']:,} generations, {truth['tasks']:,} "
        f"tasks, {truth['again']:,} of their runs again, {month.shown['signs']:,} signs of life, "
        f"{truth['killed']} workers killed: all of it adds up; at most {month.series} series; "
        f"{second:,} blocks of memory after the second day, {last:,} after the last"
    )

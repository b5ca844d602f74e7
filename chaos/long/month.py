"""A month of a scheduler in minutes: the core alone, driven as in the tests of its histories.

The laboratory is no place for it: real Dask sends and ticks some 20 times a second even without
work, which takes a minute of CPU for an hour of six workers, and ten hours for a month. What has
ended is forgotten here, so that what grows is the core's.
"""

from __future__ import annotations

import gc
import heapq
import os
import random
import sys
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from tests.unit.simulation import Life, Simulation, Task
from tests.unit.test_series_model import Receiver

from chaos.scenario import SIMULATED, progress, scenario
from chaos.world import World
from dask_otel import semconv
from dask_otel.core.idle.accounting import Accounting
from dask_otel.core.life.open_span import Limits, OpenSpan
from dask_otel.core.metrics.batch import Batches
from dask_otel.core.metrics.state import MetricState

_DAYS = int(os.environ.get("CHAOS_DAYS", "30"))
_HOUR, _DAY = 3600.0, 86400.0
_BEAT, _TICK, _EXPORT = 20.0, 5.0, 300.0
_WORKERS, _THREADS = 6, 4
#: Seconds that the last work of a month may take.
_LONGEST = 12 * _HOUR


class Month(Simulation):
    """A scheduler with workers, users, ticks and exports, in simulated time.

    Parameters
    ----------
    spans_a_day
        How many Dask spans come on a day, about.
    seed
        Of all random numbers.
    """

    def __init__(self, spans_a_day: int = 4000, seed: int = 15) -> None:
        super().__init__(Limits(settle_timeout=120.0, remember=2000))
        #: What there was, and what was shown of it.
        self.truth: Counter[str] = Counter()
        self.shown: Counter[str] = Counter()
        self.accounting = Accounting(self.now)
        self.metrics = MetricState(self._ns)
        self.received = Receiver(collected_ns=self._ns)
        #: By worker, when its tasks began; seconds by span for its next heartbeat.
        self.running: dict[str, dict[str, float]] = {}
        self._metered: dict[str, Counter[str]] = {}
        self._batches = Batches()
        self._pause = _DAY / spans_a_day * 2
        self._chance = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._queue: deque[str] = deque()
        #: How often tasks fail before they succeed; None if they never do.
        self._failures: dict[str, int | None] = {}
        self._over = False
        self.beats.clear()
        for _ in range(_WORKERS):
            self._join()
        for seconds, call in (
            (_TICK, self.tick), (_EXPORT, self.export), (6 * _HOUR, self._lose_one)
        ):  # fmt: skip
            self._every(seconds, call)
        self._in(self._pause, self._job)

    # ------------------------------------------------------------------------ engine

    @property
    def _ns(self) -> int:
        return int(self.now * 1e9)

    def _in(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._ids), call))

    def _every(self, seconds: float, call: Callable[[], None]) -> None:
        def run() -> None:
            self._in(seconds, run)
            call()

        self._in(seconds, run)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        self._in(seconds, lambda: None)
        while self.now < until:
            at, _, call = heapq.heappop(self._events)
            self.truth["threads"] += self.thread_seconds(self.now, at)  # type: ignore[assignment]
            self.now = self.real = at
            call()

    def end(self) -> None:
        """Let all work end, and export the last of it."""
        self._over = True
        self.run(_LONGEST)
        assert not self.lifecycle.open, f"{len(self.lifecycle.open)} spans are open"
        self.export()

    def _looked(self) -> None:
        """When spans were quiet is no question here."""

    # --------------------------------------------------------------------- workers

    def threads_at(self, time: float) -> int:
        return len(self.running) * _THREADS

    def thread_seconds(self, start: float, stop: float) -> float:
        return self.threads_at(stop) * (stop - start)

    def _join(self) -> None:
        name = f"w{next(self._ids)}"
        self.running[name], self._metered[name], self.beats[name] = {}, Counter(), []
        self.accounting.worker_added(name, _THREADS, self.now)
        self._beat(name)
        self._dispatch()

    def _beat(self, name: str) -> None:
        if name not in self.running:
            return
        self._in(_BEAT, lambda: self._beat(name))
        seconds, self._metered[name] = self._metered[name], Counter()
        executing = {key: self.now - start for key, start in self.running[name].items()}
        self.accounting.heartbeat(name, executing, seconds, self.now)
        self.lifecycle.reports.heartbeat(name, self.now, 0)
        batch = self._batches.open
        for dask_id, value in seconds.items():
            self.truth["seconds"] += value
            batch.add(semconv.CLUSTER_TIME.name, "thread-cpu", value=value)
            # There may be two of one span in a batch.
            deltas = batch.span_deltas.get(dask_id) or batch.deltas_of(dask_id, ("job",), None)
            key = ("execute", "f", "thread-cpu", "seconds")
            deltas.values[key] = deltas.values.get(key, 0.0) + value

    def _lose_one(self) -> None:
        """Kill a worker: the seconds that it has not reported are lost. Another one joins."""
        name = self._chance.choice([*self.running])
        running = self.running.pop(name)
        self.truth["killed"] += 1
        self.truth["lost"] += self._metered.pop(name).total()
        for key, start in running.items():
            self.truth["lost"] += self.now - start  # type: ignore[assignment]
            self.accounting.task_released(name, key, self.now)
            self._again(key, "worker_lost", name, self.now - start)
        self.accounting.worker_removed(name, self.now)
        self.lose_worker(name)
        self._in(60.0, self._join)
        self._dispatch()

    # ----------------------------------------------------------------- spans and tasks

    def _job(self) -> None:
        if self._over:
            return
        chance = self._chance
        self._in(chance.expovariate(1 / self._pause), self._job)
        root = self.create(None)
        for dask_id in (root, *(self.create(root) for _ in range(chance.randrange(3)))):
            self._work(dask_id, chance.randint(1, 8))
        if chance.random() < 0.05:
            # Long after the export: a next generation.
            self._in(600.0, lambda: self._work(root, 2))

    def _work(self, dask_id: str, count: int) -> None:
        for _ in range(count):
            task = self.submit(dask_id, self._chance.choice("fg"))
            failing = self._chance.random() < 0.02
            self._failures[task.key] = self._chance.choice((1, None)) if failing else 0
            self._queue.append(task.key)
        self._dispatch()

    def _dispatch(self) -> None:
        while self._queue:
            name = min(self.running, key=lambda name: len(self.running[name]))
            if len(self.running[name]) >= _THREADS:
                return
            key, chance = self._queue.popleft(), self._chance
            seconds = chance.expovariate(1 / 15)
            if chance.random() < 0.0005:
                seconds = chance.uniform(_HOUR, 8 * _HOUR)
            self.running[name][key] = self.now
            self.accounting.task_assigned(name, key, self.tasks[key].span, self.now)
            self._in(seconds, lambda key=key, name=name: self._done(key, name))  # type: ignore[misc]

    def _done(self, key: str, name: str) -> None:
        if name not in self.running:
            return
        seconds = self.now - self.running[name].pop(key)
        self._metered[name][self.tasks[key].span] += seconds  # type: ignore[assignment]
        self.accounting.task_done(name, key, seconds, self.now)
        left = self._failures.pop(key)
        if left:
            self._failures[key] = left - 1
            self._again(key, "error", name, seconds)
        else:
            outcome = "erred" if left is None else "memory"
            self._ended(self.tasks.pop(key), outcome, name, seconds)
        self._dispatch()

    def _ended(self, task: Task, outcome: str, name: str, seconds: float) -> None:
        self.truth.update(("tasks", outcome))
        self._batches.open.add(semconv.TASK_FINISHED.name, ("job",), task.group, outcome)
        if outcome == "memory":
            self.finish(task, name, seconds, 0.0)
        else:
            self.fail(task, name, seconds)

    def _again(self, key: str, reason: Any, name: str, seconds: float) -> None:
        self.truth["again"] += 1
        self.interrupt(self.tasks[key], reason, True, name, seconds)
        self._queue.append(key)

    def span_opened(self, span: OpenSpan) -> None:
        self.truth["generations"] += 1

    def span_active(self, span: OpenSpan, now: float) -> None:
        self.accounting.span_active(span.identity.root_id, span.identity.dask_id, now)

    def span_inactive(self, span: OpenSpan, now: float) -> None:
        self.accounting.span_inactive(span.identity.dask_id, now)

    # ------------------------------------------------------------------------ exports

    def _check_settled(self, life: Life) -> None:
        """Compare a generation that was exported with what was done to it, and forget it."""
        assert life.finished is not None
        assert life.finished.complete
        tasks, memory, erred, _ = life.own
        assert (memory, erred) == tuple(map(life.outcomes.count, ("memory", "erred")))
        again = sum(group.counts.retried for group in life.finished.groups)
        assert again == life.retried
        self.shown.update(
            {"generations": 1, "tasks": tasks, "memory": memory, "erred": erred, "again": again}
        )
        self.shown["signs"] += len(life.signs)
        self.lives.remove(life)
        for old in [one for one in self.spans if one not in self.current][:-1500]:
            del self.spans[old]

    def export(self) -> None:
        """Hand over the metrics, as the bridge does at the export interval."""
        batch = self._batches.open
        since = self.accounting.begin_export(self.now)
        self.accounting.settle()
        for seconds in since.span_idle.values():
            batch.add(semconv.SPAN_IDLE_TIME.name, ("job",), value=seconds)
        for activity in ("idle", "unused", "lost"):
            seconds = getattr(since, activity)
            batch.add(semconv.CLUSTER_TIME.name, activity, value=seconds)
            self.shown[activity] += seconds
        batch.add(semconv.CLUSTER_CAPACITY_TIME.name, value=since.capacity)
        batch.add(semconv.CLUSTER_EXCESS_TIME.name, value=since.excess)
        self.metrics.apply(self._batches.swap(self._ns))
        self.received.receive(list(self.metrics.collect(self._ns)), self._ns, accepted=True)
        self.metrics.settled(True)
        totals = self.totals()
        went = totals[semconv.CLUSTER_TIME.name] + since.in_flight
        both = semconv.CLUSTER_CAPACITY_TIME, semconv.CLUSTER_EXCESS_TIME
        there = sum(totals[metric.name] for metric in both)
        assert abs(went - there) <= 1e-6 * max(1.0, there), (went, there)

    def totals(self) -> Counter[str]:
        """Return what a backend has of each metric."""
        found: Counter[str] = Counter()
        for ((name, _), _), value in self.received.totals.items():
            found[name] += value
        return found

    def reconcile(self) -> None:
        """Compare the exports with the truth, when all work has ended."""
        truth, shown, totals = self.truth, self.shown, self.totals()
        for what in ("generations", "tasks", "memory", "erred", "again"):
            assert shown[what] == truth[what], f"{what}: {shown[what]} of {truth[what]}"
        for metric, expected in (
            (semconv.TASK_FINISHED, truth["tasks"]),
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
        progress(f"day {day}: {month.truth['tasks']} tasks, {sizes[-1]} blocks of memory")
    month.end()
    month.reconcile()
    second, last = sizes[min(1, len(sizes) - 1)], sizes[-1]
    assert last < second * 1.01, f"{second} blocks of memory after the second day, then {sizes}"
    truth = month.truth
    return (
        f"{truth['generations']:,} generations of spans, {truth['tasks']:,} tasks, "
        f"{truth['again']:,} of their runs again, {month.shown['signs']:,} signs of life, "
        f"{truth['killed']} workers killed: all of it adds up; {second:,} blocks of memory after "
        f"the second day, {last:,} after the last"
    )

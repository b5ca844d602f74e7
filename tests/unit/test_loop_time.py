"""How long event loops were blocked, and what the bridge itself cost them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dask_otel import semconv
from dask_otel._dask import wrapping
from dask_otel._dask.workers import samples as _dask_workers
from dask_otel._dask.workers.samples import LoopHealth
from dask_otel._dask.wrapping import Wrappers
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.scheduler import own_cost as loop_time
from dask_otel.scheduler.own_cost import EVERY, SAMPLE, OwnCost

#: Dask's own tick, by default 20 ms.
TICK = 0.02


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(_dask_workers, "monotonic", made)
    monkeypatch.setattr(loop_time, "perf_counter", made)
    monkeypatch.setattr(wrapping, "perf_counter", made)
    return made


# ------------------------------------------------------------------- blocked event loops


class Loops:
    """`LoopHealth` with a scheduler and workers of one attribute each."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.scheduler: Any = SimpleNamespace(_last_tick_cycle=50.0, _last_tick_counter=7)
        self.health = LoopHealth(self.scheduler)

    def report(self, at: float, observed: Any, address: str = "a") -> None:
        """A worker's registration or heartbeat, so many seconds after the start."""
        self.clock.now = 100.0 + at
        ws: Any = SimpleNamespace(address=address, metrics={"event_loop_interval": observed})
        self.health.heartbeat(ws)

    def cycle(self, length: float, ticks: int, seen: bool = True) -> None:
        """The scheduler has measured once more; `seen` if the bridge looks before it does again."""
        self.scheduler._last_tick_cycle += length
        self.scheduler._last_tick_counter += ticks
        if seen:
            self.health.tick()

    def blocked(self, role: str) -> float:
        batch = MetricBatch()
        self.health.export(batch)
        return batch.increments[semconv.EVENT_LOOP_BLOCKED_TIME.name, role]


class Array:
    """What users report may not be comparable."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        raise ValueError("ambiguous")


@pytest.fixture
def loops(clock: Clock) -> Loops:
    return Loops(clock)


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_thread_that_never_sleeps_has_a_cpu_or_is_starved(loops: Loops) -> None:
    """Neither is what other threads used, nor a wait for them."""

    def exported() -> list[float]:
        batch = MetricBatch()
        loops.health.export(batch)
        names = (semconv.EVENT_LOOP_CPU_TIME.name, semconv.EVENT_LOOP_STARVED_TIME.name)
        return [batch.increments.get((name, "scheduler"), -1.0) for name in names]

    exported()
    began, used = time.perf_counter(), time.thread_time()
    burn(0.3)
    wall, used = time.perf_counter() - began, time.thread_time() - used
    cpu, starved = exported()
    assert cpu == pytest.approx(used, abs=0.02)
    told = semconv.EVENT_LOOP_STARVED_TIME.name in _dask_workers.thread_times()
    assert starved == (pytest.approx(wall - used, abs=0.05) if told else -1.0)
    other = threading.Thread(target=burn, args=(0.2,))
    other.start()
    other.join()
    assert exported()[0] < 0.1


def test_where_the_system_does_not_tell_of_the_wait_it_is_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for text in (None, "0 0 0\n", "", "a b c\n"):
        path = tmp_path / str(text is None)
        if text is not None:
            path.write_text(text)
        monkeypatch.setattr(_dask_workers, "_SCHEDSTAT", str(path))
        assert set(_dask_workers.thread_times()) == {semconv.EVENT_LOOP_CPU_TIME.name}
    path.write_text("5 2500000000 7\n")
    times = _dask_workers.thread_times()
    assert times[semconv.EVENT_LOOP_STARVED_TIME.name] == 2.5


def test_a_loop_that_keeps_its_pace_was_not_blocked(loops: Loops) -> None:
    for second in range(5):
        loops.cycle(1.0, 50 + second)
        loops.report(second, TICK - 1e-5 * second)
    assert loops.blocked("scheduler") == 0
    assert loops.blocked("worker") == 0


@pytest.mark.parametrize(
    ("cycles", "blocked"),
    [
        ([(1.0, 25)], 0.5),
        ([(2.5, 0)], 2.5),
        # Dask's timer keeps to its beat: after a block the next one may be due at once.
        ([(2.9, 45, False), (0.05, 2)], 2.95 - 47 * TICK),
    ],
)
def test_the_scheduler_was_blocked_for_the_difference(
    loops: Loops, cycles: list[Any], blocked: float
) -> None:
    for cycle in cycles:
        loops.cycle(*cycle)
    loops.health.tick()  # no new cycle: nothing to count again
    assert loops.blocked("scheduler") == pytest.approx(blocked)
    assert loops.blocked("scheduler") == 0


@pytest.mark.parametrize(
    ("reports", "blocked"),
    [
        # A report stands for the time since the one before.
        ([(0.0, TICK), (2.0, 2 * TICK), (3.0, TICK / 2)], 1.0),
        # A worker may be blocked before its first heartbeat: the time begins with its registration.
        # The heartbeat was due in the block, and has the report from before.
        ([(0.0, TICK), (2.5, TICK), (2.75, 4 * TICK)], 2.75 * 0.75),
        # An unchanged report counts once.
        ([(0.0, TICK), *((tenth / 10, 2 * TICK) for tenth in range(10, 30))], 0.5),
        # One block that is longer than the time between two reports.
        ([(0.0, TICK), (0.5, 2.0)], 1.98),
        ([(0.0, None), (1.0, TICK), (2.0, None)], 0.0),
        # What is no number is not compared: an array has no single answer.
        ([(0.0, TICK), (1.0, Array()), (2.0, Array()), (3.0, 2 * TICK)], 1.0),
    ],
)
def test_what_a_worker_reports(loops: Loops, reports: list[Any], blocked: float) -> None:
    for at, observed in reports:
        loops.report(at, observed)
    assert loops.blocked("worker") == pytest.approx(blocked)


def test_workers_are_added_up_and_forgotten(loops: Loops) -> None:
    for second in (0.0, 1.0):
        for address in ("a", "b"):
            loops.report(second, (1 + second) * TICK, address)
    assert loops.blocked("worker") == pytest.approx(1.0)
    loops.health.worker_removed("a")
    loops.health.worker_removed("unknown")
    loops.report(9.0, 2 * TICK + 1e-9, "a")  # another one under the same address
    assert loops.blocked("worker") == 0


# --------------------------------------------------------------------- cost of transitions


class Scheduler:
    """Calls the plugin's hook, which Dask looks up for each transition, and counts."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.count = 7
        self.seen: list[tuple[Any, ...]] = []
        #: Seconds that the hook takes.
        self.price = 0.001
        self.plugin: Any = SimpleNamespace(transition=self.hook)
        adapter: Any = SimpleNamespace(
            transitions=lambda: self.count, transition=self.hook, wrappers=Wrappers()
        )
        self.cost = OwnCost(adapter)

    def hook(self, *args: Any, **kwargs: Any) -> None:
        self.seen.append((args, kwargs))
        self.clock.now += self.price

    def transitions(self, count: int) -> float:
        for _ in range(count):
            self.count += 1
            self.plugin.transition("key", "waiting", "processing", stimulus_id="s")
            self.clock.now += 1.0  # Dask's own
        return self.cost.take()


def test_a_few_transitions_tell_what_all_of_them_cost(clock: Clock) -> None:
    scheduler = Scheduler(clock)
    # Before the first sample nothing is guessed.
    assert scheduler.transitions(100) == 0.0
    scheduler.cost.sample(scheduler.plugin)
    assert scheduler.transitions(0) == 0.0
    scheduler.seen.clear()
    assert scheduler.transitions(SAMPLE + 1000) == pytest.approx((SAMPLE + 1000) * 0.001)
    assert scheduler.plugin.transition == scheduler.hook
    assert scheduler.seen == [(("key", "waiting", "processing"), {"stimulus_id": "s"})] * (
        SAMPLE + 1000
    )
    # The last price goes on until there is a new one, which counts as much as all before.
    assert scheduler.transitions(50) == pytest.approx(50 * 0.001)
    scheduler.price = 0.003
    for _ in range(EVERY):
        assert scheduler.plugin.transition == scheduler.hook
        scheduler.cost.sample(scheduler.plugin)
    assert scheduler.transitions(SAMPLE) == pytest.approx(SAMPLE * 0.002)


def test_the_adapter_s_own_work_is_added_once(clock: Clock) -> None:
    def work(seconds: float) -> None:
        clock.now += seconds
        raise RuntimeError("which is caught")

    wrappers = Wrappers()
    adapter: Any = SimpleNamespace(transitions=lambda: 0, transition=None, wrappers=wrappers)
    cost = OwnCost(adapter)
    for seconds in (2.0, 0.25):
        wrappers.run("tick", work, seconds)
        assert cost.take() == seconds

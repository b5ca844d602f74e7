"""How long event loops were blocked, and what the bridge itself cost them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest

from dask_otel import semconv
from dask_otel._dask import wrapping
from dask_otel._dask.workers import samples
from dask_otel._dask.workers.samples import LoopHealth
from dask_otel._dask.wrapping import Wrappers
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.scheduler import own_cost
from dask_otel.scheduler.own_cost import SAMPLE, OwnCost
from tests.planted.jobs import looped
from tests.unit.garbage import Array

#: Dask's own tick, by default 20 ms.
TICK = 0.02


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now

    def go(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module, name in (
        *((samples, "monotonic"), (own_cost, "perf_counter"), (wrapping, "perf_counter")),
        (samples, "time"),
    ):
        monkeypatch.setattr(module, name, made)
    return made


# ------------------------------------------------------------------- blocked event loops


class Loops:
    """`LoopHealth` with a scheduler and workers of one attribute each."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.scheduler: Any = SimpleNamespace(
            _last_tick_cycle=100.0, _last_tick_counter=7, _tick_counter=7
        )
        self.health = LoopHealth(self.scheduler)

    def report(self, at: float, observed: Any, address: str = "a") -> None:
        """A worker's registration or heartbeat, so many seconds after the start."""
        self.clock.now = 100.0 + at
        ws: Any = SimpleNamespace(address=address, metrics={"event_loop_interval": observed})
        self.health.heartbeat(ws)

    def cycle(self, length: float, ticks: int, seen: bool = True) -> None:
        """The scheduler has measured once more; `seen` if the bridge looks before it does again."""
        scheduler = self.scheduler
        scheduler._last_tick_cycle += length
        scheduler._last_tick_counter += ticks
        self.clock.now = scheduler._last_tick_cycle
        scheduler._tick_counter = scheduler._last_tick_counter
        if seen:
            self.health.tick()

    def exported(self, *series: tuple[str, str]) -> list[float | None]:
        batch = MetricBatch()
        self.health.add_to(batch)
        return [batch.increments.get(one) for one in series]

    def blocked(self, role: str) -> float | None:
        return self.exported((semconv.EVENT_LOOP_BLOCKED_TIME.name, role))[0]


@pytest.fixture
def loops(clock: Clock) -> Loops:
    return Loops(clock)


def test_a_thread_that_never_sleeps_has_a_cpu_or_is_starved(loops: Loops) -> None:
    """What others used is none of it: the readings around the bridge's own bound it."""
    names = (semconv.EVENT_LOOP_CPU_TIME.name, semconv.EVENT_LOOP_STARVED_TIME.name)
    series = [(name, "scheduler") for name in names]
    before = samples.thread_times()
    loops.exported(*series)
    began = samples.thread_times()
    looped(0.1)
    ended = samples.thread_times()
    with ThreadPoolExecutor(1) as other:
        other.submit(looped, 0.1).result()
    found = loops.exported(*series)
    after = samples.thread_times()
    assert ended[names[0]] - began[names[0]] >= 0.1
    for name, seconds in zip(names, found, strict=True):
        if name not in before:
            assert seconds is None
            continue
        assert ended[name] - began[name] <= seconds <= after[name] - before[name]
    assert after[names[0]] - before[names[0]] < 0.2, "another thread's CPU"


@pytest.mark.parametrize("text", [None, "0 0 0\n", "", "a b c\n", "5 2500000000 7\n"])
def test_where_the_system_does_not_tell_of_the_wait_it_is_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "schedstat"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(samples, "_SCHEDSTAT", str(path))
    times = samples.thread_times()
    del times[semconv.EVENT_LOOP_CPU_TIME.name]
    assert times == ({semconv.EVENT_LOOP_STARVED_TIME.name: 2.5} if text and text[0] == "5" else {})


@pytest.mark.parametrize(
    ("cycles", "blocked"),
    [
        # It keeps its pace.
        ([(1.0, 50 + second) for second in range(5)], 0.0),
        ([(1.0, 50), (1.0, 25)], 0.5),
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
    assert [loops.blocked("scheduler"), loops.blocked("scheduler")] == [pytest.approx(blocked), 0]


def test_an_export_has_the_blocks_until_then(loops: Loops) -> None:
    """Those before a block with a report are not in the report, and those in it are."""
    found = []
    # A tick is not late before it is due.
    for length, ticks in ((0.6, 5), (0.3, 15), (0.11, 5)):
        loops.clock.go(length)
        loops.scheduler._tick_counter += ticks
        found.append(loops.blocked("scheduler"))
    loops.cycle(0.6 + 0.3 + 0.11 + 0.49, 5 + 15 + 5 + 14)
    found.append(loops.blocked("scheduler"))
    assert found == pytest.approx([0.5, 0.0, 0.0, 0.6 - 19 * TICK])


@pytest.mark.parametrize(
    ("reports", "blocked"),
    [
        # It keeps its pace.
        ([(second, TICK - 1e-5 * second) for second in range(5)], 0.0),
        # A report stands for the time since the one before.
        ([(0.0, TICK), (2.0, 2 * TICK), (3.0, TICK / 2)], 1.0),
        # A worker may be blocked before its first heartbeat: the time begins with its registration.
        # The heartbeat was due in the block, and has the report from before.
        ([(0.0, TICK), (2.5, TICK), (2.75, 4 * TICK)], 2.75 * 0.75),
        # It kept exactly its pace for ten seconds, and was blocked for three.
        (
            [*((half / 2, TICK) for half in range(21)), (13.0, TICK), (13.5, 3.0)],
            3.5 - 3.5 * TICK / 3,
        ),
        # An unchanged report counts once.
        ([(0.0, TICK), *((tenth / 10, 2 * TICK) for tenth in range(10, 30))], 0.5),
        # One block that is longer than the time between two reports.
        ([(0.0, TICK), (0.5, 2.0)], 1.98),
        ([(0.0, None), (1.0, TICK), (2.0, None)], 0.0),
        # What is no number is not compared.
        ([(0.0, TICK), (1.0, Array()), (2.0, Array()), (3.0, 2 * TICK)], 1.0),
    ],
)
def test_what_a_worker_reports(loops: Loops, reports: list[Any], blocked: float) -> None:
    for at, observed in reports:
        loops.report(at, observed)
    assert loops.blocked("worker") == pytest.approx(blocked)


def test_workers_are_added_up_and_forgotten(loops: Loops) -> None:
    for second, address in product((0.0, 1.0), ("a", "b")):
        loops.report(second, (1 + second) * TICK, address)
    found = [loops.blocked("worker")]
    for address in ("a", "unknown"):
        loops.health.worker_removed(address)
    loops.report(9.0, 2 * TICK + 1e-9, "a")  # another one under the same address
    assert [*found, loops.blocked("worker")] == [pytest.approx(1.0), 0]


# --------------------------------------------------------------------- cost of transitions


def test_a_few_transitions_tell_what_all_of_them_cost(clock: Clock) -> None:
    #: Seconds that the hook takes.
    price = 0.001
    hook = Mock(side_effect=lambda *_, **__: clock.go(price))
    plugin: Any = SimpleNamespace(transition=hook)
    adapter: Any = Mock(transition=hook, wrappers=Wrappers(), **{"transitions.return_value": 7})
    cost = OwnCost(adapter)

    def transitions(count: int) -> float:
        adapter.transitions.return_value += count
        for _ in range(count):
            # Dask looks it up for each.
            plugin.transition("key", "waiting", "processing", stimulus_id="s")
            clock.go(1.0)
        return cost.take()

    # Before the first sample nothing is guessed.
    found = [transitions(100)]
    cost.sample(plugin)
    found += [transitions(0), transitions(SAMPLE + 1000)]
    seen = [call("key", "waiting", "processing", stimulus_id="s")] * (100 + SAMPLE + 1000)
    assert hook.call_args_list == seen
    # The last price goes on until there is a new one, which counts as much as all before.
    found.append(transitions(50))
    price = 0.003
    assert plugin.transition == hook
    cost.sample(plugin)
    found.append(transitions(SAMPLE))
    assert found == pytest.approx([0.0, 0.0, (SAMPLE + 1000) * 0.001, 0.05, SAMPLE * 0.002])
    # The adapter's own work is added once, also after an error.
    for seconds in (2.0, 0.25):
        work = Mock(side_effect=lambda taken: clock.go(taken) or 1 / 0)
        adapter.wrappers.run("tick", work, seconds)
        assert cost.take() == seconds

"""Hand-overs that meet a close, slow exporters, a hanging pump, and errors of ours."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker, span

from dask_otel import semconv
from dask_otel._wire import uninstall
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.records import ClusterEvent, Tags
from dask_otel.scheduler import bridge as module
from dask_otel.scheduler import hand_over
from dask_otel.scheduler.bridge import Bridge
from dask_otel.scheduler.plugin import install, plugin_of
from dask_otel.scheduler.wiring import WiredPump
from tests.unit.pumps import finished
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("what is handed over is looked at, not what is exported"),
]

RUNNING = (semconv.OTEL_RUNNING.name,)


class Pump:
    """Keeps what it gets; closes a while after it was asked to."""

    def __init__(self) -> None:
        self.batches: list[MetricBatch] = []
        self.events: list[ClusterEvent] = []
        self.notices: list[Any] = []
        self.accepts = True
        self.looked = 0
        self.asked = self.closed = self.started = False

    def start(self) -> None:
        self.started = True

    def accepts_metrics(self) -> bool:
        return self.accepts

    def look(self) -> None:
        self.looked += 1

    def offer_metrics(self, batch: MetricBatch) -> None:
        self.batches.append(batch)

    def offer_span(self, finished: Any) -> bool:
        return True

    def offer_event(self, event: ClusterEvent, counted: bool = True) -> bool:
        self.events.append(event)
        return True

    def request_close(self, seconds: float) -> None:
        self.asked = True
        asyncio.get_running_loop().call_later(0.3, setattr, self, "closed", True)

    def release(self) -> None:
        """Nothing to let go of."""


async def until(check: Callable[[], Any]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, eventually, check)


@asynccontextmanager
async def bridged(
    monkeypatch: pytest.MonkeyPatch,
    pump: Pump,
    made: threading.Event | None = None,
    close_timeout: str = "40s",
) -> AsyncIterator[tuple[Scheduler, Bridge]]:
    """A scheduler with a bridge whose pump is made as soon as `made` is set."""

    def make_pump(*args: Any, **kwargs: Any) -> WiredPump:
        if made is not None:
            assert made.wait(30)
        return WiredPump(pump, 0.05, "to a test")  # type: ignore[arg-type]

    monkeypatch.setattr(module, "make_pump", make_pump)
    async with Scheduler(port=0, dashboard_address=":0") as scheduler:
        overrides = {"close-timeout": close_timeout, "spans": {"linger": 0}}
        assert install(scheduler, overrides) == "started"
        plugin = plugin_of(scheduler)
        assert plugin is not None
        assert plugin.bridge is not None
        yield scheduler, plugin.bridge


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test that is a coroutine."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run


def total(pump: Pump, *series: Any) -> float:
    return sum(batch.increments.get(series, 0) for batch in pump.batches)


@on_a_loop
async def test_the_last_batch_of_a_close_is_the_last_where_exporters_come_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pump, made = Pump(), threading.Event()
    async with bridged(monkeypatch, pump, made) as (scheduler, _):
        asyncio.get_running_loop().call_later(0.2, made.set)
        assert await uninstall(scheduler) == "stopped"
    assert pump.asked
    assert [batch.levels[RUNNING] for batch in pump.batches] == [0]


@on_a_loop
async def test_exporters_that_come_after_the_close_are_released(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pump, made = Pump(), threading.Event()
    async with bridged(monkeypatch, pump, made, "100ms") as (scheduler, bridge):
        assert await uninstall(scheduler) == "stopped"
        assert not pump.started
        assert "before its exporters were made" in caplog.text
        made.set()
        assert bridge._connecting is not None
        await bridge._connecting
        assert pump.started
        assert pump.asked
        assert not bridge._timers
        assert pump.batches == []


@on_a_loop
async def test_threads_that_can_not_be_started_end_the_bridge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise RuntimeError("can't start new thread")

    pump = Pump()
    monkeypatch.setattr(pump, "start", fail)
    async with bridged(monkeypatch, pump) as (scheduler, bridge):
        await until(lambda: plugin_of(scheduler) is None)
        assert not bridge._timers
        assert not bridge.adapter.wrappers.attached


@on_a_loop
async def test_a_close_does_not_wait_for_workers_that_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pump = Pump()
    # No tick comes, and no heartbeat.
    monkeypatch.setattr(module, "TICK", 3600.0)
    monkeypatch.setattr(module, "IDLE_TICK", 3600.0)
    monkeypatch.setattr(module, "LAST_WORDS", 30.0)
    monkeypatch.setattr(module, "LONGEST", 0.0)
    async with bridged(monkeypatch, pump) as (scheduler, bridge):
        async with (
            Worker(scheduler.address, nthreads=1, heartbeat_interval="1h"),
            Client(scheduler.address, asynchronous=True) as client,
        ):
            # More spans than end in one tick.
            for number in range(5):
                with span(f"s{number}"):
                    assert await client.submit(pow, number, 2, key=f"k{number}") == number**2
        assert bridge.adapter.lifecycle.settling
        closing = time.monotonic()
    assert time.monotonic() - closing < 10
    assert not bridge.adapter.lifecycle.settling
    assert pump.closed
    assert len(bridge.adapter.lifecycle.open) == 0
    assert bridge.adapter.lifecycle.unsettled == 0


@on_a_loop
async def test_what_a_call_leaves_to_do_decides_the_pause_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bridged(monkeypatch, Pump()) as (_, bridge):
        calls = 0
        pauses = {0: 0.0, 1: 0.0, 2: 3600.0}

        def call() -> None:
            nonlocal calls
            calls += 1
            raise RuntimeError("ours")

        bridge._every("test", lambda: pauses[calls], call)
        await until(lambda: calls == 2)
        before = bridge._timers["test"].when()
        assert before - asyncio.get_running_loop().time() > 3000


@pytest.mark.parametrize(
    "step", ["adapter.fold_time_now", "hand_over.spans", "hand_over.last_metrics"]
)
@on_a_loop
async def test_an_error_of_ours_leaves_no_pump_behind(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("ours")

    pump = Pump()
    async with bridged(monkeypatch, pump) as (scheduler, bridge):
        await until(lambda: pump.batches)
        owner, name = step.split(".")
        monkeypatch.setattr(getattr(bridge, owner), name, fail)
        assert await uninstall(scheduler) == "stopped"
    assert pump.asked
    assert pump.closed


@on_a_loop
async def test_a_hand_over_that_fails_loses_no_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    pump = Pump()
    async with bridged(monkeypatch, pump) as (_, bridge):
        levels, failures = bridge.adapter._levels, iter(range(3))

        def fail() -> Any:
            for _ in failures:
                raise RuntimeError("ours")
            return levels()

        monkeypatch.setattr(bridge.adapter, "_levels", fail)
        await until(lambda: total(pump, semconv.OTEL_INTERNAL_ERRORS.name, "metrics") == 3)


@on_a_loop
async def test_while_every_exporter_hangs_time_is_kept_by_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: set[Tags] = {("work",)}

    pump = Pump()
    pump.accepts = False
    async with (
        bridged(monkeypatch, pump) as (scheduler, bridge),
        Worker(scheduler.address, nthreads=2, heartbeat_interval="50ms"),
        Client(scheduler.address, asynchronous=True) as client,
    ):
        ids = []
        for number in range(5):
            with span("work") as span_id:
                ids.append(span_id)
                assert await client.submit(pow, number, 2, key=f"k{number}") == number**2
        accounting = bridge.adapter.time.accounting
        idle = semconv.SPAN_IDLE_TIME.name

        def kept() -> Any:
            batch = bridge.adapter.batch
            return (
                set(ids) == set(batch.span_deltas)
                and {series[1] for series in batch.increments if series[0] == idle} == names
            )

        await until(kept)
        await until(lambda: not accounting._span_reported and not accounting._sharing.shares)
        assert pump.batches == []
        assert pump.looked, "open requests are looked after while all of them hang, too"
        pump.accepts = True
        await until(lambda: pump.batches)
        cluster = total(pump, semconv.CLUSTER_TIME.name, "idle")
        assert cluster > 0
        assert total(pump, idle, ("work",)) == pytest.approx(cluster)


@on_a_loop
async def test_events_wait_for_the_exporters_and_leave_no_room_to_logs_beyond_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pump, made = Pump(), threading.Event()
    monkeypatch.setattr(hand_over, "MAX_EVENTS", 10)
    async with bridged(monkeypatch, pump, made) as (_, bridge):
        put = bridge.hand_over.event
        (event, log) = (
            ClusterEvent(float(number), name, weight=number)
            for number, name in [(1, semconv.CLIENT_ADDED), (2, semconv.WORKER_LOG)]
        )
        # The scheduler's start is there already.
        assert [put(log), put(log), put(log)] == [True, True, False]
        assert not put(replace(log, weight=7), counted=False)
        assert [put(event) for _ in range(6)] == [True] * 5 + [False]
        made.set()
        await until(lambda: total(pump, semconv.OTEL_DROPPED.name, "logs", "not_ready") == 2 + 1)
        assert [one.name for one in pump.events[:1]] == [semconv.OTEL_STARTED]
        assert pump.events[1:] == [log, log, *[event] * 5]
        assert put(log)
        assert pump.events[-1] is log


@on_a_loop
async def test_spans_that_no_exporter_was_there_for_are_counted_and_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pump, made = Pump(), threading.Event()
    monkeypatch.setattr(hand_over, "MAX_WAITING", 2)
    async with bridged(monkeypatch, pump, made) as (_, bridge):
        bridge.adapter.lifecycle.finished += [finished(n, groups=1) for n in range(5)]
        await until(lambda: len(bridge.hand_over._waiting) == 2)
        made.set()
        dropped = (semconv.OTEL_DROPPED.name, "traces", "not_ready")
        # A span and its group each.
        await until(lambda: total(pump, *dropped) == 6)
        await until(lambda: len([o for b in pump.batches for o in b.observations]) == 5)

"""Hand-overs that meet a close, slow exporters, a hanging pump, and errors of ours."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import dask
import pytest
from distributed import span

import dask_otel
from dask_otel import semconv
from dask_otel._wire import install
from dask_otel.core.records import ClusterEvent
from dask_otel.pump.feeder import Feeder
from dask_otel.pump.pump import Pump
from dask_otel.scheduler import bridge as module
from dask_otel.scheduler import hand_over
from dask_otel.scheduler.bridge import Bridge
from dask_otel.scheduler.plugin import bridge_of
from dask_otel.scheduler.wiring import WiredPump
from tests.simulated.bridged import Bridged

pytestmark = pytest.mark.options(
    workers=1, begins=False, faults=True, unreconciled="the bridge fails, or begins late"
)

RUNNING, ERRORS = semconv.OTEL_RUNNING.name, semconv.OTEL_INTERNAL_ERRORS.name
DROPPED, IDLE = semconv.OTEL_DROPPED.name, semconv.SPAN_IDLE_TIME.name


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Exporters are made as soon as it is set."""
    gate, make = threading.Event(), module.make_pump

    def made_late(*args: Any, **kwargs: Any) -> WiredPump | None:
        assert gate.wait(60)
        return make(*args, **kwargs)

    monkeypatch.setattr(module, "make_pump", made_late)
    return gate


def begun(b: Bridged, timeout: str = "40s") -> Bridge:
    """Start a bridge."""
    b.begin({"close-timeout": timeout, "spans": {"linger": 0}})
    bridge: Bridge = b.bridge
    return bridge


def last(b: Bridged, metric: str) -> dict[tuple[str, ...], float]:
    """Return the last values of a metric by its labels."""
    return {tuple(dict(k).values()): value for k, value in b.received.last(metric).items() if value}


def test_the_last_batch_of_a_close_is_the_last_where_exporters_come_late(
    b: Bridged, made: threading.Event
) -> None:
    begun(b)
    b.cluster.loop.call_later(0.2, made.set)
    assert dask_otel.unregister(b.client) == "stopped"
    assert [point.value for point in b.received.points if point.metric == RUNNING] == [0]


def test_exporters_that_come_after_the_close_are_released(
    b: Bridged, made: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    bridge, before = begun(b, "100ms"), time.monotonic()
    assert dask_otel.unregister(b.client) == "stopped"
    assert time.monotonic() - before == pytest.approx(0.1, abs=0.03)
    assert "before its exporters were made" in caplog.text
    made.set()
    time.sleep(0.1)
    assert b.threads
    assert all(thread.closed.is_set() for thread in b.threads)
    assert not bridge._timers
    assert b.received.points == []


def test_threads_that_can_not_be_started_end_the_bridge(
    b: Bridged, monkeypatch: pytest.MonkeyPatch, made: threading.Event
) -> None:
    def fail(_: Pump) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Pump, "start", fail)
    bridge = begun(b)
    made.set()
    time.sleep(0.1)
    assert bridge_of(b.scheduler) is None
    assert not bridge._timers
    assert not bridge.adapter.wrappers.attached


def test_a_close_does_not_wait_for_workers_that_are_gone(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No tick comes, and no heartbeat.
    monkeypatch.setattr(module, "TICK", 3600.0)
    monkeypatch.setattr(module, "IDLE_TICK", 3600.0)
    monkeypatch.setattr(module, "LAST_WORDS", 30.0)
    monkeypatch.setattr(module, "LONGEST", 0.0)
    b.cluster.heartbeats["w0"] = lambda: 3600.0
    bridge = begun(b)
    # More spans than end in one tick.
    for number in range(5):
        with span(f"s{number}"):
            assert b.client.submit(pow, number, 2, key=f"k{number}").result() == number**2
    assert bridge.adapter.lifecycle.settling
    b.cluster.kill("w0")
    time.sleep(0.1)
    before = time.monotonic()
    assert dask_otel.unregister(b.client) == "stopped"
    assert time.monotonic() - before < 1.0
    assert not bridge.adapter.lifecycle.settling
    assert len(bridge.adapter.lifecycle.open) == bridge.adapter.lifecycle.unsettled == 0


def test_what_a_call_leaves_to_do_decides_the_pause_after_it(b: Bridged) -> None:
    bridge, calls = begun(b), []
    pauses = [0.0, 0.0, 3600.0]

    def call() -> None:
        calls.append(b.cluster.loop.now)
        raise RuntimeError("ours")

    async def begin() -> None:
        bridge._every("test", lambda: pauses[len(calls)], call)

    b.cluster.do("scheduler", begin)
    time.sleep(5.0)
    assert len(calls) == 2
    assert bridge._timers["test"].when() - calls[-1] == pytest.approx(3600.0)


@pytest.mark.parametrize(
    "step", ["adapter.fold_time_now", "hand_over.spans", "hand_over.last_metrics"]
)
def test_an_error_of_ours_leaves_no_pump_behind(
    b: Bridged, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("ours")

    bridge = begun(b)
    time.sleep(3.0)
    owner, name = step.split(".")
    monkeypatch.setattr(getattr(bridge, owner), name, fail)
    assert dask_otel.unregister(b.client) == "stopped"
    assert all(thread.closed.is_set() for thread in b.threads)


def test_a_hand_over_that_fails_loses_no_counts(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = begun(b)
    levels, failures = bridge.adapter._levels, iter(range(3))

    def fail() -> Any:
        for _ in failures:
            raise RuntimeError("ours")
        return levels()

    monkeypatch.setattr(bridge.adapter, "_levels", fail)
    time.sleep(10.0)
    assert last(b, ERRORS) == {("metrics",): 3}


def test_while_every_exporter_hangs_time_is_kept_by_names(
    b: Bridged, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Pump] = []
    monkeypatch.setattr(Pump, "look", lambda pump: looked.append(pump))
    with monkeypatch.context() as patch:
        patch.setattr(Pump, "accepts_metrics", lambda _: False)
        bridge, ids = begun(b), []
        for number in range(5):
            with span("work") as span_id:
                ids.append(span_id)
                b.client.submit(time.sleep, 1.0, key=f"s{number}").result()
        time.sleep(4.0)
        batch, accounting = bridge.adapter.batches.open, bridge.adapter.time.accounting
        assert set(ids) == set(batch.span_deltas)
        assert [series[1] for series in batch.increments if series[0] == IDLE] == [("work",)]
        assert not accounting._span_reported
        assert not accounting._sharing.shares
        assert b.received.points == []
        assert looked, "open requests are looked after while all of them hang, too"
    time.sleep(3.0)
    # One of two threads, while the other one slept.
    (idle,) = last(b, IDLE).values()
    assert idle == pytest.approx(5.0, abs=1e-3)
    assert last(b, semconv.CLUSTER_TIME.name)["idle",] == pytest.approx(idle)


def test_events_wait_for_the_exporters_and_leave_no_room_to_logs_beyond_half(
    b: Bridged, monkeypatch: pytest.MonkeyPatch, made: threading.Event
) -> None:
    events: list[ClusterEvent] = []
    monkeypatch.setattr(Feeder, "offer", lambda _, event, *__: events.append(event) is None)
    monkeypatch.setattr(hand_over, "MAX_EVENTS", 10)
    put = begun(b).hand_over.event
    event, log = (
        ClusterEvent(float(number), name, weight=number)
        for number, name in [(1, semconv.CLIENT_ADDED), (2, semconv.WORKER_LOG)]
    )
    # The bridge's start is there already.
    assert [put(log), put(log), put(log)] == [True, True, False]
    assert not put(replace(log, weight=7), counted=False)
    assert [put(event) for _ in range(6)] == [True] * 5 + [False]
    made.set()
    time.sleep(3.0)
    assert last(b, DROPPED) == {("not_ready", "logs"): 2 + 1}
    assert events[0].name == semconv.OTEL_STARTED
    assert events[1:] == [log, log, *[event] * 5]
    assert put(log)
    assert events[-1] is log


def test_spans_that_no_exporter_was_there_for_are_counted_and_measured(
    b: Bridged, monkeypatch: pytest.MonkeyPatch, made: threading.Event
) -> None:
    monkeypatch.setattr(hand_over, "MAX_WAITING", 2)
    bridge = begun(b)
    for number in range(5):
        with span(f"s{number}"):
            b.client.submit(pow, number, 2, key=f"k{number}").result()
    time.sleep(2.0)
    assert len(bridge.hand_over._waiting_spans) == 2
    made.set()
    time.sleep(3.0)
    # A span, its group and its slowest task each.
    assert last(b, DROPPED) == {("not_ready", "traces"): 9}
    assert len(b.received.last(semconv.SPAN_DURATION.name)) == 5


def test_a_wrong_setting_is_one_error_and_the_scheduler_runs_on(
    b: Bridged, caplog: pytest.LogCaptureFixture
) -> None:
    """Other values, and variables, without a scheduler: tests/otlp/test_configuration.py."""
    with dask.config.set({"otel.spans.settle-timeout": "soon"}):
        assert b.client.run_on_scheduler(install, config={}) == "off"
    assert bridge_of(b.scheduler) is None
    extension = b.scheduler.extensions["spans"]
    assert not any(hasattr(value, "__wrapped__") for value in vars(extension).values())
    assert b.client.submit(sum, [2, 3]).result() == 5
    (record,) = [one for one in caplog.records if "dask_otel" in one.name]
    assert (record.levelname, record.exc_info) == ("ERROR", None)
    assert "otel.spans.settle-timeout" in record.getMessage()

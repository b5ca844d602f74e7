"""A bridge that is stopped on a scheduler that goes on, and started again: nothing is told twice.

Its stop is not the end of the scheduler, nor of anybody's job.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from distributed import fire_and_forget, span

import dask_otel
from dask_otel._wire import install, uninstall
from dask_otel.scheduler.plugin import NAME, OtelSchedulerPlugin
from tests.cluster.conftest import Bridged, Start
from tests.receiver import Receiver, Span
from tests.waiting import eventually, last_reports

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("work is done between two bridges"),
]

UNSET, ERROR = 0, 2

#: What the tasks wait for.
GATES: dict[str, threading.Event] = {}


@pytest.fixture(autouse=True)
def gates() -> Iterator[None]:
    for name in "abc":
        GATES[name] = threading.Event()
    yield
    for gate in GATES.values():
        gate.set()


def behind(gate: str, number: int = 0) -> int:
    assert GATES[gate].wait(60)
    return number


def boom() -> None:
    raise KeyError("b")


def running(bridged: Bridged) -> int:
    return sum(len(w.state.executing) for w in bridged.cluster.workers.values())


def of(received: Receiver, name: str) -> list[Span]:
    found = [s for s in received.spans if s.type == "span" and s.name == name]
    return sorted(found, key=generation)


def generation(span: Span) -> int:
    return int(span.attributes["dask.span.generation"])


def results(spans: list[Span]) -> list[str]:
    return [s.attributes["dask.span.result"] for s in spans]


def assert_told_once(received: Receiver) -> None:
    """No id twice, and every continuation has its link."""
    ids = Counter((s.trace_id, s.span_id) for s in received.spans)
    assert set(ids.values()) == {1}, ids
    spans = [s for s in received.spans if s.type == "span"]
    firsts = {s.attributes["dask.span.id"]: s for s in spans if generation(s) == 1}
    for continued in (s for s in spans if generation(s) > 1):
        first = firsts[continued.attributes["dask.span.id"]]
        assert [link[:2] for link in continued.links] == [(first.trace_id, first.span_id)]


def test_a_healthy_job_is_not_red_and_goes_on_as_its_next_generation(bridged: Bridged) -> None:
    client, received = bridged.client, bridged.received
    with span("outer"), span("job") as job_id:
        futures = [client.submit(behind, gate, key=gate) for gate in "abc"]
    eventually(lambda: running(bridged) == 2)
    assert dask_otel.unregister(client) == "stopped"
    for name in ("outer", "job"):
        (first,) = of(received, name)
        assert first.attributes["dask.span.result"] == "unknown"
        assert first.attributes["dask.span.complete"] is False
        assert first.status == UNSET
        assert "error.type" not in first.attributes
    # How long it takes is not known, nor whether anything is queued.
    assert not [p for p in received.points if p.metric == "dask.span.duration"]

    GATES["a"].set()
    eventually(futures[0].done)
    assert dask_otel.register(client) == "started"
    GATES["b"].set()
    GATES["c"].set()
    assert client.gather(futures) == [0, 0, 0]
    received.wait_for(lambda r: len(of(r, "job")) == 2)
    first, second = of(received, "job")
    assert results([first, second]) == ["unknown", "success"]
    assert second.trace_id == first.trace_id
    assert second.parent_id == first.parent_id
    assert second.start_ns >= first.end_ns
    assert second.attributes["dask.span.complete"] is True
    # One ended while nobody looked.
    assert second.attributes["dask.task.count"] == 2
    metrics = dask_otel.span_metrics(client, job_id)
    assert metrics.result is None
    assert metrics.counts is not None
    assert (metrics.counts["tasks"], metrics.counts["memory"]) == (2, 2)
    assert_told_once(received)


def test_a_failure_is_one_although_the_rest_is_not_known(bridged: Bridged) -> None:
    client, received = bridged.client, bridged.received
    with span("bad") as bad_id:
        failing = client.submit(boom)
        going_on = client.submit(behind, "a", 1)
    eventually(lambda: failing.status == "error")
    assert dask_otel.unregister(client) == "stopped"
    (first,) = of(received, "bad")
    assert (first.status, first.attributes["dask.span.result"]) == (ERROR, "failure")
    assert first.attributes["error.type"] == "KeyError"
    assert dask_otel.register(client) == "started"
    GATES["a"].set()
    assert going_on.result() == 1
    received.wait_for(lambda r: len(of(r, "bad")) == 2)
    assert results(of(received, "bad")) == ["failure", "success"]
    # Asked for the whole, it has failed.
    assert dask_otel.span_metrics(client, bad_id).result == "failure"


def test_a_scheduler_that_closes_ends_the_work(start: Start) -> None:
    with start(n_workers=0) as bridged:
        with span("cut"):
            fire_and_forget(bridged.client.submit(behind, "a"))
        eventually(lambda: bridged.bridge.adapter.lifecycle.open)
        received = bridged.received
    (cut,) = of(received, "cut")
    assert cut.attributes["dask.span.result"] == "error"
    assert cut.attributes["error.type"] == "SchedulerClosed"
    assert cut.status == ERROR


async def by_register(scheduler: Any) -> None:
    await scheduler.unregister_scheduler_plugin(NAME)
    assert await install({}, scheduler) == "started"


async def by_plugin(scheduler: Any, name: str | None = None) -> None:
    if name is None:
        await scheduler.unregister_scheduler_plugin(NAME)
    plugin = OtelSchedulerPlugin()
    await scheduler.register_scheduler_plugin(plugin, name=name, idempotent=True)


async def beside_it(scheduler: Any) -> None:
    """Nothing changes."""
    await by_plugin(scheduler, "mine")


async def while_it_leaves(scheduler: Any) -> None:
    leaving = asyncio.ensure_future(uninstall(scheduler))
    await asyncio.sleep(0)
    assert scheduler.plugins[NAME].bridge.leaving
    assert [await install({}, scheduler), await leaving] == ["started", "stopped"]


@pytest.mark.parametrize("replace", [by_register, by_plugin, beside_it, while_it_leaves])
def test_a_plugin_that_is_replaced_without_a_word(bridged: Bridged, replace: Any) -> None:
    """`Client.unregister_scheduler_plugin` tells it nothing, and the next one comes at once."""
    client, received, before = bridged.client, bridged.received, bridged.bridge
    with span("job"):
        future = client.submit(behind, "a", 1)
    eventually(lambda: running(bridged) == 1)
    client.sync(replace, bridged.scheduler)
    assert (bridged.bridge is before) == (replace is beside_it)
    GATES["a"].set()
    assert future.result() == 1
    expected = ["success"] if replace is beside_it else ["unknown", "success"]
    received.wait_for(lambda r: len(of(r, "job")) == len(expected))
    eventually(lambda: bridged.exporting)
    client.sync(bridged.bridge.close)
    assert results(of(received, "job")) == expected
    assert_told_once(received)


async def heard(scheduler: Any) -> None:
    """Wait for a heartbeat of each worker: Dask caches a handler when it calls it."""
    before = {ws: ws.last_seen for ws in scheduler.workers.values()}
    while any(ws.last_seen == seen for ws, seen in before.items()):
        await asyncio.sleep(0.01)


@pytest.mark.options({"metrics": {"prometheus": True}})
def test_a_bridge_that_is_gone_is_not_kept_alive(bridged: Bridged) -> None:
    client, scheduler, bridges = bridged.client, bridged.scheduler, []
    extension = scheduler.extensions["spans"]
    GATES["a"].set()
    for _ in range(3):
        with span("job"):
            assert client.submit(behind, "a", 1, pure=False).result() == 1
        client.sync(heard, scheduler)
        bridges.append(weakref.ref(bridged.bridge))
        # Another library wraps one of our wrappers, and keeps it.
        wrapped = extension.observe_tasks
        extension.observe_tasks = lambda *args, _call=wrapped, **kwargs: _call(*args, **kwargs)
        assert dask_otel.unregister(client) == "stopped"
        assert dask_otel.register(client) == "started"
        eventually(lambda: bridged.exporting, what="exporters")
    gc.collect()
    assert [bridge() for bridge in bridges] == [None] * 3


def test_totals_begin_anew_and_nothing_is_booked_twice(bridged: Bridged) -> None:
    client, received = bridged.client, bridged.received
    with span("job"):
        first = client.submit(time.sleep, 0.4)
        going_on = client.submit(behind, "a")
    first.result()
    eventually(lambda: running(bridged) == 1)
    # What Dask knows is compared: no heartbeat may come between the two.
    client.sync(last_reports, bridged.cluster.workers.values())
    assert executed(bridged) >= 0.4
    assert dask_otel.unregister(client) == "stopped"
    off = time.time_ns()
    count = len(received.points)
    told = total(received.points)
    known = executed(bridged)
    assert told == pytest.approx(known)
    assert last(received.points, "dask.span.active", "job") == 0
    assert dask_otel.register(client) == "started"
    client.sync(report_again, bridged.cluster.workers.values())
    GATES["a"].set()
    going_on.result()
    received.wait_for(lambda r: len(of(r, "job")) == 2)
    client.sync(last_reports, bridged.cluster.workers.values())
    assert dask_otel.unregister(client) == "stopped"
    points = received.points[count:]
    # Seconds that were told before are not told again; those of the run that went on are.
    assert total(points) == pytest.approx(executed(bridged) - known)
    assert last(points, "dask.span.active", "job") == 0
    for point in points:
        if point.kind in ("sum", "histogram") and point.start_ns:
            assert off <= point.start_ns <= point.time_ns, point
    # Every counter begins with 0 at a time of its own, so that a reset is seen as one.
    for series in {p.series for p in points if p.monotonic}:
        values = [p for p in points if p.series == series]
        assert values[0].value == 0 or values[0].start_ns >= off, series
        assert values[0].time_ns >= off
    assert {p.resource["service.instance.id"] for p in received.points} == {bridged.scheduler.id}


async def report_again(workers: Iterable[Any]) -> None:
    """Take back `last_reports`."""
    for worker in workers:
        worker.periodic_callbacks["heartbeat"].start()


def executed(bridged: Bridged) -> float:
    """Execute seconds that Dask knows of the span."""
    (job,) = [s for s in bridged.scheduler.extensions["spans"].spans.values() if s.name == ("job",)]
    values = job._cumulative_worker_metrics.items()
    return sum(v for key, v in values if key[0] == "execute" and key[-1] == "seconds")


def total(points: list[Any]) -> float:
    newest = {p.series: p.value for p in points if p.metric == "dask.span.execute.time"}
    return sum(newest.values())


def last(points: list[Any], metric: str, name: str) -> Any:
    found = [p for p in points if p.metric == metric and p.attributes["dask.span.name"] == name]
    return found[-1].value

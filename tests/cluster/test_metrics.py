"""Every metric of the contract, from a real cluster to the receiver; workers, loops, odd keys."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, get_worker, span, wait
from distributed.metrics import context_meter

from dask_otel import semconv
from dask_otel.core.context import CARRIER_KEY
from dask_otel.core.metrics.families import Family
from dask_otel.semconv import METRICS
from tests.cluster.conftest import Bridged, Start
from tests.receiver import Point, Receiver
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

DELTA, CUMULATIVE = 1, 2

#: Workers are threads of this process.
GATE = threading.Event()


def meter(x: int) -> int:
    for unit in ("seconds", "bytes", "count", "rows"):
        context_meter.digest_metric("mine", 3, unit)
    # Not the cluster's: its idle seconds are still those of the spans.
    context_meter.digest_metric("idle", 0.01, "seconds")
    time.sleep(0.02)
    return x


def fail_once(marker: str) -> None:
    state = get_worker().__dict__.setdefault("_test_failed", set())
    if marker not in state:
        state.add(marker)
        raise ValueError(marker)


def behind_gate(number: int) -> int:
    assert GATE.wait(60)
    return number


class FailsToLoad:
    """Can be pickled, but not unpickled: a graph with it can't be made into tasks."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)


def last_points(received: Receiver, metric: str, at: int | None = None) -> dict[Any, Any]:
    """Return {label values: value} of the last export, or of the one at a time."""
    times = [p.time_ns for p in received.points if p.metric == "dask.otel.running"]
    when = at if at is not None else max(times, default=None)
    return {
        tuple(p.attributes.values()): p.value
        for p in received.points
        if p.metric == metric and p.time_ns == when
    }


def exports(received: Receiver) -> list[int]:
    return sorted({p.time_ns for p in received.points if p.metric == "dask.otel.running"})


def next_exports(received: Receiver, count: int) -> None:
    """Wait until so many more exports have come."""
    there = len(exports(received))
    eventually(lambda: len(exports(received)) >= there + count, what="another export")


# ------------------------------------------------------------------------- every metric


def shuffle(client: Client) -> None:
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    frame = dd.from_pandas(pd.DataFrame({"a": range(200), "b": range(200)}), npartitions=4)
    with span("shuffle"):
        assert len(client.compute(frame.shuffle("a", shuffle_method="p2p")).result()) == 200


def lose_a_worker(c: Bridged) -> None:
    """Let a worker go while it runs a task."""
    scheduler = c.scheduler
    GATE.clear()
    with span("lost"):
        held = c.client.submit(behind_gate, 1, key="held", workers=[2], allow_other_workers=True)
    running = lambda: "held" in scheduler.tasks and scheduler.tasks["held"].processing_on  # noqa: E731
    worker = eventually(running, what="the task is on a worker")
    c.client.sync(scheduler.remove_worker, address=worker.address, stimulus_id="lost")
    GATE.set()
    assert held.result() == 1
    GATE.clear()


def everything(c: Bridged) -> None:
    """Do something for each metric."""
    client, scheduler = c.client, c.scheduler
    lose_a_worker(c)
    with span("work") as late_id:
        wait(client.map(meter, range(8), pure=False))
        client.submit(fail_once, "marker", retries=2).result()
        parts = [client.submit(bytes, 100_000 + i, workers=[i % 2]) for i in range(4)]
        client.submit(lambda *parts: sum(map(len, parts)), *parts).result()
    with span("first"):
        kept = client.map(twice, range(2), pure=False)
        wait(kept)
    with span("second"):  # Dask books it on the first
        wait(client.map(twice, range(2), pure=False))
    del kept
    with span("denied", 7), dask.annotate(**{CARRIER_KEY: "of a user's"}):
        client.submit(abs, -1).result()
    shuffle(client)
    with pytest.raises(Exception):  # noqa: B017 - what it becomes is Dask's
        client.submit(len, FailsToLoad()).result()
    eventually(lambda: not c.bridge.adapter.lifecycle.open, what="every span is exported")

    async def inject() -> None:
        bridge = c.bridge

        def broken(message: Any) -> None:
            raise RuntimeError("on purpose")

        bridge.adapter.task_events.stolen = broken
        scheduler.log_event("stealing", "anything")
        del bridge.adapter.task_events.stolen
        # A heartbeat that comes too late for its span to be waited for.
        bridge.adapter.lifecycle.unsettled += 1

    client.sync(inject)  # on the scheduler's own loop

    def digest(dask_worker: Any) -> None:
        for unit in ("seconds", "bytes", "count"):
            dask_worker.digest_metric(("memory-monitor", "disk-write", unit), 5)
        dask_worker.digest_metric(("execute", late_id, "meter", "after", "seconds"), 0.25)
        dask_worker.digest_metric(("gpu", "kernel", "seconds"), 1)

    client.run(digest, workers=[next(iter(scheduler.workers))])


@pytest.mark.relabelled("a name is denied")
@pytest.mark.filterwarnings("ignore:Dask annotations:UserWarning")
def test_every_metric_of_the_contract_comes_as_it_is_defined(start: Start, tmp_path: Path) -> None:
    config = {
        "metrics": {"span-names": {"deny": ["denied*"]}, "tag-attributes": ["team"]},
        "spool": {"path": str(tmp_path / "spool")},
    }
    with start(config, n_workers=3, silence_logs=logging.CRITICAL) as c:
        everything(c)
        missing = lambda: METRICS.keys() - {p.metric for p in c.received.points}  # noqa: E731
        eventually(lambda: not missing(), what="every metric was exported")
        counted = lambda: ("traces",) in last_points(c.received, "dask.otel.exported")  # noqa: E731
        eventually(counted, what="the spans have gone out, and were counted")
        next_exports(c.received, 1)
        points = c.received.points
    assert {p.metric for p in points} == METRICS.keys()
    for point in points:
        check_definition(point)
    received = c.received
    assert last_points(received, "dask.otel.internal.errors") == {("log_event",): 1}
    assert last_points(received, "dask.otel.unsettled") == {("timeout",): 1}
    assert last_points(received, "dask.otel.dropped") == {("traces", "graph_failed"): 1}
    assert last_points(received, "dask.otel.late") == {("seconds",): 0.25}
    assert last_points(received, "dask.otel.folded")["denied_names",] >= 1
    sanitized = last_points(received, "dask.otel.sanitized")
    assert sanitized["unknown_key",] == 1
    assert sanitized["type",] >= 1
    exported = last_points(received, "dask.otel.exported")
    assert exported.keys() == {("traces",), ("metrics",), ("logs",)}
    capacity = last_points(received, "dask.otel.queue.capacity")
    assert capacity == {("traces",): 2048, ("logs",): 2048}


def check_definition(point: Point) -> None:
    metric = METRICS[point.metric]
    kinds = {"counter": "sum", "updowncounter": "sum", "gauge": "gauge", "histogram": "histogram"}
    assert (point.unit, point.kind) == (metric.unit, kinds[metric.instrument]), point
    if point.kind == "sum":
        assert point.monotonic is (metric.instrument == "counter"), point
    if point.kind != "gauge":
        assert point.temporality == CUMULATIVE
    if point.kind != "histogram":
        assert point.is_int is metric.integer, point
    keys = Family(metric, ("dask.tag.team",)).keys
    assert tuple(point.attributes) == keys, point
    assert all(isinstance(value, str) and value for value in point.attributes.values())


def test_durations_of_runs_come_by_prefix(bridged: Bridged) -> None:
    client = bridged.client
    with span("slow"):
        wait(client.map(time.sleep, [0.15] * 4, key="slow", pure=False))
        wait(client.map(meter, range(30), key="quick"))
        failed = client.submit(fail_once, "durations")
        wait(failed)
    durations = bridged.exported().last("dask.task.duration")
    by_prefix = {dict(labels)["dask.task.prefix"]: value for labels, value in durations.items()}
    counts = {prefix: value["count"] for prefix, value in by_prefix.items()}
    assert counts == {"slow": 4, "quick": 30, "fail_once": 1}
    assert 0.6 <= by_prefix["slow"]["sum"] < 60.0
    assert by_prefix["slow"]["buckets"][0] == 0  # none below 0.1 s
    assert by_prefix["quick"]["bounds"] == list(semconv.DURATION_BOUNDS)


# ------------------------------------------------------------------------------ workers


@pytest.mark.options(n_workers=2, threads_per_worker=3)
def test_workers_are_shown_as_the_scheduler_sees_them(bridged: Bridged) -> None:
    held = bridged.client.submit(bytes, 1_000_000, workers=[0], key="held")
    busy = bridged.client.map(behind_gate, range(4), workers=[1], pure=False)
    wait(held)

    def seen() -> bool:
        tasks = last_points(bridged.received, "dask.worker.task.count")
        managed = last_points(bridged.received, "dask.worker.memory.managed")
        return (
            tasks.get(("1", "executing")) == 3
            and tasks[("1", "processing")] == 4
            and tasks[("0", "processing")] == 0
            and managed[("0",)] >= 1_000_000
        )

    eventually(seen, what="both workers are shown")
    r = bridged.received
    workers = {str(ws.name): ws for ws in bridged.scheduler.workers.values()}
    names = ("thread.count", "memory.limit", "memory.spilled")
    assert [last_points(r, f"dask.worker.{name}") for name in names] == [
        {("0",): 3, ("1",): 3},
        {(name,): ws.memory_limit for name, ws in workers.items()},
        {("0",): 0, ("1",): 0},
    ]
    assert all(v > 1e6 for v in last_points(r, "dask.worker.memory.usage").values())
    assert all(0 <= v <= 8 for v in last_points(r, "dask.worker.cpu.utilization").values())
    occupancy = last_points(r, "dask.worker.occupancy")
    assert occupancy["0",] == 0 < occupancy["1",]
    ages = last_points(r, "dask.worker.last_seen.age")
    assert ages.keys() == {("0",), ("1",)}
    assert all(0 <= age < 60 for age in ages.values())
    GATE.set()
    wait(busy)


@pytest.mark.options({"metrics": {"max-workers": 1}}, n_workers=3, threads_per_worker=2)
def test_above_the_limit_workers_are_summed_and_who_left_goes(bridged: Bridged) -> None:
    r = bridged.received

    def shown(others: int) -> str | None:
        """Return who has series of its own, beside so many workers that are summed."""
        threads = last_points(r, "dask.worker.thread.count")
        own = [name for (name,) in threads if name != "_OTHER"]
        summed = {("_OTHER",): 2 * others} if others else {}
        return own[0] if len(own) == 1 and threads == {(own[0],): 2, **summed} else None

    def leave(name: str) -> None:
        workers = bridged.scheduler.workers.items()
        bridged.client.retire_workers([a for a, ws in workers if str(ws.name) == name])

    # Of those that came before the first export, the first one by its address.
    first = eventually(lambda: shown(2), what="all are there")
    assert last_points(r, "dask.worker.occupancy").keys() == {(first,)}

    leave(first)
    # The next one takes its place; its sums go to 0 and end.
    second = eventually(lambda: shown(1), what="it is gone")
    assert second != first
    assert last_points(r, "dask.worker.last_seen.age").keys() == {(second,)}
    of_first = [
        p
        for p in r.points
        if p.metric == "dask.worker.memory.usage" and p.attributes["dask.worker.name"] == first
    ]
    assert of_first[-1].value == 0
    assert of_first[-2].value > 0

    leave(second)
    third = eventually(lambda: shown(0), what="one is left")
    assert {first, second, third} == {"0", "1", "2"}
    # At every export the sum over workers is the cluster's.
    for at in exports(r):
        threads = sum(last_points(r, "dask.worker.thread.count", at).values())
        assert threads == last_points(r, "dask.cluster.thread.count", at)[()]


# ---------------------------------------------------------------------------- event loops


def blocked_time(received: Receiver) -> dict[Any, float]:
    return last_points(received, "dask.event_loop.blocked.time")


@pytest.mark.options(n_workers=1)
def test_a_busy_event_loop_shows_in_scheduler_and_workers(bridged: Bridged) -> None:
    # Before the worker's first heartbeat: its registration has begun the time.
    next_exports(bridged.received, 1)
    began, before = time.monotonic(), blocked_time(bridged.received)

    async def block(dask_scheduler: Any) -> None:
        # Over several cycles of Dask's own measurement: a worker's report of a single one
        # may be replaced before a heartbeat takes it along. One worker in this process, so
        # both share the loop.
        for _ in range(20):
            time.sleep(0.25)
            await asyncio.sleep(0.02)

    bridged.client.run_on_scheduler(block)
    next_exports(bridged.received, 4)

    def grown(role: str) -> float:
        return blocked_time(bridged.received)[role,] - before[role,]

    # Five seconds were blocked; the worker's are sampled, its last report may be to come.
    eventually(lambda: grown("scheduler") >= 4.5, what="the scheduler's loop")
    eventually(lambda: grown("worker") >= 3.0, what="the worker's loop")
    passed = time.monotonic() - began
    assert grown("scheduler") <= passed
    assert grown("worker") <= passed + 2.0  # the time since its registration


def twice(number: int) -> int:
    return 2 * number


# ------------------------------------------------------------------------------ odd keys

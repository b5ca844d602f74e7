"""Every metric of the contract, from a cluster to the receiver; workers, event loops."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import span, wait
from distributed.metrics import context_meter
from lab.programs import flaky

from dask_otel import semconv
from dask_otel.core.context import CARRIER_KEY
from dask_otel.core.metrics.families import Family
from dask_otel.lab.threads import burn
from dask_otel.semconv import METRICS
from tests.receiver import Point, Receiver
from tests.simulated.bridged import Bridged
from tests.simulated.gpus import Device, gpus

CUMULATIVE = 2


def meter(x: int) -> int:
    for unit in ("seconds", "bytes", "count", "rows"):
        context_meter.digest_metric("mine", 3, unit)
    # Not the cluster's: its idle seconds are still those of the spans.
    context_meter.digest_metric("idle", 0.01, "seconds")
    burn(0.02)
    return x


def twice(number: int) -> int:
    return 2 * number


class FailsToLoad:
    """Can be pickled, but not unpickled: a graph with it can't be made into tasks."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)


def last_points(received: Receiver, metric: str, at: int | None = None) -> dict[Any, Any]:
    """Return {label values: value} of the last export, or of the one at a time."""
    when = at or exports(received)[-1]
    return {
        tuple(p.attributes.values()): p.value
        for p in received.points
        if p.metric == metric and p.time_ns == when
    }


def exports(received: Receiver) -> list[int]:
    return sorted({p.time_ns for p in received.points if p.metric == "dask.otel.running"})


def next_export() -> None:
    """Wait until all so far is exported: each two seconds."""
    time.sleep(2.5)


# ------------------------------------------------------------------------- every metric


def everything(b: Bridged) -> None:
    """Do something for each metric."""
    client = b.client
    for number in range(3):
        b.cluster.add_worker(f"w{number}", memory_limit=2**40)
    with span("lost"):
        held = client.submit(time.sleep, 2.0, workers=["w2"], allow_other_workers=True)
        time.sleep(1.0)
        b.cluster.kill("w2")
        held.result()
    with span("work") as late_id:
        wait(client.map(meter, range(8), pure=False))
        wait(client.map(time.sleep, [0.15] * 4, key="slow", pure=False))
        client.submit(flaky, 0.0, retries=2).result()
        wait(client.submit(flaky, 0.0, "for good"))
        parts = [client.submit(bytes, 100_000 + i, workers=[f"w{i % 2}"]) for i in range(4)]
        client.submit(lambda *parts: sum(map(len, parts)), *parts).result()
    with span("first"):
        kept = client.map(twice, range(2), pure=False)
        wait(kept)
    with span("second"):  # Dask books it on the first
        wait(client.map(twice, range(2), pure=False))
    del kept
    with span("denied", 7), dask.annotate(**{CARRIER_KEY: "of a user's"}):
        client.submit(abs, -1).result()
    with span("shuffle"):
        frame = dask.datasets.timeseries("2000-01-01", "2000-01-03", freq="1h", partition_freq="1D")
        wait(client.persist(frame.shuffle("id")))
    with pytest.raises(Exception):  # noqa: B017 - what it becomes is Dask's
        client.submit(len, FailsToLoad()).result()
    b.exported()

    async def inject() -> None:
        def broken(message: Any) -> None:
            raise RuntimeError("on purpose")

        b.bridge.adapter.task_events.stolen = broken
        b.scheduler.log_event("stealing", "anything")
        del b.bridge.adapter.task_events.stolen
        # A heartbeat that comes too late for its span to be waited for.
        b.bridge.adapter.lifecycle.unsettled += 1

    b.cluster.do("scheduler", inject)
    worker = b.cluster.workers["w0"]
    for unit in ("seconds", "bytes", "count"):
        worker.digest_metric(("memory-monitor", "disk-write", unit), 5)
        worker.digest_metric(("get-data", "memory-read", unit), 5)
    worker.digest_metric(("execute", late_id, "meter", "after", "seconds"), 0.25)
    worker.digest_metric(("gpu", "kernel", "seconds"), 1)
    next_export()
    next_export()


@pytest.mark.filterwarnings("ignore:Dask annotations:UserWarning")
def test_every_metric_of_the_contract_comes_as_it_is_defined(tmp_path: Path) -> None:
    config = {
        "metrics": {"span-names": {"deny": ["denied*"]}, "tag-attributes": ["team"]},
        "spool": {"path": str(tmp_path / "spool")},
    }
    b = Bridged(config, relabelled="a name is denied", faults=True, workers=0, latency=0.001)
    with gpus(Device()):
        b.run(lambda: everything(b))
    received = b.received
    assert {p.metric for p in received.points} == METRICS.keys()
    for point in received.points:
        check_definition(point)
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
    durations = received.last("dask.task.duration")
    by_prefix = {dict(labels)["dask.task.prefix"]: value for labels, value in durations.items()}
    meters, slow = by_prefix["meter"], by_prefix["slow"]
    # One failed, and succeeded then; one failed for good.
    assert (meters["count"], slow["count"], by_prefix["flaky"]["count"]) == (8, 4, 3)
    assert (meters["sum"], slow["sum"]) == pytest.approx((8 * 0.02, 4 * 0.15), abs=1e-6)
    assert slow["buckets"][0] == 0  # none below 0.1 s
    assert slow["bounds"] == list(semconv.DURATION_BOUNDS)


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


# ------------------------------------------------------------------------------ workers


@pytest.mark.options(workers=0)
def test_workers_are_shown_as_the_scheduler_sees_them(b: Bridged) -> None:
    b.cluster.add_worker("0", 3, memory_limit=2**30)
    b.cluster.add_worker("1", 3)
    held = b.client.submit(bytes, 1_000_000, workers=["0"], key="held")
    busy = b.client.map(time.sleep, [3.5] * 4, workers=["1"], pure=False)
    next_export()
    r = b.received
    workers = {str(ws.name): ws for ws in b.scheduler.workers.values()}
    names = ("thread.count", "memory.limit", "memory.spilled", "memory.managed")
    assert [last_points(r, f"dask.worker.{name}") for name in names] == [
        {("0",): 3, ("1",): 3},
        {("0",): 2**30},
        {("0",): 0, ("1",): 0},
        {("0",): workers["0"].nbytes, ("1",): 0},
    ]
    occupancy = last_points(r, "dask.worker.occupancy")
    assert occupancy["0",] == 0 < occupancy["1",]
    tasks = last_points(r, "dask.worker.task.count")
    assert (tasks["0", "executing"], tasks["0", "processing"]) == (0, 0)
    assert (tasks["1", "executing"], tasks["1", "processing"]) == (3, 4)
    assert all(v > 1e6 for v in last_points(r, "dask.worker.memory.usage").values())
    assert last_points(r, "dask.worker.cpu.utilization") == {("0",): 0.0, ("1",): 0.0}
    ages = last_points(r, "dask.worker.last_seen.age")
    assert ages.keys() == {("0",), ("1",)}
    # They report each half second.
    assert all(0 <= age <= 0.5 for age in ages.values())
    wait(busy)
    del held


@pytest.mark.options(workers=3, otel={"metrics": {"max-workers": 1}})
def test_above_the_limit_workers_are_summed_and_who_left_goes(b: Bridged) -> None:
    r = b.received

    def shown(**threads: int) -> None:
        next_export()
        wanted = {(name.replace("OTHER", "_OTHER"),): count for name, count in threads.items()}
        assert last_points(r, "dask.worker.thread.count") == wanted

    # Of those that came before the first export, the first one.
    shown(w0=2, OTHER=4)
    assert last_points(r, "dask.worker.occupancy").keys() == {("w0",)}
    b.cluster.leave("w0")
    next_export()
    # The next one takes its place; its sums go to 0 and end.
    shown(w1=2, OTHER=2)
    assert last_points(r, "dask.worker.last_seen.age").keys() == {("w1",)}
    usage = [p for p in r.points if p.metric == "dask.worker.memory.usage"]
    of_first = [p.value for p in usage if p.attributes["dask.worker.name"] == "w0"]
    assert of_first[-1] == 0 < of_first[-2]
    b.cluster.leave("w1")
    next_export()
    shown(w2=2)
    # At every export the sum over workers is the cluster's.
    for at in exports(r):
        threads = sum(last_points(r, "dask.worker.thread.count", at).values())
        assert threads == last_points(r, "dask.cluster.thread.count", at)[()]


# ---------------------------------------------------------------------------- event loops


@pytest.mark.options(config={"distributed.admin.tick.interval": "20ms"})
def test_a_busy_event_loop_shows_in_scheduler_and_workers(b: Bridged) -> None:
    def blocked() -> dict[Any, float]:
        next_export()
        return last_points(b.received, "dask.event_loop.blocked.time")

    next_export()
    assert max(blocked().values()) <= 0.1
    b.cluster.machines["scheduler"].block(5.0)
    time.sleep(6.0)
    # Not of one length: a worker's report that repeats itself is taken for the same one.
    lengths = [0.2 + number / 100 for number in range(20)]
    for seconds in lengths:
        b.cluster.machines["w1"].block(seconds)
        time.sleep(seconds + 0.1)
    found = blocked()
    # Dask counts the ticks, each 20 ms.
    assert found["scheduler",] == pytest.approx(5.0, abs=0.1)
    # Sampled: of a cycle of at least a second the report may be replaced, or stand for the next.
    assert found["worker",] == pytest.approx(sum(lengths), abs=1.0)

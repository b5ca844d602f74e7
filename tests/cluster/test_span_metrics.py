"""`dask_otel.span_metrics`: all of a span's metrics, without guessing when they are in."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, Event, LocalCluster, get_client, span
from distributed.metrics import context_meter

import dask_otel
from dask_otel import SpanMetrics
from tests.cluster.conftest import Start
from tests.cluster.processes import cluster
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("nothing is exported; answers are compared with Dask's spans"),
]

OFF = {"OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none"}
NOT_MEASURED = ("execute", "N/A", "idle or other spans", "seconds")


def work(x: int) -> int:
    time.sleep(0.05)
    context_meter.digest_metric("rows", 7, "records")
    return x


def work_below(x: int) -> int:
    return work(x)


def fail(x: int) -> int:
    raise ValueError(x)


def wait_for(name: str) -> None:
    Event(name, client=get_client()).wait()


def of_dask(span_id: str, dask_scheduler: Any) -> dict[str, Any]:
    """What Dask itself says of a span."""
    found = dask_scheduler.extensions["spans"].spans[span_id]
    return {
        "own": dict(found._cumulative_worker_metrics),
        "tree": found.cumulative_worker_metrics,
        "enqueued": found.enqueued,
        "start": found.start,
        "stop": found.stop,
        "active_cpu": found.active_cpu_seconds,
    }


def assert_is_dasks_own(metrics: SpanMetrics, truth: dict[str, Any]) -> None:
    assert metrics.own == truth["own"]
    idle = truth["tree"].pop(NOT_MEASURED)
    assert metrics.tree == truth["tree"]
    assert metrics.dask_idle_time == pytest.approx(idle)
    assert metrics.dask_active_cpu_time == pytest.approx(truth["active_cpu"])
    assert metrics.enqueued == truth["enqueued"]


def test_all_of_it_at_once_and_nothing_later(start: Start) -> None:
    """Dask's numbers do not change any more once the answer has come."""
    with start(environ=OFF) as bridged:
        client = bridged.client
        with span("root") as root:
            client.gather(client.map(work, range(4), pure=False))
            with span("below") as below:
                client.gather(client.map(work_below, range(6), pure=False))
        # At once: the last heartbeats are still to come.
        metrics = dask_otel.span_metrics(client, root)
        truth = client.run_on_scheduler(of_dask, span_id=root)
        assert_is_dasks_own(metrics, truth)
        assert metrics.own["execute", "work", "rows", "records"] == 4 * 7
        assert metrics.tree["execute", "work", "rows", "records"] == 4 * 7
        assert metrics.tree["execute", "work_below", "rows", "records"] == 6 * 7
        assert ("execute", "work_below", "rows", "records") not in metrics.own
        assert metrics.name == ("root",)
        assert metrics.id == metrics.root_id == root
        assert metrics.result == "success"
        assert metrics.counts is not None
        assert (metrics.counts["tasks"], metrics.counts["memory"]) == (10, 10)
        # Workers estimate the scheduler's clock, and err on a busy machine: for Dask a task can
        # start and end in the future, for us it can't.
        assert truth["start"] - 1 <= metrics.start <= truth["start"] + 0.05
        assert truth["stop"] - 1 <= metrics.stop <= truth["stop"] + 0.05
        assert metrics.enqueued <= metrics.start <= metrics.stop
        assert metrics.duration >= 5 * 0.05
        assert metrics.queue_time is not None
        assert 0 <= metrics.queue_time < 60
        assert metrics.unreported == ()
        # Two threads had 10 tasks: what is not reported of capacity is idle.
        execute = sum(v for k, v in metrics.tree.items() if (k[0], k[-1]) == ("execute", "seconds"))
        assert metrics.capacity_time == pytest.approx(metrics.idle_time + execute)
        inner = dask_otel.span_metrics(client, below)
        assert inner.own == inner.tree
        assert inner.name == ("root", "below")
        assert inner.root_id == root
        # The same, and the outcome, long after the export.
        eventually(lambda: not bridged.bridge.adapter.lifecycle.open)
        again = dask_otel.span_metrics(client, root)
        assert (again.own, again.tree, again.counts) == (metrics.own, metrics.tree, metrics.counts)
        assert (again.start, again.stop) == (metrics.start, metrics.stop)
        assert again.idle_time == pytest.approx(metrics.idle_time, abs=0.01)


def test_work_that_came_after_the_export_is_in(start: Start) -> None:
    with start({"spans": {"linger": "0s"}}, environ=OFF) as bridged:
        client = bridged.client
        with span("twice") as span_id:
            client.submit(work, 1).result()
            first = dask_otel.span_metrics(client, span_id)
            eventually(lambda: not bridged.bridge.adapter.lifecycle.open)
            assert isinstance(client.submit(fail, 2).exception(), ValueError)
        second = dask_otel.span_metrics(client, span_id)
        assert first.result == "success"
        assert second.result == "failure"
        assert second.counts is not None
        assert (second.counts["tasks"], second.counts["erred"]) == (2, 1)
        assert second.stop > first.stop
        assert second.start == first.start


def test_waits_for_the_work_on_the_scheduler_and_says_what_is_missing(start: Start) -> None:
    with start(environ=OFF) as bridged:
        client = bridged.client
        with span("busy", "inner") as span_id:
            running = client.submit(wait_for, "go")
        eventually(lambda: span_id in bridged.bridge.adapter.lifecycle.open)
        with pytest.raises(
            TimeoutError, match=r"not settled within 0\.3 s: .*busy/inner has 1 unf"
        ):
            dask_otel.span_metrics(client, span_id, timeout="300ms")
        settled = bridged.bridge.settled

        async def ask() -> SpanMetrics:
            asked = asyncio.ensure_future(dask_otel.span_metrics(client, span_id))
            while not settled.waiting:
                await asyncio.sleep(0.01)
            assert not asked.done()
            await Event("go", client=client).set()
            return await asked

        answer = client.sync(ask)
        assert running.done()
        assert answer.counts["memory"] == 1
        assert not settled.waiting


def test_a_span_that_is_still_on_its_way(start: Start) -> None:
    """The question overtakes the graph: while the client waits for work, so does the answer."""
    with start(environ=OFF) as bridged:
        client = bridged.client
        with span("big") as span_id:
            future = client.submit(work, 1)
        assert dask_otel.span_metrics(client, span_id).counts["memory"] == 1
        assert future.done()


def test_unknown_ids_are_refused_at_once(start: Start) -> None:
    with start(environ=OFF) as bridged:
        before = time.monotonic()
        with pytest.raises(LookupError, match="knows no span with the id 'nobody'"):
            dask_otel.span_metrics(bridged.client, "nobody")
        assert time.monotonic() - before < 10
        with pytest.raises(TypeError, match="a span's id is a string, not NoneType"):
            dask_otel.span_metrics(bridged.client, None)  # type: ignore[arg-type]


def silence(client: Client, bridged: Any) -> str:
    """Let no heartbeat of the only worker come any more; return its address."""
    (worker,) = bridged.cluster.workers.values()

    async def stop() -> None:
        worker.periodic_callbacks["heartbeat"].stop()

    client.sync(stop)
    return str(worker.address)


def test_a_worker_that_does_not_report_is_named(start: Start) -> None:
    with start({"spans": {"settle-timeout": "300ms"}}, environ=OFF, n_workers=1) as bridged:
        client = bridged.client
        address = silence(client, bridged)
        with span("unreported") as span_id:
            client.submit(work, 1).result()
        metrics = dask_otel.span_metrics(client, span_id)
        assert metrics.unreported == (address,)
        assert ("execute", "work", "rows", "records") not in metrics.tree


def test_a_missing_heartbeat_is_named(start: Start) -> None:
    with start(environ=OFF, n_workers=1) as bridged:
        client = bridged.client
        address = silence(client, bridged)
        with span("silent") as span_id:
            client.submit(work, 1).result()
        with pytest.raises(TimeoutError, match="silent waits for the heartbeats of") as caught:
            dask_otel.span_metrics(client, span_id, timeout=0.5)
        assert address in str(caught.value)


def test_without_a_bridge_it_says_how_to_get_one() -> None:
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as local,
        Client(local) as client,
        pytest.raises(RuntimeError, match=r"dask_otel\.register\(client\)"),
    ):
        dask_otel.span_metrics(client, "any")


def test_a_span_from_before_the_bridge_has_metrics_but_no_outcome(tmp_path: Path) -> None:
    with cluster(tmp_path) as processes:
        processes.start_scheduler(env=OFF)
        processes.start_worker()
        with Client(processes.address) as client:
            with span("before") as span_id:
                client.submit(work, 1).result()
            key = ("execute", "work", "rows", "records")
            eventually(lambda: key in client.run_on_scheduler(of_dask, span_id=span_id)["own"])
            assert dask_otel.register(client) == "started"
            metrics = dask_otel.span_metrics(client, span_id)
            assert metrics.own[key] == 7
            assert metrics.result is None
            assert metrics.counts is None
            assert metrics.idle_time is None
            assert metrics.start is not None
            assert metrics.duration >= 0.05


def test_when_the_bridge_is_stopped_nobody_waits_on(start: Start) -> None:
    with start(environ=OFF) as bridged:
        client = bridged.client
        with span("busy") as span_id:
            running = client.submit(wait_for, "end")

        async def ask() -> None:
            asked = asyncio.ensure_future(dask_otel.span_metrics(client, span_id))
            settled = bridged.bridge.settled
            while not settled.waiting:
                await asyncio.sleep(0.01)
            assert await dask_otel.unregister(client) == "stopped"
            with pytest.raises(RuntimeError, match="stopped before span"):
                await asked
            await Event("end", client=client).set()

        client.sync(ask)
        assert running.result() is None


def test_asynchronous_clients_get_an_awaitable() -> None:
    async def run(address: str) -> SpanMetrics:
        async with Client(address, asynchronous=True) as client:
            assert await dask_otel.register(client) == "started"
            with span("awaited") as span_id:
                await client.submit(work, 1)
            metrics = await dask_otel.span_metrics(client, span_id)
            assert isinstance(metrics, SpanMetrics)
            # What Python says of those that nobody awaits.
            asked = [
                dask_otel.span_metrics(client, span_id),
                dask_otel.trace_context(span_id, client),
                dask_otel.register(client),
                dask_otel.unregister(client),
            ]
            assert [repr(one).split()[2] for one in asked] == [
                "dask_otel.span_metrics",
                "dask_otel.trace_context",
                "dask_otel.register",
                "dask_otel.unregister",
            ]
            for one in asked:
                one.close()  # type: ignore[attr-defined]
            return metrics

    with (
        dask.config.set({"otel.environment": OFF}),
        LocalCluster(
            n_workers=1, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=":0"
        ) as local,
    ):
        metrics = asyncio.run(run(local.scheduler_address))
    assert metrics.name == ("awaited",)


def test_as_a_frame(start: Start) -> None:
    pytest.importorskip("pandas")
    with start(environ=OFF) as bridged:
        with span("frame") as span_id:
            bridged.client.submit(work, 1).result()
        metrics = dask_otel.span_metrics(bridged.client, span_id)
    frame = metrics.to_frame()
    assert list(frame.columns) == ["context", "prefix", "activity", "unit", "own", "tree"]
    assert len(frame) == len(metrics.tree)
    (rows,) = frame[frame.activity == "rows"].itertuples()
    assert (rows.context, rows.prefix, rows.unit, rows.own, rows.tree) == (
        "execute", "work", "records", 7, 7,
    )  # fmt: skip

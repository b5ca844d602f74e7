"""`dask_otel.span_metrics`: all of a span's metrics, without guessing when they are in."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from distributed import Client, Event, LocalCluster, get_client, span
from distributed.metrics import context_meter

import dask_otel
from dask_otel import SpanMetrics
from tests.cluster.conftest import QUICK, Bridged
from tests.environment import OFF
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("nothing is exported; answers are compared with Dask's spans"),
]

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


@pytest.fixture
def client(plain: LocalCluster) -> Iterator[Client]:
    """A client of a cluster with a bridge that exports nothing."""
    settings = {**QUICK, "environment": OFF}
    with Client(plain) as client:
        assert dask_otel.register(client, settings) == "started"
        yield client
        dask_otel.unregister(client)


def bridge_of(client: Client) -> Any:
    return client.cluster.scheduler.plugins["dask-otel"].bridge


def exported(client: Client) -> None:
    eventually(lambda: not bridge_of(client).adapter.lifecycle.open, what="all are exported")


def test_all_of_it_at_once_and_nothing_later(client: Client) -> None:
    """Dask's numbers do not change any more once the answer has come."""
    with span("root") as root:
        client.gather(client.map(work, range(4), pure=False))
        with span("below") as below:
            client.gather(client.map(work_below, range(6), pure=False))
    # At once: the last heartbeats are still to come.
    metrics = dask_otel.span_metrics(client, root)
    truth = client.run_on_scheduler(of_dask, span_id=root)
    idle = truth["tree"].pop(NOT_MEASURED)
    assert (metrics.own, metrics.tree, metrics.enqueued) == (
        truth["own"], truth["tree"], truth["enqueued"],
    )  # fmt: skip
    assert metrics.dask_idle_time == pytest.approx(idle)
    assert metrics.dask_active_cpu_time == pytest.approx(truth["active_cpu"])
    rows = {key[1]: value for key, value in metrics.tree.items() if key[2:] == ("rows", "records")}
    assert rows == {"work": 4 * 7, "work_below": 6 * 7}
    assert {key[1] for key in metrics.own if key[2] == "rows"} == {"work"}
    assert (metrics.name, metrics.id, metrics.root_id, metrics.result, metrics.unreported) == (
        ("root",), root, root, "success", (),
    )  # fmt: skip
    assert {k: v for k, v in (metrics.counts or {}).items() if v} == {"tasks": 10, "memory": 10}
    # Workers estimate the scheduler's clock, and err on a busy machine: for Dask a task can
    # start and end in the future, for us it can't.
    assert truth["start"] - 1 <= metrics.start <= truth["start"] + 0.05
    assert truth["stop"] - 1 <= metrics.stop <= truth["stop"] + 0.05
    assert metrics.enqueued <= metrics.start <= metrics.stop - 5 * 0.05
    assert 0 <= metrics.queue_time < 60
    # Two threads had 10 tasks: what is not reported of capacity is idle.
    execute = sum(v for k, v in metrics.tree.items() if (k[0], k[-1]) == ("execute", "seconds"))
    assert metrics.capacity_time == pytest.approx(metrics.idle_time + execute)
    path = metrics.path or {}
    assert sum(path.values()) == pytest.approx(metrics.duration, abs=1e-6)
    assert path["compute"] >= 2 * 0.05, "the last task of each"
    # Two threads had two rounds of tasks before it, and three.
    assert path["compute"] + path["no_thread"] + path["worker_queue"] >= 5 * 0.05
    inner = dask_otel.span_metrics(client, below)
    assert sum((inner.path or {}).values()) == pytest.approx(inner.duration, abs=1e-6)
    assert (inner.own, inner.name, inner.root_id) == (inner.tree, ("root", "below"), root)
    # The same, and the outcome, long after the export.
    exported(client)
    again = dask_otel.span_metrics(client, root)
    close = pytest.approx(metrics.idle_time, abs=0.01)
    assert replace(again, idle_time=close, capacity_time=metrics.capacity_time) == metrics


def test_waits_for_the_work_on_the_scheduler_and_says_what_is_missing(client: Client) -> None:
    with span("busy", "inner") as span_id:
        running = client.submit(wait_for, "go")
    eventually(lambda: span_id in bridge_of(client).adapter.lifecycle.open)
    with pytest.raises(TimeoutError, match=r"not settled within 0\.3 s: .*busy/inner has 1 unf"):
        dask_otel.span_metrics(client, span_id, timeout="300ms")

    async def ask() -> SpanMetrics:
        asked = await under_way(client, span_id)
        await Event("go", client=client).set()
        return await asked

    answer = client.sync(ask)
    assert running.done()
    assert answer.counts["memory"] == 1


async def under_way(client: Client, span_id: str) -> asyncio.Future[SpanMetrics]:
    """Ask, and return when the question waits on the scheduler."""
    settled, arrived = bridge_of(client).settled, asyncio.Event()
    answer = settled.answer

    def answering(*args: Any) -> Any:
        arrived.set()
        return answer(*args)

    settled.answer = answering
    asked = asyncio.ensure_future(dask_otel.span_metrics(client, span_id))
    await arrived.wait()
    return asked


def test_a_span_that_is_still_on_its_way(client: Client) -> None:
    """The question overtakes the graph: while the client waits for work, so does the answer."""
    with span("big") as span_id:
        future = client.submit(work, 1)
    assert dask_otel.span_metrics(client, span_id).counts["memory"] == 1
    assert future.done()


def test_unknown_ids_are_refused_at_once(client: Client) -> None:
    before = time.monotonic()
    with pytest.raises(LookupError, match="knows no span with the id 'nobody'"):
        dask_otel.span_metrics(client, "nobody")
    assert time.monotonic() - before < 10
    with pytest.raises(TypeError, match="a span's id is a string, not NoneType"):
        dask_otel.span_metrics(client, None)  # type: ignore[arg-type]


def silence(client: Client, bridged: Any) -> str:
    """Let no heartbeat of the only worker come any more; return its address."""
    (worker,) = bridged.cluster.workers.values()

    async def stop() -> None:
        worker.periodic_callbacks["heartbeat"].stop()

    client.sync(stop)
    return str(worker.address)


@pytest.mark.options({"spans": {"settle-timeout": "2s"}}, environ=OFF, n_workers=1)
def test_a_worker_that_does_not_report_is_named(bridged: Bridged) -> None:
    client = bridged.client
    address = silence(client, bridged)
    with span("silent") as span_id:
        client.submit(work, 1).result()
    missing = f"silent waits for the heartbeats of {re.escape(address)}"
    with pytest.raises(TimeoutError, match=missing):
        dask_otel.span_metrics(client, span_id, timeout=1)
    metrics = dask_otel.span_metrics(client, span_id)
    assert metrics.unreported == (address,)
    assert ("execute", "work", "rows", "records") not in metrics.tree


def test_a_span_from_before_the_bridge_has_metrics_but_no_outcome(client: Client) -> None:
    assert dask_otel.unregister(client) == "stopped"
    with span("before") as span_id:
        client.submit(work, 1).result()
    key = ("execute", "work", "rows", "records")
    eventually(lambda: key in client.run_on_scheduler(of_dask, span_id=span_id)["own"])
    with pytest.raises(RuntimeError, match=r"dask_otel\.register\(client\)"):
        dask_otel.span_metrics(client, span_id)
    assert dask_otel.register(client, {"environment": OFF}) == "started"
    metrics = dask_otel.span_metrics(client, span_id)
    assert metrics.own[key] == 7
    assert (metrics.result, metrics.counts, metrics.idle_time) == (None, None, None)
    assert metrics.duration >= 0.05


def test_when_the_bridge_is_stopped_nobody_waits_on(client: Client) -> None:
    with span("busy") as span_id:
        running = client.submit(wait_for, "end")

    async def ask() -> None:
        asked = await under_way(client, span_id)
        assert await dask_otel.unregister(client) == "stopped"
        with pytest.raises(RuntimeError, match="stopped before span"):
            await asked
        await Event("end", client=client).set()

    client.sync(ask)
    assert running.result() is None


async def ask_asynchronously(address: str) -> SpanMetrics:
    async with Client(address, asynchronous=True) as client:
        with span("awaited") as span_id:
            await client.submit(work, 1)
        # What Python says of those that nobody awaits.
        asked: dict[str, Any] = {
            "trace_context": dask_otel.trace_context(span_id, client),
            "register": dask_otel.register(client),
            "span_metrics": dask_otel.span_metrics(client, span_id),
            "why": dask_otel.why(client, span_id),
            "unregister": dask_otel.unregister(client),
        }
        for name, one in asked.items():
            assert repr(one).split()[2] == f"dask_otel.{name}"
        answers = {name: await one for name, one in asked.items()}
    assert (answers["register"], answers["unregister"]) == ("running", "stopped")
    metrics: SpanMetrics = answers["span_metrics"]
    assert answers["why"].reasons[0].name == "awaited"
    assert answers["trace_context"].trace_id == metrics.trace_id
    return metrics


def test_asynchronous_clients_get_an_awaitable(client: Client) -> None:
    assert asyncio.run(ask_asynchronously(client.cluster.scheduler_address)).name == ("awaited",)

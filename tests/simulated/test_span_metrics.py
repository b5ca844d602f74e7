"""`dask_otel.span_metrics`: all of a span's metrics, without guessing when they are in."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from distributed import Client, span, wait
from distributed.metrics import context_meter
from lab.programs import flaky

import dask_otel
from dask_otel import SpanMetrics
from dask_otel._dask.settled import NOT_MEASURED
from tests.simulated.bridged import Bridged

ROWS = ("execute", "work", "rows", "records")
#: A message of a worker waits for the batch before it.
BATCH = 0.0021


def work(x: int, seconds: float = 0.05) -> int:
    time.sleep(seconds)
    context_meter.digest_metric("rows", 7, "records")
    return x


def work_below(x: int) -> int:
    return work(x)


@pytest.mark.options(threads=1)
def test_all_of_it_at_once_and_nothing_later(b: Bridged) -> None:
    """Dask's numbers do not change any more once the answer has come."""
    client = b.client
    with span("root") as root:
        client.gather(client.map(work, range(4), pure=False))
        with span("below") as below:
            client.gather(client.map(work_below, range(6), pure=False))
    # At once: the last heartbeats are still to come.
    metrics = dask_otel.span_metrics(client, root)
    dask_says = b.scheduler.extensions["spans"].spans[root]
    tree = dask_says.cumulative_worker_metrics
    assert metrics.dask_idle_time == pytest.approx(tree.pop(NOT_MEASURED))
    assert (metrics.own, metrics.tree) == (dict(dask_says._cumulative_worker_metrics), tree)
    times = (metrics.enqueued, metrics.start, metrics.stop)
    assert times == pytest.approx((dask_says.enqueued, dask_says.start, dask_says.stop), abs=5e-6)
    assert metrics.dask_active_cpu_time == pytest.approx(dask_says.active_cpu_seconds)
    rows = {key[1]: value for key, value in metrics.tree.items() if key[2:] == ("rows", "records")}
    assert rows == {"work": 4 * 7, "work_below": 6 * 7}
    assert {key[1] for key in metrics.own if key[2] == "rows"} == {"work"}
    assert (metrics.name, metrics.id, metrics.root_id, metrics.result, metrics.unreported) == (
        ("root",), root, root, "success", (),
    )  # fmt: skip
    assert {k: v for k, v in (metrics.counts or {}).items() if v} == {"tasks": 10, "memory": 10}
    # Two threads had two rounds of tasks, and three. The results of the first ones go to the
    # client, and the next tasks to the workers, with messages that go out each 10 ms.
    assert metrics.queue_time == pytest.approx(0.0, abs=BATCH)
    assert 5 * 0.05 <= metrics.duration <= 5 * 0.05 + 0.02 + 5 * BATCH
    assert metrics.path is not None
    assert sum(metrics.path.values()) == pytest.approx(metrics.duration, abs=1e-6)
    waited = sum(metrics.path[part] for part in ("no_thread", "uneven", "starting"))
    assert metrics.path["compute"] + waited == pytest.approx(5 * 0.05, abs=5 * BATCH)
    # What was not reported of capacity is idle.
    execute = sum(v for k, v in metrics.tree.items() if (k[0], k[-1]) == ("execute", "seconds"))
    assert execute == pytest.approx(10 * 0.05)
    assert metrics.capacity_time == pytest.approx(metrics.idle_time + execute)
    assert metrics.capacity_time == pytest.approx(2 * metrics.duration, abs=2 * BATCH)
    inner = dask_otel.span_metrics(client, below)
    assert sum((inner.path or {}).values()) == pytest.approx(inner.duration, abs=1e-6)
    assert (inner.own, inner.name, inner.root_id) == (inner.tree, ("root", "below"), root)
    # The same, and the outcome, long after the export.
    b.exported()
    again = dask_otel.span_metrics(client, root)
    close = pytest.approx(metrics.idle_time, abs=1e-6)
    assert replace(again, idle_time=close, capacity_time=metrics.capacity_time) == metrics


def test_waits_for_the_work_on_the_scheduler_and_says_what_is_missing(b: Bridged) -> None:
    before = time.time()
    with pytest.raises(LookupError, match="knows no span with the id 'nobody'"):
        dask_otel.span_metrics(b.client, "nobody")
    assert time.time() == before
    with pytest.raises(TypeError, match="a span's id is a string, not NoneType"):
        dask_otel.span_metrics(b.client, None)  # type: ignore[arg-type]
    with span("busy", "inner") as span_id:
        running = b.client.submit(work, 1, 3.0)
    # The question overtakes the graph: while the client waits for work, so does the answer.
    with pytest.raises(
        TimeoutError, match=r"not settled within 0\.3 s: .*busy/inner has 1 unfinished task$"
    ):
        dask_otel.span_metrics(b.client, span_id, timeout="300ms")
    answer = dask_otel.span_metrics(b.client, span_id)
    assert running.done()
    assert answer.counts["memory"] == 1
    # It has settled: there is nothing to wait for.
    assert dask_otel.span_metrics(b.client, span_id, timeout=0) == answer
    (said,) = dask_otel.why(b.client, span_id).reasons
    assert said.what.startswith("No task is left to do: it has ended.")
    for timeout in ("soon", "", -1, float("nan"), None):
        # A LookupError, such as Dask's own, would mean that the span is unknown.
        with pytest.raises(ValueError, match="a timeout is seconds, 0 or more"):
            dask_otel.span_metrics(b.client, span_id, timeout=timeout)  # type: ignore[arg-type]


def test_a_span_whose_work_is_all_in_another_one_is_said_to_be_possible(b: Bridged) -> None:
    with span("first"):
        kept = b.client.submit(work, 1, key="work-1")
        kept.result()
    with span("second") as span_id:
        b.client.submit(work, 1, key="work-2").result()
    with pytest.raises(LookupError, match="unless all of it joined task groups of other spans"):
        dask_otel.span_metrics(b.client, span_id)


@pytest.mark.options(workers=1, otel={"spans": {"settle-timeout": "2s"}})
def test_a_worker_that_does_not_report_is_named(b: Bridged) -> None:
    b.cluster.heartbeats["w0"] = lambda: None
    with span("silent") as span_id:
        b.client.submit(work, 1).result()
    with pytest.raises(TimeoutError, match="silent waits for the heartbeats of lab://w0"):
        dask_otel.span_metrics(b.client, span_id, timeout=1)
    metrics = dask_otel.span_metrics(b.client, span_id)
    assert metrics.unreported == ("lab://w0",)
    assert ROWS not in metrics.tree


@pytest.mark.options(unreconciled="work is done without a bridge")
def test_a_span_from_before_the_bridge_has_metrics_but_no_outcome(b: Bridged) -> None:
    """When a bridge is stopped, nobody waits on."""
    with span("busy") as busy:
        running = b.client.submit(work, 1, 5.0)
    time.sleep(0.1)
    asked = b.cluster.user("other", lambda client: dask_otel.span_metrics(client, busy))
    time.sleep(0.5)
    assert dask_otel.unregister(b.client) == "stopped"
    with pytest.raises(RuntimeError, match="stopped before span"):
        asked.result()
    with span("before") as span_id:
        assert b.client.submit(work, 1, key="before").result() == running.result() == 1
    time.sleep(1.0)
    with pytest.raises(RuntimeError, match=r"dask_otel\.register\(client\)"):
        dask_otel.span_metrics(b.client, span_id)
    assert dask_otel.register(b.client) == "started"
    metrics = dask_otel.span_metrics(b.client, span_id)
    assert metrics.own["execute", "before", "rows", "records"] == 7
    assert (metrics.result, metrics.counts, metrics.idle_time) == (None, None, None)
    assert metrics.duration == pytest.approx(0.05, abs=1e-6)


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
            "held": dask_otel.held(client, span_id),
            "unregister": dask_otel.unregister(client),
        }
        for name, one in asked.items():
            assert repr(one).split()[2] == f"dask_otel.{name}"
        answers = {name: await one for name, one in asked.items()}
    assert (answers["register"], answers["unregister"]) == ("running", "stopped")
    metrics: SpanMetrics = answers["span_metrics"]
    assert answers["why"].reasons[0].name == answers["held"].span == "awaited"
    assert answers["trace_context"].trace_id == metrics.trace_id
    return metrics


@pytest.mark.options(unreconciled="the bridge is stopped")
def test_asynchronous_clients_get_an_awaitable(b: Bridged) -> None:
    metrics = b.cluster.do("application", ask_asynchronously, b.scheduler.address)
    assert metrics.name == ("awaited",)


def test_runs_that_failed_did_not_ask_for_another(b: Bridged) -> None:
    with span("flaky") as root:
        b.client.submit(flaky, 0.5, retries=1).result()
    first, *_ = dask_otel.span_metrics(b.client, root).diagnosis
    assert first["title"].endswith("to runs that were repeated: they failed")
    assert first["evidence"] == "1 run failed."


@pytest.mark.parametrize("step", range(1, 5))
def test_a_result_that_is_lost_before_the_answer_is_computed_again_first(
    b: Bridged, step: int
) -> None:
    with span("fit") as fit:
        future = b.client.submit(work, 1, key="fit")
        wait(future)
    dask_otel.span_metrics(b.client, fit)

    async def ask() -> Any:
        asking = asyncio.ensure_future(b.bridge.settled.answer(fit, 60.0, False))
        for _ in range(step):
            await asyncio.sleep(0)
        (ws,) = b.scheduler.tasks["fit"].who_has
        await b.scheduler.remove_worker(ws.address, stimulus_id="test")
        return await asking

    answer = b.cluster.do("scheduler", ask)
    assert (answer["result"], answer["counts"]["memory"]) == ("success", 1)

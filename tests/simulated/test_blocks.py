"""Spans that end with their ``with span()`` block, because the client notifies the scheduler."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import dask
import dask.order
import pytest
from distributed import Client, span

import dask_otel
from dask_otel.lab.executor import LabThreadPoolExecutor
from tests.simulated.observed import Simulated
from tests.simulated.tasks import inc

#: Longer than the linger and a heartbeat: without help, the span is exported in it.
PAUSE = 2.5
#: Clients load the preload.
HELPED = pytest.mark.options(config={"distributed.client.preload": ["dask_otel.preload"]})


def compute(client: Client, x: int) -> None:
    assert client.submit(inc, x, key=f"inc-{x}").result() == x + 1


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(dask_otel.span, marks=pytest.mark.options),
        pytest.param(dask_otel.span, marks=HELPED, id="instrumented"),
    ],
)
def test_a_pause_does_not_split_a_span_with_the_clients_help(o: Simulated, context: Any) -> None:
    with context("workflow") as span_id:
        compute(o.client, 1)
        time.sleep(PAUSE)
        assert o.exported == []
        compute(o.client, 2)
        time.sleep(0.5)
    # From the first graph to the end of the block, the work of the client included.
    o.assert_tree("workflow success 3.000 tasks=2 memory=2")
    assert o.named("workflow").identity.dask_id == span_id
    messages = [e for _, e in o.client.get_events("dask-otel")]
    assert [what for e in messages for what, _ in e["blocks"]] == ["entered", "left"]


def test_without_help_the_linger_decides(o: Simulated) -> None:
    with span("workflow"):
        compute(o.client, 1)
        time.sleep(PAUSE)
        compute(o.client, 2)
    o.assert_tree("""
        workflow success 0.000 tasks=1 memory=1
          workflow#2 success 0.000 tasks=1 memory=1
    """)


def test_nested_blocks_of_which_the_outer_has_no_work_of_its_own(o: Simulated) -> None:
    with dask_otel.span("root") as root:
        for number in range(2):
            with dask_otel.span("step", f"part-{number}"):
                compute(o.client, number)
            time.sleep(PAUSE)
            assert len(o.exported) == 2 * (number + 1)
        assert root in o.adapter.lifecycle.open
    o.assert_tree("""
        root success 5.000 tasks=2 memory=2
          step success 0.000 tasks=1 memory=1
            part-0 success 0.000 tasks=1 memory=1
          step success 0.000 tasks=1 memory=1
            part-1 success 0.000 tasks=1 memory=1
    """)


def test_a_client_killed_inside_its_block(o: Simulated) -> None:
    def other(client: Client) -> None:
        with client.as_current(), dask_otel.span("killed"):
            compute(client, 1)
            time.sleep(600)

    o.cluster.user("other", other)
    time.sleep(PAUSE)
    assert o.exported == []
    o.cluster.kill("other")
    o.assert_tree("killed success 2.490 tasks=1 memory=1")


def test_an_asynchronous_client(o: Simulated) -> None:
    async def work() -> None:
        made = Client(o.scheduler.address, asynchronous=True, set_as_default=False)
        async with made as client:
            with client.as_current(), dask_otel.span("async"):
                assert await client.submit(inc, 1) == 2
                await asyncio.sleep(PAUSE)
                assert await client.submit(inc, 2) == 3

    o.cluster.do("other", work)
    o.assert_tree("async success 2.500 tasks=2 memory=2")


def test_nothing_waits_for_a_scheduler_that_does_not_answer(o: Simulated) -> None:
    o.cluster.machines["scheduler"].stop(20)
    before = time.monotonic()
    for _ in range(100):
        with dask_otel.span("a", "b"):
            pass
    assert time.monotonic() == before


def test_a_graph_that_takes_longer_than_the_linger_to_come_in(
    o: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = dask.order.order

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(PAUSE)
        return order(*args, **kwargs)

    # The scheduler orders in a thread: the block has long been left by then.
    threads = LabThreadPoolExecutor(o.cluster.pool, 1)
    # Only until the cluster ends: a worker that closes would shut down the real one.
    with monkeypatch.context() as patch:
        patch.setattr("distributed.utils._offload_executor", threads)
        with dask_otel.span("workflow"):
            compute(o.client, 1)
            patch.setattr(dask.order, "order", slow)
            future = o.client.compute(dask.delayed(inc)(2, dask_key_name="slow-2"))
        assert future.result() == 3
    # The graph took 10 ms to the scheduler.
    o.assert_tree("workflow success 2.510 tasks=2 memory=2")

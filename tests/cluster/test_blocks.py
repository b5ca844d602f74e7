"""Spans that end with their ``with span()`` block, because the client tells the scheduler."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import dask.order
import pytest
from distributed import Client, span

import dask_otel
from tests.cluster.observed import Observed
from tests.cluster.processes import cluster as processes
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

#: Longer than the linger and a heartbeat: without help, the span is exported in it.
PAUSE = 2.5
#: Clients load the preload.
HELPED = pytest.mark.options(config={"distributed.client.preload": ["dask_otel.preload"]})


def inc(x: int) -> int:
    return x + 1


def compute(client: Client, x: int) -> None:
    assert client.submit(inc, x, key=f"inc-{x}").result() == x + 1


def pause(seconds: float = PAUSE) -> None:
    """What a user does between two computations."""
    time.sleep(seconds)


def entered(o: Observed, span_id: str) -> None:
    """Wait until the scheduler knows of the block."""
    tables = o.adapter.blocks.blocks
    eventually(lambda: span_id in tables._holding or span_id in tables._waiting, 30, "entered")


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(dask_otel.span, marks=pytest.mark.options),
        pytest.param(dask_otel.span, marks=HELPED, id="instrumented"),
    ],
)
def test_a_pause_does_not_split_a_span_with_the_clients_help(o, context):
    with context("workflow") as span_id:
        compute(o.client, 1)
        pause()
        assert o.exported == []
        compute(o.client, 2)
        pause(0.5)
    # From the first graph to the end of the block, the work of the client included.
    o.assert_tree("workflow success 3.0.. tasks=2 memory=2")
    assert o.named("workflow").identity.dask_id == span_id
    told = [e for _, e in o.client.get_events("dask-otel")]
    assert [what for e in told for what, _ in e["blocks"]] == ["entered", "left"]


def test_without_help_the_linger_decides(o):
    with span("workflow"):
        compute(o.client, 1)
        eventually(lambda: len(o.exported) == 1, what="the first half is exported")
        compute(o.client, 2)
    o.assert_tree(
        """
        workflow success 0.00.. tasks=1 memory=1
          workflow#2 success 0.00.. tasks=1 memory=1
        """
    )


def test_nested_blocks_of_which_the_outer_has_no_work_of_its_own(o):
    with dask_otel.span("root") as root:
        for number in range(2):
            with dask_otel.span("step", f"part-{number}"):
                compute(o.client, number)
            eventually(lambda n=number: len(o.exported) == 2 * (n + 1), what="inner spans")
        assert root in o.adapter.lifecycle.open
    o.assert_tree(
        """
        root success 0.60.. tasks=2 memory=2
          step success 0.00.. tasks=1 memory=1
            part-0 success 0.00.. tasks=1 memory=1
          step success 0.00.. tasks=1 memory=1
            part-1 success 0.00.. tasks=1 memory=1
        """
    )


KILLED = """
import os, signal, sys, time
from distributed import Client
import dask_otel

client = Client(sys.argv[1])
with dask_otel.span("killed") as span_id:
    assert client.submit(abs, -1).result() == 1
    print(span_id, flush=True)
    time.sleep(600)
"""


@pytest.mark.options(protocol="tcp://")
def test_a_client_killed_inside_its_block(o):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, o.cluster.scheduler_address],
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        try:
            assert client.stdout is not None
            entered(o, client.stdout.readline().strip())
            pause()
            assert o.exported == []
        finally:
            client.send_signal(signal.SIGKILL)
    o.assert_tree("killed success 2.00.. tasks=1 memory=1")


async def _asynchronous(o: Observed) -> None:
    async with Client(
        o.cluster.scheduler_address, asynchronous=True, set_as_default=False
    ) as client:
        with client.as_current(), dask_otel.span("async"):
            assert await client.submit(inc, 1) == 2
            await asyncio.sleep(PAUSE)
            assert await client.submit(inc, 2) == 3


def test_an_asynchronous_client(o):
    asyncio.run(_asynchronous(o))
    o.assert_tree("async success 2.00.. tasks=2 memory=2")


@pytest.mark.unreconciled("no bridge runs")
def test_nothing_waits_for_a_scheduler_that_does_not_answer(tmp_path: Path):
    with processes(tmp_path) as made:
        scheduler = made.start_scheduler("--preload", "dask_otel.preload")
        with Client(made.address) as client:
            client.run_on_scheduler(os.getpid)
            scheduler.popen.send_signal(signal.SIGSTOP)
            try:
                before = time.monotonic()
                for _ in range(100):
                    with dask_otel.span("a", "b"):
                        pass
                # It does not answer at all.
                assert time.monotonic() - before < 20.0
            finally:
                scheduler.popen.send_signal(signal.SIGCONT)


@pytest.mark.unreconciled("no cluster runs")
def test_without_a_client_it_is_distributeds_span():
    with dask_otel.span("a", "b") as span_id:
        annotation = dask.get_annotations()["span"]
        assert annotation["name"] == ("a", "b")
        assert annotation["ids"][-1] == span_id
    with pytest.raises(ValueError, match="at least one span tag"), dask_otel.span():
        pass


NO_MESSAGES: list[Any] = [
    None, 1, "x", {}, {"client": "c"}, {"client": None, "blocks": 1}, {"client": [], "blocks": []},
]  # fmt: skip


@pytest.mark.options(n_workers=0)
def test_messages_that_are_none(o):
    for message in NO_MESSAGES:
        o.client.log_event("dask-otel", message)
    wrong = {"client": o.client.id, "blocks": [["?", "a"], ["left", 1]]}
    o.client.log_event("dask-otel", wrong)
    with dask_otel.span("a") as span_id:
        entered(o, span_id)
    eventually(lambda: not o.adapter.blocks.leaving, what="left")
    assert o.observer.errors == []


def test_a_graph_that_takes_longer_than_the_linger_to_come_in(o, monkeypatch: pytest.MonkeyPatch):
    order = dask.order.order

    def slow(*args: Any, **kwargs: Any) -> Any:
        pause()
        return order(*args, **kwargs)

    with dask_otel.span("workflow"):
        compute(o.client, 1)
        # Ordered by the scheduler, in a thread: the block has long been left by then.
        monkeypatch.setattr(dask.order, "order", slow)
        future = o.client.compute(dask.delayed(inc)(2, dask_key_name="slow-2"))
    assert future.result() == 3
    o.assert_tree("workflow success 2.00.. tasks=2 memory=2")

"""Spans that end with their ``with span()`` block, because the client tells the scheduler."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.order
import pytest
from distributed import Client, LocalCluster, span
from distributed.spans import span as span_of_its_module

import dask_otel
from dask_otel.client import blocks
from dask_otel.core.life.open_span import Limits
from tests.cluster.observed import Observed, observed
from tests.cluster.processes import cluster as processes
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

#: Longer than the linger and a heartbeat: without help, the span is exported in it.
PAUSE = 2.5


def inc(x: int) -> int:
    return x + 1


def compute(client: Client, x: int) -> None:
    assert client.submit(inc, x, key=f"inc-{x}").result() == x + 1


def pause(seconds: float = PAUSE) -> None:
    """What a user does between two computations."""
    time.sleep(seconds)


@contextmanager
def helped_client() -> Iterator[None]:
    """Have clients load the preload, as their configuration would."""
    with dask.config.set({"distributed.client.preload": ["dask_otel.preload"]}):
        yield


def entered(o: Observed, span_id: str) -> None:
    """Wait until the scheduler knows of the block."""
    tables = o.adapter.blocks.blocks
    eventually(lambda: span_id in tables._holding or span_id in tables._waiting, 30, "entered")


def one_workflow(o: Observed, context: Any) -> str:
    with context("workflow") as span_id:
        compute(o.client, 1)
        pause()
        assert o.exported == []
        compute(o.client, 2)
        pause(0.5)
    return span_id


def test_a_pause_does_not_split_a_span_with_the_clients_help():
    with observed() as o:
        span_id = one_workflow(o, dask_otel.span)
        o.quiet()
        # From the first graph to the end of the block, the work of the client included.
        o.assert_tree("workflow success 3.0.. tasks=2 memory=2")
        assert o.named("workflow").identity.dask_id == span_id


def test_a_pause_does_not_split_distributeds_own_span_either():
    with helped_client(), observed() as o:
        assert blocks._undo is not None
        one_workflow(o, span)
        o.quiet()
        o.assert_tree("workflow success 3.0.. tasks=2 memory=2")
    assert blocks._undo is None


def test_both_together_tell_once():
    with helped_client(), observed() as o:
        with dask_otel.span("a") as span_id:
            entered(o, span_id)
            compute(o.client, 1)
        o.quiet()
        told = [e for _, e in o.client.get_events("dask-otel")]
        assert [what for e in told for what, _ in e["blocks"]] == ["entered", "left"]


def test_without_help_the_linger_decides():
    with observed() as o:
        with span("workflow"):
            compute(o.client, 1)
            eventually(lambda: len(o.exported) == 1, what="the first half is exported")
            compute(o.client, 2)
        o.quiet()
        o.assert_tree(
            """
            workflow success 0.00.. tasks=1 memory=1
              workflow#2 success 0.00.. tasks=1 memory=1
            """
        )


def test_nested_blocks_of_which_the_outer_has_no_work_of_its_own():
    with observed() as o:
        with dask_otel.span("root") as root:
            for number in range(2):
                with dask_otel.span("step", f"part-{number}"):
                    compute(o.client, number)
                eventually(lambda n=number: len(o.exported) == 2 * (n + 1), what="inner spans")
            assert root in o.adapter.lifecycle.open
        o.quiet()
        o.assert_tree(
            """
            root success 0.60.. tasks=2 memory=2
              step success 0.00.. tasks=1 memory=1
                part-0 success 0.00.. tasks=1 memory=1
              step success 0.00.. tasks=1 memory=1
                part-1 success 0.00.. tasks=1 memory=1
            """
        )


def test_a_block_without_work_leaves_nothing():
    with observed() as o:
        with dask_otel.span("idle") as span_id:
            entered(o, span_id)
        tables = o.adapter.blocks.blocks
        eventually(lambda: not tables._waiting, what="the block is forgotten")
        assert o.exported == []
        assert not tables._left_first
        o.quiet()


def test_work_submitted_at_the_end_of_the_block_belongs_to_it():
    with observed(limits=Limits(linger=0.0, settle_timeout=30.0)) as o:
        with dask_otel.span("workflow"):
            compute(o.client, 1)
            pause()
            # Large enough to be overtaken by the message that the block was left.
            data = o.client.map(len, [os.urandom(2_000_000) for _ in range(4)], key="len")
        o.client.gather(data)
        o.quiet()
        o.assert_tree("workflow success 2.00.. tasks=5 memory=5")


def test_a_client_that_closes_inside_its_block():
    with observed() as o:
        with Client(o.cluster, set_as_default=False) as other, other.as_current():
            block = dask_otel.span("closed")
            span_id = block.__enter__()
            compute(other, 1)
            entered(o, span_id)
        o.quiet()
        o.assert_tree("closed success 0.00.. tasks=1 memory=1")
        block.__exit__(None, None, None)
        pause(0.2)
        assert not o.adapter.blocks.blocks._left_first


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


def test_a_client_killed_inside_its_block():
    with observed(protocol="tcp://") as o:
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
        o.quiet()
        o.assert_tree("killed success 2.00.. tasks=1 memory=1")


async def _asynchronous(o: Observed) -> None:
    async with Client(
        o.cluster.scheduler_address, asynchronous=True, set_as_default=False
    ) as client:
        with client.as_current(), dask_otel.span("async"):
            assert await client.submit(inc, 1) == 2
            await asyncio.sleep(PAUSE)
            assert await client.submit(inc, 2) == 3


def test_an_asynchronous_client():
    with observed() as o:
        asyncio.run(_asynchronous(o))
        o.quiet()
        o.assert_tree("async success 2.00.. tasks=2 memory=2")


def _raise_inside(client: Client) -> None:
    with dask_otel.span("raises"):
        compute(client, 1)
        raise ZeroDivisionError


def test_an_error_inside_the_block_passes_and_ends_it():
    with observed() as o:
        with pytest.raises(ZeroDivisionError):
            _raise_inside(o.client)
        o.quiet()
        o.assert_tree("raises success 0.00.. tasks=1 memory=1")


def test_the_bridge_exports_what_was_held_when_the_scheduler_closes():
    with observed() as o:
        block = dask_otel.span("cut")
        span_id = block.__enter__()
        compute(o.client, 1)
        entered(o, span_id)
        o.close()
        block.__exit__(None, None, None)
        o.assert_tree("cut success 0.00.. tasks=1 memory=1")
        o.client.sync(_remove, o)


async def _remove(o: Observed) -> None:
    """It is closed already: the scheduler need not do it again."""
    o.cluster.scheduler.remove_plugin(o.observer.name)


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


@pytest.mark.unreconciled("no bridge runs")
def test_a_scheduler_without_the_bridge_is_none_the_wiser():
    with (
        LocalCluster(
            n_workers=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as local,
        Client(local) as client,
    ):
        with dask_otel.span("a") as span_id:
            compute(client, 1)
        assert span_id in local.scheduler.extensions["spans"].spans
        assert client.status == "running"


@pytest.mark.unreconciled("no cluster runs")
def test_without_a_client_it_is_distributeds_span():
    with dask_otel.span("a", "b") as span_id:
        annotation = dask.get_annotations()["span"]
        assert annotation["name"] == ("a", "b")
        assert annotation["ids"][-1] == span_id
    with pytest.raises(ValueError, match="at least one span tag"), dask_otel.span():
        pass


@pytest.mark.unreconciled("no cluster runs")
def test_every_import_of_distributeds_span_is_helped_and_put_back():
    cell = blocks._generator_cell()
    assert cell is not None, "find how distributed makes its span now, and adapt blocks.py"
    original = cell.cell_contents
    assert span_of_its_module is span
    blocks.help_distributed_span()
    helped = cell.cell_contents
    blocks.help_distributed_span()
    assert cell.cell_contents is helped is not original
    with span("still works") as span_id:
        assert dask.get_annotations()["span"]["ids"] == (span_id,)
    for _ in range(2):
        blocks.leave_distributed_span()
        assert cell.cell_contents is original


@pytest.mark.parametrize(
    "message",
    [
        None,
        1,
        "x",
        {},
        {"client": "c"},
        {"client": None, "blocks": 1},
        {"client": [], "blocks": []},
    ],
)
def test_messages_that_are_none(message: Any):
    with observed(n_workers=0) as o:
        o.client.log_event("dask-otel", message)
        o.client.log_event(
            "dask-otel", {"client": o.client.id, "blocks": [["?", "a"], ["left", 1]]}
        )
        with dask_otel.span("a") as span_id:
            entered(o, span_id)
        eventually(lambda: not o.adapter.blocks.leaving, what="left")
        assert o.observer.errors == []


def test_a_graph_that_takes_longer_than_the_linger_to_come_in(monkeypatch: pytest.MonkeyPatch):
    order = dask.order.order

    def slow(*args: Any, **kwargs: Any) -> Any:
        pause()
        return order(*args, **kwargs)

    with observed() as o:
        with dask_otel.span("workflow"):
            compute(o.client, 1)
            # Ordered by the scheduler, in a thread: the block has long been left by then.
            monkeypatch.setattr(dask.order, "order", slow)
            future = o.client.compute(dask.delayed(inc)(2, dask_key_name="slow-2"))
        assert future.result() == 3
        o.quiet()
        o.assert_tree("workflow success 2.00.. tasks=2 memory=2")

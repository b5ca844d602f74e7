"""The bridge as its users meet it: real processes, a plain client, real OTLP over sockets."""

from __future__ import annotations

import operator
import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, span

from dask_otel.core import identity
from dask_otel.core.life.blocks import TOPIC
from tests.cluster import tasks
from tests.cluster.processes import cluster
from tests.cluster.test_doctor import WITHOUT, assert_well
from tests.cluster.truth import (
    assert_closed,
    assert_monotone,
    described_spans,
    is_settled,
    tree,
)
from tests.receiver import receiver
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("forked")]

PRELOAD = ("--preload", "dask_otel.preload")


def listening(pid: int) -> set[Any]:
    """Return what a process listens on."""
    process = psutil.Process(pid)
    connections = getattr(process, "net_connections", None) or process.connections
    return {one.laddr for one in connections("all") if one.status == psutil.CONN_LISTEN}


def test_a_plain_client_gets_traces_and_counters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One preload on the scheduler, a client that does not import dask_otel; and the doctor.

    The bridge listens on nothing, and unpickles nothing, as SECURITY.md says.
    """
    trap = tmp_path / "unpickled"
    with receiver("grpc") as received, cluster(tmp_path, forked=True) as dask:
        environment = {
            **received.environ,
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            # Longer than any pause of this client between two steps of its workflow.
            "DASK_OTEL__SPANS__LINGER": "3s",
            "DASK_OTEL__CLUSTER_NAME": "nightly",
            "DASK_OTEL__FILES__PATH": str(tmp_path / "files"),
            "DASK_OTEL__METRICS__PROMETHEUS": "true",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-key=geheim",
        }
        scheduler = dask.start_scheduler(*PRELOAD, env=environment)
        pid = scheduler.popen.pid
        dask.start_worker("with")
        dask.start_worker("without", "--preload", WITHOUT)
        with Client(dask.address) as client:
            client.wait_for_workers(2)
            with span("workflow"):
                with span("load") as load_id:
                    loaded = client.map(tasks.double, range(20))
                    client.gather(loaded)
                    done = time.time()
                with span("prepare", "clean"), span("train"):
                    assert client.submit(sum, loaded).result() == 380
            with span("broken"):
                # Not `double`, whose task group is of the span "load" as long as its results are
                # wanted.
                after = client.submit(operator.neg, client.submit(tasks.fail, 1))
                assert isinstance(after.exception(), KeyError)
            with span("traps"):
                trapped = client.submit(tasks.be_trapped, str(trap), pure=False)
                assert "unpickled" in str(trapped.exception())
            client.log_event(TOPIC, {"client": client.id, "blocks": [["entered", "a"]]})
            eventually(lambda: is_settled(received, client), what="everything is exported")
            assert_well(capsys, dask, received, secret="geheim")
            truth = client.run_on_scheduler(described_spans)
            # Dask itself listens for messages and on its page.
            assert (len(listening(pid)), psutil.Process(pid).children()) == (2, [])
        # It compares all numbers with Dask's own.
        assert scheduler.terminate() == 0
        assert "dask_otel" not in scheduler.output or "ERROR" not in scheduler.output
        assert received.last("dask.otel.running") == {(): 0}
        assert_monotone(received)
        assert_closed(received)
    exported = [s for s in received.spans if s.type == "span"]
    assert tree([s for s in exported if s.attributes["dask.span.root.name"] == "workflow"]) == (
        "workflow success\n  load success\n  prepare success\n    clean success\n"
        "      train success"
    )
    for one in exported:
        dask_id = one.attributes["dask.span.id"]
        known = truth[dask_id]
        parent = known["parent"]
        keys = ("dask.span.tags", "dask.task.count", "dask.span.output.size")
        assert (one.trace_id, one.span_id, one.parent_id, one.name, one.scope[0]) == (
            identity.trace_id(one.attributes["dask.span.root.id"]),
            identity.span_id(dask_id),
            identity.span_id(parent) if parent else None,
            known["name"][-1],
            "dask_otel",
        )
        assert ([one.attributes[key] for key in keys], one.start_ns) == (
            [known[key] for key in ("name", "tasks", "nbytes")],
            pytest.approx(known["enqueued"] * 1e9, abs=1e3),
        )
    (load,) = [s for s in exported if s.attributes["dask.span.id"] == load_id]
    # No later than the client had its results, which runs by the same clock. Dask's own end is a
    # worker's guess at the scheduler's clock.
    assert load.start_ns / 1e9 < load.end_ns / 1e9 <= done
    (broken,) = [s for s in exported if s.name == "broken"]
    # Dask itself reports a length of zero.
    assert (broken.status, broken.end_ns - broken.start_ns >= 0.1e9) == (2, True)
    (event,) = [attributes for name, _, attributes in broken.events if name == "exception"]
    # No string: what the exception makes of it, nobody knows.
    assert (event["exception.message"], event["exception.stacktrace"].splitlines()[-1]) == (
        "KeyError(1)",
        "KeyError(1)",
    )
    finished = {
        (of["dask.span.name"], of["dask.task.prefix"], of["dask.task.outcome"]): value
        for labels, value in received.last("dask.task.finished").items()
        for of in [dict(labels)]
    }
    assert finished == {
        ("workflow/load", "double", "memory"): 20,
        ("workflow/prepare/clean/train", "sum", "memory"): 1,
        ("broken", "fail", "erred"): 1,
        ("traps", "be_trapped", "erred"): 1,
    }
    # The client does, as it has to.
    unpickled = set(map(int, trap.read_text().split()))
    assert os.getpid() in unpickled
    assert unpickled <= {os.getpid(), *(one.popen.pid for one in dask.processes)} - {pid}

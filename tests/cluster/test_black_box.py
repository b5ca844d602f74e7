"""The bridge as its users meet it: real processes, a plain client, real OTLP over sockets."""

from __future__ import annotations

import operator
import time
from math import inf
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, span

from dask_otel.core import identity
from tests.cluster.processes import cluster
from tests.cluster.truth import (
    assert_closed,
    assert_monotone,
    described_spans,
    is_settled,
    tree,
)
from tests.receiver import Receiver, receiver
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

PRELOAD = ("--preload", "dask_otel.preload")


def double(x: int) -> int:
    time.sleep(0.02)
    return 2 * x


def meter(x: int) -> int:
    from distributed.metrics import context_meter

    context_meter.digest_metric("rows", 7, "records")
    context_meter.digest_metric(("weird", 1), 0.25, "seconds")
    return x


def fail(x: int) -> int:
    time.sleep(0.1)
    raise KeyError(x)


def mixed_workload(client: Client) -> tuple[dict[str, str], dict[str, float]]:
    """Run spans of every kind; return the ids of some, and when the client had their results."""
    ids, done = {}, {}
    with span("workflow") as ids["workflow"]:
        with span("load") as ids["load"]:
            loaded = client.map(double, range(20))
            client.gather(loaded)
            done[ids["load"]] = time.time()
        with span("prepare", "clean") as ids["clean"]:
            client.gather(client.map(meter, range(4), pure=False))
            done[ids["clean"]] = time.time()
        with span("train") as ids["train"]:
            total = client.submit(sum, loaded)
            assert total.result() == 380
    done[ids["train"]] = done[ids["workflow"]] = time.time()
    with span("broken") as ids["broken"]:
        bad = client.submit(fail, 1)
        # Not `double`, whose task group is of the span "load" as long as its results are wanted.
        after = client.submit(operator.neg, bad)
        assert isinstance(after.exception(), KeyError)
    assert client.submit(abs, -5).result() == 5
    return ids, done


def test_a_plain_client_gets_traces_and_counters(tmp_path: Path) -> None:
    """One preload on the scheduler, a client that does not import dask_otel."""
    with receiver("grpc") as received, cluster(tmp_path) as dask:
        environment = {
            **received.environ,
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            # Longer than any pause of this client between two steps of its workflow.
            "DASK_OTEL__SPANS__LINGER": "3s",
        }
        scheduler = dask.start_scheduler(*PRELOAD, env=environment)
        dask.start_worker("a")
        dask.start_worker("b")
        with Client(dask.address) as client:
            client.wait_for_workers(2)
            ids, done = mixed_workload(client)
            eventually(lambda: is_settled(received, client), 60, "everything is exported")
            spans = client.run_on_scheduler(described_spans)
            workers = client.run_on_scheduler(
                lambda dask_scheduler: [w.name for w in dask_scheduler.workers.values()]
            )
        assert scheduler.terminate() == 0
        assert "dask_otel" not in scheduler.output or "ERROR" not in scheduler.output
        check_spans(received, spans, ids, done)
        check_failure(received, ids["broken"], workers)
        assert received.last("dask.otel.running") == {(): 0}
        assert_monotone(received)
        assert_closed(received)


def check_spans(
    received: Receiver,
    dask: dict[str, dict[str, Any]],
    ids: dict[str, str],
    done: dict[str, float],
) -> None:
    exported = [s for s in received.spans if s.type == "span"]
    assert tree([s for s in exported if s.attributes["dask.span.root.name"] == "workflow"]) == (
        "workflow success\n  load success\n  prepare success\n    clean success\n  train success"
    )
    first = [s for s in exported if s.attributes["dask.span.generation"] == 1]
    assert sorted(s.attributes["dask.span.id"] for s in first) == sorted(dask)
    for one in exported:
        dask_id = one.attributes["dask.span.id"]
        truth = dask[dask_id]
        parent = truth["parent"]
        assert (one.trace_id, one.span_id, one.parent_id, one.name) == (
            identity.trace_id(one.attributes["dask.span.root.id"]),
            identity.span_id(dask_id),
            identity.span_id(parent) if parent else None,
            truth["name"][-1],
        )
        keys = ("dask.span.tags", "dask.task.count", "dask.span.output.size")
        assert [one.attributes[key] for key in keys] == [
            truth[key] for key in ("name", "tasks", "nbytes")
        ]
        assert one.start_ns == pytest.approx(truth["enqueued"] * 1e9, abs=1e3)
        # No later than the client had its results, which runs by the same clock. Dask's own end
        # is a worker's guess at the scheduler's clock.
        assert one.start_ns / 1e9 < one.end_ns / 1e9 <= done.get(dask_id, inf)
        assert (one.scope[0], one.resource["service.name"]) == ("dask_otel", "dask-scheduler")
        assert one.resource["service.instance.id"].startswith("Scheduler-")
    load = next(s for s in exported if s.attributes["dask.span.id"] == ids["load"])
    length = (load.end_ns - load.start_ns) / 1e9
    assert 0 <= load.attributes["dask.span.queue.time"] <= length
    ((name, started, _),) = load.events
    assert name == "dask.span.start"
    # Both by the same worker's guess, for one task at least.
    assert load.end_ns - started >= 0.02 * 1e9
    groups = [s for s in received.spans if s.type == "group" and s.parent_id == load.span_id]
    assert [g.name for g in groups] == ["double tasks"]
    assert groups[0].span_id == identity.group_span_id(ids["load"], 1, "double", 1)


def check_failure(received: Receiver, dask_id: str, workers: list[str]) -> None:
    broken = next(s for s in received.spans if s.attributes["dask.span.id"] == dask_id)
    keys = ("dask.span.result", "error.type", "dask.task.erred.count")
    assert [broken.attributes[key] for key in keys] == ["failure", "KeyError", 1]
    assert broken.status == 2
    assert "KeyError" in broken.message
    # Dask itself reports a length of zero.
    assert broken.end_ns - broken.start_ns >= 0.1e9
    (event,) = [attributes for name, _, attributes in broken.events if name == "exception"]
    keys = ("exception.type", "exception.message", "dask.task.prefix")
    # No string: what the exception makes of it, nobody knows.
    assert [event[key] for key in keys] == ["KeyError", "KeyError(1)", "fail"]
    assert event["exception.stacktrace"].splitlines()[-1] == "KeyError(1)"
    assert "in fail" in event["exception.stacktrace"]
    assert event["dask.worker.name"] in workers

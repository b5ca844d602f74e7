"""The bridge as its users meet it: real processes, a plain client, real OTLP over sockets."""

from __future__ import annotations

import operator
import threading
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
    assert_reconciled,
    described_spans,
    own_values,
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


def settled(received: Receiver, client: Client) -> bool:
    """Whether everything that Dask knows has been exported."""
    truth = client.run_on_scheduler(own_values)
    assert_reconciled(received, truth)
    exported = {s.attributes["dask.span.id"] for s in received.spans if s.type == "span"}
    assert exported == set(client.run_on_scheduler(described_spans))
    return True


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_plain_client_gets_traces_and_counters(protocol: str, tmp_path: Path) -> None:
    """One preload on the scheduler, a client that does not import dask_otel."""
    with receiver(protocol) as received, cluster(tmp_path) as dask:
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
            eventually(lambda: settled(received, client), 60, "everything is exported")
            spans = client.run_on_scheduler(described_spans)
            workers = client.run_on_scheduler(
                lambda dask_scheduler: [w.name for w in dask_scheduler.workers.values()]
            )
        assert scheduler.terminate() == 0
        assert "dask_otel" not in scheduler.output or "ERROR" not in scheduler.output
        check_spans(received, spans, ids, done)
        check_failure(received, ids["broken"], workers)
        check_metrics(received)
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
        assert one.span_id == identity.span_id(dask_id)
        assert one.trace_id == identity.trace_id(one.attributes["dask.span.root.id"])
        parent = truth["parent"]
        assert one.parent_id == (identity.span_id(parent) if parent else None)
        assert one.start_ns == pytest.approx(truth["enqueued"] * 1e9, abs=1e3)
        assert one.end_ns > one.start_ns
        assert one.name == truth["name"][-1]
        assert one.attributes["dask.span.tags"] == truth["name"]
        assert one.attributes["dask.task.count"] == truth["tasks"]
        assert one.attributes["dask.span.output.size"] == truth["nbytes"]
        # No later than the client had its results, which runs by the same clock. Dask's own end
        # is a worker's guess at the scheduler's clock.
        assert one.end_ns / 1e9 <= done.get(dask_id, inf)
        assert one.scope[0] == "dask_otel"
        assert one.resource["service.name"] == "dask-scheduler"
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
    assert broken.status == 2
    assert "KeyError" in broken.message
    assert broken.attributes["dask.span.result"] == "failure"
    assert broken.attributes["error.type"] == "KeyError"
    assert broken.attributes["dask.task.erred.count"] == 1
    # Dask itself reports a length of zero.
    assert broken.end_ns - broken.start_ns >= 0.1e9
    (event,) = [attributes for name, _, attributes in broken.events if name == "exception"]
    assert event["exception.type"] == "KeyError"
    # No string: what the exception makes of it, nobody knows.
    assert event["exception.message"] == "KeyError(1)"
    assert event["exception.stacktrace"].splitlines()[-1] == "KeyError(1)"
    assert "in fail" in event["exception.stacktrace"]
    assert event["dask.worker.name"] in workers
    assert event["dask.task.prefix"] == "fail"


def check_metrics(received: Receiver) -> None:
    finished = {
        (of["dask.span.name"], of["dask.task.prefix"], of["dask.task.outcome"]): value
        for labels, value in received.last("dask.task.finished").items()
        for of in [dict(labels)]
    }
    assert finished == {
        ("workflow/load", "double", "memory"): 20,
        ("workflow/prepare/clean", "meter", "memory"): 4,
        ("workflow/train", "sum", "memory"): 1,
        ("broken", "fail", "erred"): 1,
        ("default", "abs", "memory"): 1,
    }
    active = received.last("dask.span.active")
    assert active
    assert set(active.values()) == {0}
    durations = received.last("dask.span.duration")
    assert sum(value["count"] for value in durations.values()) == 7
    assert received.last("dask.cluster.worker.count") == {(): 2} or received.last(
        "dask.cluster.worker.count"
    ) == {(): 0}
    assert received.last("dask.otel.running") == {(): 0}
    check_births(received)


def check_births(received: Receiver) -> None:
    """A counter is born with a zero point before its first value, in the same request."""
    seen: dict[Any, list[Any]] = {}
    for point in received.points:
        if point.monotonic:
            seen.setdefault(point.series, []).append(point)
    assert len(seen) > 20
    assert sum(points[1].value > 0 for points in seen.values()) > 20
    for series, points in seen.items():
        zero, first = points[:2]
        assert zero.value == 0, series
        # Dask reports zeros, too: time that users meter themselves leaves none for the CPU.
        assert first.value >= 0, series
        assert zero.time_ns < first.time_ns, series
        assert zero.start_ns == zero.time_ns - 1_000_000, series
        assert {p.start_ns for p in points} == {zero.start_ns}, series
    ids = {(s.trace_id, s.span_id) for s in received.spans}
    exemplars = [e for p in received.points for e in p.exemplars]
    assert exemplars
    assert {(trace, span_id) for trace, span_id, _ in exemplars} <= ids


@pytest.mark.unreconciled("nobody receives anything")
def test_an_unreachable_endpoint_delays_nothing(tmp_path: Path) -> None:
    """Start and close stay quick, and one warning says what is wrong."""
    with cluster(tmp_path) as dask:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "OTEL_METRIC_EXPORT_INTERVAL": "300",
            "DASK_OTEL__SPANS__LINGER": "100ms",
            "DASK_OTEL__CLOSE_TIMEOUT": "2s",
        }
        began = time.monotonic()
        scheduler = dask.start_scheduler(*PRELOAD, env=environment)
        started = time.monotonic() - began
        dask.start_worker()
        with Client(dask.address) as client:
            assert client.submit(double, 1).result() == 2
            eventually(lambda: "can't export" in scheduler.output, 90)
        began = time.monotonic()
        assert scheduler.terminate(60) == 0
        # The deadline is 2 s; the rest is Dask's own, and how quick this machine is the start says.
        assert time.monotonic() - began < 2 + 10 * max(started, 3.0)
        # One for spans and metrics, which go to the same place.
        assert scheduler.output.count("can't export") == 1
        assert "Traceback" not in scheduler.output


@pytest.mark.unreconciled("no bridge runs")
def test_a_bad_setting_is_one_clear_error(tmp_path: Path) -> None:
    """The scheduler runs on without the bridge."""
    with cluster(tmp_path) as dask:
        scheduler = dask.start_scheduler(
            *PRELOAD, env={"DASK_OTEL__SPANS__LINGER": "soon", "DASK_OTEL__SPANS__LINGR": "1"}
        )
        dask.start_worker()
        with Client(dask.address) as client:
            assert client.submit(double, 1).result() == 2
            assert client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.plugins)) < 20
            wrapped = client.run_on_scheduler(
                lambda dask_scheduler: list(vars(dask_scheduler.extensions["spans"]))
            )
            assert "heartbeat" not in wrapped
        assert scheduler.output.count("does not run on this scheduler") == 1
        assert "otel.spans.linger" in scheduler.output
        assert "soon" in scheduler.output
        assert "otel.spans.lingr" in scheduler.output
        assert "Traceback" not in scheduler.output


def test_a_collector_that_comes_back_gets_everything(tmp_path: Path) -> None:
    """Spans made while it was away are kept and sent; counters lose nothing."""
    with receiver("http/protobuf") as received, cluster(tmp_path) as dask:
        received.answer = 503
        environment = {
            **received.environ,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            "DASK_OTEL__SPANS__LINGER": "100ms",
        }
        scheduler = dask.start_scheduler(*PRELOAD, env=environment)
        dask.start_worker()
        with Client(dask.address) as client:
            with span("while away"):
                client.gather(client.map(double, range(5)))
            eventually(lambda: "can't export" in scheduler.output, 90)
            eventually(
                lambda: {signal for signal, *_ in received.requests} == {"traces", "metrics"}
            )
            received.answer = None
            eventually(lambda: settled(received, client), 120, "everything is exported")
        assert [s.name for s in received.spans if s.type == "span"] == ["while away"]
        assert_monotone(received)


@pytest.mark.unreconciled("nothing is answered, so nothing counts as received")
def test_a_hanging_collector_holds_up_no_shutdown(tmp_path: Path) -> None:
    """It accepts and never answers: the deadline of the close holds."""
    release = threading.Event()
    with receiver("http/protobuf") as received, cluster(tmp_path) as dask:
        received.before_answer = lambda signal: release.wait(100) and None
        environment = {
            **received.environ,
            # Who waits for the answer waits for as long.
            "OTEL_EXPORTER_OTLP_TIMEOUT": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "300",
            "DASK_OTEL__SPANS__LINGER": "100ms",
            "DASK_OTEL__CLOSE_TIMEOUT": "1s",
        }
        scheduler = dask.start_scheduler(*PRELOAD, env=environment)
        dask.start_worker()
        try:
            with Client(dask.address) as client:
                assert client.submit(double, 1).result() == 2
                eventually(lambda: received.requests)
            began = time.monotonic()
            assert scheduler.terminate(60) == 0
            assert time.monotonic() - began < 50
        finally:
            release.set()

"""The caller's trace goes on in Dask: what the scheduler decides, exports, and tells the tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, Future, get_client, span
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import dask_otel
from dask_otel.core import identity
from dask_otel.scheduler.wiring import make_pump
from tests.cluster import tasks
from tests.cluster.conftest import Bridged, Start
from tests.environment import run_instrumented
from tests.receiver import Receiver, Span, receiver
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

A, B = 0xA << 64 | 1, 0xB << 64 | 1
GATE = threading.Event()


@pytest.fixture(autouse=True)
def _instrumented() -> Iterator[None]:
    GATE.clear()
    dask_otel.instrument()
    yield
    GATE.set()
    dask_otel.uninstrument()


def calling(trace_id: int, span_id: int = 7, flags: int = 1) -> Any:
    """A caller's span, as an application's own provider would make it current."""
    return use_span(NonRecordingSpan(SpanContext(trace_id, span_id, False, TraceFlags(flags))))


def links(of: Span) -> list[tuple[int, int]]:
    return [(trace_id, span_id) for trace_id, span_id, _ in of.links]


def assert_tree(received: Receiver, trace_id: int, above: int, *names: str) -> None:
    """Compare a trace: Dask spans below each other, groups below the last, tasks below these."""
    spans = [s for s in received.spans if s.trace_id == trace_id]
    parent = above
    for name in names:
        (found,) = [s for s in spans if s.name == name and s.type == "span"]
        assert found.parent_id == parent, name
        assert found.span_id == identity.span_id(found.attributes["dask.span.id"])
        assert links(found) == []
        parent = found.span_id
    groups = [s for s in spans if s.type == "group"]
    assert groups
    assert {s.parent_id for s in groups} == {parent}
    slowest = [s for s in spans if s.type == "task"]
    assert {s.parent_id for s in slowest} == {s.span_id for s in groups}
    assert len(spans) == len(names) + len(groups) + len(slowest), "nothing else"


def told(bridged: Bridged, kind: str) -> float:
    """How many contexts of a kind were counted up to now, once metrics of later were exported."""
    received, now = bridged.received, time.time_ns()
    eventually(lambda: any(p.time_ns > now for p in received.points), 30, "metrics")
    counted = received.last("dask.otel.callers")
    return float(counted.get((("dask.otel.kind", kind),), 0))


def gated(number: int) -> tasks.Ids | None:
    assert GATE.wait(60)
    return tasks.current()


def open_gate(bridged: Bridged, *futures: Future) -> None:
    """Let the gated tasks go on once the scheduler has all of them: a submission is not awaited."""
    eventually(lambda: {future.key for future in futures} <= set(bridged.scheduler.tasks))
    GATE.set()


# ------------------------------------------------------------------------------- adopt


def test_a_tree_in_one_process(bridged: Bridged) -> None:
    """Work under a span of an application, which has a provider of its own."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("app")
    with (
        tracer.start_as_current_span("request") as caller,
        dask_otel.span("outer") as outer,
        dask_otel.span("etl") as etl,
    ):
        (inside,) = set(bridged.client.gather(bridged.client.map(tasks.current, range(3))))
        before = dask_otel.trace_context(str(etl), bridged.client)
    context = caller.get_span_context()
    trace_id = context.trace_id
    assert inside[2] == int(context.trace_flags), "also that its id is random, where it says so"
    assert outer.trace_id == etl.trace_id == f"{trace_id:032x}"
    received = bridged.exported()
    assert_tree(received, trace_id, context.span_id, "outer", "etl")
    exported = received.named("etl")
    assert inside[:2] == (trace_id, exported.span_id), "scheduler and worker say the same"
    # Also when it has long been exported.
    asked = dask_otel.trace_context(str(etl), bridged.client)
    assert (asked.trace_id, asked.decided) == (f"{trace_id:032x}", True)
    assert asked == before
    unknown = dask_otel.trace_context("nobody", bridged.client)
    assert (unknown.trace_id, unknown.decided) == (f"{identity.trace_id('nobody'):032x}", False)
    metrics = dask_otel.span_metrics(bridged.client, str(etl))
    assert (metrics.trace_id, metrics.span_id) == (asked.trace_id, asked.span_id)
    exemplars = {
        e[0]
        for p in received.points
        for e in p.exemplars
        if p.attributes.get("dask.span.name") == "outer/etl"
    }
    assert exemplars == {trace_id}
    assert told(bridged, "adopted") == 1


def fails() -> None:
    raise KeyError("as asked")


def test_baggage_becomes_attributes_by_key_where_it_is_asked_for(start: Start) -> None:
    keys = ["tenant", "customer", "region", "error.type"]
    given = {"tenant": "acme & söns", "secret": "x", "customer": "theirs", "error.type": "none"}
    travels = {"otel.baggage": True}
    with dask.config.set(travels), start({"spans": {"baggage": keys}}) as bridged:
        context = None
        for key, value in given.items():
            context = baggage.set_baggage(key, value, context)
        token = attach(context)
        try:
            with calling(A), dask_otel.span("etl", attributes={"customer": "mine"}):
                with dask_otel.span("load"):
                    bridged.client.submit(tasks.current).result()
                bridged.client.submit(fails).exception()
            bridged.client.submit(tasks.current_by_default).result()
        finally:
            detach(token)
        received = bridged.exported()
        wanted = {*given, "region"}
        found = {
            name: {k: v for k, v in received.named(name).attributes.items() if k in wanted}
            for name in ("etl", "load", "default")
        }
        assert found == {
            # What the user said of the span, and what the bridge says itself, is not overwritten.
            "etl": {"tenant": "acme & söns", "customer": "mine", "error.type": "KeyError"},
            "load": {"tenant": "acme & söns", "customer": "theirs", "error.type": "none"},
            "default": {},
        }
        others = [s for s in received.spans if s.type != "span"]
        assert others
        assert not any("tenant" in s.attributes for s in others)
        labels = {key for point in received.points for key in point.attributes}
        assert not labels & {"tenant", "customer", "secret"}


def nest(name: str) -> tuple[tasks.Ids, tasks.Ids | None]:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("user")
    with tracer.start_as_current_span("mine") as mine, span(name):
        inside = get_client().submit(tasks.current, name, key=f"{name}-1").result()
    context = mine.get_span_context()
    return (context.trace_id, context.span_id, 1), inside


def test_a_span_inside_a_task_is_the_parent_of_nested_work(bridged: Bridged) -> None:
    """Also where the task is of a default span: it is all in that one's trace."""
    with calling(A), span("outer"):
        mine, inside = bridged.client.submit(nest, "inner").result()
    assert (told(bridged, "adopted"), told(bridged, "linked")) == (1, 0)
    by_default = bridged.client.submit(nest, "below default", key="default").result()
    received = bridged.exported()
    outer, inner = received.named("outer"), received.named("inner")
    assert (outer.trace_id, outer.parent_id) == (A, 7)
    assert mine[0] == A
    assert (inner.trace_id, inner.parent_id) == mine[:2]
    assert inside == (A, inner.span_id, 1)
    assert links(outer) == links(inner) == []
    default, below = received.named("default"), received.named("below default")
    assert default.trace_id == below.trace_id
    assert by_default[0][:2] == (below.trace_id, below.parent_id)
    assert by_default[1] == (below.trace_id, below.span_id, 1)


@pytest.mark.options(n_workers=1, threads_per_worker=4)
def test_two_tenants_that_share_a_function(bridged: Bridged) -> None:
    """Dask books the second one's tasks on the first one's span: its group is that function's."""
    client = bridged.client
    with calling(A, 1), span("one"):
        one = client.submit(gated, 1)
    with calling(B, 2), span("two"):
        two = client.submit(gated, 2)
        also = client.submit(tasks.current, "two")
    with calling(A, 3), span("three"):
        three = client.submit(gated, 3)
    open_gate(bridged, one, two, also, three)
    found = client.gather([one, two, also, three])
    received = bridged.exported()
    first, second = received.named("one"), received.named("two")
    assert (first.trace_id, first.parent_id) == (A, 1)
    assert (second.trace_id, second.parent_id) == (B, 2)
    assert found == [
        (A, first.span_id, 1),
        (B, 2, 1),  # its caller's own
        (B, second.span_id, 1),
        (A, first.span_id, 1),
    ]
    assert links(first) == [(B, 2)]
    assert links(second) == []
    assert (told(bridged, "adopted"), told(bridged, "linked")) == (2, 1)


@pytest.mark.options(n_workers=1, threads_per_worker=1)
def test_a_task_that_is_there_already_stays_its_first_callers(bridged: Bridged) -> None:
    """Dask does not even take the second one's annotations."""
    client = bridged.client
    with calling(A, 1), span("one"):
        first = client.submit(gated, 0, key="first")
        one = client.submit(tasks.current, key="same", priority=-1)
    eventually(lambda: "same" in bridged.scheduler.tasks)
    with Client(client.scheduler.address, set_as_default=False) as other, calling(B, 2):
        two = other.submit(tasks.current, key="same", priority=-1)
        eventually(lambda: len(bridged.scheduler.clients[other.id].wants_what) == 1)
        GATE.set()
        found = two.result()
    received = bridged.exported()
    assert one.result() == found == (A, received.named("one").span_id, 1)
    assert first.result() is not None
    assert links(received.named("one")) == []


# ----------------------------------------------------------------- link, off, and default


@pytest.mark.parametrize("propagation", ["link", "off"])
def test_the_client_chooses_no_trace(start: Start, propagation: str) -> None:
    with start(config={"propagation": propagation}) as bridged:
        with calling(A), span("root") as root_id, span("below"):
            found = bridged.client.submit(tasks.current, "x").result()
        received = bridged.exported()
        root, below = received.named("root"), received.named("below")
        assert (root.trace_id, root.parent_id) == (identity.trace_id(root_id), None)
        assert (below.trace_id, below.parent_id) == (root.trace_id, root.span_id)
        assert found == (root.trace_id, below.span_id, 1)
        linked = [(A, 7)] if propagation == "link" else []
        assert (links(root), links(below)) == (linked, [])
        counts = [told(bridged, kind) for kind in ("adopted", "linked", "dropped")]
        assert counts == [0, len(linked), 0]


# ----------------------------------------------------------------------------- sampling


def test_work_of_a_caller_that_is_not_sampled_is_measured_and_not_exported(
    bridged: Bridged,
) -> None:
    with calling(A, flags=0), span("unseen"):
        found = bridged.client.submit(tasks.current, "unseen").result()
    assert found is not None
    assert (found[0], found[2]) == (A, 0), "as its worker is told"
    with span("seen"):
        bridged.client.submit(tasks.current_by_default).result()
    bridged.received.named("seen")
    eventually(lambda: not bridged.bridge.adapter.lifecycle.open)
    assert told(bridged, "adopted") == 1
    assert "unseen" not in {s.name for s in bridged.received.spans}


@pytest.mark.unreconciled("the bridge is restarted, and nothing is sampled")
def test_tasks_that_wait_are_told_again_when_the_sampler_has_been_made(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exporters are made in a thread, which takes a second; work can come before."""
    go_on = threading.Event()

    def late(*args: Any, **kwargs: Any) -> Any:
        assert go_on.wait(60)
        return make_pump(*args, **kwargs)

    environ = {"OTEL_TRACES_SAMPLER": "always_off"}
    with start(environ=environ, n_workers=1, threads_per_worker=1) as bridged:
        client = bridged.client
        assert dask_otel.unregister(client) == "stopped"
        monkeypatch.setattr("dask_otel.scheduler.bridge.make_pump", late)
        assert dask_otel.register(client) == "started"
        with dask_otel.span("own"):
            first = client.submit(gated, 1, key="gated-1")
            eventually(lambda: bridged.cluster.workers[0].state.executing)
            after = client.submit(tasks.current, first, key="after-1")
            eventually(lambda: "after-1" in bridged.scheduler.tasks)
            assert not bridged.exporting
            go_on.set()
            eventually(lambda: bridged.exporting)
            GATE.set()
            sent, waited = first.result(), after.result()
        assert sent is not None
        assert waited == (*sent[:2], 0), "as it is exported"
        assert sent[2] == 1, "what is with a worker can't be told again"


# ------------------------------------------------------------------------ continuations


@pytest.mark.unreconciled("work is done between two bridges")
@pytest.mark.options(n_workers=1)
def test_a_bridge_that_comes_to_running_work_takes_up_its_callers(bridged: Bridged) -> None:
    """And goes on in the adopted trace when it is restarted."""
    client = bridged.client
    assert dask_otel.unregister(client) == "stopped"
    with calling(A, 1), span("root"), span("below"):
        future = client.submit(gated, 1, key="gated-1")
        waiting = client.submit(tasks.current, future, key="after-1")
        eventually(lambda: "after-1" in bridged.scheduler.tasks)
    assert dask_otel.register(client) == "started"
    assert dask_otel.unregister(client) == "stopped"
    assert dask_otel.register(client) == "started"
    GATE.set()
    found = waiting.result()
    root, below = bridged.received.named("root"), bridged.received.named("below")
    assert (root.trace_id, root.parent_id) == (A, 1)
    assert (below.trace_id, below.parent_id) == (A, root.span_id)
    second = bridged.received.named("below", 2)
    assert (second.trace_id, second.parent_id) == (A, below.parent_id)
    assert found == (A, second.span_id, 1)


# --------------------------------------------------- an application that knows nothing of us

APPLICATION = """
from distributed import Client, LocalCluster, span
from opentelemetry import trace

def current(number):
    context = trace.get_current_span().get_span_context()
    return context.trace_id, context.span_id

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster:
        with Client(cluster) as client:
            tracer = trace.get_tracer("app")
            with tracer.start_as_current_span("request"), span("outer"), span("etl"):
                print(*client.submit(current, 1).result())
"""


@pytest.mark.unreconciled("metrics are not exported")
def test_opentelemetry_instrument_and_the_preload_give_one_trace(tmp_path: Path) -> None:
    """The bridge's spans go through the application's provider, under its service's name."""
    with receiver() as received:
        variables = {
            **received.environ,
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_SERVICE_NAME": "shop",
            "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": "['dask_otel.preload']",
            "DASK_OTEL__SPANS__LINGER": "100ms",
        }
        printed = run_instrumented(tmp_path, APPLICATION, variables)
        inside = tuple(map(int, printed[-1].split()))
        (caller,) = [s for s in received.spans if s.name == "request"]
        outer, etl = received.named("outer"), received.named("etl")
        (group,) = [s for s in received.spans if s.type == "group"]
        ours = (caller, outer, etl, group)
        assert {s.trace_id for s in ours} == {caller.trace_id}
        assert [s.parent_id for s in ours[1:]] == [s.span_id for s in ours[:-1]]
        assert {s.resource["service.name"] for s in ours} == {"shop"}
        assert inside == (caller.trace_id, etl.span_id), "also in the worker's process"

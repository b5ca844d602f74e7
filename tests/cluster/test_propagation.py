"""The caller's trace goes on in Dask: what the scheduler decides, exports, and tells the tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, Future, get_client, span
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import dask_otel
from dask_otel._otel.sdk import outputs
from dask_otel._otel.sdk.sampling import TraceSampler
from dask_otel.core import identity
from dask_otel.core.context import CARRIER_KEY
from dask_otel.scheduler.wiring import make_pump
from tests.cluster import tasks
from tests.cluster.conftest import Bridged, Start
from tests.cluster.processes import cluster
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


def named(received: Receiver, name: str, generation: int = 1) -> Span:
    """Wait for the only Dask span of that name and generation."""

    def found() -> list[Span]:
        return [
            s
            for s in list(received.spans)
            if s.type == "span"
            and s.name == name
            and s.attributes["dask.span.generation"] == generation
        ]

    (only,) = eventually(found, 60, f"export of {name}")
    return only


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


def request(client: Client) -> tuple[int, int, Any, Any]:
    """Work under a span of an application, which has a provider of its own."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("app")
    with (
        tracer.start_as_current_span("request") as caller,
        dask_otel.span("outer") as outer,
        dask_otel.span("etl") as etl,
    ):
        found = client.gather(client.map(tasks.current, range(3)))
    context = caller.get_span_context()
    assert len(set(found)) == 1
    assert found[0][2] == int(context.trace_flags), "also that its id is random, where it says so"
    assert outer.trace_id == etl.trace_id == f"{context.trace_id:032x}"
    return context.trace_id, context.span_id, found[0], etl


def test_a_tree_in_one_process(start: Start) -> None:
    with start() as bridged:
        trace_id, above, inside, etl = request(bridged.client)
        received = bridged.exported()
        assert_tree(received, trace_id, above, "outer", "etl")
        exported = named(received, "etl")
        assert inside[:2] == (trace_id, exported.span_id), "scheduler and worker say the same"
        # Also when it has long been exported.
        asked = dask_otel.trace_context(str(etl), bridged.client)
        assert (asked.trace_id, asked.decided) == (f"{trace_id:032x}", True)
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


def test_a_tree_over_separate_processes(tmp_path: Path) -> None:
    with receiver() as received, cluster(tmp_path) as processes:
        processes.start_scheduler(
            "--preload",
            "dask_otel.preload",
            env={**received.environ, "OTEL_METRIC_EXPORT_INTERVAL": "300"},
        )
        processes.start_worker()
        with Client(processes.address) as client:
            client.wait_for_workers(1)
            trace_id, above, inside, etl = request(client)
            named(received, "outer")
            assert_tree(received, trace_id, above, "outer", "etl")
            assert inside[:2] == (trace_id, named(received, "etl").span_id)
            asked = dask_otel.trace_context(str(etl), client)
            assert (asked.trace_id, asked.decided) == (f"{trace_id:032x}", True)


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
            name: {k: v for k, v in named(received, name).attributes.items() if k in wanted}
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


def nest(trace_id: int) -> tuple[tasks.Ids, tasks.Ids | None]:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("user")
    with tracer.start_as_current_span("mine") as mine, span("inner"):
        inside = get_client().submit(tasks.current, "nested").result()
    context = mine.get_span_context()
    return (context.trace_id, context.span_id, 1), inside


def test_a_span_inside_a_task_is_the_parent_of_nested_work(start: Start) -> None:
    with start() as bridged:
        with calling(A), span("outer"):
            mine, inside = bridged.client.submit(nest, A).result()
        received = bridged.exported()
        outer, inner = named(received, "outer"), named(received, "inner")
        assert (outer.trace_id, outer.parent_id) == (A, 7)
        assert mine[0] == A
        assert (inner.trace_id, inner.parent_id) == mine[:2]
        assert inside == (A, inner.span_id, 1)
        assert links(outer) == links(inner) == []
        assert (told(bridged, "adopted"), told(bridged, "linked")) == (1, 0)


def test_nested_work_of_a_default_span_is_in_its_trace(start: Start) -> None:
    with start() as bridged:
        mine, inside = bridged.client.submit(nest, A).result()
        received = bridged.exported()
        default, inner = named(received, "default"), named(received, "inner")
        assert default.trace_id == mine[0] == inner.trace_id
        assert inner.parent_id == mine[1]
        assert inside == (inner.trace_id, inner.span_id, 1)


def test_two_tenants_that_share_a_function(start: Start) -> None:
    """Dask books the second one's tasks on the first one's span: its group is that function's."""
    with start(n_workers=1, threads_per_worker=4) as bridged:
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
        first, second = named(received, "one"), named(received, "two")
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


def test_a_task_that_is_there_already_stays_its_first_callers(start: Start) -> None:
    """Dask does not even take the second one's annotations."""
    with start(n_workers=1, threads_per_worker=1) as bridged:
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
        assert one.result() == found == (A, named(received, "one").span_id, 1)
        assert first.result() is not None
        assert links(named(received, "one")) == []


def test_many_threads(start: Start) -> None:
    with start(n_workers=1, threads_per_worker=4) as bridged:

        def serve(number: int) -> tasks.Ids:
            with calling(A + number, number), span(f"request {number}"):
                found: tasks.Ids = bridged.client.submit(
                    tasks.current, key=f"work{number}-0"
                ).result()
            return found

        with ThreadPoolExecutor(8) as threads:
            found = dict(enumerate(threads.map(serve, range(1, 25)), 1))
        received = bridged.exported()
        for number in range(1, 25):
            assert_tree(received, A + number, number, f"request {number}")
            assert found[number][:2] == (A + number, named(received, f"request {number}").span_id)


def test_an_asynchronous_client(start: Start) -> None:
    async def serve(client: Client, number: int) -> None:
        with calling(A + number, number), span(f"request {number}"):
            found = await client.submit(tasks.current, key=f"work{number}-0")
        assert found[0] == A + number

    async def run(address: str) -> None:
        async with Client(address, asynchronous=True, set_as_default=False) as client:
            await asyncio.gather(*[serve(client, number) for number in range(1, 9)])

    with start() as bridged:
        bridged.client.sync(run, bridged.client.scheduler.address)
        received = bridged.exported()
        for number in range(1, 9):
            assert_tree(received, A + number, number, f"request {number}")


def test_one_dask_span_per_caller(start: Start) -> None:
    with dask.config.set({"otel.client.span-per-caller": True}), start() as bridged:
        futures = []
        for key in ("a-1", "b-1"):
            with calling(A):
                futures.append(bridged.client.submit(gated, 1, key=key))
        # While one of them has to run, their span does not end.
        open_gate(bridged, *futures)
        bridged.client.gather(futures)
        received = bridged.exported()
        assert_tree(received, A, 7, "traced")


# ----------------------------------------------------------------- link, off, and default


def test_link(start: Start) -> None:
    with start(config={"propagation": "link"}) as bridged:
        with calling(A), span("root") as root_id, span("below"):
            found = bridged.client.submit(tasks.current, "x").result()
        received = bridged.exported()
        root, below = named(received, "root"), named(received, "below")
        assert (root.trace_id, root.parent_id) == (identity.trace_id(root_id), None)
        assert (below.trace_id, below.parent_id) == (root.trace_id, root.span_id)
        assert found == (root.trace_id, below.span_id, 1), "the client chooses nothing"
        assert links(root) == [(A, 7)]
        assert links(below) == []
        assert (told(bridged, "adopted"), told(bridged, "linked")) == (0, 1)


def test_off(start: Start) -> None:
    with start(config={"propagation": "off"}) as bridged:
        with calling(A), span("root") as root_id:
            found = bridged.client.submit(tasks.current, "x").result()
        root = named(bridged.exported(), "root")
        assert (root.trace_id, root.parent_id) == (identity.trace_id(root_id), None)
        assert found == (root.trace_id, root.span_id, 1)
        assert links(root) == []
        assert not [k for k in ("adopted", "linked", "dropped") if told(bridged, k)]


def test_default_has_callers_as_links_alone(start: Start) -> None:
    with start(n_workers=1, threads_per_worker=4) as bridged:
        client = bridged.client
        with calling(A, 1):
            one = client.submit(gated, 1, key="one-1")
        with calling(B, 2):
            two = client.submit(gated, 2, key="two-1")
        three = client.submit(gated, 3, key="three-1")
        open_gate(bridged, one, two, three)
        found = client.gather([one, two, three])
        default = named(bridged.exported(), "default")
        assert default.parent_id is None
        assert default.trace_id == identity.trace_id(default.attributes["dask.span.id"])
        assert links(default) == [(A, 1), (B, 2)]
        assert found == [(A, 1, 1), (B, 2, 1), (default.trace_id, default.span_id, 1)]


# ------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "garbage",
    [
        "mine",
        5,
        ["traceparent"],
        {},
        {"traceparent": "00-0-0-0"},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        {"traceparent": "x" * 5_000_000},
        {"traceparent": b"\xff"},
        {1: {2: [3]}},
    ],
)
def test_garbage_is_ignored_and_counted(start: Start, garbage: Any) -> None:
    with start(n_workers=1) as bridged:
        mine = {CARRIER_KEY: garbage, "dask_otel.span": "mine", "dask_otel.state": 5}
        with calling(A), span("root") as root_id, dask.annotate(**mine):
            found = bridged.client.submit(tasks.current, "x").result()
        root = named(bridged.exported(), "root")
        assert root.trace_id == identity.trace_id(root_id)
        assert found == (root.trace_id, root.span_id, 1)
        assert told(bridged, "malformed") == 1


@pytest.mark.parametrize("junk", [{}, ["tenant"], 5])
def test_baggage_that_is_no_text_is_ignored_alone(start: Start, junk: Any) -> None:
    """Scheduler and worker name the same trace: the caller's."""
    mine = {CARRIER_KEY: {"traceparent": f"00-{A:032x}-{7:016x}-03", "baggage": junk}}
    with start(n_workers=1) as bridged:
        with span("root"), dask.annotate(**mine):
            found = bridged.client.submit(tasks.current, "x").result()
        root = named(bridged.exported(), "root")
        assert (root.trace_id, root.parent_id) == (A, 7)
        assert found == (A, root.span_id, 3)
        assert told(bridged, "malformed") == 0


# ----------------------------------------------------------------------------- sampling


@pytest.mark.unreconciled("nothing of what is not sampled is exported but its metrics")
def test_a_caller_that_is_not_sampled_has_metrics_and_no_spans(start: Start) -> None:
    with start() as bridged:
        with calling(A, 1, flags=2), span("unsampled"):
            found = bridged.client.submit(tasks.current, "x").result()
        with calling(A, 2, flags=3), span("sampled"):
            also = bridged.client.submit(tasks.current, "y", key="y").result()
        received = bridged.received
        sampled = named(received, "sampled")
        assert also == (A, sampled.span_id, 3), "of one trace, and with a decision of its own"
        assert found[0] == A
        assert found[2] == 2

        def measured() -> bool:
            names = {
                p.attributes.get("dask.span.name")
                for p in received.points
                if p.metric == "dask.span.duration"
            }
            return {"sampled", "unsampled"} <= names

        eventually(measured)
        assert {s.attributes["dask.span.root.name"] for s in received.spans} == {"sampled"}
        exemplars = {p.attributes.get("dask.span.name") for p in received.points if p.exemplars}
        assert exemplars == {"sampled"}


@pytest.mark.unreconciled("nothing is sampled")
def test_the_scheduler_s_sampler_decides_for_roots_without_a_caller(start: Start) -> None:
    environ = {"OTEL_TRACES_SAMPLER": "parentbased_always_off"}
    with start(environ=environ) as bridged:
        with span("own"):
            found = bridged.client.submit(tasks.current, "x").result()
        with calling(A), span("called"):
            bridged.client.submit(tasks.current, "y", key="y").result()
        named(bridged.received, "called")
        assert found[2] == 0, "what the user's code is told is what is exported"
        assert {s.attributes["dask.span.root.name"] for s in bridged.received.spans} == {"called"}


@pytest.mark.unreconciled("the bridge is taken off and put on, and nothing is sampled")
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


class Remote(Sampler):
    """Asks somebody, who answers after some seconds that nothing is to be sampled."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked = threading.Event()
        self.gone = threading.Event()

    def should_sample(self, *args: Any, **options: Any) -> SamplingResult:
        self.asked.set()
        self.gone.wait(self.seconds)
        return SamplingResult(Decision.DROP)

    def get_description(self) -> str:
        return "remote"


@pytest.mark.parametrize("seconds", [2.0, 600.0])
def test_a_sampler_that_takes_its_time_holds_up_neither_a_submission_nor_the_close(
    start: Start, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """What tasks are told before it answers is the decision: what the default one decides."""
    remote = Remote(seconds)
    monkeypatch.setattr(outputs, "make_sampler", lambda resource: TraceSampler(remote))
    with start(n_workers=1, config={"close-timeout": "30s"}) as bridged:
        for number in range(4):
            began = time.monotonic()
            with span("own"):
                found = bridged.client.submit(tasks.current, number, key=f"x{number}-0").result()
            assert time.monotonic() - began < 1.0
            assert found is not None
            assert found[2] == 1
        assert remote.asked.is_set()
        with calling(A, flags=0), span("called"):
            found = bridged.client.submit(tasks.current, "y", key="y").result()
        assert found is not None
        assert found[2] == 0
        received = bridged.received
        eventually(lambda: sum(s.name == "own" and s.type == "span" for s in received.spans) == 4)
        began = time.monotonic()
    assert time.monotonic() - began < 15.0
    assert {s.attributes["dask.span.root.name"] for s in received.spans} == {"own"}
    remote.gone.set()
    eventually(lambda: "dask-otel-sampler" not in {t.name for t in threading.enumerate()})


# ------------------------------------------------------------------------ continuations


@contextmanager
def job(number: int) -> Iterator[None]:
    """A Dask span that is entered again and again, by whoever."""
    with dask.annotate(span={"name": ("job",), "ids": (f"job-{number}",)}):
        yield


def test_a_continuation_stays_where_its_root_is(start: Start) -> None:
    with start() as bridged:
        client = bridged.client
        with calling(A, 1), job(1):
            client.submit(tasks.current, key="a-1").result()
        first = named(bridged.received, "job")
        with calling(B, 2), job(1):
            found = client.submit(tasks.current, key="b-1").result()
        second = named(bridged.received, "job", 2)
        assert (first.trace_id, first.parent_id) == (A, 1)
        assert (second.trace_id, second.parent_id) == (A, first.span_id)
        assert links(second) == [(A, first.span_id), (B, 2)]
        assert found == (B, 2, 1)
        assert dask_otel.trace_context("job-1", client).trace_id == f"{A:032x}"


def test_a_continuation_after_the_gap_is_its_caller_s(start: Start) -> None:
    with start(config={"spans": {"linger": "100ms", "trace-gap": "0s"}}) as bridged:
        client = bridged.client
        with calling(A, 1), job(2):
            client.submit(tasks.current, key="a-1").result()
        first = named(bridged.received, "job")
        with calling(B, 2), job(2):
            found = client.submit(tasks.current, key="b-1").result()
        second = named(bridged.received, "job", 2)
        assert (second.trace_id, second.parent_id) == (B, 2)
        assert links(second) == [(A, first.span_id)]
        assert found == (B, second.span_id, 1)


@pytest.mark.unreconciled("work is done between two bridges")
def test_a_bridge_that_is_put_on_again_goes_on_in_the_adopted_trace(start: Start) -> None:
    with start(n_workers=1) as bridged:
        client = bridged.client
        with calling(A, 1), job(3):
            future = client.submit(gated, 1, key="gated-1")
            eventually(lambda: bridged.cluster.workers[0].state.executing)
            waiting = client.submit(tasks.current, future, key="after-1")
            eventually(lambda: "after-1" in bridged.scheduler.tasks)
        assert dask_otel.unregister(client) == "stopped"
        assert dask_otel.register(client) == "started"
        GATE.set()
        found = waiting.result()
        first = named(bridged.received, "job")
        second = named(bridged.received, "job", 2)
        assert (first.trace_id, first.parent_id) == (A, 1)
        assert (second.trace_id, second.parent_id) == (A, first.span_id)
        assert found == (A, second.span_id, 1)


@pytest.mark.unreconciled("work began before the bridge was put on")
def test_a_bridge_that_comes_to_running_work_takes_up_its_callers(start: Start) -> None:
    with start(n_workers=1) as bridged:
        client = bridged.client
        assert dask_otel.unregister(client) == "stopped"
        with calling(A, 1), span("root"), span("below"):
            future = client.submit(gated, 1, key="gated-1")
            waiting = client.submit(tasks.current, future, key="after-1")
            eventually(lambda: "after-1" in bridged.scheduler.tasks)
        assert dask_otel.register(client) == "started"
        GATE.set()
        found = waiting.result()
        root, below = named(bridged.received, "root"), named(bridged.received, "below")
        assert (root.trace_id, root.parent_id) == (A, 1)
        assert (below.trace_id, below.parent_id) == (A, root.span_id)
        assert found == (A, below.span_id, 1)


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
        outer, etl = named(received, "outer"), named(received, "etl")
        (group,) = [s for s in received.spans if s.type == "group"]
        ours = (caller, outer, etl, group)
        assert {s.trace_id for s in ours} == {caller.trace_id}
        assert [s.parent_id for s in ours[1:]] == [s.span_id for s in ours[:-1]]
        assert {s.resource["service.name"] for s in ours} == {"shop"}
        assert inside == (caller.trace_id, etl.span_id), "also in the worker's process"

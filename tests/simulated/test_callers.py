"""The caller's trace goes on in Dask: in submissions, in the exported spans, and inside tasks."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array
import pytest
from distributed import Client, get_client, span, wait, worker_client
from distributed.diagnostics.plugin import SchedulerPlugin
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import dask_otel
from dask_otel.client.hook import METHOD
from dask_otel.core import identity
from dask_otel.core.context import CARRIER_KEY, Traceparent, caller_dask_id
from tests.cluster import tasks
from tests.receiver import Span
from tests.simulated.bridged import Bridged
from tests.simulated.observed import Simulated
from tests.simulated.tasks import inc

A, B = 0xA << 64 | 1, 0xB << 64 | 1
PER_CALLER = {"otel.client.span-per-caller": True}
PRELOAD = {"distributed.client.preload": ["dask_otel.preload"]}


@pytest.fixture(autouse=True)
def _instrumented() -> Iterator[None]:
    original = Client.__dict__[METHOD]
    dask_otel.instrument()
    yield
    dask_otel.uninstrument()
    assert Client.__dict__[METHOD] is original


def calling(span_id: int, trace_id: int = A, flags: int = 1) -> Any:
    """A caller's span, as an application's own provider would make it current."""
    return use_span(NonRecordingSpan(SpanContext(trace_id, span_id, False, TraceFlags(flags))))


def traceparent(span_id: int) -> str:
    return f"00-{A:032x}-{span_id:016x}-01"


def current_after(seconds: float) -> tasks.Ids | None:
    time.sleep(seconds)
    return tasks.current()


# --------------------------------------------------------------------------- submissions


class Recorder(SchedulerPlugin):
    """Keeps the annotations of every task, as the scheduler has them before it runs."""

    name = "recorder"

    def __init__(self, o: Simulated) -> None:
        self.scheduler = o.scheduler
        self.annotations: dict[Any, dict[str, Any]] = {}
        o.scheduler.add_plugin(self)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "waiting":
            self.annotations[key] = dict(self.scheduler.tasks[key].annotations or {})

    def take(self) -> dict[Any, dict[str, Any]]:
        """Return what was recorded since the last call."""
        taken, self.annotations = self.annotations, {}
        assert taken, "nothing was submitted"
        return taken

    def callers(self) -> set[str | None]:
        """Return the traceparents of the tasks since the last call; None stands for none."""
        return {a.get(CARRIER_KEY, {}).get("traceparent") for a in self.take().values()}


def a_frame() -> Any:
    # Not imported by each process of the tests.
    import pandas
    from dask import dataframe

    return dataframe.from_pandas(pandas.DataFrame({"a": range(20)}), npartitions=4)


SUBMISSIONS: dict[str, Callable[[Client], Any]] = {
    "submit": lambda client: client.submit(inc, 1).result(),
    "map": lambda client: client.gather(client.map(inc, range(5))),
    "delayed": lambda client: dask.delayed(inc)(dask.delayed(inc)(1)).compute(),
    "array": lambda client: (dask.array.ones((40, 40), chunks=(10, 10)) + 1).sum().compute(),
    "dataframe": lambda client: a_frame().assign(b=1).groupby("a").b.sum().compute(),
    "client.compute": lambda client: client.compute(dask.delayed(inc)(1)).result(),
    "persist": lambda client: client.persist(dask.delayed(inc)(1)).compute(),
    "dask.persist": lambda client: wait(dask.persist(dask.delayed(inc)(1))),
    "get": lambda client: client.get({"x": 1, "y": (inc, "x")}, "y"),
}


def test_it_reaches_every_task_however_it_is_submitted(o: Simulated) -> None:
    recorder = Recorder(o)
    for number, (name, submit) in enumerate(SUBMISSIONS.items(), 1):
        with calling(number):
            submit(o.client)
        assert recorder.callers() == {traceparent(number)}, name
    o.client.submit(inc, 1, pure=False).result()
    assert recorder.callers() == {None}, "no span is active"
    dask_otel.uninstrument()
    with calling(1):
        o.client.submit(inc, 1, pure=False).result()
    assert recorder.callers() == {None}


async def asynchronously(address: str) -> None:
    async with Client(address, asynchronous=True, set_as_default=False) as client:

        async def request(number: int) -> None:
            with calling(number):
                assert await client.submit(inc, 1, key=f"submit-{number}") == 2
                futures = client.map(inc, range(3), key=f"map-{number}")
                await asyncio.sleep(0)
                # With sync=True Dask lets go of its futures before they are gathered.
                key = f"get-{number}"
                futures += client.get({key: (inc, number)}, [key], sync=False)
                await client.gather(futures)

        await asyncio.gather(*[request(number) for number in range(1, 9)])


def test_it_follows_the_requests_of_an_asynchronous_client(o: Simulated) -> None:
    recorder = Recorder(o)
    o.cluster.do("application", asynchronously, o.scheduler.address)
    taken = recorder.take()
    assert len(taken) == 8 * 5
    for key, sent in taken.items():
        (number,) = {int(found) for found in re.findall(r"-(\d)\b", str(key))}
        assert sent[CARRIER_KEY] == {"traceparent": traceparent(number)}, key


def test_annotations_of_the_users_are_left_as_they_are(o: Simulated) -> None:
    recorder = Recorder(o)
    with calling(1), dask.annotate(team="risk", priority=3):
        o.client.submit(inc, 1).result()
    with dask.annotate(team="layer", retries=2):
        array = dask.array.ones(4, chunks=2)
    with calling(1):
        wait(dask.persist(array, optimize_graph=False))
    first, *others = recorder.take().values()
    assert (first["team"], first["priority"]) == ("risk", 3)
    assert {(one["team"], one["retries"]) for one in others} == {("layer", 2)}
    assert [one[CARRIER_KEY] for one in (first, *others)] == [{"traceparent": traceparent(1)}] * 3
    assert dask.get_annotations() == {}


def nest(number: int) -> None:
    """Submit from a task: below a span of the user's own, and below none."""
    with calling(number):
        get_client().submit(inc, number, key="below-a-span").result()
        with worker_client() as client:
            client.submit(inc, number, key="by-worker-client").result()
    get_client().submit(inc, number, key="below-none").result()


async def nest_asynchronously(number: int) -> None:
    with calling(number):
        await get_client().submit(inc, number, key="from-async")
    await get_client().submit(inc, number, key="from-async-below-none")


def test_a_span_opened_inside_a_task_is_the_caller_of_what_is_submitted_there(
    o: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(o)
    with dask.config.set(PER_CALLER):
        o.client.submit(nest, 5, key="by-default").result()
        assert not any("span" in annotations for annotations in recorder.take().values())
        # As a batch system leaves it to a worker: not the caller of what its tasks submit.
        dask_otel.uninstrument()
        monkeypatch.setenv("TRACEPARENT", traceparent(9))
        dask_otel.instrument()
        o.client.submit(nest, 5, key="outer").result()
        o.client.submit(nest_asynchronously, 6, key="async").result()
    taken = recorder.take()
    callers = {key: (of.get(CARRIER_KEY) or {}).get("traceparent") for key, of in taken.items()}
    assert callers == {
        "outer": traceparent(9),
        "async": traceparent(9),
        "below-a-span": traceparent(5),
        "by-worker-client": traceparent(5),
        "below-none": None,
        "from-async": traceparent(6),
        "from-async-below-none": None,
    }
    ids = {of["span"]["ids"] for of in taken.values() if "span" in of}
    assert ids == {(caller_dask_id(Traceparent(A, 9)),)}, "none is made inside tasks"


GIVEN = {"tenant": "acme", "rows": 5, "dask.span.id": "mine", "\ud800": "\ud800"}


@pytest.mark.parametrize(
    "config", [pytest.param(c, marks=pytest.mark.options(config=c)) for c in ({}, PRELOAD)]
)
def test_attributes_end_on_the_span_with_the_preload_and_without(o: Simulated, config: Any) -> None:
    with dask_otel.span("outer"), dask_otel.span("with", attributes=GIVEN):
        o.client.submit(inc, 1).result()
    with span("without"):
        o.client.submit(inc, 2, key="other").result()
    o.quiet()
    assert {s.identity.tags[-1]: s.attributes for s in o.exported} == {
        "with": {"tenant": "acme", "rows": 5, "\ufffd": "\ufffd"},
        "outer": {},
        "without": {},
    }
    # A scheduler of the first version takes a block as two texts.
    messages = [message for _, message in o.client.get_events("dask-otel")]
    assert {len(block) for message in messages for block in message["blocks"]} == {2}
    assert sum("attributes" in message for message in messages) == 1


# --------------------------------------------------------------------- the exported spans


def links(of: Span) -> list[tuple[int, int]]:
    return [(trace_id, span_id) for trace_id, span_id, _ in of.links]


def counted(b: Bridged, *kinds: str) -> list[float]:
    """Return how many contexts of each kind were counted so far."""
    # Metrics are exported every two seconds.
    time.sleep(2.5)
    found = b.received.last("dask.otel.callers")
    return [found.get((("dask.otel.kind", kind),), 0) for kind in kinds]


def test_a_tree_in_one_process(b: Bridged) -> None:
    """Work under a span of an application, which has a provider of its own."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("app")
    with (
        tracer.start_as_current_span("request") as caller,
        dask_otel.span("outer") as outer,
        dask_otel.span("etl") as etl,
    ):
        (inside,) = set(b.client.gather(b.client.map(tasks.current, range(3))))
        before = dask_otel.trace_context(str(etl), b.client)
    context = caller.get_span_context()
    trace_id = context.trace_id
    assert inside[2] == int(context.trace_flags), "also that its id is random, where it says so"
    assert outer.trace_id == etl.trace_id == f"{trace_id:032x}"
    received = b.exported()
    above, below = received.named("outer"), received.named("etl")
    assert (above.parent_id, below.parent_id) == (context.span_id, above.span_id)
    assert links(above) == links(below) == []
    assert inside[:2] == (trace_id, below.span_id), "as its worker says"
    assert {s.trace_id for s in received.spans} == {trace_id}
    # Also when it has long been exported.
    asked = dask_otel.trace_context(str(etl), b.client)
    assert (asked.trace_id, asked.decided) == (f"{trace_id:032x}", True)
    assert asked == before
    unknown = dask_otel.trace_context("nobody", b.client)
    assert (unknown.trace_id, unknown.decided) == (f"{identity.trace_id('nobody'):032x}", False)
    metrics = dask_otel.span_metrics(b.client, str(etl))
    assert (metrics.trace_id, metrics.span_id) == (asked.trace_id, asked.span_id)
    exemplars = {
        e[0]
        for p in received.points
        for e in p.exemplars
        if p.attributes.get("dask.span.name") == "outer/etl"
    }
    assert exemplars == {trace_id}
    assert counted(b, "adopted") == [1]


def fails() -> None:
    raise KeyError("as asked")


KEYS = ["tenant", "customer", "region", "error.type"]


@pytest.mark.options(otel={"spans": {"baggage": KEYS}})
def test_baggage_becomes_attributes_by_key_where_it_is_asked_for(b: Bridged) -> None:
    given = {"tenant": "acme & söns", "secret": "x", "customer": "theirs", "error.type": "none"}
    context = None
    for key, value in given.items():
        context = baggage.set_baggage(key, value, context)
    token = attach(context)
    with dask.config.set({"otel.baggage": True}):
        with calling(7), dask_otel.span("etl", attributes={"customer": "mine"}):
            with dask_otel.span("load"):
                b.client.submit(tasks.current).result()
            b.client.submit(fails).exception()
        b.client.submit(tasks.current_by_default).result()
    detach(token)
    received = b.exported()
    found = {
        name: {k: v for k, v in received.named(name).attributes.items() if k in {*given, *KEYS}}
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


def nest_own(name: str) -> tuple[tasks.Ids, tasks.Ids | None]:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("user")
    with tracer.start_as_current_span("mine") as mine, span(name):
        inside = get_client().submit(tasks.current, name, key=f"{name}-1").result()
    context = mine.get_span_context()
    return (context.trace_id, context.span_id, 1), inside


def test_a_span_inside_a_task_is_the_parent_of_nested_work(b: Bridged) -> None:
    """Also where the task is of a default span: it is all in that one's trace."""
    with calling(7), span("outer"):
        mine, inside = b.client.submit(nest_own, "inner").result()
    assert counted(b, "adopted", "linked") == [1, 0]
    by_default = b.client.submit(nest_own, "below default", key="default").result()
    received = b.exported()
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


def test_two_tenants_that_share_a_function(b: Bridged) -> None:
    """Dask books the second one's tasks on the first one's span: its group is that function's."""
    client = b.client
    with calling(1), span("one"):
        one = client.submit(current_after, 0.51)
    with calling(2, B), span("two"):
        two = client.submit(current_after, 0.52)
        also = client.submit(tasks.current, "two")
    with calling(3), span("three"):
        three = client.submit(current_after, 0.53)
    found = client.gather([one, two, also, three])
    received = b.exported()
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
    assert counted(b, "adopted", "linked") == [2, 1]


@pytest.mark.options(workers=1, threads=1)
def test_a_task_that_is_there_already_stays_its_first_callers(b: Bridged) -> None:
    """Dask does not even take the second one's annotations."""
    with calling(1), span("one"):
        first = b.client.submit(current_after, 1.0, key="first")
        one = b.client.submit(tasks.current, first, key="same")
    time.sleep(0.5)
    with calling(2, B):
        two = b.cluster.new_client(set_as_default=False).submit(tasks.current, first, key="same")
        found = two.result()
    received = b.exported()
    assert one.result() == found == (A, received.named("one").span_id, 1)
    assert links(received.named("one")) == []


@pytest.mark.parametrize(
    "propagation",
    [pytest.param(c, marks=pytest.mark.options(otel={"propagation": c})) for c in ("link", "off")],
)
def test_the_client_chooses_no_trace(b: Bridged, propagation: str) -> None:
    with calling(7), span("root") as root_id, span("below"):
        found = b.client.submit(tasks.current, "x").result()
    received = b.exported()
    root, below = received.named("root"), received.named("below")
    assert (root.trace_id, root.parent_id) == (identity.trace_id(root_id), None)
    assert (below.trace_id, below.parent_id) == (root.trace_id, root.span_id)
    assert found == (root.trace_id, below.span_id, 1)
    linked = [(A, 7)] if propagation == "link" else []
    assert (links(root), links(below)) == (linked, [])
    assert counted(b, "adopted", "linked", "dropped") == [0, len(linked), 0]


def test_work_of_a_caller_that_is_not_sampled_is_measured_and_not_exported(b: Bridged) -> None:
    with calling(7, flags=0), span("unseen"):
        found = b.client.submit(tasks.current, "unseen").result()
    assert found is not None
    assert (found[0], found[2]) == (A, 0), "as its worker knows it"
    with span("seen"):
        b.client.submit(tasks.current_by_default).result()
    received = b.exported()
    assert counted(b, "adopted") == [1]
    assert {s.name for s in received.spans if s.type == "span"} == {"seen"}


@pytest.mark.options(
    workers=1, threads=1, unreconciled="the bridge is restarted",
    otel={"environment": {"OTEL_TRACES_SAMPLER": "always_off"}},
)  # fmt: skip
def test_tasks_that_wait_are_annotated_again_when_the_sampler_has_been_made(
    b: Bridged, slow_exporters: Any
) -> None:
    """Work can come before the exporters are made."""
    assert dask_otel.unregister(b.client) == "stopped"
    slow_exporters(1.0)
    b.begin()
    with dask_otel.span("own"):
        first = b.client.submit(current_after, 2.0)
        sent, waited = b.client.gather([first, b.client.submit(tasks.current, first)])
    assert waited == (*sent[:2], 0), "as it is exported"
    assert sent[2] == 1, "a task on a worker can't be annotated again"


@pytest.mark.options(workers=1, unreconciled="work is done between two bridges")
def test_a_bridge_that_comes_to_running_work_takes_up_its_callers(b: Bridged) -> None:
    """And goes on in the adopted trace when it is restarted."""
    assert dask_otel.unregister(b.client) == "stopped"
    with calling(1), span("root"), span("below"):
        future = b.client.submit(current_after, 20.0)
        waiting = b.client.submit(tasks.current, future)
    time.sleep(1.0)
    assert dask_otel.register(b.client) == "started"
    assert dask_otel.unregister(b.client) == "stopped"
    assert dask_otel.register(b.client) == "started"
    found = waiting.result()
    root, below = b.received.named("root"), b.received.named("below")
    assert (root.trace_id, root.parent_id) == (A, 1)
    assert (below.trace_id, below.parent_id) == (A, root.span_id)
    second = b.received.named("below", 2)
    assert (second.trace_id, second.parent_id) == (A, below.parent_id)
    assert found == (A, second.span_id, 1)


# ---------------------------------------------------------------------------- inside tasks


# Dask 2025.1 warns of itself where an actor calls another one.
@pytest.mark.filterwarnings("ignore:The `Worker.actors` attribute:FutureWarning")
@pytest.mark.options(workers=1, threads=4)
def test_in_threads_async_tasks_nested_work_and_actors(b: Bridged) -> None:
    client = b.client
    with dask_otel.span("outer"), dask_otel.span("etl"):
        with dask.annotate(executor="offload"):
            pool = client.submit(tasks.current, "pool")
        futures = [
            pool,
            client.submit(tasks.current, "thread"),
            client.submit(tasks.current_async, "async"),
            client.submit(tasks.seceded),
            client.submit(tasks.by_worker_client),
            client.submit(tasks.by_get_client),
        ]
        actor = client.submit(tasks.Counter, actor=True).result()
        friend = client.submit(tasks.Counter, actor=True, key="friend").result()
        found = client.gather(futures)
    # After the block, and from outside: an actor's methods belong to the span that created it.
    found += [
        actor.when_made().result(),
        actor.sync().result(),
        actor.asynchronous().result(),
        actor.sync(separate_thread=False).result(),
        actor.other(friend).result(),
    ]
    with pytest.raises(ValueError, match="as asked"):
        actor.fails().result()
    flat = [ids for one in found for ids in (one if isinstance(one, list) else [one])]
    default = client.submit(tasks.current_by_default).result()
    parent, inside, after = client.submit(tasks.with_span_of_own).result()
    by_run = client.run(tasks.current)
    del actor, friend, futures, pool
    received = b.exported()
    assert flat == [received.named("etl").ids] * 15
    # The user's own span is a child, in the same trace, and gone when it is over.
    assert parent == after
    assert {default, parent} <= {s.ids for s in received.spans if s.name == "default"}
    assert inside is not None
    assert inside[0] == parent[0]
    assert inside[1] != parent[1]
    # Documented as left out.
    assert set(by_run.values()) == {None}


@pytest.mark.options(workers=1)
def test_a_task_that_joins_another_span_s_group(b: Bridged) -> None:
    """Dask books it on that span, and no annotation names its trace."""
    with dask_otel.span("outer"), dask_otel.span("etl"):
        kept = b.client.submit(tasks.current, "first")
        first = kept.result()
        # Another thread has no annotations of this one's; the block keeps the span open.
        outside = "outside of every span"
        submit = lambda: b.client.submit(tasks.current, outside).result()  # noqa: E731
        joined = b.cluster.thread("client", submit).result()
    assert joined == first == b.received.named("etl").ids


@pytest.mark.options(workers=1, otel={"workers": {"context": False}})
def test_it_can_be_switched_off(b: Bridged) -> None:
    assert b.client.submit(tasks.current_by_default).result() is None
    with dask.annotate(team="risk"):
        carried = b.client.submit(tasks.annotations, key="annotated").result()
    assert {name: value for name, value in carried.items() if "dask_otel" not in name} == {
        "team": "risk"
    }
    (worker,) = b.cluster.workers.values()
    assert set(tasks.hooked(worker).values()) == {False}
    assert not [name for name in b.scheduler.worker_plugins if name.startswith("dask-otel")]

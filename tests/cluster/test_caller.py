"""The caller's context, from where work is submitted to every task on the scheduler."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array
import dask.dataframe
import pandas
import pytest
from distributed import Client, LocalCluster, futures_of, get_client, span, wait, worker_client
from distributed.diagnostics.plugin import SchedulerPlugin
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import dask_otel
from dask_otel.client.hook import METHOD
from dask_otel.core import identity
from dask_otel.core.context import CARRIER_KEY, Traceparent, caller_dask_id
from tests.cluster.conftest import Start
from tests.cluster.observed import observed
from tests.environment import run_instrumented
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("no bridge runs, or it exports nothing"),
]

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
OFF = {"OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none"}
PRELOAD = {"distributed.client.preload": ["dask_otel.preload"]}


def traceparent(span_id: int) -> str:
    return f"00-{TRACE:032x}-{span_id:016x}-01"


def calling(span_id: int) -> Any:
    """A caller's span, as an application's own provider would make it current."""
    return use_span(NonRecordingSpan(SpanContext(TRACE, span_id, False, TraceFlags(1))))


class Recorder(SchedulerPlugin):
    """Keeps the annotations of every task, as the scheduler has them before it runs."""

    name = "recorder"

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.annotations: dict[Any, dict[str, Any]] = {}

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


@contextmanager
def recorded(**options: Any) -> Iterator[tuple[Client, Recorder]]:
    with (
        LocalCluster(
            **{
                "n_workers": 2,
                "threads_per_worker": 2,
                "processes": False,
                "dashboard_address": "127.0.0.1:0",
                **options,
            }
        ) as cluster,
        Client(cluster) as client,
    ):
        recorder = Recorder(cluster.scheduler)
        cluster.scheduler.add_plugin(recorder)
        yield client, recorder


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    original = Client.__dict__[METHOD]
    yield
    dask_otel.uninstrument()
    assert Client.__dict__[METHOD] is original


def inc(x: int) -> int:
    return x + 1


def a_frame() -> Any:
    return dask.dataframe.from_pandas(pandas.DataFrame({"a": range(20)}), npartitions=4)


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


def test_it_reaches_every_task_however_it_is_submitted() -> None:
    with recorded() as (client, recorder):
        dask_otel.instrument()
        for number, (name, submit) in enumerate(SUBMISSIONS.items(), 1):
            with calling(number):
                submit(client)
            assert recorder.callers() == {traceparent(number)}, name
        client.submit(inc, 1, pure=False).result()
        assert recorder.callers() == {None}, "no span is active"
        dask_otel.uninstrument()
        with calling(1):
            client.submit(inc, 1, pure=False).result()
        assert recorder.callers() == {None}


async def _asynchronously(address: str) -> None:
    async with Client(address, asynchronous=True, set_as_default=False) as client:

        async def request(number: int) -> None:
            with calling(number):
                assert await client.submit(inc, 1, key=f"submit-{number}") == 2
                await asyncio.sleep(0)
                futures = client.map(inc, range(3), key=f"map-{number}")
                await asyncio.sleep(0)
                await client.gather(futures)
                delayed = dask.delayed(inc)(1, dask_key_name=f"compute-{number}")
                assert await client.compute(delayed) == 2
                delayed = dask.delayed(inc)(1, dask_key_name=f"persist-{number}")
                await client.gather(futures_of(client.persist(delayed)))
                # With sync=True Dask lets go of its futures before they are gathered.
                key = f"get-{number}"
                await client.gather(client.get({key: (inc, number)}, [key], sync=False))

        await asyncio.gather(*[request(number) for number in range(1, 9)])


def test_it_follows_the_requests_of_an_asynchronous_client() -> None:
    with recorded(protocol="tcp://", n_workers=1) as (client, recorder):
        dask_otel.instrument()
        asyncio.run(_asynchronously(client.scheduler.address))
        taken = recorder.take()
        assert len(taken) >= 8 * 7
        for key, annotations in taken.items():
            (number,) = {int(found) for found in re.findall(r"-(\d)\b", str(key))}
            assert annotations[CARRIER_KEY] == {"traceparent": traceparent(number)}, key


def test_it_follows_threads_with_contexts_of_their_own() -> None:
    with recorded(n_workers=1) as (client, recorder):
        dask_otel.instrument()

        def request(number: int) -> None:
            for turn in range(5):
                with calling(number):
                    client.submit(inc, turn, key=f"{number}-{turn}").result()
                client.submit(inc, turn, key=f"0-{number}-{turn}").result()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(request, range(1, 9)))
        taken = recorder.take()
        assert len(taken) == 8 * 5 * 2
        for key, annotations in taken.items():
            number = int(key.split("-")[0])
            wanted = {"traceparent": traceparent(number)} if number else None
            assert annotations.get(CARRIER_KEY) == wanted, key


def test_annotations_of_the_users_are_left_as_they_are() -> None:
    with recorded() as (client, recorder):
        dask_otel.instrument()
        with calling(1), dask.annotate(team="risk", priority=3):
            client.submit(inc, 1).result()
        ((_, annotations),) = recorder.take().items()
        assert annotations["team"] == "risk"
        assert annotations["priority"] == 3
        assert annotations[CARRIER_KEY] == {"traceparent": traceparent(1)}
        with dask.annotate(team="layer", retries=2):
            array = dask.array.ones(4, chunks=2)
        with calling(2):
            wait(dask.persist(array, optimize_graph=False))
        for annotations in recorder.take().values():
            assert (annotations["team"], annotations["retries"]) == ("layer", 2)
            assert annotations[CARRIER_KEY] == {"traceparent": traceparent(2)}
        for mine in ("mine", {"traceparent": "garbage"}, 1):
            with calling(3), dask.annotate(**{CARRIER_KEY: mine}):
                client.submit(inc, 3, pure=False).result()
            ((_, annotations),) = recorder.take().items()
            assert annotations[CARRIER_KEY] == mine
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As a batch system leaves it to a worker: not the caller of what its tasks submit.
    monkeypatch.setenv("TRACEPARENT", traceparent(9))
    with (
        dask.config.set({"otel.client.span-per-caller": True}),
        recorded() as (client, recorder),
    ):
        dask_otel.instrument()
        client.submit(nest, 5, key="outer").result()
        client.submit(nest_asynchronously, 6, key="async").result()
        taken = recorder.take()
        callers = {
            key: (annotations.get(CARRIER_KEY) or {}).get("traceparent")
            for key, annotations in taken.items()
        }
        assert callers == {
            "outer": traceparent(9),
            "async": traceparent(9),
            "below-a-span": traceparent(5),
            "by-worker-client": traceparent(5),
            "below-none": None,
            "from-async": traceparent(6),
            "from-async-below-none": None,
        }
        ids = {
            annotations["span"]["ids"] for annotations in taken.values() if "span" in annotations
        }
        assert ids == {(caller_dask_id(Traceparent(TRACE, 9)),)}, "none is made inside tasks"


def test_submissions_under_one_caller_meet_in_one_dask_span() -> None:
    with (
        dask.config.set({"otel.client.span-per-caller": True}),
        recorded(n_workers=1) as (client, recorder),
        Client(client.cluster, set_as_default=False) as other,
    ):
        dask_otel.instrument()
        # Each with a TaskGroup of its own: Dask books these on the span that they began in.
        for key, one in (("a", client), ("b", other), ("c", client)):
            with calling(1):
                one.submit(inc, 1, key=key).result()
        with calling(2):
            client.submit(inc, 2, key="d").result()
            with span("mine"):
                client.submit(inc, 3, key="e").result()
        spans = recorder.scheduler.extensions["spans"].spans
        names = [s.name for s in spans.values()]
        assert sorted(names) == [("mine",), ("traced",), ("traced",)]


# ------------------------------------------------------------------------------ ways in


def test_the_clients_preload_does_the_same_and_is_taken_back() -> None:
    original = Client.__dict__[METHOD]
    with dask.config.set(PRELOAD), recorded(n_workers=1) as (client, recorder):
        dask_otel.instrument()
        with calling(1):
            client.submit(inc, 1).result()
        assert recorder.callers() == {traceparent(1)}
        assert Client.__dict__[METHOD].__wrapped__ is original
        dask_otel.uninstrument()
        with calling(2):
            client.submit(inc, 2).result()
        assert recorder.callers() == {traceparent(2)}, "the client still has its preload"
    assert Client.__dict__[METHOD] is original


CLIENT_ONLY = """
import sys
import dask
dask.config.set({"distributed.client.preload": ["dask_otel.preload"]})
from distributed import Client
import dask_otel
with Client(sys.argv[1]) as client, dask_otel.span("a", attributes={"b": 1}) as handle:
    assert client.submit(abs, -1).result() == 1
    assert hasattr(Client._graph_to_futures, "__wrapped__")
    dask_otel.trace_context(handle)
found = [n for n in sys.modules if n.startswith(("opentelemetry.sdk", "opentelemetry.exporter",
         "grpc", "requests", "dask_otel.scheduler", "dask_otel._otel.sdk", "dask_otel.pump"))]
print(found)
"""


def test_a_client_loads_no_sdk_and_nothing_of_the_scheduler() -> None:
    with recorded(n_workers=1, protocol="tcp://") as (client, _):
        done = subprocess.run(
            [sys.executable, "-c", CLIENT_ONLY, client.scheduler.address],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


APPLICATION = """
import json, sys
from distributed import Client, LocalCluster, get_client
from opentelemetry import trace

def nested(x):
    # Kept, so that it is still there when the application looks.
    global kept
    kept = get_client().submit(abs, -x, key="nested")
    return kept.result()

def annotations(dask_scheduler):
    return {str(k): dict(t.annotations or {}) for k, t in dask_scheduler.tasks.items()}

def hooks():
    from distributed.client import Client
    method, depth = Client._graph_to_futures, 0
    while hasattr(method, "__wrapped__"):
        method, depth = method.__wrapped__, depth + 1
    return depth

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0") as cluster:
        with Client(cluster) as client:
            with trace.get_tracer("app").start_as_current_span("request") as span:
                future = client.submit(nested, 1, key="outer")
                assert future.result() == 1
                found = client.run_on_scheduler(annotations)
            context = span.get_span_context()
            print(json.dumps({
                "recording": type(span).__name__,
                "trace": f"{context.trace_id:032x}",
                "span": f"{context.span_id:016x}",
                "flags": f"{int(context.trace_flags):02x}",
                "outer": found["outer"].get("dask_otel.context"),
                "spans": [found[key].get("span") for key in ("outer", "nested")],
                "hooks": [hooks(), *client.run(hooks).values()],
            }))
"""


def test_opentelemetry_instrument_with_an_application_that_knows_nothing_of_us(
    tmp_path: Path,
) -> None:
    variables = {**OFF, "DASK_OTEL__CLIENT__SPAN_PER_CALLER": "true"}
    told = json.loads(run_instrumented(tmp_path, APPLICATION, variables)[-1])
    assert told["recording"] == "_Span", "an SDK was configured"
    # Its flags, too, of which later releases of the SDK set more than one.
    assert told["outer"] == {"traceparent": f"00-{told['trace']}-{told['span']}-{told['flags']}"}
    dask_id = caller_dask_id(Traceparent(int(told["trace"], 16), int(told["span"], 16)))
    assert told["spans"] == [{"name": ["request"], "ids": [dask_id]}] * 2, "also of nested work"
    # Once in the application; once in the worker's process, where OpenTelemetry's loader leaves
    # its variable to child processes: that of 1.28 does not.
    assert told["hooks"] in ([1, 1], [1, 0])


# --------------------------------------------------------------- handles and attributes


def test_attributes_end_on_the_span_with_the_preload_and_without() -> None:
    given = {"tenant": "acme", "rows": 5, "dask.span.id": "mine", "\ud800": "\ud800"}
    for config in ({}, PRELOAD):
        with ExitStack() as stack:
            stack.enter_context(dask.config.set(config))
            o = stack.enter_context(observed())
            with dask_otel.span("outer"), dask_otel.span("with", attributes=given):
                o.client.submit(inc, 1).result()
            with span("without"):
                o.client.submit(inc, 2, key="other").result()
            o.quiet()
            expected = {"tenant": "acme", "rows": 5, "\ufffd": "\ufffd"}
            assert o.named("with").attributes == expected
            assert o.named("outer").attributes == {}
            assert o.named("without").attributes == {}


def test_an_older_scheduler_takes_the_blocks_of_a_message_with_attributes() -> None:
    with observed() as o:
        with dask_otel.span("a", attributes={"b": 1}):
            o.client.submit(inc, 1).result()
        o.quiet()
        messages = [message for _, message in o.client.get_events("dask-otel")]
        for message in messages:
            # What the first version did with it.
            assert all(len(block) == 2 for block in message["blocks"])
        assert [b[0] for m in messages for b in m["blocks"]] == ["entered", "left"]
        assert sum("attributes" in m for m in messages) == 1


@pytest.mark.parametrize("garbage", [1, ["a"], {"x": 1}, {"x": {"": 1}}, {"x": {}}])
def test_attributes_that_are_none_on_the_wire(garbage: Any) -> None:
    with observed(n_workers=0) as o:
        message = {"client": o.client.id, "blocks": [], "attributes": garbage}
        o.client.log_event("dask-otel", message)
        o.client.log_event("dask-otel", {**message, "attributes": {"x": {"a": 1}}})
        described = o.adapter.blocks.blocks._described
        eventually(lambda: dict(described) == {"x": {"a": 1}}, 30, "the next message")
        assert o.observer.errors == []


def test_a_handle_knows_what_an_adopting_scheduler_will_decide() -> None:
    hashed = identity.trace_id
    with recorded(n_workers=1) as (client, _):
        with calling(1), dask_otel.span("nobody listens") as handle:
            client.submit(inc, 1, pure=False).result()
        assert handle.trace_id == f"{hashed(handle):032x}"
        dask_otel.instrument()
        with calling(1), dask_otel.span("called") as handle:
            assert handle.trace_id == f"{TRACE:032x}"
            client.submit(inc, 2, pure=False).result()
            with dask_otel.span("below") as below:
                assert below.trace_id == f"{TRACE:032x}"
        assert handle.trace_id == f"{TRACE:032x}"
        with dask.config.set({"otel.propagation": "link"}):
            assert handle.trace_id == f"{hashed(handle):032x}"
        # The first submission decides, and not the block.
        with calling(1), dask_otel.span("detached") as handle:
            with use_span(NonRecordingSpan(SpanContext(0, 0, False))):
                client.submit(inc, 3, pure=False).result()
            client.submit(inc, 4, pure=False).result()
        assert handle.trace_id == f"{hashed(handle):032x}"
        with dask_otel.span("later") as handle:
            with calling(1):
                client.submit(inc, 5, pure=False).result()
            client.submit(inc, 6, pure=False).result()
        assert handle.trace_id == f"{TRACE:032x}"


def test_trace_context_asks_the_scheduler_where_it_may_have_decided(start: Start) -> None:
    with start(environ=OFF) as bridged:
        client = bridged.client
        with dask_otel.span("root") as root, dask_otel.span("below") as below:
            client.submit(inc, 1).result()
            open_ids = bridged.bridge.adapter.lifecycle.open[below].identity
        assert dask_otel.trace_context(below).decided is False, "no caller: nothing to ask"
        asked = dask_otel.trace_context(str(below), client)
        assert asked.decided
        assert asked.trace_id == f"{open_ids.trace_id:032x}" == root.trace_id
        assert asked.span_id == f"{open_ids.span_id:016x}" == below.span_id
        unknown = dask_otel.trace_context("nobody", client)
        assert (unknown.decided, unknown.trace_id) == (False, f"{identity.trace_id('nobody'):032x}")
        metrics = dask_otel.span_metrics(client, below)
        assert (metrics.trace_id, metrics.span_id) == (asked.trace_id, asked.span_id)
        eventually(lambda: not bridged.bridge.adapter.lifecycle.open)
        assert dask_otel.trace_context(str(below), client) == asked


def test_trace_context_without_a_bridge_is_computed() -> None:
    with recorded(n_workers=1) as (client, _):
        dask_otel.instrument()
        with calling(1), dask_otel.span("a") as handle:
            client.submit(inc, 1).result()
        context = dask_otel.trace_context(handle)
        assert (context.decided, context.trace_id) == (False, handle.trace_id)


def test_asynchronous_clients_get_an_awaitable() -> None:
    async def run(address: str) -> None:
        async with Client(address, asynchronous=True) as client:
            with dask_otel.span("a") as handle:
                await client.submit(inc, 1)
            assert (await dask_otel.trace_context(handle)).trace_id == handle.trace_id
            assert (await dask_otel.trace_context(str(handle), client)).span_id == handle.span_id

    with recorded(n_workers=1, protocol="tcp://") as (client, _):
        asyncio.run(run(client.scheduler.address))


def test_attributes_are_exported_with_their_types(start: Start) -> None:
    given = {"tenant": "acme", "rows": 5, "share": 0.5, "dry": True, "ids": ["a", "b"]}
    with start() as bridged:
        with dask_otel.span("outer"), dask_otel.span("with", attributes=given) as handle:
            bridged.client.submit(inc, 1).result()
        received = bridged.exported()
        own = {s.name: {k: s.attributes.get(k) for k in given} for s in received.spans}
        assert own["with"] == {**given, "ids": ("a", "b")}
        assert set(own["outer"].values()) == {None}
        (exported,) = [s for s in received.spans if s.name == "with"]
        assert f"{exported.trace_id:032x}" == handle.trace_id
        assert f"{exported.span_id:016x}" == handle.span_id

"""The caller's context, from where work is submitted to every task on the scheduler."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array
import pytest
from distributed import Client, LocalCluster, futures_of, get_client, span, wait, worker_client
from distributed.diagnostics.plugin import SchedulerPlugin
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import dask_otel
from dask_otel.client.hook import METHOD
from dask_otel.core.context import CARRIER_KEY, Traceparent, caller_dask_id
from tests.cluster.observed import Observed
from tests.environment import run

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("no bridge runs, or it exports nothing"),
]

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
PER_CALLER = {"otel.client.span-per-caller": True}
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


@pytest.fixture
def recorder(plain: LocalCluster) -> Iterator[Recorder]:
    recorder = Recorder(plain.scheduler)
    plain.scheduler.add_plugin(recorder)
    yield recorder
    plain.scheduler.remove_plugin(recorder.name)


@pytest.fixture
def client(plain: LocalCluster) -> Iterator[Client]:
    with Client(plain) as client:
        yield client


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    original = Client.__dict__[METHOD]
    yield
    dask_otel.uninstrument()
    assert Client.__dict__[METHOD] is original


def inc(x: int) -> int:
    return x + 1


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


def test_it_reaches_every_task_however_it_is_submitted(client: Client, recorder: Recorder) -> None:
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


def test_it_follows_the_requests_of_an_asynchronous_client(
    client: Client, recorder: Recorder
) -> None:
    dask_otel.instrument()
    asyncio.run(_asynchronously(client.scheduler.address))
    taken = recorder.take()
    assert len(taken) >= 8 * 7
    for key, sent in taken.items():
        (number,) = {int(found) for found in re.findall(r"-(\d)\b", str(key))}
        assert sent[CARRIER_KEY] == {"traceparent": traceparent(number)}, key


def test_annotations_of_the_users_are_left_as_they_are(client: Client, recorder: Recorder) -> None:
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
    client: Client, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a batch system leaves it to a worker: not the caller of what its tasks submit.
    monkeypatch.setenv("TRACEPARENT", traceparent(9))
    with dask.config.set(PER_CALLER):
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


def test_inside_a_task_of_the_default_span_no_dask_span_is_made(
    client: Client, recorder: Recorder
) -> None:
    with dask.config.set(PER_CALLER):
        dask_otel.instrument()
        client.submit(nest, 5, key="outer").result()
    assert not any("span" in annotations for annotations in recorder.take().values())


def test_submissions_under_one_caller_meet_in_one_dask_span(
    client: Client, recorder: Recorder
) -> None:
    known = set(recorder.scheduler.extensions["spans"].spans)
    with (
        dask.config.set(PER_CALLER),
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
        names = [s.name for span_id, s in spans.items() if span_id not in known]
        assert sorted(names) == [("mine",), ("traced",), ("traced",)]


# ------------------------------------------------------------------------------ ways in


def test_the_clients_preload_does_the_same_and_is_taken_back(
    plain: LocalCluster, recorder: Recorder
) -> None:
    original = Client.__dict__[METHOD]
    with dask.config.set(PRELOAD), Client(plain) as client:
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


def test_a_client_loads_no_sdk_and_nothing_of_the_scheduler(client: Client) -> None:
    assert run("-c", CLIENT_ONLY, client.scheduler.address).stdout == "[]\n"


# --------------------------------------------------------------- handles and attributes


GIVEN = {"tenant": "acme", "rows": 5, "dask.span.id": "mine", "\ud800": "\ud800"}


@pytest.mark.parametrize(
    "config", [pytest.param(c, marks=pytest.mark.options(config=c)) for c in ({}, PRELOAD)]
)
def test_attributes_end_on_the_span_with_the_preload_and_without(o: Observed, config: Any) -> None:
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

"""`dask_otel.instrument` and its kin: lazy, idempotent, and leaving Dask as it was."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from importlib.metadata import entry_points
from typing import Any
from unittest.mock import Mock

import dask
import pytest
from distributed import Client
from distributed.spans import span as dask_span
from opentelemetry import propagate
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import dask_otel
from dask_otel._otel.api import caller as api
from dask_otel.client import carriers
from dask_otel.client.hook import METHOD, hook_submissions
from dask_otel.client.instrumentation import INSTRUMENTATION, DaskInstrumentor
from dask_otel.client.roots import ROOTS
from dask_otel.core.context import CARRIER_KEY
from tests.environment import python

TRACE, SPAN = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
TRACEPARENT = f"00-{TRACE:032x}-{SPAN:016x}-01"

#: A client with the preload, or a worker's plugin, comes or goes.
HOLD, RELEASE = (partial(INSTRUMENTATION.settle, holders=change) for change in (1, -1))


def a_span(span_id: int = SPAN, state: TraceState | None = None) -> NonRecordingSpan:
    return NonRecordingSpan(SpanContext(TRACE, span_id, False, TraceFlags(1), state))


class Submitter:
    """A client as far as a submission's annotations go."""


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start from a process that has submitted nothing, and leave none instrumented."""
    for name in ("TRACEPARENT", "TRACESTATE"):
        monkeypatch.delenv(name, raising=False)
    for name, unused in (("_last", (None, None, None)), ("_made", None), ("_environment", None)):
        monkeypatch.setattr(carriers, name, unused)
    api._propagators.cache_clear()
    yield
    dask_otel.uninstrument()
    assert not ROOTS.callers_travel


@pytest.fixture
def propagators() -> Iterator[Any]:
    """Set the global propagators; put them back."""
    before = propagate.get_global_textmap()
    yield lambda *chosen: propagate.set_global_textmap(CompositePropagator(list(chosen)))
    propagate.set_global_textmap(before)


def carried() -> Any:
    found = annotations(None)
    return None if found is None else found[CARRIER_KEY]


# ----------------------------------------------------------------------- putting and taking


def state_of_dask() -> tuple[object, ...]:
    return (Client.__dict__[METHOD], dask_span, *sys.meta_path)


def test_whoever_asked_keeps_it_and_dask_is_then_exactly_as_it_was() -> None:
    before, names = state_of_dask(), set(Client.__dict__)
    on, off = dask_otel.instrument, dask_otel.uninstrument
    requests = [HOLD, HOLD, on, off, RELEASE, RELEASE, RELEASE, HOLD, RELEASE, on, on, off, off]
    wanted: list[bool] = []
    for request in requests:
        request()
        wanted.append(ROOTS.callers_travel)
        if wanted[-1]:
            assert Client.__dict__[METHOD].__wrapped__ is before[0]
        else:
            assert all(a is b for a, b in zip(state_of_dask(), before, strict=True))
    assert wanted == [True] * 5 + [False, False, True, False, True, True, False, False]
    assert set(Client.__dict__) == names


def test_whoever_hooks_after_us_stays_and_ours_is_neither_active_nor_doubled() -> None:
    class Owner:
        def _graph_to_futures(self, x: int) -> tuple[int, Any]:
            return x, dask.get_annotations()

    hook = hook_submissions(Owner, lambda client: {"ours": 1})
    ours = Owner.__dict__[METHOD]

    def theirs(self: Any, x: int) -> Any:
        return "theirs", ours(self, x)

    setattr(Owner, METHOD, theirs)
    called = [Owner()._graph_to_futures(1)]
    hook.remove()
    called.append(Owner()._graph_to_futures(2))
    again = hook_submissions(Owner, lambda client: {"ours": dask.get_annotations().get("ours", 2)})
    called.append(Owner()._graph_to_futures(3))
    again.remove()
    assert Owner.__dict__[METHOD] is theirs
    assert called == [("theirs", one) for one in [(1, {"ours": 1}), (2, {}), (3, {"ours": 2})]]


def test_a_release_without_the_method_is_said_and_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = type("Other", (), {})
    hook_submissions(other, lambda client: None).remove()
    assert METHOD not in vars(other)
    assert "this release of distributed" in caplog.text


def test_many_threads_may_put_and_take() -> None:
    original = Client.__dict__[METHOD]
    start = threading.Barrier(8)

    def turn(first: Any, second: Any) -> None:
        start.wait(60)
        for _ in range(200):
            first()
            second()

    first = (dask_otel.instrument, HOLD) * 4
    second = (dask_otel.uninstrument, RELEASE) * 4
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(turn, first, second))
    dask_otel.uninstrument()
    assert Client.__dict__[METHOD] is original


# ----------------------------------------------------------------------------- being lazy


#: Nothing heavy is imported until Dask is, whose import fails once; then threads import it while
#: others instrument.
PROGRAM = """
import logging, sys, threading
logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s %(message).50s")
before, finders = set(sys.modules), list(sys.meta_path)
from dask_otel.client.instrumentation import DaskInstrumentor
import dask_otel
imported = list(sys.meta_path)
dask_otel.instrument()
dask_otel.instrument()
dask_otel.uninstrument()
assert sys.meta_path == imported
DaskInstrumentor().instrument(skip_dep_check=True)
heavy = {"dask", "distributed", "opentelemetry", "tornado", "asyncio", "yaml", "dataclasses"}
new = {name.partition(".")[0] for name in set(sys.modules) - before}
assert not heavy & new, heavy & new
assert len(sys.meta_path) == len(finders) + 2

sys.modules["tornado"] = None
try:
    import distributed.client
except ImportError as error:
    print(type(error).__name__)
del sys.modules["tornado"]
for name in [n for n in sys.modules if n.startswith("distributed")]:
    del sys.modules[name]
start = threading.Barrier(6)
def work(number):
    start.wait()
    if number % 2:
        import distributed.client
    else:
        dask_otel.instrument()
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join(50)
assert not any(thread.is_alive() for thread in threads)

import distributed
assert not [one for one in sys.meta_path if type(one).__module__.startswith("dask_otel")]
spec = distributed.client.__spec__
assert "exec_module" not in vars(spec.loader)
assert type(spec.loader).__name__ == "SourceFileLoader"
method = distributed.Client._graph_to_futures
assert method is not method.__wrapped__ and not hasattr(method.__wrapped__, "__wrapped__")
from dask_otel.client import carriers
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
class C: pass
with use_span(NonRecordingSpan(SpanContext(1, 2, False, TraceFlags(1)))):
    for _ in range(2):
        print(carriers.annotations_for(C()))
DaskInstrumentor().uninstrument()
assert distributed.Client._graph_to_futures is method.__wrapped__
import dask_otel.worker.plugin
assert not [name for name in sys.modules if "profiles" in name or "sampling" in name]

# The package is the preload, and imports it with its first use.
from distributed.preloading import _import_module
module = _import_module("dask_otel")
assert "dask_otel.preload" not in sys.modules
import dask_otel.preload
assert module.dask_setup is dask_otel.preload.dask_setup
assert module.dask_teardown is dask_otel.preload.dask_teardown
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
assert "dask_setup" not in dask_otel.__all__
"""


def test_before_dask_is_imported() -> None:
    """A propagator that is not installed is one warning."""
    said = python(PROGRAM, PYTHONWARNINGS="error", OTEL_PROPAGATORS="tracecontext,nobody")
    printed = [
        "ModuleNotFoundError",
        "distributed.dask_otel WARNING dask-otel cannot load the propagators",
        *[str({CARRIER_KEY: {"traceparent": f"00-{1:032x}-{2:016x}-01"}})] * 2,
        "distributed.preloading INFO Import preload module: dask_otel",
    ]
    lines = said.splitlines()
    assert [line[: len(start)] for line, start in zip(lines, printed, strict=True)] == printed


def test_the_entry_point_is_a_plain_class() -> None:
    (found,) = entry_points(group="opentelemetry_instrumentor", name="dask")
    assert found.load() is DaskInstrumentor
    assert DaskInstrumentor.__mro__ == (DaskInstrumentor, object)


# ----------------------------------------------------------------------------- what travels


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (None, None),
        (NonRecordingSpan(SpanContext(0, 0, False)), None),
        (a_span(), {"traceparent": TRACEPARENT}),
        (
            a_span(state=TraceState([("vendor", "x")])),
            {"traceparent": TRACEPARENT, "tracestate": "vendor=x"},
        ),
    ],
)
def test_the_current_span_does_with_its_state(span: Any, expected: Any) -> None:
    # Again, from the remembered context.
    for _ in range(2):
        assert annotations(span) == (expected and {CARRIER_KEY: expected})
    with dask.annotate(**{CARRIER_KEY: "mine"}):
        assert annotations(span) is None


@pytest.mark.usefixtures("only_new_garbage")
def test_what_is_remembered_is_of_one_client_in_one_context(propagators: Any) -> None:
    one, other = Submitter(), Submitter()
    with use_span(a_span()):
        made = annotations(None, one)
        assert annotations(None, one) is made
        with dask.config.set({"otel.client.span-per-caller": True}):
            assert annotations(None, other).keys() == {CARRIER_KEY, "span"}
        assert annotations(a_span(SPAN + 1), one) != made
        assert annotations(None, one) == made
        propagators()
        assert annotations(None, one) is None
    kept: Any = carriers._made
    del one
    gc.collect()
    assert (kept[0](), kept[2]()) == (None, None)


#: A format that is not W3C's, and one that raises: an error of theirs is no matter of the user's.
VENDOR = Mock(inject=lambda carrier, *_, **__: carrier.update({"x-vendor-trace": "anything"}))
BROKEN = Mock(inject=Mock(side_effect=ZeroDivisionError))


@pytest.mark.parametrize(
    ("chosen", "travels"),
    [
        ([VENDOR], True),
        ([], False),
        ([W3CBaggagePropagator()], False),
        ([TraceContextTextMapPropagator()], True),
        ([BROKEN], False),
    ],
)
def test_the_configured_propagators_decide_whether_and_the_form_is_w3c(
    propagators: Any, chosen: list[Any], travels: bool
) -> None:
    propagators(*chosen)
    with use_span(a_span()):
        assert carried() == ({"traceparent": TRACEPARENT} if travels else None)


def test_the_environment_calls_where_no_span_is_active(
    monkeypatch: pytest.MonkeyPatch, propagators: Any
) -> None:
    monkeypatch.setenv("TRACEPARENT", TRACEPARENT)
    monkeypatch.setenv("TRACESTATE", "ci=1")
    carriers.prepare()
    found = [annotations(span) for span in (None, a_span(SPAN + 1))]
    assert [one[CARRIER_KEY] for one in found] == [
        {"traceparent": TRACEPARENT, "tracestate": "ci=1"},
        {"traceparent": TRACEPARENT.replace("02b7", "02b8")},
    ]
    propagators()
    carriers.prepare()
    assert carried() is None


@pytest.mark.parametrize("text", ["", " ", "garbage", "x" * 100_000, TRACEPARENT.upper()])
def test_garbage_in_the_environment_is_one_warning(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A blank variable, as of a shell step without a trace, counts as not set."""
    monkeypatch.setenv("TRACEPARENT", text)
    carriers.prepare()
    warned = ["WARNING"] if text.strip() else []
    assert (carried(), [record.levelname for record in caplog.records]) == (None, warned)
    assert len(caplog.text) < 400


# ----------------------------------------------------------------------- a span per caller


class Named(NonRecordingSpan):
    name = "GET /\0report"


def annotations(span: Any, client: Any = None) -> Any:
    """Return what a client's submission carries, in a span of its own or in the current one."""
    with nullcontext() if span is None else use_span(span):
        return carriers.annotations_for(client or Submitter())


def test_one_dask_span_per_caller() -> None:
    named, other = Named(SpanContext(TRACE, SPAN, False, TraceFlags(1))), a_span(SPAN + 1)
    with dask.config.set({"otel.client.span-per-caller": True}):
        first, again, another = (annotations(span)["span"] for span in (named, named, other))
        with dask_span("mine"):
            assert "span" not in annotations(other)
    assert "span" not in annotations(other)
    assert (first, first["name"], another["name"]) == (again, ("GET /\ufffdreport",), ("traced",))
    assert [type(i) for i in first["ids"]] == [str]
    assert another["ids"] != first["ids"]

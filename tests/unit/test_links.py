"""Links to traces, and what shows them: handles of spans, answers about them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import dask
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_otel
from dask_otel import SpanHandle, SpanMetrics, TraceContext
from dask_otel._wire import Refusal
from dask_otel.client.roots import Roots
from dask_otel.core import identity
from dask_otel.core.context import Traceparent
from dask_otel.core.traces.address import anchor, fill
from dask_otel.settings.rules import TRACE_URL

JAEGER = "http://localhost:16686/trace/{trace_id}?uiFind={span_id}"
CALLER = Traceparent(0xABC, 0xDEF, 1)
IDS = {"trace_id": "0" * 29 + "abc", "span_id": "0" * 13 + "def"}


def metrics(**changes: Any) -> SpanMetrics:
    fields: dict[str, Any] = {
        "id": "b",
        "name": ("etl", "<load>"),
        "root_id": "a",
        "result": "success",
        "enqueued": 1.0,
        "start": 2.0,
        "stop": 13.345,
        "counts": {"tasks": 10},
        "own": {("execute", "f", "thread-cpu", "seconds"): 1.0},
        "tree": {("execute", "f", "thread-cpu", "seconds"): 1.0},
        "idle_time": 4.5,
        "capacity_time": 5.5,
        "dask_active_cpu_time": 1.0,
        "dask_idle_time": 1.0,
        **IDS,
        **changes,
    }
    return SpanMetrics(**fields)


@pytest.mark.parametrize(
    "template",
    [
        JAEGER,
        "https://grafana.example.org/explore?panes=%7B%22a%22:{}%7D&q={trace_id}",
        "https://ui.honeycomb.io/team/environments/prod/trace?trace_id={trace_id}&span={span_id}",
        "https://[::1]:3000/{trace_id}",
    ],
)
def test_templates(template: str) -> None:
    assert TRACE_URL.parse(template) == template
    url: Any = fill(template, "00ab", "00cd")
    assert "{trace_id}" not in url
    assert "{span_id}" not in url
    assert "00ab" in url


@pytest.mark.parametrize(
    "template",
    [
        *(1, "", b"http://x/{trace_id}", "http://x/", "{trace_id}", "//x/{trace_id}"),
        "javascript:alert('{trace_id}')",
        "javascript://x/%0aalert(1)//{trace_id}",
        "file:///etc/{trace_id}",
        "data:text/html,{trace_id}",
        "http:///{trace_id}",
        "http://x/ {trace_id}",
        "http://x/\n{trace_id}",
        'http://x/"onclick="alert(1)/{trace_id}',
        "http://x/<script>{trace_id}",
        f"http://x/{'y' * 2000}/{{trace_id}}",
    ],
)
def test_what_is_no_template(template: Any) -> None:
    with pytest.raises(ValueError):
        TRACE_URL.parse(template)


@given(st.text())
def test_whatever_is_shown_is_escaped(text: str) -> None:
    shown = anchor("http://x/?a=1&b=2", text)
    body = shown.removeprefix(
        '<a href="http://x/?a=1&amp;b=2" target="_blank" rel="noopener noreferrer">'
    ).removesuffix("</a>")
    assert not set("<>\"'") & set(body)
    assert not set("<>\"'") & set(anchor(None, text))


# ------------------------------------------------------------------------------- handles


def test_a_handle_is_the_text_that_dask_yields() -> None:
    with dask_otel.span("a", "<b>") as handle:
        ids = dask.get_annotations()["span"]["ids"]
        assert handle == ids[-1]
        assert {ids[-1]: 1}[handle] == 1
        assert f"{handle}" == ids[-1]
        assert type(handle.id) is str
        assert handle.trace_id == f"{identity.trace_id(ids[0]):032x}"
        assert handle.span_id == f"{identity.span_id(ids[-1]):016x}"
        assert handle.url is None
        assert handle._repr_html_() == f"a/&lt;b&gt; <code>{handle}</code>"
        with dask_otel.span("c") as below:
            assert below.trace_id == handle.trace_id
    assert type(handle) is SpanHandle


def test_it_becomes_plain_text_where_it_travels() -> None:
    with dask_otel.span("a") as handle:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            raw = pickle.dumps(handle, protocol)
            assert b"dask_otel" not in raw
            assert type(pickle.loads(raw)) is str
        assert copy.copy(handle) is handle
        assert copy.deepcopy([handle])[0] is handle


def test_with_a_template_it_is_a_link() -> None:
    with dask.config.set({"otel.trace-url": JAEGER}), dask_otel.span("<a>") as handle:
        assert handle.url == JAEGER.format(trace_id=handle.trace_id, span_id=handle.span_id)
        assert handle._repr_html_() == anchor(handle.url, "<a>")


def test_a_bad_template_is_one_warning_and_no_link(caplog: pytest.LogCaptureFixture) -> None:
    bad = "javascript:alert('{trace_id}')"
    with dask.config.set({"otel.trace-url": bad}), dask_otel.span("a") as handle:
        assert (handle.url, handle.url) == (None, None)
    (record,) = caplog.records
    assert "otel.trace-url" in record.getMessage()
    assert "http or https" in record.getMessage()


def test_the_first_submission_says_which_trace_it_will_be() -> None:
    roots = Roots()
    root = roots.enter("r", CALLER)
    hashed = identity.trace_id("r")
    assert root.trace_id(adopts=True) == CALLER.trace_id
    assert root.trace_id(adopts=False) == hashed
    roots.submitted("r", None)
    roots.submitted("r", CALLER)
    assert root.trace_id(adopts=True) == hashed
    assert roots.enter("r", None) is root
    del root
    assert not roots.alive, "nobody holds on to it"


def test_without_a_client_ids_are_computed() -> None:
    with dask_otel.span("a") as root, dask_otel.span("b") as below:
        expected = TraceContext(below.trace_id, below.span_id)
        assert dask_otel.trace_context(below) == expected
        assert dask_otel.trace_context(str(below)) == expected
        assert dask_otel.trace_context(str(root)).trace_id == expected.trace_id
    assert dask_otel.trace_context(str(below)).trace_id == f"{identity.trace_id(below):032x}"
    with pytest.raises(TypeError, match="a span's id is a string, not NoneType"):
        dask_otel.trace_context(None)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- metrics


def test_metrics_show_themselves_shortly() -> None:
    shown = metrics()
    assert repr(shown) == (
        f"<SpanMetrics etl/<load>: success, 12.3 s, 10 tasks, 4.5 s idle, trace {IDS['trace_id']}>"
    )
    assert shown._repr_html_() == "etl/&lt;load&gt;: success, 12.3 s, 10 tasks, 4.5 s idle"
    with dask.config.set({"otel.trace-url": JAEGER}):
        assert shown.url == JAEGER.format(**IDS)
        assert shown._repr_html_().startswith(f'<a href="{JAEGER.format(**IDS)}" ')
        assert TraceContext(**IDS).url == shown.url
    nothing = metrics(result=None, counts=None, idle_time=None, start=None)
    assert repr(nothing) == (
        f"<SpanMetrics etl/<load>: outcome unknown, 12.3 s, trace {IDS['trace_id']}>"
    )
    assert (nothing.url, nothing.queue_time) == (None, None)


def test_a_frame_takes_keys_of_any_shape() -> None:
    pytest.importorskip("pandas")
    keys = {
        ("execute", "inc", "thread-cpu", "seconds"): ("execute", "inc", "thread-cpu", "seconds"),
        ("execute", "inc", "outer", "inner", "s"): ("execute", "inc", ("outer", "inner"), "s"),
        ("new", "activity", "count"): ("new", None, "activity", "count"),
        ("new", "count"): ("new", None, None, "count"),
        ("new",): ("new", None, None, None),
    }
    own, tree = {("new",): 2}, dict.fromkeys(keys, 3)
    frame = metrics(own=own, tree=tree, start=None).to_frame()
    labels = frame[["context", "prefix", "activity", "unit"]].astype(object)
    found = [*labels.where(labels.notna(), None).itertuples(index=False, name=None)]
    assert (found, list(frame["tree"])) == (list(keys.values()), [3] * 5)
    assert list(frame["own"].isna()) == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("kind", "error"),
    [("unknown", LookupError), ("timeout", TimeoutError), ("no bridge", RuntimeError)],
)
def test_refusals_are_raised_as_what_they_are(kind: str, error: type[Exception]) -> None:
    raised = Refusal(kind, "because").error()
    assert (type(raised), str(raised)) == (error, "because")

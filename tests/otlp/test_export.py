"""Records over real sockets: what arrives, and what is refused."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from dask_otel import semconv
from dask_otel.core.records import (
    Event,
    Exemplar,
    Link,
    NumberPoint,
)
from tests.otlp.conftest import Build, send
from tests.otlp.records import CHILD, HISTOGRAM, ROOT, SECOND, TRACE_ID, counter, number
from tests.receiver import Receiver

SCOPE = (semconv.SCOPE_NAME, "1.2.3", semconv.SCHEMA_URL)
SERVER, INTERNAL = 2, 1
UNSET, ERROR = 0, 2
CUMULATIVE, DELTA = 2, 1


def typed(values: dict[str, object]) -> dict[str, tuple[type, object]]:
    """Return values with their types: 1, 1.0 and True are different on the wire."""
    return {key: (type(value), value) for key, value in values.items()}


# ------------------------------------------------------------------------------- what arrives


def test_spans_arrive_exactly(server: Receiver, build: Build) -> None:
    (sink,) = build(server.environ).span_sinks
    assert send(sink, [ROOT, CHILD]).taken
    assert len(server.requests) == 1
    root, child = server.spans
    assert (root.trace_id, root.span_id, root.parent_id) == (TRACE_ID, ROOT.span_id, None)
    assert (child.trace_id, child.span_id, child.parent_id) == (
        TRACE_ID,
        CHILD.span_id,
        ROOT.span_id,
    )
    assert (root.name, root.kind, child.name, child.kind) == ("nightly", SERVER, "load", INTERNAL)
    assert (root.start_ns, root.end_ns) == (ROOT.start_ns, ROOT.end_ns)
    assert typed(root.attributes) == typed(dict(ROOT.attributes))
    assert root.events == [("dask.span.start", ROOT.events[0].time_ns, {"n": 1})]
    assert root.links == [(7, 8, {"why": "first"})]
    assert (root.status, root.message) == (UNSET, "")
    assert (child.status, child.message) == (ERROR, "KeyError: 'x'")
    assert root.scope == child.scope == SCOPE
    assert root.resource["service.name"] == "dask-scheduler"
    assert root.dropped == (0, 0, 0)


def test_metrics_arrive_exactly(server: Receiver, build: Build) -> None:
    (sink,) = build(server.environ).metric_sinks
    exemplar = Exemplar(TRACE_ID, 5, 0.5, 2 * SECOND)
    born = NumberPoint({"a": "x"}, 1 * SECOND, 2 * SECOND, 0.0)
    value = NumberPoint({"a": "x"}, 1 * SECOND, 3 * SECOND, 2.5, (exemplar,))
    assert send(
        sink,
        [
            counter(born, value, name="dask.c"),
            counter(number(7), name="dask.i", unit="By"),
            counter(number(-1), name="dask.u", instrument="updowncounter", unit="{task}"),
            counter(number(0.25), name="dask.g", instrument="gauge", unit="1"),
            counter(HISTOGRAM, name="dask.h", instrument="histogram"),
            counter(number(1), name="dask.d", temporality="delta"),
        ],
    ).taken
    assert len(server.requests) == 1
    points = server.points
    assert [p.metric[-1] for p in points] == ["c", "c", "i", "u", "g", "h", "d"]
    zero, first, whole, level, gauge, histogram, delta = points
    assert (zero.value, zero.time_ns, zero.start_ns) == (0.0, 2 * SECOND, SECOND)
    assert (first.value, first.time_ns, first.start_ns) == (2.5, 3 * SECOND, SECOND)
    assert zero.attributes == first.attributes == {"a": "x"}
    assert first.exemplars == [(TRACE_ID, 5, 0.5)]
    assert (first.is_int, whole.is_int, whole.value) == (False, True, 7)
    assert [p.unit for p in points] == ["s", "s", "By", "{task}", "1", "s", "s"]
    assert [p.kind for p in points] == ["sum"] * 4 + ["gauge", "histogram", "sum"]
    assert [p.monotonic for p in points] == [True, True, True, False, None, None, True]
    assert [p.temporality for p in points] == [CUMULATIVE] * 4 + [None, CUMULATIVE, DELTA]
    assert (level.value, gauge.value, delta.value) == (-1, 0.25, 1)
    assert histogram.value == {"count": 2, "sum": 2.5, "buckets": [1, 1, 0], "bounds": [1.0, 5.0]}
    assert histogram.exemplars == [(TRACE_ID, 9, 2.0)]
    assert all(p.scope == SCOPE for p in points)
    assert all(p.resource["service.name"] == "dask-scheduler" for p in points)


@pytest.mark.parametrize("compression", ["gzip", "none", "GZIP"])
def test_compression(server: Receiver, build: Build, compression: str) -> None:
    outputs = build(server.environ, OTEL_EXPORTER_OTLP_COMPRESSION=compression)
    assert send(outputs.span_sinks[0], [ROOT]).taken
    assert send(outputs.metric_sinks[0], [counter(number(1))]).taken
    assert [s.name for s in server.spans] == ["nightly"]
    assert len(server.points) == 1
    # gRPC keeps its own header to itself.
    if server.protocol == "http/protobuf":
        wanted = "gzip" if compression.lower() == "gzip" else None
        assert [r[2].get("content-encoding") for r in server.requests] == [wanted] * 2


def test_headers_also_for_one_signal(server: Receiver, build: Build) -> None:
    outputs = build(
        server.environ,
        OTEL_EXPORTER_OTLP_HEADERS="x-tenant=one",
        OTEL_EXPORTER_OTLP_METRICS_HEADERS="x-tenant=two",
    )
    send(outputs.span_sinks[0], [ROOT])
    send(outputs.metric_sinks[0], [counter(number(1))])
    assert [(r[0], r[2]["x-tenant"]) for r in server.requests] == [
        ("traces", "one"),
        ("metrics", "two"),
    ]


@pytest.mark.parametrize("text", ["\ud800", "a\0b", "x" * 100_000, "日本\U0001f600"])
def test_hostile_text_in_an_attribute_loses_no_batch(
    server: Receiver, build: Build, text: str
) -> None:
    (sink,) = build(server.environ).span_sinks
    hostile = replace(
        ROOT,
        attributes={"bad": text, "tags": (text, "x"), "good": 1},
        events=(Event("e", 1, {"bad": text}),),
        links=(Link(1, 2, {"bad": text}),),
    )
    assert send(sink, [CHILD, hostile]).taken
    assert [s.span_id for s in server.spans] == [CHILD.span_id, ROOT.span_id]
    assert server.spans[1].attributes["good"] == 1


@pytest.mark.parametrize("where", ["name", "error", "event"])
def test_text_that_is_no_unicode_is_told_apart_from_an_outage(
    server: Receiver, build: Build, where: str
) -> None:
    """The core cleans all text; if it did not, the pump would drop that one span."""
    (sink,) = build(server.environ).span_sinks
    bad = {
        "name": replace(CHILD, name="\ud800"),
        "error": replace(CHILD, error="\ud800"),
        "event": replace(CHILD, events=(Event("\ud800", 1, {}),)),
    }[where]
    with pytest.raises((UnicodeError, TypeError, ValueError)):
        sink.encode(bad)
    assert send(sink, [ROOT]).taken


# -------------------------------------------------------------------------------- limits


def test_limits_lower_ours_and_every_cut_is_counted(server: Receiver, build: Build) -> None:
    (sink,) = build(
        server.environ,
        OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT="2",
        OTEL_SPAN_EVENT_COUNT_LIMIT="1",
        OTEL_SPAN_LINK_COUNT_LIMIT="0",
        OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT="1",
        OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT="4",
    ).span_sinks
    send(
        sink,
        [
            replace(
                ROOT,
                attributes={"first": "1234", "second": ("12345", "1"), "third": 3},
                events=(Event("one", 1, {"a": "123456", "b": 1}), Event("two", 2, {})),
            )
        ],
    )
    (span,) = server.spans
    assert span.attributes == {"first": "1234", "second": ("123…", "1")}
    assert span.events == [("one", 1, {"a": "123…"})]
    assert span.links == []
    assert span.dropped == (1, 1, 1)


def test_a_general_limit_is_lower_than_a_special_default(server: Receiver, build: Build) -> None:
    (sink,) = build(
        server.environ,
        OTEL_ATTRIBUTE_COUNT_LIMIT="1",
        OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT="1",
        OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT="3",
    ).span_sinks
    send(sink, [replace(ROOT, attributes={"a": "1234", "b": 1}, links=(Link(1, 2, {"x": "yy"}),))])
    (span,) = server.spans
    assert span.attributes == {"a": "12…"}
    assert span.links == [(1, 2, {"x": "…"})]


# --------------------------------------------------------------------------------- refusals

INVALID = {"grpc": "INVALID_ARGUMENT", "http/protobuf": 400}
BROKEN = {"grpc": "INTERNAL", "http/protobuf": 500}
BUSY = {"grpc": "UNAVAILABLE", "http/protobuf": 503}
POINT = counter(number(400))


def test_an_invalid_request_is_known_as_such(server: Receiver, build: Build) -> None:
    outputs = build(server.environ)
    server.answer = INVALID[server.protocol]
    for sink, record in ((outputs.span_sinks[0], ROOT), (outputs.metric_sinks[0], POINT)):
        answer = send(sink, [record])
        assert (answer.taken, answer.blames) == (False, True)
        assert str(INVALID[server.protocol]) in answer.reason
    server.answer = None
    assert send(outputs.span_sinks[0], [ROOT]).taken
    assert send(outputs.metric_sinks[0], [POINT]).taken


@pytest.mark.parametrize("statuses", [BROKEN, BUSY])
def test_an_error_of_the_server_is_no_invalid_request(
    server: Receiver, build: Build, statuses: dict[str, int | str]
) -> None:
    outputs = build(server.environ)
    server.answer = statuses[server.protocol]
    # The text of an answer has nothing to say about it, nor has a number in it.
    for sink, record in ((outputs.span_sinks[0], ROOT), (outputs.metric_sinks[0], POINT)):
        answer = send(sink, [record])
        assert (answer.taken, answer.blames, answer.absent) == (False, False, False)
        assert answer.reason
    assert len(server.requests) == 2, "one request, one answer"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 304])
def test_a_redirect_is_no_success(build: Build, status: int) -> None:
    """It is not followed: that would turn a POST into a GET, and the data would be gone."""
    from tests.receiver import receiver

    with receiver("http/protobuf") as server:
        outputs = build(server.environ)
        server.answer, server.location = status, "/login"
        for sink, record in (
            (outputs.span_sinks[0], ROOT),
            (outputs.metric_sinks[0], counter(number(1))),
        ):
            answer = send(sink, [record])
            assert not answer.taken
            assert answer.reason
        server.answer, server.location = None, ""
        assert send(outputs.span_sinks[0], [ROOT]).taken
        assert [s.name for s in server.spans] == ["nightly"]


@pytest.mark.parametrize(
    ("signal", "variable"),
    [
        ("traces", "OTEL_BSP_EXPORT_TIMEOUT"),
        ("metrics", "OTEL_METRIC_EXPORT_TIMEOUT"),
        ("traces", "OTEL_EXPORTER_OTLP_TIMEOUT"),
    ],
)
def test_a_server_that_never_answers(
    server: Receiver, build: Build, signal: str, variable: str
) -> None:
    release = threading.Event()
    server.before_answer = lambda signal: release.wait(60)
    value = "1" if variable == "OTEL_EXPORTER_OTLP_TIMEOUT" else "700"
    outputs = build(server.environ, **{variable: value})
    try:
        if signal == "traces":
            assert not send(outputs.span_sinks[0], [ROOT]).taken
        else:
            assert not send(outputs.metric_sinks[0], [counter(number(1))]).taken
    finally:
        release.set()

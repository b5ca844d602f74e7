"""What servers answer, and what becomes of it: no loss is silent, and no reason is hidden."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from dask_otel._otel.sdk.answers import Answers, plain, words_of
from dask_otel._otel.sdk.watching import _retry_after, watch_stub
from tests.otlp.conftest import PROTOCOLS, Build
from tests.otlp.records import CHILD, ROOT, counter, number
from tests.receiver import Receiver, port_of, receiver

DOCUMENT = b"<!DOCTYPE html><html><body>Welcome to nginx!</body></html>"


@pytest.fixture
def http() -> Iterator[Receiver]:
    with receiver("http/protobuf") as made:
        yield made


def both(build: Build, server: Receiver, **variables: str) -> list[tuple[Any, list[Any]]]:
    """Return a sink of each signal, with what to export."""
    outputs = build(server.environ, OTEL_EXPORTER_OTLP_TIMEOUT="1", **variables)
    return [
        (outputs.span_sinks[0], [ROOT, CHILD]),
        (outputs.metric_sinks[0], [counter(number(1), number(2, a="b"))]),
    ]


# ------------------------------------------------------------------------- partial success


@pytest.mark.parametrize(
    ("partial", "lost", "said"),
    [
        (None, 0, ""),
        ((1, "out of\norder"), 1, "out of order"),
        ((2, ""), 2, "no reason given"),
        ((0, "deprecated"), 0, "deprecated"),
        ((-5, ""), 0, ""),
        ((1, "x" * 5000), 1, "x" * 299 + "…"),
    ],
)
def test_what_a_server_did_not_take_of_what_it_took(
    server: Receiver, build: Build, partial: tuple[int, str] | None, lost: int, said: str
) -> None:
    server.partial = partial
    for sink, records in both(build, server):
        assert sink.export(records)
        assert not sink.rejected
        assert (sink.lost, sink.said) == (lost, said)
        server.partial, before = None, server.partial
        assert sink.export(records)
        assert (sink.lost, sink.said) == (0, ""), "each export is for itself"
        server.partial = before
    assert len(server.requests) == 4, "it must not be sent again"


def test_partial_success_as_json(http: Receiver, build: Build) -> None:
    for (sink, records), key in zip(
        both(build, http), ("rejectedSpans", "rejectedDataPoints"), strict=True
    ):
        # 64-bit numbers are strings there.
        for count in ("1", 1):
            partial = {"partialSuccess": {key: count, "errorMessage": "no"}}
            http.content = "application/json; charset=utf-8", json.dumps(partial).encode()
            assert sink.export(records)
            assert (sink.lost, sink.said) == (1, "no")
        http.content = "application/json", b"{}"
        assert sink.export(records)
        assert (sink.lost, sink.said) == (0, "")


@pytest.mark.parametrize("exporter", [OTLPSpanExporter, OTLPMetricExporter])
def test_this_release_lets_its_stub_be_watched(exporter: Any) -> None:
    """Private parts of the exporter. If one is gone, what servers do not take is not seen."""
    made = exporter(endpoint="http://127.0.0.1:1", insecure=True)
    try:
        client = made._client
        assert watch_stub("traces", made, Answers())
        assert made._client is not client
        if hasattr(made, "_initialize_channel_and_stub"):
            made._channel.close()
            made._initialize_channel_and_stub()
            assert type(made._client) is not type(client), "a new connection is watched as well"
        assert not watch_stub("traces", object(), Answers())
    finally:
        made.shutdown()


@pytest.mark.usefixtures("no_long_retries")
def test_partial_success_is_seen_after_another_connection(build: Build) -> None:
    with receiver("grpc") as first:
        port = port_of(first.endpoint)
        pairs = both(build, first)
        for sink, records in pairs:
            assert sink.export(records)
    for sink, records in pairs:
        assert not sink.export(records)
    with receiver("grpc", port) as second:
        second.partial = (1, "no")
        for sink, records in pairs:
            while not sink.export(records):
                assert "UNAVAILABLE" in sink.last_error()
            assert (sink.lost, sink.said) == (1, "no")


# ---------------------------------------------------------------------------- wrong servers


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "", "application/octet-stream"])
def test_a_web_page_is_no_success(http: Receiver, build: Build, kind: str) -> None:
    http.content = kind, DOCUMENT
    for sink, records in both(build, http):
        assert not sink.export(records)
        assert not sink.rejected, "the records are in order"
        assert "web page" in sink.last_error()
    http.content = None
    for sink, records in both(build, http):
        assert sink.export(records)


@pytest.mark.parametrize("content", [("text/plain", b"OK"), ("application/json", b"[1]")])
def test_another_answer_is_told(http: Receiver, build: Build, content: tuple[str, bytes]) -> None:
    http.content = content
    for sink, records in both(build, http):
        assert sink.export(records)
        assert sink.lost == 0
        assert content[0] in sink.said
        assert content[1].decode() in sink.said


@pytest.mark.parametrize("content", [("", b""), ("text/plain", b""), ("application/json", b"{}")])
def test_an_empty_answer_is_a_success(
    http: Receiver, build: Build, content: tuple[str, bytes]
) -> None:
    http.content = content
    for sink, records in both(build, http):
        assert sink.export(records)
        assert (sink.lost, sink.said) == (0, "")


# ------------------------------------------------------------------------------- the reason


@pytest.mark.usefixtures("no_long_retries")
def test_the_words_of_a_server_are_the_reason(http: Receiver, build: Build) -> None:
    status = Status(code=3, message="tenant\0 unknown\n").SerializeToString()
    for content, words in (
        (("application/x-protobuf", status), "HTTP status 401 Unauthorized: tenant\ufffd unknown"),
        (("text/plain", b"who are you?"), "HTTP status 401 Unauthorized: who are you?"),
        (("text/html", DOCUMENT), "HTTP status 401 Unauthorized"),
    ):
        http.answer, http.content = 401, content
        for sink, records in both(build, http):
            assert not sink.export(records)
            assert not sink.rejected
            assert sink.last_error() == words


@pytest.mark.parametrize(("status", "blames"), [(400, True), (413, True), (404, False)])
def test_which_answers_blame_the_data(
    http: Receiver, build: Build, status: int, blames: bool
) -> None:
    http.answer = status
    for sink, records in both(build, http):
        assert not sink.export(records)
        assert sink.rejected is blames


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.usefixtures("no_long_retries")
def test_a_name_that_does_not_resolve_and_a_port_without_a_server_differ(
    build: Build, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        said = []
        for host in ("127.0.0.1", "nowhere.invalid"):
            outputs = build(
                OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{host}:{port}",
                OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
                OTEL_EXPORTER_OTLP_TIMEOUT="0.7",
            )
            for sink, records in (
                (outputs.span_sinks[0], [ROOT]),
                (outputs.metric_sinks[0], [counter(number(1))]),
            ):
                assert not sink.export(records)  # type: ignore[arg-type]
                said.append(sink.last_error())
    refused, unresolved = said[:2], said[2:]
    kind = "ConnectionError (ConnectionRefusedError:" if protocol != "grpc" else "UNAVAILABLE: "
    assert all(text.startswith(kind) and "refused" in text for text in refused), said
    for text in unresolved:
        assert "gaierror" in text or "DNS" in text or "resol" in text.lower(), said
    assert caplog.records == []


@pytest.mark.usefixtures("no_long_retries")
def test_what_the_client_cannot_send_is_no_fault_of_the_data(
    server: Receiver, build: Build
) -> None:
    """Not UnicodeEncodeError, which would say that each span can't be encoded."""
    (sink,) = build(server.environ).span_sinks
    exporter = sink._exporter._export.__self__  # type: ignore[union-attr]
    header = "x-tenant", "geheim\u4e00"
    if server.protocol == "grpc":
        exporter._headers = (header,)
    else:
        held = getattr(exporter, "_client", exporter)
        getattr(held, "_headers", {}).update([header])
        if held is exporter:
            exporter._session.headers.update([header])
    assert not sink.export([ROOT])
    assert not sink.rejected
    assert sink.last_error()
    assert "geheim" not in sink.last_error()


def test_what_others_say_is_one_short_line() -> None:
    assert plain("a\nb\x00\x1b[31m  c") == "a b\ufffd\ufffd[31m c"
    assert plain("BadStatusLine: \x00\x00\x12\x04\x00\x00ÿþ") == "BadStatusLine: (no text)"
    assert len(plain("y" * 10**6)) == 300


def test_the_innermost_error_says_why() -> None:
    def caught(*errors: Exception) -> Exception:
        try:
            try:
                raise errors[0]
            except Exception as error:
                raise errors[1] from error
        except Exception as error:
            return error

    inner = ConnectionRefusedError(111, "Connection refused")
    assert words_of(caught(inner, OSError("pool at 0x7f"))) == (
        "OSError (ConnectionRefusedError: [Errno 111] Connection refused)"
    )
    assert words_of(ValueError()) == "ValueError"

    class InvalidHeader(ValueError):
        pass

    assert words_of(InvalidHeader("geheim")) == "InvalidHeader"


def test_the_log_is_the_last_resort(build: Build) -> None:
    """Of exporters that nobody can watch, the last message is all there is."""
    log = logging.getLogger("opentelemetry.test")
    sink: Any = build(OTEL_TRACES_EXPORTER="console").span_sinks[0]

    def failing(spans: Any) -> None:
        log.error("the %s is full", "disk")

    sink._exporter._export = failing
    assert not sink.export([ROOT])
    assert sink.last_error() == "the disk is full"


# --------------------------------------------------------------------------- when to come back


def test_when_a_server_wants_the_next_request(server: Receiver, build: Build) -> None:
    # Such that no release of the exporters waits for it itself.
    server.answer = 400 if server.protocol == "http/protobuf" else "UNAUTHENTICATED"
    server.retry_after = 7
    for sink, records in both(build, server):
        assert not sink.export(records)
        assert sink.retries.pause == 7
        server.answer, before = None, server.answer
        assert sink.export(records)
        assert sink.retries.pause == 0
        server.answer = before


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [
        ("120", 120, 120),
        ("", 0, 0),
        ("soon", 0, 0),
        ("-5", 0, 0),
        ("9" * 5000, 1e6, 1e9),
        ("Fri, 21 Nov 2014 07:28:00 GMT", 0, 0),
        ("Wed, 21 Oct 2093 07:28:00 GMT", 1e6, 1e10),
    ],
)
def test_the_seconds_of_retry_after(header: str, low: float, high: float) -> None:
    assert low <= _retry_after(header) <= high

"""What servers answer, and what becomes of it: no loss is silent, and no reason is hidden."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import requests
from google.rpc.status_pb2 import Status
from opentelemetry import context as otel_context

from dask_otel._otel.sdk.transport import _retry_after, plain, words_of
from dask_otel.core.records import Answer
from tests.otlp.conftest import PROTOCOLS, Build, send
from tests.otlp.records import CHILD, ROOT, counter, number
from tests.receiver import Receiver, hanging_up, port_of, receiver

NO_OTLP = "an answer that is no OTLP"
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
        assert send(sink, records) == Answer(True, lost=lost, said=said)
        server.partial, before = None, server.partial
        assert send(sink, records) == Answer(True), "each request is for itself"
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
            assert send(sink, records) == Answer(True, lost=1, said="no")
        http.content = "application/json", b"{}"
        assert send(sink, records) == Answer(True)


def test_a_kept_connection_that_breaks_is_no_failure(build: Build) -> None:
    """A server that restarts, or closes what was idle, does not announce it."""
    requests_of: list[int] = []

    def serve() -> None:
        # The first connection breaks at its second request.
        for most in (1, 2):
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as lines:
                for number_of in range(1, 3):
                    length = 0
                    while (line := lines.readline()) not in (b"", b"\r\n"):
                        if line.lower().startswith(b"content-length:"):
                            length = int(line.split(b":")[1])
                    if not lines.read(length) or (most == 1 and number_of == 2):
                        break
                    requests_of.append(most)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        (sink,) = build(
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.getsockname()[1]}",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        ).span_sinks
        assert [send(sink, [ROOT]) for _ in range(3)] == [Answer(True)] * 3
        assert requests_of == [1, 2, 2]
        sink.close()
        thread.join(60)


def test_a_channel_whose_server_restarts_is_no_failure(build: Build) -> None:
    with receiver("grpc") as first:
        port = port_of(first.endpoint)
        pairs = both(build, first)
        for sink, records in pairs:
            assert send(sink, records).taken
    with receiver("grpc", port) as second:
        second.partial = (1, "no")
        for sink, records in pairs:
            assert send(sink, records) == Answer(True, lost=1, said="no")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_comes_back_is_there_for_the_next_request(
    build: Build, protocol: str
) -> None:
    """Nothing waits for a connection that could not be made before."""
    with receiver(protocol) as first:
        port = port_of(first.endpoint)
        pairs = both(build, first)
    for sink, records in pairs:
        for _ in range(5):
            answer = send(sink, records)
            assert (answer.taken, answer.absent) == (False, True), answer
    with receiver(protocol, port):
        for sink, records in pairs:
            assert send(sink, records).taken


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_connection_that_breaks_is_nobody(build: Build, protocol: str) -> None:
    with hanging_up() as port:
        outputs = build(
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        )
        answer = send(outputs.span_sinks[0], [ROOT])
    assert (answer.taken, answer.absent, answer.blames) == (False, True, False), answer


# ---------------------------------------------------------------------------- wrong servers


PAGE = "the endpoint answers with a web page: no OTLP server is there"


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        # The records are in order.
        ("text/html; charset=utf-8", DOCUMENT, Answer(False, PAGE)),
        ("", DOCUMENT, Answer(False, PAGE)),
        ("application/octet-stream", DOCUMENT, Answer(False, PAGE)),
        ("text/plain", b"OK", Answer(True, said=f"{NO_OTLP} (text/plain): OK")),
        ("application/json", b"[1]", Answer(True, said=f"{NO_OTLP} (application/json): [1]")),
        ("application/json", b"{}", Answer(True)),
        ("text/plain", b"", Answer(True)),
        ("", b"", Answer(True)),
    ],
)
def test_what_comes_with_a_success(
    http: Receiver, build: Build, kind: str, body: bytes, expected: Answer
) -> None:
    for sink, records in both(build, http):
        http.content = kind, body
        assert send(sink, records) == expected
        http.content = None
        assert send(sink, records) == Answer(True)


# ------------------------------------------------------------------------------- the reason


def test_the_words_of_a_server_are_the_reason(http: Receiver, build: Build) -> None:
    status = Status(code=3, message="tenant\0 unknown\n").SerializeToString()
    for content, words in (
        (("application/x-protobuf", status), "HTTP status 401 Unauthorized: tenant\ufffd unknown"),
        (("text/plain", b"who are you?"), "HTTP status 401 Unauthorized: who are you?"),
        (("text/html", DOCUMENT), "HTTP status 401 Unauthorized"),
    ):
        http.answer, http.content = 401, content
        for sink, records in both(build, http):
            assert send(sink, records) == Answer(False, words)


@pytest.mark.parametrize(("status", "blames"), [(400, True), (413, True), (404, False)])
def test_which_answers_blame_the_data(
    http: Receiver, build: Build, status: int, blames: bool
) -> None:
    http.answer = status
    for sink, records in both(build, http):
        answer = send(sink, records)
        assert (answer.taken, answer.blames) == (False, blames)


@pytest.mark.parametrize("protocol", PROTOCOLS)
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
            )
            for sink, record in (
                (outputs.span_sinks[0], ROOT),
                (outputs.metric_sinks[0], counter(number(1))),
            ):
                answer = send(sink, [record])
                assert (answer.taken, answer.absent) == (False, True), answer
                said.append(answer.reason)
    refused, unresolved = said[:2], said[2:]
    kind = "ConnectionError (ConnectionRefusedError:" if protocol != "grpc" else "UNAVAILABLE: "
    assert all(text.startswith(kind) and "refused" in text for text in refused), said
    for text in unresolved:
        assert "gaierror" in text or "DNS" in text or "resol" in text.lower(), said
    assert caplog.records == []


def test_what_the_client_cannot_send_is_no_fault_of_the_data(
    server: Receiver, build: Build
) -> None:
    """Not UnicodeEncodeError, which would say that each span can't be encoded."""
    (sink,) = build(server.environ).span_sinks
    transport: Any = sink.transport  # type: ignore[union-attr]
    transport._headers["x-tenant"] = "geheim\u4e00"
    answer = send(sink, [ROOT])
    assert (answer.taken, answer.blames, answer.absent) == (False, False, False)
    assert answer.reason
    assert "geheim" not in answer.reason


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


# --------------------------------------------------------------------------- when to come back


def test_when_a_server_wants_the_next_request(server: Receiver, build: Build) -> None:
    server.answer = 503 if server.protocol == "http/protobuf" else "RESOURCE_EXHAUSTED"
    server.retry_after = 7
    for sink, records in both(build, server):
        assert send(sink, records).pause == 7
        server.answer, before = None, server.answer
        assert send(sink, records).pause == 0
        server.answer = before
    assert len(server.requests) == 4, "nothing is sent again before the policy says so"


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


# ------------------------------------------------------------------------------ the process


def test_a_forked_child_has_connections_of_its_own(server: Receiver, build: Build) -> None:
    (sink,) = build(server.environ).span_sinks
    assert send(sink, [ROOT]).taken
    transport: Any = sink.transport  # type: ignore[union-attr]
    before = transport._client
    transport._process = os.getppid()
    assert send(sink, [ROOT]).taken
    assert transport._client is not before
    # The parent's still works: it was not closed.
    transport._client, mine = before, transport._client
    assert send(sink, [ROOT]).taken
    mine.close()
    assert len(server.spans) == 3


def test_instrumented_clients_trace_nothing_of_it(
    server: Receiver, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[object, object]] = []

    def note() -> None:
        keys = "suppress_instrumentation", "suppress_http_instrumentation"
        seen.append((otel_context.get_value(keys[0]), otel_context.get_value(keys[1])))

    class Channel:
        def __init__(self, channel: Any) -> None:
            self.close = channel.close
            self._channel = channel

        def unary_unary(self, *arguments: Any) -> Any:
            note()
            return self._channel.unary_unary(*arguments)

    insecure, request = grpc.insecure_channel, requests.Session.request
    monkeypatch.setattr(grpc, "insecure_channel", lambda *a: Channel(insecure(*a)))
    monkeypatch.setattr(requests.Session, "request", lambda *a, **k: (note(), request(*a, **k))[1])
    for sink, records in both(build, server):
        assert send(sink, records).taken
    assert seen == [(True, True)] * 2
    assert otel_context.get_value("suppress_instrumentation") is None


def test_it_says_who_sends(server: Receiver, build: Build) -> None:
    for sink, records in both(build, server):
        assert send(sink, records).taken
    for _, _, headers in server.requests:
        assert headers["user-agent"].startswith("dask-otel/")
        assert "OTel-OTLP-Exporter-Python/" in headers["user-agent"]

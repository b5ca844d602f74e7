"""What servers answer, and what becomes of it: no loss is silent, and no reason is hidden."""

from __future__ import annotations

import gzip
import re
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http import HTTPStatus
from itertools import count
from pathlib import Path
from socketserver import BaseRequestHandler
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import requests
from chaos.gate import Gate
from google.rpc.status_pb2 import Status
from opentelemetry import context as otel_context

from dask_otel._otel.sdk import transport
from dask_otel._otel.sdk.transport import _retry_after, plain, words_of
from dask_otel.core.records import Answer
from tests.certificates import self_signed
from tests.otlp.conftest import PROTOCOLS, Build, send
from tests.otlp.records import CHILD, LOG, ROOT, counter, number
from tests.receiver import Receiver, hanging_up, port_of, receiver, refusing

NO_OTLP = "an answer that is no OTLP"
#: 64-bit numbers are strings in JSON.
PARTIAL = b'{"partialSuccess":{"rejectedSpans":"1","rejectedDataPoints":1,"errorMessage":"no"}}'
DOCUMENT = b"<!DOCTYPE html><html><body>Welcome to nginx!</body></html>"


def both(
    build: Build, server: Receiver, logs: bool = False, **variables: str
) -> list[tuple[Any, list[Any]]]:
    """Return a sink of each signal, with what to export."""
    outputs = build({**server.environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "60", **variables}, logs=logs)
    return [
        (outputs.span_sinks[0], [ROOT, CHILD]),
        (outputs.metric_sinks[0], [counter(number(1), number(2, a="b"))]),
        *((sink, [LOG]) for sink in outputs.log_sinks),
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
    for sink, records in both(build, server):
        server.partial = partial
        assert send(sink, records) == Answer(True, lost=lost, said=said)
        server.partial = None
        assert send(sink, records) == Answer(True), "each request is for itself"
    assert len(server.requests) == 4, "it must not be sent again"


def test_a_success_that_cannot_be_read_is_one(
    server: Receiver, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken must not come again."""
    monkeypatch.setattr(server, "reply", lambda signal: Mock(SerializeToString=lambda: b"\xff"))
    for sink, records in both(build, server):
        answer = send(sink, records)
        assert (answer.taken, answer.lost, answer.said[: len(NO_OTLP)]) == (True, 0, NO_OTLP)


def test_a_kept_connection_that_breaks_is_no_failure(http: Receiver, build: Build) -> None:
    """A server that restarts, or closes an idle connection, does not announce it."""

    def breaks(_: str) -> None:
        if len(http.requests) == 2:
            raise ConnectionAbortedError

    http.before_answer = breaks
    (sink,) = build(http.environ).span_sinks
    assert ([send(sink, [ROOT]) for _ in range(3)], len(http.requests)) == ([Answer(True)] * 3, 4)


@pytest.mark.parametrize(("protocol", "missed"), [("grpc", 0), ("grpc", 5), ("http/protobuf", 5)])
def test_a_server_that_comes_back_is_there_for_the_next_request(
    build: Build, protocol: str, missed: int
) -> None:
    """Nothing waits for a connection that broke, or could not be made before."""
    with receiver(protocol) as first:
        port = port_of(first.endpoint)
        pairs = both(build, first)
        assert missed or all(send(*pair).taken for pair in pairs)
    for sink, records in pairs * missed:
        answer = send(sink, records)
        assert (answer.taken, answer.absent) == (False, True), answer
    with receiver(protocol, port) as second:
        second.partial = (1, "no")
        for sink, records in pairs:
            assert send(sink, records) == Answer(True, lost=1, said="no")


@pytest.mark.xdist_group("waiting")
@pytest.mark.parametrize("idle", [False, True])
def test_a_connection_that_died_without_a_word_is_left(
    server: Receiver, build: Build, monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    """A balancer, or a NAT, forgets connections without a FIN: their bytes get nowhere."""
    server.keeps |= {"logs"}
    with closing(Gate(port_of(server.endpoint))) as balancer:
        balancer.mode = "pass"
        through = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{balancer.port}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
        }
        pairs = both(build, server, logs=True, **through)
        assert [send(*pair).taken for pair in pairs] == [True] * 3
        balancer.forget()
        if idle:
            monkeypatch.setattr(transport, "_IDLE", 0.0)
        for sink, records in pairs:
            # One that was not used for long is not even tried.
            assert idle or not send(sink, records, longest=0.2).taken
            assert send(sink, records) == Answer(True)
    assert len(server.accepted) == 6, "nothing comes twice"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_certificate_that_was_renewed_in_place_is_read(
    build: Build, protocol: str, tmp_path: Path
) -> None:
    old = self_signed(tmp_path)
    with receiver(protocol, tls=old) as first:
        endpoint, port = f"https://127.0.0.1:{port_of(first.endpoint)}", port_of(first.endpoint)
        (sink,) = build(
            first.environ,
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
            OTEL_EXPORTER_OTLP_CERTIFICATE=str(old.certificate),
        ).span_sinks
        assert send(sink, [ROOT]) == Answer(True)
    old.certificate.unlink()
    answer = send(sink, [ROOT])
    assert not answer.taken
    assert str(old.certificate) in answer.reason
    with receiver(protocol, port, tls=self_signed(tmp_path)):
        assert send(sink, [ROOT]) == Answer(True)


@contextmanager
def nowhere(fault: str, protocol: str, folder: Path) -> Iterator[str]:
    """Give an endpoint that nothing can be delivered to."""
    with ExitStack() as stack:
        if fault == "refuses":
            yield stack.enter_context(refusing())
        elif fault == "no name":
            yield "http://nowhere.invalid:4318"
        elif fault == "hangs up":
            yield f"http://127.0.0.1:{stack.enter_context(hanging_up())}"
        else:
            certificate = None if fault == "no TLS there" else self_signed(folder)
            server = stack.enter_context(receiver(protocol, tls=certificate))
            scheme = "http" if fault == "TLS there" else "https"
            yield f"{scheme}://127.0.0.1:{port_of(server.endpoint)}"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("refuses", "refused"),
        ("no name", "gaierror|DNS|resol"),
        ("hangs up", ""),
        ("untrusted", ""),
        ("no TLS there", ""),
        ("TLS there", ""),
    ],
)
def test_where_nothing_can_be_delivered_nobody_is_there(
    fault: str,
    words: str,
    protocol: str,
    tmp_path: Path,
    build: Build,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with nowhere(fault, protocol, tmp_path) as endpoint:
        outputs = build(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
        for sink, record in (
            (outputs.span_sinks[0], ROOT),
            (outputs.metric_sinks[0], counter(number(1))),
        ):
            answer = send(sink, [record])
            assert (answer.taken, answer.absent, answer.blames) == (False, True, False), answer
            assert re.search(words, answer.reason), answer
    assert caplog.records == []


# ---------------------------------------------------------------------------- wrong servers


WHO = "HTTP status 401 Unauthorized"
PAGE = "the endpoint answers with a web page: no OTLP server is there"


@pytest.mark.parametrize(
    ("status", "kind", "body", "expected"),
    [
        # The records are in order.
        (None, "text/html; charset=utf-8", DOCUMENT, Answer(False, PAGE)),
        (None, "", DOCUMENT, Answer(False, PAGE)),
        (None, "application/octet-stream", DOCUMENT, Answer(False, PAGE)),
        (None, "text/plain", b"OK", Answer(True, said=f"{NO_OTLP} (text/plain): OK")),
        (None, "application/json", b"[1]", Answer(True, said=f"{NO_OTLP} (application/json): [1]")),
        (None, "application/json", b"{}", Answer(True)),
        (None, "application/json; charset=utf-8", PARTIAL, Answer(True, lost=1, said="no")),
        (None, "text/plain", b"", Answer(True)),
        (None, "text/html", b"", Answer(True)),
        (None, "", b"", Answer(True)),
        # The server's own words.
        (401, "application/x-protobuf",
         Status(code=3, message="tenant\0 unknown\n").SerializeToString(),
         Answer(False, f"{WHO}: tenant\ufffd unknown")),
        (401, "text/plain", b"who are you?", Answer(False, f"{WHO}: who are you?")),
        (401, "text/html", DOCUMENT, Answer(False, WHO)),
        # Which answers blame the data.
        (400, "", b"", Answer(False, "HTTP status 400 Bad Request", blames=True)),
        (413, "", b"", Answer(False, f"HTTP status 413 {HTTPStatus(413).phrase}", blames=True)),
        (404, "", b"", Answer(False, "HTTP status 404 Not Found for /v1/{}", unsupported=True)),
        # Following would turn a POST into a GET, and the data would be gone.
        *((status, "", b"",
           Answer(False, "the endpoint redirects to /login, which is not followed"))
          for status in (301, 302, 303, 307, 308)),
        (304, "", b"", Answer(False, "HTTP status 304 Not Modified")),
        *((status, "", b"", Answer(False, f"HTTP status {status} {HTTPStatus(status).phrase}"))
          for status in (500, 503)),
    ],
)  # fmt: skip
def test_answers_over_http(
    http: Receiver, build: Build, status: int | None, kind: str, body: bytes, expected: Answer
) -> None:
    for (sink, records), signal in zip(both(build, http), ("traces", "metrics"), strict=True):
        http.answer, http.location, http.content = status, "/login", (kind, body)
        assert send(sink, records) == expected._replace(reason=expected.reason.format(signal))
        http.answer = http.content = None
        assert send(sink, records) == Answer(True)


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        ("INVALID_ARGUMENT", {"blames": True}),
        ("UNIMPLEMENTED", {"unsupported": True}),
        ("INTERNAL", {}),
        ("UNAVAILABLE", {}),
    ],
)
def test_answers_over_grpc(build: Build, code: str, meaning: dict[str, bool]) -> None:
    with receiver("grpc") as server:
        for sink, records in both(build, server):
            server.answer = code
            assert send(sink, records) == Answer(False, f"{code}: refused by the test", **meaning)
            server.answer = None
            assert send(sink, records).taken
        assert len(server.requests) == 4, "one request, one answer"


@pytest.mark.parametrize(
    ("place", "variable", "value"),
    [
        (0, "OTEL_BSP_EXPORT_TIMEOUT", "200"),
        (1, "OTEL_METRIC_EXPORT_TIMEOUT", "200"),
        (0, "OTEL_EXPORTER_OTLP_TIMEOUT", "0.2"),
    ],
)
def test_a_server_that_never_answers(
    server: Receiver, build: Build, place: int, variable: str, value: str
) -> None:
    release = threading.Event()
    server.before_answer = lambda _: release.wait(60) and None
    sink, records = both(build, server, **{variable: value})[place]
    answer = send(sink, records)
    release.set()
    assert not answer.taken


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("gzip", gzip.compress(PARTIAL)), ("deflate", zlib.compress(PARTIAL)), ("gzip", PARTIAL)],
    ids=["gzip", "deflate", "no gzip"],
)
def test_a_compressed_answer_is_read_although_none_is_asked_for(
    http: Receiver, build: Build, encoding: str, body: bytes
) -> None:
    """An answer that is not what it says it is does not make the same data come again."""
    http.encoding, http.content = encoding, ("application/json", body)
    for sink, records in both(build, http):
        assert send(sink, records) == Answer(True, lost=1, said="no")
    assert {headers["accept-encoding"] for _, _, headers in http.requests} == {"identity"}


@contextmanager
def endless(pause: float, chunk: bytes) -> Iterator[str]:
    """Answer each request with content that does not end; give the URL."""
    hung_up = threading.Event()

    class Endless(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            # The content may be of any length.
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
            with suppress(OSError):
                while True:
                    time.sleep(pause)
                    self.request.sendall(chunk)
            hung_up.set()

    with hanging_up(Endless) as port:
        yield f"http://127.0.0.1:{port}/v1/traces"
        # The client is gone: the next bytes find nobody.
        assert hung_up.wait(60), "the connection is still read"


class OfUser(requests.Session):
    """Such as that of a credential provider."""


@pytest.mark.parametrize("kind", [requests.Session, OfUser])
def test_a_timeout_is_for_connecting_and_the_answer_together(
    kind: type[requests.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    post = Mock(side_effect=requests.ConnectionError)
    monkeypatch.setattr(requests.Session, "post", post)
    made = transport.HttpTransport("traces", {}, 20, kind, "http://there/v1/traces")
    assert not made.send(b"", 10).taken
    timeout = post.call_args.kwargs["timeout"]
    if kind is OfUser:
        assert 0 < timeout <= 10
    else:
        assert 0 < timeout.total <= 10
        # What connecting takes is missing for the answer.
        timeout.start_connect()
        monkeypatch.setattr(timeout, "get_connect_duration", lambda: timeout.total - 1)
        assert timeout.read_timeout == pytest.approx(1)


@pytest.mark.parametrize(("pause", "chunk"), [(0.01, b"x"), (0.0, b"y " * 9000)])
def test_an_answer_without_an_end_is_read_for_a_time_and_up_to_a_size(
    pause: float, chunk: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part comes long before the timeout."""
    # By the clock of the request, each look at it takes a second.
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=count(1.0).__next__))
    with (
        endless(pause, chunk) as url,
        closing(transport.HttpTransport("traces", {}, 60, requests.Session, url)) as made,
    ):
        answer = made.send(b"", 60)
    if pause:
        # The rest of the timeout when the request begins.
        assert re.search(r"did not end within 5\d s", answer.reason)
        assert (answer.taken, answer.absent) == (False, False)
    else:
        assert (answer.taken, answer.said[: len(NO_OTLP)]) == (True, NO_OTLP)


# ------------------------------------------------------------------------------- the reason


def test_what_the_client_cannot_send_is_no_fault_of_the_data(
    server: Receiver, build: Build
) -> None:
    """Not UnicodeEncodeError, which would say that each span can't be encoded."""
    (sink,) = build(server.environ).span_sinks
    its: Any = sink.transport  # type: ignore[union-attr]
    its._headers["x-tenant"] = "geheim\u4e00"
    answer = send(sink, [ROOT])
    assert (answer.taken, answer.blames, answer.absent) == (False, False, False)
    assert answer.reason
    assert "geheim" not in answer.reason


def test_what_others_say_is_one_short_line_with_the_innermost_error() -> None:
    outer = OSError("pool at 0x7f")
    outer.__cause__ = ConnectionRefusedError(111, "Connection refused")
    said = {
        plain("a\nb\x00\x1b[31m  c"): "a b\ufffd\ufffd[31m c",
        plain("BadStatusLine: \x00\x00\x12\x04\x00\x00ÿþ"): "BadStatusLine: (no text)",
        plain("y" * 10**6): "y" * 299 + "…",
        words_of(outer): "OSError (ConnectionRefusedError: [Errno 111] Connection refused)",
        words_of(ValueError()): "ValueError",
        words_of(type("InvalidHeader", (ValueError,), {})("geheim")): "InvalidHeader",
    }
    assert list(said) == list(said.values())


# --------------------------------------------------------------------------- when to come back


def test_when_a_server_wants_the_next_request(server: Receiver, build: Build) -> None:
    server.retry_after = 7
    for sink, records in both(build, server):
        server.answer = 503 if server.protocol == "http/protobuf" else "RESOURCE_EXHAUSTED"
        assert send(sink, records).pause == 7
        server.answer = None
        assert send(sink, records).pause == 0
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
        # Numbers that no date has, and no integer of C.
        (f"Wed, 21 Oct {'9' * 20} 07:28:00 GMT", 0, 0),
        (f"Wed, 21 Oct 2093 07:28:00 +{'9' * 20}", 0, 0),
    ],
)
def test_the_seconds_of_retry_after(header: str, low: float, high: float) -> None:
    assert low <= _retry_after(header) <= high


# ------------------------------------------------------------------------------ the process


def test_instrumented_clients_trace_nothing_of_it() -> None:
    seen = []

    class Noting(transport.Transport):
        def _answer(self, request: bytes, until: float) -> Answer:
            names = "suppress_instrumentation", "suppress_http_instrumentation"
            seen.append([otel_context.get_value(name) for name in names])
            return Answer(True)

    assert Noting("traces", {}, 10, Mock()).send(b"", 10).taken
    assert seen == [[True, True]]
    assert otel_context.get_value("suppress_instrumentation") is None

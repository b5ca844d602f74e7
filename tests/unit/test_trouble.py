"""What answers mean, by the words of real exporters and servers; `tests/otlp` has them live."""

from __future__ import annotations

import logging
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.core.endpoints.address import Endpoint, long_timeouts, oddities
from dask_otel.core.endpoints.explaining import explain, partly_taken
from dask_otel.core.masking import masked_url
from dask_otel.pump.destination import QUIET, Destination
from tests.unit.pumps import Metrics, Spans

HTTP, GRPC = "HTTP", "gRPC"
PLAIN, TLS, BARE = "http://collector:4317", "https://collector:4317", "collector:4317"
TO_ALL = "UNAVAILABLE: failed to connect to all addresses; last error: "
WRONG_TLS = (
    f"{TO_ALL}UNKNOWN: ipv4:127.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): "
    "SSL_ERROR_SSL: error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER"
)

#: Protocol, address, what was said, who listens, what it is.
CASES = [
    (GRPC, PLAIN, f"{TO_ALL}UNAVAILABLE: ipv4:127.0.0.1:1: Failed parsing HTTP/2 (Expected "
     "SETTINGS frame as the first frame, got frame type 79)", None, "grpc_to_http"),
    (GRPC, TLS, f"{TO_ALL}UNKNOWN: ipv4:127.0.0.1:1: Cannot check peer: missing selected ALPN "
     "property.", None, "grpc_to_http"),
    (GRPC, PLAIN, f"{TO_ALL}UNAVAILABLE: ipv4:127.0.0.1:1: Failed parsing HTTP/2 (Expected "
     "SETTINGS frame as the first frame, got frame type 80) (Trying to connect an http1.x server "
     "(HTTP status 400))", None, "grpc_to_http"),
    (GRPC, PLAIN, "UNAUTHENTICATED: Received http2 header with status: 401", None,
     "unauthenticated"),
    (GRPC, PLAIN, "UNIMPLEMENTED: Received http2 header with status: 404", None, "grpc_to_http"),
    (GRPC, PLAIN, f"{TO_ALL}UNAVAILABLE: Socket closed", "http", "grpc_to_http"),
    (HTTP, PLAIN, "ConnectionError (BadStatusLine: \ufffd\ufffd@)", None, "http_to_grpc"),
    (HTTP, TLS, "SSLError (SSLError: [SSL] nothing)", "tls-h2", "http_to_grpc"),
    (GRPC, TLS, WRONG_TLS, None, "tls_to_plain"),
    (HTTP, TLS, "SSLError (SSLError: [SSL: WRONG_VERSION_NUMBER] wrong version number "
     "(_ssl.c:1006))", None, "tls_to_plain"),
    (HTTP, TLS, "SSLError (SSLError: [SSL: RECORD_LAYER_FAILURE] record layer failure "
     "(_ssl.c:1032))", None, "tls_to_plain"),
    (GRPC, BARE, WRONG_TLS, None, "no_scheme"),
    (GRPC, "grpc://collector:4317", WRONG_TLS, None, "no_scheme"),
    (HTTP, PLAIN, "InvalidSchema: Missing dependencies for SOCKS support.", None, "proxy_socks"),
    (HTTP, PLAIN, "InvalidURL (ProxySchemeUnknown: Proxy URL had unsupported scheme foo, should "
     "use http:// or https://)", None, "proxy_address"),
    (GRPC, TLS, "FileNotFoundError: [Errno 2] No such file or directory: '/ca.pem'", None,
     "certificate_file"),
    (HTTP, TLS, "OSError: Could not find a suitable TLS CA certificate bundle, invalid path: /a",
     None, "certificate_file"),
    (GRPC, PLAIN, f"{TO_ALL}UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed", "tls-h2",
     "plain_to_tls"),
    (HTTP, PLAIN, "ConnectionError (ConnectionResetError: [Errno 104] Connection reset by peer)",
     "tls", "plain_to_tls"),
    (HTTP, PLAIN, "HTTP status 400 Bad Request: Client sent an HTTP request to an HTTPS server.",
     None, "plain_to_tls"),
    (HTTP, PLAIN, "ConnectionError (RemoteDisconnected: Remote end closed connection without "
     "response)", None, "closed"),
    (GRPC, PLAIN, f"{TO_ALL}UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed", None, "closed"),
    (HTTP, TLS, "SSLError (SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate "
     "verify failed: self-signed certificate (_ssl.c:1006))", "tls-h2", "certificate_untrusted"),
    (HTTP, TLS, "SSLError (SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate "
     "verify failed: certificate has expired (_ssl.c:1006))", None, "certificate_expired"),
    (GRPC, TLS, f"{TO_ALL}UNKNOWN: ipv4:127.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): "
     "SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: "
     "certificate is not yet valid: OK", None, "certificate_expired"),
    (HTTP, TLS, "SSLError (SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate "
     "verify failed: Hostname mismatch, certificate is not valid for 'x'.", None,
     "certificate_name"),
    (GRPC, TLS, f"{TO_ALL}Hostname Verification Check failed.", None, "certificate_name"),
    (GRPC, TLS, f"{TO_ALL}Tls handshake failed: error:10000412: tlsv13 alert certificate required",
     None, "client_certificate"),
    (GRPC, PLAIN, "UNAVAILABLE: errors resolving nowhere.invalid:4317: [field:hostname lookup "
     "error:address lookup failed for nowhere.invalid:4317: Domain name not found]", None,
     "unresolved"),
    (HTTP, PLAIN, "ConnectionError (gaierror: [Errno -2] Name or service not known)", None,
     "unresolved"),
    (GRPC, PLAIN, f"{TO_ALL}UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: "
     "Connection refused", None, "refused"),
    (HTTP, PLAIN, "ConnectionError (ConnectionRefusedError: [Errno 111] Connection refused)", None,
     "refused"),
    (HTTP, PLAIN, "ConnectionError (OSError: [Errno 113] No route to host)", None, "unreachable"),
    (GRPC, PLAIN, "DEADLINE_EXCEEDED: Deadline Exceeded", None, "timeout"),
    (HTTP, PLAIN, "ReadTimeout (TimeoutError: timed out)", None, "timeout"),
    (HTTP, PLAIN, "ProxyError (OSError: Tunnel connection failed: 403 Forbidden)", None, "proxy"),
    (HTTP, PLAIN, "InvalidURL (LocationParseError: Failed to parse: …)", None, "bad_address"),
    *((GRPC, url, "UNAVAILABLE: Address lookup failed for http: Domain name not found", None,
       "bad_address")
      for url in ("http://", "https://a b:1", masked_url("authorization=Bearer x"),
                  # As Docker reads a file of variables: with its quotes.
                  '"http://c:4317"', "'c:4317'")),
    (HTTP, PLAIN, "HTTP status 404 Not Found for /v1/traces/v1/traces", None, "path_twice"),
    (HTTP, PLAIN, "HTTP status 404 Not Found for /v1/traces", None, "not_found"),
    (HTTP, f"{PLAIN}/otlp", "HTTP status 404 Not Found for /otlp: no", None, "not_found"),
    (HTTP, PLAIN, "HTTP status 401 Unauthorized: timed out", None, "unauthenticated"),
    (HTTP, PLAIN, "HTTP status 403 Forbidden", None, "forbidden"),
    (HTTP, PLAIN, "HTTP status 413 Request Entity Too Large", None, "too_large"),
    (HTTP, PLAIN, "HTTP status 415 Unsupported Media Type", None, "content_type"),
    (HTTP, PLAIN, "HTTP status 429 Too Many Requests", None, "rate_limit"),
    (HTTP, PLAIN, "HTTP status 400 Bad Request: no tenant", None, "invalid"),
    (HTTP, PLAIN, "HTTP status 503 Service Unavailable: connection refused", None, "server_error"),
    (HTTP, PLAIN, "the endpoint answers with a web page: no OTLP server is there", None,
     "web_page"),
    (HTTP, PLAIN, "the endpoint redirects to https://x/v1/traces, which is not followed", None,
     "redirect"),
    (GRPC, PLAIN, "UNAUTHENTICATED: the token timed out", None, "unauthenticated"),
    (GRPC, PLAIN, "PERMISSION_DENIED: no", None, "forbidden"),
    (GRPC, PLAIN, "UNIMPLEMENTED: unknown service", None, "no_signal"),
    (GRPC, PLAIN, "RESOURCE_EXHAUSTED: grpc: received message larger than max (5 vs. 4)", None,
     "too_large"),
    (GRPC, PLAIN, "RESOURCE_EXHAUSTED: later", None, "rate_limit"),
    (GRPC, PLAIN, "INVALID_ARGUMENT: bad", None, "invalid"),
    (GRPC, PLAIN, "UNAVAILABLE: data refused due to high memory usage", None, "server_error"),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "url", "reason", "listener", "kind"), CASES)
def test_the_likely_cause(
    protocol: str, url: str, reason: str, listener: str | None, kind: str
) -> None:
    trouble: Any = explain(Endpoint(url, protocol), "traces", reason, listener)  # type: ignore[arg-type]
    assert trouble.kind == kind
    assert trouble.cause.endswith(".")
    assert trouble.remedy.endswith(".")


@given(st.text(), st.sampled_from([PLAIN, TLS, BARE, "", "[::1]:1", "http://["]), st.text())
def test_whatever_is_said_nothing_raises(reason: str, url: str, listener: str) -> None:
    for protocol in (HTTP, GRPC):
        endpoint = Endpoint(url, protocol)  # type: ignore[arg-type]
        explain(endpoint, "metrics", reason, listener)
        oddities(endpoint)
    assert explain(Endpoint(PLAIN, "HTTP"), "traces", "") is None


SOCKETS = ["unix:///run/otel.sock", "unix:otel", "unix-abstract:otel"]


@pytest.mark.parametrize(
    ("protocol", "url", "reason", "listener", "kind", "cause", "remedy"),
    [
        (GRPC, BARE, WRONG_TLS, "http", "no_scheme", "HTTP server", "http://collector:4317."),
        (HTTP, PLAIN, "HTTP status 404 x for /v1/metrics", None, "not_found", "",
         "OTEL_METRICS_EXPORTER=none"),
        (HTTP, TLS, "SSLError (SSLEOFError: EOF occurred in violation of protocol)", None, "closed",
         "it may require a connection without TLS (http), or gRPC.", ""),
        # A name with an address where nobody listens.
        (GRPC, "https://localhost:4317",
         f"{TO_ALL}UNKNOWN: ipv6:%5B::1%5D:4317: Connection refused", "tls-h2",
         "refused", "One of the addresses of localhost", ""),
        *((GRPC, url, WRONG_TLS, None, "no_scheme", "", "Set OTEL_EXPORTER_OTLP_INSECURE=true.")
          for url in SOCKETS),
        *((GRPC, url,
           f"{TO_ALL}FAILED_PRECONDITION: {url}: connect failed: addr: {url} error: {why}",
           None, "refused", f"Nothing listens at {url}, or", "")
          for url in SOCKETS
          for why in ("No such file or directory", "Connection refused", "Permission denied")),
    ],
)  # fmt: skip
def test_what_is_missing_is_spelled_out(
    protocol: Any, url: str, reason: str, listener: str, kind: str, cause: str, remedy: str
) -> None:
    trouble: Any = explain(Endpoint(url, protocol), "metrics", reason, listener)
    assert (trouble.kind, cause in trouble.cause) == (kind, True)
    assert remedy in trouble.remedy
    assert url not in SOCKETS or "4317" not in trouble.remedy, "a socket has no port"


@pytest.mark.parametrize(
    ("protocol", "url", "said"),
    [
        *((GRPC, url, []) for url in (PLAIN, *SOCKETS)),
        (GRPC, f"{PLAIN}/v1/traces", ["ignores the path"]),
        (GRPC, "http://collector:99999", ["no port"]),
        (GRPC, "http://collector:4318", ["usual port of HTTP"]),
        (HTTP, PLAIN, ["usual port of gRPC"]),
        pytest.param(HTTP, "h:" + "9" * 5000, [], id="thousands of digits"),
    ],
)
def test_strange_addresses(protocol: Any, url: str, said: list[str]) -> None:
    found = oddities(Endpoint(url, protocol))
    assert [words in text for words, text in zip(said, found, strict=True)] == [True] * len(said)


def test_timeouts_that_are_no_seconds() -> None:
    name = "OTEL_EXPORTER_OTLP_TIMEOUT"
    fine = {name: "299.9", "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": "soon", "OTEL_BSP_TIMEOUT": "9999"}
    assert long_timeouts(fine.items()) == []
    (text,) = long_timeouts({**fine, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "10000"}.items())
    assert text.startswith("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT is 10000, which is read as seconds")
    assert text.endswith("set it to 10.")
    assert len(long_timeouts([(name, "300")])) == 1


def test_partial_success() -> None:
    assert partly_taken(3, "too old").kind == "partial_success"
    assert "3 of its items: too old" in partly_taken(3, "too old").cause
    assert partly_taken(0, "hello").kind == "server_note"


@pytest.mark.parametrize(
    ("endpoint", "reason", "words"),
    [
        (Endpoint(PLAIN, "gRPC"), CASES[0][2], "HTTP server listens"),
        (Endpoint(PLAIN, "gRPC"), "strange", "Check that a collector listens there"),
        (None, "full", "see its own documentation"),
    ],
)
def test_the_scheduler_s_warning_has_the_same_words(
    endpoint: Endpoint | None, reason: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Destination("there", endpoint).failed(Spans(), reason)
    (record,) = caplog.records
    assert words in record.getMessage()
    assert reason in record.getMessage()
    assert "Dask is not affected" in record.getMessage()


REFUSED, LATE, UNTRUSTED = "Connection refused", "timed out", "certificate verify failed"
#: Steps: when, which signal, and why it failed; empty if it was accepted.
Steps = list[tuple[float, str, str]]


def blips(count: int) -> Steps:
    return [(n, "spans", reason) for n in range(count) for reason in (LATE, "")]


def spaced(*reasons: str) -> Steps:
    return [(n * QUIET / 7.5, "spans", reason) for n, reason in enumerate(reasons, start=1)]


@pytest.mark.parametrize(
    ("steps", "messages"),
    [
        # Of spans and metrics, which mostly go to the same place.
        (
            [(0, "spans", LATE), (0, "metrics", LATE), (0, "spans", LATE),
             (0, "metrics", ""), (0, "spans", "")],
            {0: "WARNING", 4: "INFO"},
        ),
        # A flaky destination, once in a while.
        (blips(50), {0: "WARNING", 1: "INFO"}),
        (
            [*blips(2), (QUIET, "metrics", LATE), (QUIET, "spans", LATE), (QUIET, "spans", ""),
             (QUIET, "metrics", "")],
            {0: "WARNING", 1: "INFO", 4: "WARNING", 7: "INFO"},
        ),
        # An outage soon after a blip, when it lasts.
        (
            [*blips(1), *((n, "spans", LATE) for n in (1, QUIET - 1, QUIET, QUIET + 60))],
            {0: "WARNING", 1: "INFO", 4: "WARNING"},
        ),
        # A server that restarts, and then has another certificate: each needs its own remedy.
        (spaced(REFUSED, LATE, UNTRUSTED, REFUSED, UNTRUSTED), {0: "WARNING", 2: "WARNING"}),
        # After a recovery, each kind has its ten minutes.
        (
            spaced(LATE, "", REFUSED, UNTRUSTED, "", UNTRUSTED),
            {0: "WARNING", 1: "INFO", 3: "WARNING", 4: "INFO"},
        ),
        (
            spaced(LATE, "", *[UNTRUSTED] * 4, "", UNTRUSTED, LATE, LATE),
            {0: "WARNING", 1: "INFO", 2: "WARNING", 6: "INFO", 8: "WARNING"},
        ),
        # After a hint that nobody is there, only a refusal is news, and that somebody is.
        *(
            ([(0, "nobody", ""), *spaced(reason, reason, "", "", reason)], messages)
            for reason, messages in (
                (f"{TO_ALL}Connection refused", {3: "INFO", 5: "WARNING"}),
                ("UNAVAILABLE: connections to all backends failing; handshaker shutdown",
                 {3: "INFO", 5: "WARNING"}),
                ("strange", {3: "INFO", 5: "WARNING"}),
                ("INVALID_ARGUMENT: refused", {1: "WARNING", 3: "INFO"}),
            )
        ),
    ],
)  # fmt: skip
def test_when_a_person_is_told_that_a_destination_fails_and_works_again(
    steps: Steps,
    messages: dict[int, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "distributed.dask_otel")
    now, found = 0.0, {}
    monkeypatch.setattr("dask_otel.pump.destination.time", SimpleNamespace(monotonic=lambda: now))
    there = Destination("there", Endpoint("https://there:4317", "gRPC"))
    there.notices, sinks = deque(), {"spans": Spans(), "metrics": Metrics()}
    for step, (now, signal, reason) in enumerate(steps):  # noqa: B007 - the clock
        caplog.clear()
        if signal == "nobody":
            there.expect_no_server()
        else:
            there.failed(sinks[signal], reason) if reason else there.ok(sinks[signal])
        found.update((step, record.levelname) for record in caplog.records)
    assert found == messages
    names = [name.rpartition(".")[2] for name, _ in there.notices]
    # One for each failure, and one for its end.
    assert names == [*["failing", "recovered"] * len(names)][: len(names)]

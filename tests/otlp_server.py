"""Servers of OTLP, over gRPC or HTTP/protobuf, on a loopback port: bytes in, an answer out.

What is made of the bytes is another's: the tests' receiver parses and keeps them, the benchmarks'
sink notes when they came, and leaves the cores to what it measures.
"""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeAlias

import grpc

from tests.certificates import Certificate

#: What a request brings, by the path or the method that it is sent to.
SIGNALS: Final = {
    "/v1/traces": "traces",
    "/v1/metrics": "metrics",
    "/v1/logs": "logs",
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": "traces",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": "metrics",
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export": "logs",
}

# Not by its name, which has another address, too, where nobody listens.
_HOST: Final = "127.0.0.1"


@dataclass(frozen=True)
class Answer:
    """What a server says."""

    #: HTTP status, or gRPC status name; None for success.
    status: int | str | None = None
    content: bytes = b""
    #: Headers of an HTTP answer, trailing metadata of gRPC's.
    headers: Mapping[str, Any] = field(default_factory=dict)


#: Called with path or method, body and headers, in one of the server's threads.
Take: TypeAlias = Callable[[str, bytes, Mapping[str, str]], Answer]


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    take: Take

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of those who hang up, or do not speak TLS."""


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path not in SIGNALS:
            self.send_error(404)
            return
        answer = self.server.take(self.path, body, dict(self.headers))
        self.send_response(200 if answer.status is None else int(answer.status))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def _grpc_handler(take: Take, method: str) -> grpc.GenericRpcHandler:
    def handle(body: bytes, context: grpc.ServicerContext) -> bytes:
        headers = {
            key: value.decode() if isinstance(value, bytes) else value
            for key, value in context.invocation_metadata()
        }
        answer = take(method, body, headers)
        if answer.headers:
            context.set_trailing_metadata(tuple(answer.headers.items()))
        if answer.status is not None:
            context.abort(grpc.StatusCode[str(answer.status)], answer.content.decode())
        return answer.content

    _, service, name = method.split("/")
    handlers = {name: grpc.unary_unary_rpc_method_handler(handle)}
    return grpc.method_handlers_generic_handler(service, handlers)


@contextmanager
def serve(
    protocol: str,
    take: Take,
    *,
    port: int = 0,
    tls: Certificate | None = None,
    largest: int | None = None,
) -> Iterator[str]:
    """Run a server, and give its endpoint.

    Parameters
    ----------
    protocol
        ``"grpc"`` or ``"http/protobuf"``.
    take
        What answers.
    port
        0 for a free one.
    tls
        With it the server speaks TLS.
    largest
        Bytes of a message; None for gRPC's own default. HTTP takes any.
    """
    running = _serve_grpc if protocol == "grpc" else _serve_http
    with running(take, port, tls, largest) as bound:
        yield f"{'http' if tls is None else 'https'}://{_HOST}:{bound}"


@contextmanager
def _serve_grpc(
    take: Take, port: int, tls: Certificate | None, largest: int | None
) -> Iterator[int]:
    # Without so_reuseport=0 two servers would share a port unseen.
    options: list[tuple[str, int]] = [("grpc.so_reuseport", 0)]
    if largest is not None:
        options.append(("grpc.max_receive_message_length", largest))
    server = grpc.server(ThreadPoolExecutor(4), options=options)
    methods = [where for where in SIGNALS if not where.startswith("/v1/")]
    server.add_generic_rpc_handlers([_grpc_handler(take, method) for method in methods])
    address = f"{_HOST}:{port}"
    bound = (
        server.add_insecure_port(address)
        if tls is None
        else server.add_secure_port(
            address,
            grpc.ssl_server_credentials([(tls.key.read_bytes(), tls.certificate.read_bytes())]),
        )
    )
    server.start()
    try:
        yield bound
    finally:
        server.stop(None).wait(5)


@contextmanager
def _serve_http(
    take: Take, port: int, tls: Certificate | None, largest: int | None
) -> Iterator[int]:
    http = _Http((_HOST, port), _Handler)
    http.take = take
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        # The handshake is the handler's, so that who does not speak TLS holds up nobody.
        http.socket = context.wrap_socket(
            http.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield http.server_port
    finally:
        http.shutdown()
        http.server_close()
        thread.join(5)

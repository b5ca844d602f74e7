"""OTLP receivers in processes of their own: they take bytes and note when they came.

Not the tests' receiver, which parses what comes: that is 1 ms of processor for a request of 512
spans (0.5 MB), on the cores on which the bridge and the SDK are measured.
"""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any, Literal

import grpc

Arrival = tuple[float, str, bytes]
Protocol = Literal["grpc", "http/protobuf"]


class _Kept:
    """What came; bodies only when somebody wants them."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.keep = False

    def add(self, where: str, body: bytes) -> None:
        self.arrivals.append((time.time(), where, body if self.keep else b""))


class _Receiver(grpc.GenericRpcHandler):
    def __init__(self, kept: _Kept) -> None:
        self._kept = kept

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method

        def take(body: bytes, context: Any) -> bytes:
            self._kept.add(method, body)
            return b""

        return grpc.unary_unary_rpc_method_handler(take)


def _serve_grpc(kept: _Kept) -> int:
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 1 << 28)]
    server = grpc.server(ThreadPoolExecutor(2), options=options)
    server.add_generic_rpc_handlers((_Receiver(kept),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    # A server that nobody holds is stopped.
    kept.server = server  # type: ignore[attr-defined]
    return port


def _serve_http(kept: _Kept) -> int:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            kept.add(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def _serve(pipe: Any, protocol: Protocol) -> None:
    kept = _Kept()
    pipe.send(_serve_grpc(kept) if protocol == "grpc" else _serve_http(kept))
    while pipe.recv() == "take":
        taken, kept.arrivals = kept.arrivals, []
        kept.keep = True
        pipe.send(taken)


class Sink:
    """The receiver's process; use it as a context manager.

    Bodies are kept from the first `take` on.
    """

    def __init__(self, protocol: Protocol = "grpc") -> None:
        self._protocol = protocol

    def __enter__(self) -> Sink:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self._protocol), daemon=True)
        self._process.start()
        self.port = self._pipe.recv()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pipe.send("stop")
        self._process.join(5)

    def environment(self) -> dict[str, str]:
        """Return the standard variables that lead here."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": self._protocol,
        }

    def take(self) -> list[Arrival]:
        """Return what came since the last call: when, gRPC method or path, body."""
        self._pipe.send("take")
        taken: list[Arrival] = self._pipe.recv()
        return taken

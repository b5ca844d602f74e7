"""An OTLP receiver in a process of its own, over gRPC: it takes bytes and notes when they came."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc

Arrival = tuple[float, str, bytes]


class _Receiver(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.keep = False

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method

        def take(body: bytes, context: Any) -> bytes:
            self.arrivals.append((time.time(), method, body if self.keep else b""))
            return b""

        return grpc.unary_unary_rpc_method_handler(take)


def _serve(pipe: Any) -> None:
    receiver = _Receiver()
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 1 << 28)]
    server = grpc.server(ThreadPoolExecutor(2), options=options)
    server.add_generic_rpc_handlers((receiver,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    pipe.send(port)
    while pipe.recv() == "take":
        taken, receiver.arrivals = receiver.arrivals, []
        receiver.keep = True
        pipe.send(taken)
    server.stop(None)


class Sink:
    """The receiver's process; use it as a context manager.

    Bodies are kept from the first `take` on.
    """

    def __enter__(self) -> Sink:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
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
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        }

    def take(self) -> list[Arrival]:
        """Return what came since the last call: when, gRPC method, body."""
        self._pipe.send("take")
        taken: list[Arrival] = self._pipe.recv()
        return taken

"""A small OTLP/HTTP receiver on the loopback interface, for the length of a demo.

The demo's bridge exports to it as it would to a Collector: real exporter, real socket. So
the demo shows what left the process, not what was meant to.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import ClassVar

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from dask_otel.cli.received import Telemetry, spans

_PROTOBUF = "application/x-protobuf"


class Sink:
    """Receives OTLP over HTTP (binary protobuf) on a free port until closed.

    Use as a context manager. Any thread may call its methods.

    Raises
    ------
    OSError
        Where no port can be opened on 127.0.0.1.
    """

    def __init__(self) -> None:
        self._telemetry = Telemetry()
        self._arrived = threading.Condition()
        handler = type("Handler", (_Handler,), {"sink": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        # Close without waiting for connections that an exporter keeps alive.
        self._server.block_on_close = False
        threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name="dask-otel demo receiver",
            daemon=True,
        ).start()

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        """The base URL, for OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def accept(self, path: str, body: bytes) -> bytes | None:
        """Keep one request and return the response's body; None for an unknown path.

        Raises
        ------
        DecodeError
            Where the body is no export request.
        """
        with self._arrived:
            if path == "/v1/traces":
                self._telemetry.traces.append(ExportTraceServiceRequest.FromString(body))
                response: bytes = ExportTraceServiceResponse().SerializeToString()
            elif path == "/v1/metrics":
                self._telemetry.metrics.append(ExportMetricsServiceRequest.FromString(body))
                response = ExportMetricsServiceResponse().SerializeToString()
            else:
                return None
            self._arrived.notify_all()
        return response

    def telemetry(self) -> Telemetry:
        """Return what has arrived so far."""
        with self._arrived:
            return Telemetry(list(self._telemetry.traces), list(self._telemetry.metrics))

    def wait_for_span(self, span_id: int, timeout: float) -> bool:
        """Wait at most `timeout` seconds for a span; return whether it came."""
        wanted = span_id.to_bytes(8, "big")

        def has_come() -> bool:
            return any(span.span_id == wanted for span in spans(self._telemetry.traces))

        with self._arrived:
            return self._arrived.wait_for(has_come, timeout)


class _Handler(BaseHTTPRequestHandler):
    sink: ClassVar[Sink]
    protocol_version = "HTTP/1.1"  # keep connections alive, as receivers do
    #: By Content-Encoding, what undoes it.
    decoders: ClassVar[dict[str, Callable[[bytes], bytes]]] = {
        "identity": bytes,
        "gzip": gzip.decompress,
        "deflate": zlib.decompress,
    }

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        decode = self.decoders.get(self.headers.get("Content-Encoding", "identity"))
        if decode is None:
            self._answer(415)
            return
        try:
            response = self.sink.accept(self.path, decode(body))
        except (DecodeError, OSError, EOFError, zlib.error):
            self._answer(400)
            return
        if response is None:
            self._answer(404)
        else:
            self._answer(200, response)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Type", _PROTOBUF)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Be silent: the terminal belongs to the demo."""

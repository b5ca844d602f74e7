"""Proxies that tunnel, as they stand before collectors."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Seconds after which a proxy gives up the server, and hangs up on a client that asks nothing.
GIVES_UP, KEPT_ALIVE = 1.0, 5.0


class Proxy(ThreadingHTTPServer):
    """A proxy on a port of its own: ``CONNECT`` opens a tunnel.

    If the server can't be reached, it answers 502, in HTML.
    """

    daemon_threads = True
    # A client must not wait for those that came before it.
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        #: Its answers, by status; each is on a connection of its own.
        self.answered: Counter[int] = Counter()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"
    timeout = KEPT_ALIVE

    def do_CONNECT(self) -> None:
        """Open a tunnel."""
        host, _, port = self.path.rpartition(":")
        self.close_connection = True
        try:
            far = socket.create_connection((host, int(port)), GIVES_UP)
        except OSError:
            self._answer(502, b"<html><body><h1>502 Bad Gateway</h1></body></html>")
            return
        self._answer(200)
        near = self.connection
        for one in (near, far):
            one.settimeout(None)
        back = threading.Thread(target=_pass, args=(far, near), daemon=True)
        back.start()
        _pass(near, far)
        back.join()
        far.close()

    def _answer(self, status: int, page: bytes = b"") -> None:
        self.server.answered[status] += 1
        self.send_response_only(status)
        if page:
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def _pass(source: socket.socket, sink: socket.socket) -> None:
    """Pass on what comes, until one of the two is closed."""
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy() -> Iterator[Proxy]:
    """Run a proxy on a free port of this machine; see `Proxy`."""
    made = Proxy()
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join(5)

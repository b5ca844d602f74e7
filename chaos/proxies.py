"""A proxy that tunnels, as one stands before collectors."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

#: Seconds after which a proxy gives up the server.
GIVES_UP = 1.0


class Proxy(ThreadingTCPServer):
    """A proxy on a port of its own: ``CONNECT`` opens a tunnel.

    If the server can't be reached, it answers 502.
    """

    daemon_threads = True
    # A client must not wait for those that came before it.
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        #: Its answers, by status; each is on a connection of its own.
        self.answered: Counter[int] = Counter()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up."""


class _Handler(StreamRequestHandler):
    server: Proxy

    def handle(self) -> None:
        """Open a tunnel."""
        _, where, _ = self.rfile.readline().decode().split()
        while self.rfile.readline().strip():
            pass
        host, _, port = where.rpartition(":")
        try:
            far = socket.create_connection((host, int(port)), GIVES_UP)
        except OSError:
            self.server.answered[502] += 1
            self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        self.server.answered[200] += 1
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        far.settimeout(None)
        back = threading.Thread(target=_pass, args=(far, self.connection), daemon=True)
        back.start()
        _pass(self.connection, far)
        back.join()
        far.close()


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
    with Proxy() as made:
        threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
        yield made
        made.shutdown()

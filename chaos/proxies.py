"""Proxies that end HTTP in between, or tunnel, as they stand before collectors."""

from __future__ import annotations

import http.client
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

#: Seconds after which a proxy gives up the server, and hangs up on a client that asks nothing.
GIVES_UP, KEPT_ALIVE = 1.0, 5.0
#: Headers that belong to one connection, or are written anew.
_OWN = {
    "connection", "content-length", "host", "keep-alive", "proxy-connection", "transfer-encoding",
}  # fmt: skip


class Proxy(ThreadingHTTPServer):
    """A proxy on a port of its own.

    It speaks HTTP/1.1 and keeps its clients' connections. A request for an absolute URL is passed
    on to there (forward), any other one to its target (reverse), and ``CONNECT`` opens a tunnel.
    A server that can't be reached is a 502, one that does not answer in time a 504, in HTML.

    Parameters
    ----------
    target
        Port on this machine of the server behind a reverse proxy.
    """

    daemon_threads = True
    # A client must not wait for those that came before it.
    request_queue_size = 64

    def __init__(self, target: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        #: Answers of its own or of the server, by status; a tunnel that opens is a 200.
        self.answered: Counter[int] = Counter()
        #: Connections of clients.
        self.connections = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"
    timeout = KEPT_ALIVE

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        """Pass a request on."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _OWN}
        behind = http.client.HTTPConnection(
            url.netloc or f"127.0.0.1:{self.server.target}", timeout=GIVES_UP
        )
        try:
            with closing(behind):
                behind.request("POST", url.path, body, headers)
                answer = behind.getresponse()
                content = answer.read()
        except TimeoutError:
            self._refuse(504)
        except (OSError, http.client.HTTPException):
            self._refuse(502)
        else:
            passed = [(k, v) for k, v in answer.getheaders() if k.lower() not in _OWN]
            self._answer(answer.status, content, passed)

    def do_CONNECT(self) -> None:
        """Open a tunnel."""
        host, _, port = self.path.rpartition(":")
        self.close_connection = True
        try:
            far = socket.create_connection((host, int(port)), GIVES_UP)
        except OSError:
            self._refuse(502)
            return
        self.server.answered[200] += 1
        self.send_response_only(200)
        self.end_headers()
        near = self.connection
        for one in (near, far):
            one.settimeout(None)
        back = threading.Thread(target=_pass, args=(far, near), daemon=True)
        back.start()
        _pass(near, far)
        back.join()
        far.close()

    def _refuse(self, status: int) -> None:
        page = f"<html><body><h1>{status} {http.client.responses[status]}</h1></body></html>"
        self._answer(status, page.encode(), [("Content-Type", "text/html")])

    def _answer(self, status: int, content: bytes, headers: list[tuple[str, str]]) -> None:
        self.server.answered[status] += 1
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

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
def proxy(target: int = 0) -> Iterator[Proxy]:
    """Run a proxy on a free port of this machine; see `Proxy`."""
    made = Proxy(target)
    thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join(5)

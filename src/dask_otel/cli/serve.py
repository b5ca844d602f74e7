"""``dask-otel history --serve``: the list, and a report of each run when it is opened.

It listens on this machine alone, only reads, and opens no path that a request names: an address
has the ids of a run, which is looked up in the list.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import quote

from dask_otel.cli import terminal
from dask_otel.report.document import read_report
from dask_otel.report.history.changes import trends
from dask_otel.report.history.past import PastRun
from dask_otel.report.history.sessions import SessionFiles, listing
from dask_otel.report.money import Price
from dask_otel.report.page.html import history_page
from dask_otel.report.telemetry.remote import copied

_HOST: Final = "127.0.0.1"
#: Seconds until a silent connection is closed.
_PATIENCE: Final = 30.0
_HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
)


class Pages(ThreadingHTTPServer):
    """The pages by path: the list of the runs below some folders, and a report of each."""

    daemon_threads = True

    def __init__(self, port: int, folders: Sequence[str], price: Price | None) -> None:
        super().__init__((_HOST, port), _Handler)
        self.folders, self.price = folders, price
        #: By the links of the list.
        self.sessions: dict[str, SessionFiles] = {}
        self.lock = threading.Lock()

    def page(self, path: str) -> str | None:
        """Return a page; None if there is none."""
        # One report at a time: it can take gigabytes.
        with self.lock:
            if path == "/" or not self.sessions:
                found, left_out = listing(self.folders, terminal.listed)
                runs = [run for run, _ in found]
                links = [link(run) for run in runs]
                self.sessions = dict(zip(links, (session for _, session in found), strict=True))
                if path == "/":
                    return history_page(runs, trends(runs), left_out, self.price, links)
            session = self.sessions.get(path)
            if session is None:
                return None
            with copied(session.paths) as paths:
                return read_report(*paths).html()


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE
    server: Pages

    def do_GET(self) -> None:
        # Another site's name for this machine is not answered.
        if self.headers.get("Host", "").rpartition(":")[0] not in (_HOST, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        try:
            page = self.server.page(self.path)
        except (OSError, ValueError):
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "the files can't be read")
            return
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = page.encode("utf-8", "replace")
        self.send_response(HTTPStatus.OK)
        for name, value in (("Content-Length", str(len(body))), *_HEADERS):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing of requests."""


def link(run: PastRun) -> str:
    """Return the path of a run's report."""
    return "/" + quote(f"{run.trace_id}-{run.span_id}", safe="")


def serve(server: Pages) -> int:
    """Answer until Ctrl-C; return the exit code."""
    with server, suppress(KeyboardInterrupt):
        terminal.tell(f"http://{_HOST}:{server.server_port}/")
        terminal.say("history", "press Ctrl-C to stop")
        server.serve_forever()
    return 0

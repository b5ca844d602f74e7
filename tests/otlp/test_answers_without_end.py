"""Answers that never end: they are read for a time, and up to a size."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import requests

from dask_otel._otel.sdk.transport import HttpTransport

#: Of a success whose content is text, and may be of any length.
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


@contextmanager
def endless(pause: float, chunk: bytes) -> Iterator[tuple[str, list[int]]]:
    """Answer one request with content that does not end; give the URL, and what was sent."""
    sent = [0]
    hung_up = threading.Event()

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(HEAD)
            try:
                while not hung_up.wait(pause):
                    connection.sendall(chunk)
                    sent[0] += len(chunk)
            except OSError:
                hung_up.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1/traces", sent
        # The client is gone: the next bytes find nobody.
        assert hung_up.wait(60), "the connection is still read"
        thread.join(60)


def test_one_that_drips_is_late() -> None:
    # Each byte comes long before the timeout.
    with endless(0.01, b"x") as (url, _):
        transport = HttpTransport("traces", {}, 0.2, requests.Session, url)
        answer = transport.send(b"", 60)
        transport.close()
    # The rest of the timeout when the answer begins.
    assert re.search(r"did not end within 0\.(2|1\d+) s", answer.reason)
    assert (answer.taken, answer.absent) == (False, False)


def test_one_that_floods_is_cut() -> None:
    with endless(0.0, b"flood " * 1000) as (url, _):
        transport = HttpTransport("traces", {}, 60, requests.Session, url)
        answer = transport.send(b"", 60)
        transport.close()
    assert answer.taken
    assert answer.said.startswith("an answer that is no OTLP")

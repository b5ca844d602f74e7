"""OTLP receivers in processes of their own: they take bytes and note when they came.

They do not parse what comes, as the tests' receiver does with the same server: that is 1 ms of
processor for a request of 512 spans (0.5 MB), on the cores on which the bridge and the SDK are
measured.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping
from typing import Any

from tests.otlp_server import Answer, serve

Arrival = tuple[float, str, bytes]


def _serve(pipe: Any) -> None:
    arrivals: list[Arrival] = []
    keep = False

    def take(where: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        arrivals.append((time.time(), where, body if keep else b""))
        return Answer()

    with serve("grpc", take, largest=1 << 28) as endpoint:
        pipe.send(endpoint)
        while pipe.recv() == "take":
            keep = True
            count = len(arrivals)
            pipe.send(arrivals[:count])
            del arrivals[:count]


class Sink:
    """The receiver's process; use it as a context manager.

    Bodies are kept from the first `take` on.
    """

    def __enter__(self) -> Sink:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        self.endpoint = self._pipe.recv()
        return self

    def __exit__(self, *error: object) -> None:
        self._pipe.send("stop")
        self._process.join(5)

    def environment(self) -> dict[str, str]:
        """Return the standard variables that lead here."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        }

    def take(self) -> list[Arrival]:
        """Return the arrivals since the last call: time, gRPC method or path, body."""
        self._pipe.send("take")
        return list(self._pipe.recv())

"""The pump's interface to exporters: sinks for spans and metrics.

Nothing here knows OpenTelemetry or Dask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from dask_otel.core.records import Answer, MetricRecord, Row

#: Longest time between two attempts, in seconds, whatever a server wants.
LONGEST_BACKOFF: Final = 30.0


def pause_of(answer: Answer) -> float:
    """Return the pause in seconds that a server requests, limited."""
    return min(LONGEST_BACKOFF, answer.pause)


class Sink(Protocol):
    """One destination, used by one thread."""

    #: The exporter and its endpoint, for people.
    name: str
    #: What to do after a failure; empty for the advice for an endpoint.
    advice: str
    #: Seconds to wait for a server at the end.
    patience: float

    def close(self) -> None:
        """Release its resources."""


class SpanSink(Sink, Protocol):
    """A destination of spans, or of log records."""

    #: The reason in `dask.otel.dropped` for items that are lost in an accepted request.
    loss: str

    def wants(self, record: Any) -> bool:
        """Whether the span is sampled; an unsampled one never enters the queue."""

    def encode(self, record: Any) -> Any:
        """Return the body of a row.

        Raises
        ------
        TypeError, ValueError
            If it can't be encoded.
        """

    def send(self, rows: Sequence[Row], longest: float) -> Answer:
        """Send one request within `longest` seconds."""


class MetricSink(Sink, Protocol):
    """A destination of metrics."""

    def send(self, records: Sequence[MetricRecord], longest: float) -> Answer:
        """Send one request within `longest` seconds."""


@dataclass(frozen=True, slots=True)
class PumpLimits:
    """Sizes in spans, times in seconds."""

    queue_size: int = 2048
    batch_size: int = 128
    #: Longest time that a finished span waits for others.
    schedule_delay: float = 1.0
    #: Points of one metrics request: more would hold the GIL, and fill gRPC's 4 MiB. None for no
    #: limit.
    max_points: int | None = 200

"""The pump's interface to exporters: sinks for spans and metrics.

Nothing here knows OpenTelemetry or Dask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from dask_otel.core.records import Answer, MetricRecord, Row, SpanRecord

#: Seconds between two tries at most, whatever a server wants.
LONGEST_BACKOFF: Final = 30.0


def pause_of(answer: Answer) -> float:
    """Return for how many seconds a server is left alone, because it wants to be."""
    return min(LONGEST_BACKOFF, answer.pause)


class Sink(Protocol):
    """One destination, used by one thread."""

    #: For people: the exporter and its endpoint.
    name: str
    #: What to do if it fails; empty for the advice for an endpoint.
    advice: str
    #: At the end, seconds for which it is worth waiting for somebody to be there.
    patience: float

    def close(self) -> None:
        """Release what it holds."""


class SpanSink(Sink, Protocol):
    """Where spans go."""

    #: Why spans get lost although a request was taken: the reason in `dask.otel.dropped`.
    loss: str

    def wants(self, record: SpanRecord) -> bool:
        """Whether the span is sampled: one that is not never enters the queue."""

    def encode(self, record: SpanRecord) -> Any:
        """Return the body of a row.

        Raises
        ------
        TypeError, ValueError
            If it can't be encoded.
        """

    def send(self, rows: Sequence[Row], longest: float) -> Answer:
        """Send one request, for so many seconds at most."""


class MetricSink(Sink, Protocol):
    """Where metrics go."""

    def send(self, records: Sequence[MetricRecord], longest: float) -> Answer:
        """Send one request, for so many seconds at most."""


#: Points of one metrics request: more would hold the GIL, and fill gRPC's 4 MiB.
MAX_POINTS: Final = 200


@dataclass(frozen=True, slots=True)
class PumpLimits:
    """Sizes in spans, times in seconds."""

    queue_size: int = 2048
    batch_size: int = 128
    #: Longest time that a finished span waits for others.
    schedule_delay: float = 1.0
    #: None for deltas, which go in one request: of several, one could be lost and the others
    #: not.
    max_points: int | None = MAX_POINTS

"""What the pump needs of the outside: sinks for spans and metrics.

Nothing here knows OpenTelemetry or Dask.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from dask_otel.core.records import MetricRecord, SpanRecord


class Retries(Protocol):
    """What an exporter tries again by itself, before it answers."""

    #: At the end, seconds for which it is worth waiting for somebody to be at the other end.
    patience: float

    @property
    def absent(self) -> bool:
        """Whether the last request found nobody at the other end."""

    @property
    def pause(self) -> float:
        """Seconds for which the server wants no other request after the last one; mostly 0."""

    def cut(self) -> None:
        """From now on, try once where nobody is. Called by another thread; returns at once."""

    def end(self) -> None:
        """Wait for no other try any more. Called by another thread; returns at once."""


class Sink(Protocol):
    """One exporter, used by one thread."""

    #: What a person needs to recognise it: the exporter and its endpoint.
    name: str
    #: What a person can do where it fails; empty for what helps with an endpoint.
    advice: str
    #: Whether the last export was refused as invalid, so that nothing of it was stored.
    rejected: bool
    #: Items of the last export that got lost alone, although it returned True.
    lost: int
    #: What the server said about the last export, although it returned True.
    said: str

    @property
    def retries(self) -> Retries | None:
        """What it tries again by itself; None if it answers at once."""

    def surroundings(self) -> AbstractContextManager[None]:
        """Entered by the thread for as long as it lives."""

    def last_error(self) -> str:
        """Return why the last export failed, as far as it is known."""

    def shutdown(self) -> None:
        """Release what the exporter holds."""


class SpanSink(Sink, Protocol):
    """Where spans go."""

    #: Why records get lost alone: the reason in `dask.otel.dropped`.
    loss: str

    def wants(self, record: SpanRecord) -> bool:
        """Whether the span is sampled: one that is not never enters the queue."""

    def export(self, records: Sequence[SpanRecord]) -> bool:
        """Export; False if it failed and may be tried again.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If a record can't be encoded.
        """


class MetricSink(Sink, Protocol):
    """Where metrics go."""

    def export(self, records: Sequence[MetricRecord]) -> bool:
        """Export in one request; False if it failed."""


#: Seconds between two tries at most, whatever a server wants.
LONGEST_BACKOFF: Final = 30.0


def pause_of(sink: Sink) -> float:
    """Return for how many seconds a server wants to be left alone, as far as that is honoured."""
    return 0.0 if sink.retries is None else min(LONGEST_BACKOFF, sink.retries.pause)


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

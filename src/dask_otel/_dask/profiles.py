"""Samples of workers as they arrive: bounded, and left unread on the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from dask_otel.core.events.lines import Rate
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.profiles.stacks import (
    BLOB,
    LAST,
    LEFT_OUT,
    MOST_BYTES,
    SAMPLES,
    SPANS,
    TOPIC,
)
from dask_otel.core.profiles.store import Batch, CutOff
from dask_otel.core.records import SpanIdentity

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: Bytes a second of all workers, and those that may come at once. A worker limits itself.
_IN_ALL: Final = 1_000_000.0, 20_000_000.0
#: Most spans of a message.
_MOST_SPANS: Final = 1000


class WorkerProfiles:
    """Reads the messages of workers' samplers, on the scheduler's event loop.

    `put` takes the messages for the thread that reads them. Methods may raise: the adapter catches
    the errors.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        lifecycle: Lifecycle,
        put: Callable[[Batch | CutOff], None],
    ) -> None:
        self._scheduler, self._open, self._put = scheduler, lifecycle.open, put
        self._rate = Rate(*_IN_ALL)
        #: The workers that have sent their last message.
        self._done: set[str] = set()

    def read(self, message: Any, now: float) -> None:
        """Read a message; any client may log any object."""
        # Dask keeps the last thousand of each topic.
        self._scheduler._broker.truncate(TOPIC)
        if type(message) is not dict or message.get("worker") not in self._scheduler.workers:
            return
        address = message["worker"]
        blob: Any = message.get(BLOB)
        ids: Any = message.get(SPANS)
        samples: Any = message.get(SAMPLES)
        left_out: Any = message.get(LEFT_OUT, 0)
        if (
            (type(blob), type(samples), type(left_out)) != (bytes, int, int)
            or not isinstance(ids, (list, tuple))
            or not all(type(one) is str for one in ids)
            or len(blob) > MOST_BYTES
            or len(ids) > _MOST_SPANS
            or min(samples, left_out) < 0
        ):
            return
        if message.get(LAST):
            self._done.add(address)
        if not self._rate.allows(now, len(blob)):
            blob, samples, left_out = b"", 0, left_out + samples
        if samples or left_out:
            spans = tuple([self._span(one) for one in ids])
            self._put(Batch(address, blob, tuple(ids), spans, samples, left_out))

    def _span(self, dask_id: str) -> tuple[SpanIdentity, SpanIdentity] | None:
        span = self._open.get(dask_id)
        if span is None:
            return None
        return span.identity, (span.above[-1] if span.above else span).identity

    def worker_removed(self, address: str) -> None:
        """Say that a worker has gone, unless it has said good-bye."""
        if address in self._done:
            self._done.discard(address)
        else:
            self._put(CutOff(address))

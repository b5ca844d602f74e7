"""Log records of workers as they arrive: bounded, and left unread on the event loop."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

from distributed.scheduler import Scheduler

from dask_otel import semconv
from dask_otel.core.events import lines
from dask_otel.core.events.lines import Rate
from dask_otel.core.life.clock_offsets import ClockOffsets
from dask_otel.core.records import ClusterEvent

#: Bytes a second of a worker, and of all workers, and the seconds whose bytes may come at once. A
#: worker keeps to less by itself, but not what Dask forwards.
_PER_WORKER: Final = 100_000.0
_IN_ALL: Final = 1_000_000.0
_BURST: Final = 5.0
#: What a record costs besides its bytes.
_RECORD: Final = 500
#: Topics with the levels of their messages; ours has records of any level.
_TOPICS: Final = {lines.TOPIC: logging.CRITICAL, "print": logging.INFO, "warn": logging.WARNING}


class WorkerLines:
    """Makes events of workers' messages, on the scheduler's event loop.

    `level` is Python's least level; None to read nothing. Methods may raise: the adapter catches
    the errors.
    """

    def __init__(self, scheduler: Scheduler, clocks: ClockOffsets, level: int | None) -> None:
        self._scheduler = scheduler
        self._clocks = clocks
        self._level = level
        #: Records that were left out since the last look at it.
        self.left_out = 0
        self._all = Rate(_IN_ALL, _BURST * _IN_ALL)
        self._rates: dict[str, Rate] = {}
        #: By a worker's name and address: the time when the first record was left out, and how
        #: many were.
        self.unsaid: dict[tuple[str, str], list[float]] = {}

    def worker_removed(self, address: str) -> None:
        """Forget a worker."""
        self._rates.pop(address, None)

    def read(self, topic: str, message: Any, now: float) -> ClusterEvent | None:
        """Return the event of a message; any client may log any object on any topic."""
        if topic not in _TOPICS or type(message) is not dict:
            return None
        ours = topic == lines.TOPIC
        if ours:
            # Dask keeps the last thousand of each topic.
            self._scheduler._broker.truncate(topic)
        ws = self._scheduler.workers.get(str(message.get("worker")))
        if self._level is None or ws is None or self._level > _TOPICS[topic]:
            return None
        records, left_out = message.get(lines.RECORDS, 1), message.get(lines.LEFT_OUT, 0)
        blob = message.get(lines.BLOB, b"")
        types = (type(records), type(left_out), type(blob))
        if types != (int, int, bytes) or not 0 <= records <= lines.MOST_RECORDS or left_out < 0:
            return None
        cost = len(blob) + _RECORD * records
        own = self._rates.setdefault(ws.address, Rate(_PER_WORKER, _BURST * _PER_WORKER))
        if not (own.allows(now, cost) and self._all.allows(now, cost)):
            left_out, records = left_out + records, 0
        about = {semconv.WORKER_NAME: str(ws.name), semconv.WORKER_ADDRESS: ws.address}
        if left_out:
            self.left_out += left_out
            self.leave_out(ClusterEvent(now, semconv.WORKER_LOG, about, weight=left_out))
        if not records:
            return None
        facts = {
            **about,
            lines.OFFSET: self._clocks.offset(ws.address) or 0.0,
            **({lines.BLOB: blob} if ours else {lines.MESSAGE: message}),
        }
        return ClusterEvent(now, semconv.WORKER_LOG, facts, weight=records)

    def leave_out(self, event: ClusterEvent) -> None:
        """Say later that there was no room: for records, or for the event that says so."""
        name, address = (event.facts[key] for key in (semconv.WORKER_NAME, semconv.WORKER_ADDRESS))
        count = event.facts.get(semconv.LOG_LEFT_OUT_COUNT, event.weight)
        self.unsaid.setdefault((name, address), [event.time, 0])[1] += count

    def tick(self, now: float, closing: bool = False) -> Iterator[ClusterEvent]:
        """Yield an event about the records that were left out, once a second."""
        for (name, address), (since, count) in list(self.unsaid.items()):
            if closing or not 0 <= now - since < 1:
                del self.unsaid[name, address]
                facts = {
                    semconv.WORKER_NAME: name,
                    semconv.WORKER_ADDRESS: address,
                    semconv.LOG_LEFT_OUT_COUNT: int(count),
                }
                yield ClusterEvent(now, semconv.WORKER_LOG_LEFT_OUT, facts)

"""The queue between the event loop and a thread: bounded; adding to it never blocks."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from dask_otel import semconv
from dask_otel.core.profiles.store import Batch, CutOff, Ended
from dask_otel.core.records import (
    ClusterEvent,
    FinishedGraph,
    FinishedSpan,
    OpenNote,
    Progress,
    SpanIdentity,
)


class Inbox:
    """Filled by the event loop, emptied by the thread of a feeder, or of the profiles.

    Parameters
    ----------
    backlog
        Limit of the waiting OpenTelemetry spans, log records, graph logs, or bytes of samples.
    """

    def __init__(self, backlog: int) -> None:
        self.backlog = backlog
        #: Whether `take` returns nothing any more.
        self.given_up = False
        self._items: deque[Any] = deque()
        # Two counters, each written by one thread: no lock.
        self._offered = self._taken = 0
        #: Held to count the remaining spans only once.
        self._giving_up = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def waiting(self) -> int:
        """The number of waiting records."""
        return self._offered - self._taken

    def __repr__(self) -> str:
        return f"<Inbox, {self.waiting} of {self.backlog} waiting>"

    def offer(
        self,
        item: FinishedSpan | Progress | ClusterEvent | FinishedGraph | Batch,
        behind: int = 0,
    ) -> bool:
        """Queue an item; False if there is no room.

        `behind` counts the records in the queues behind this one. If nothing waits, even a span
        with more groups than the backlog is accepted. Records that workers and users
        write can fill only half of the queue; the rest is for events of the cluster.
        """
        weight, waiting = item.weight, self.waiting + behind
        written = isinstance(item, ClusterEvent) and item.name in semconv.WRITTEN
        if waiting and waiting + weight > (self.backlog // 2 if written else self.backlog):
            return False
        self._offered += weight
        self._items.append(item)
        return True

    def put_light(self, item: OpenNote | SpanIdentity | CutOff | Ended) -> None:
        """Queue an item without weight; bounded too, in case the disk hangs for ever.

        The identity of a finished span that had no room removes the span's note.
        """
        if len(self._items) < 2 * self.backlog:
            self._items.append(item)

    def take(self) -> Any:
        """Return the next item; None if there is none, or after `give_up`."""
        with self._giving_up:
            if not self._items or self.given_up:
                return None
            item = self._items.popleft()
            self._taken += getattr(item, "weight", 0)
            return item

    def give_up(self) -> int:
        """Let `take` return nothing from now on; return how many records remain, once."""
        with self._giving_up:
            left = 0 if self.given_up else self.waiting
            self.given_up = True
            return left

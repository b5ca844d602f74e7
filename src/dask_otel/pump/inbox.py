"""What waits between the event loop and the journal: bounded, and handed over without a wait."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from dask_otel.core.records import FinishedSpan, OpenNote, Progress, SpanIdentity

#: What is translated.
Item: TypeAlias = FinishedSpan | Progress | OpenNote


@dataclass(frozen=True, slots=True)
class Over:
    """A span has ended for which there was no room: it is counted, and has no note any more."""

    identity: SpanIdentity


class Inbox:
    """Filled by the event loop, emptied by the journal's thread.

    Parameters
    ----------
    backlog
        OpenTelemetry spans that may wait.
    """

    def __init__(self, backlog: int) -> None:
        self.backlog = backlog
        #: Whether nobody takes anything out any more.
        self.given_up = False
        self._items: deque[Item | Over] = deque()
        # Two counters, each written by one thread: no lock.
        self._offered = 0
        self._taken = 0
        #: Held to count what is left, once.
        self._giving_up = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def waiting(self) -> int:
        """OpenTelemetry spans that wait."""
        return self._offered - self._taken

    @property
    def has_room_for_notes(self) -> bool:
        """Whether notes may come; they are made later if not."""
        return len(self._items) < self.backlog

    def offer(self, finished: FinishedSpan | Progress) -> bool:
        """Queue a finished span; False if there is no room: then its end alone is queued."""
        weight, waiting = finished.weight, self.waiting
        if waiting and waiting + weight > self.backlog:
            if isinstance(finished, FinishedSpan):
                self.put_light(Over(finished.identity))
            return False
        self._offered += weight
        self._items.append(finished)
        return True

    def put_light(self, item: OpenNote | Over) -> None:
        """Queue what weighs nothing; bounded all the same, should the disk hang for ever."""
        if len(self._items) < 2 * self.backlog:
            self._items.append(item)

    def take(self) -> Item | Over | None:
        """Return the next one; None if nobody is to have it any more, or there is none."""
        with self._giving_up:
            if not self._items or self.given_up:
                return None
            item = self._items.popleft()
            if not isinstance(item, (OpenNote, Over)):
                self._taken += item.weight
            return item

    def give_up(self) -> int:
        """Let nothing out any more; return how many OpenTelemetry spans are left, once."""
        with self._giving_up:
            if self.given_up:
                return 0
            self.given_up = True
            return self.waiting

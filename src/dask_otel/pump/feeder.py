"""The feeder: the thread between the event loop and the lanes of one signal.

It translates each item once, encodes the records for each sink, and gives them to the lanes. With a
spool, `dask_otel.pump.spooled` writes them to the disk first.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from dask_otel import semconv
from dask_otel._log import logger
from dask_otel.core.records import ClusterEvent, FinishedGraph, FinishedSpan, Progress
from dask_otel.pump.breath import Breath
from dask_otel.pump.destination import QUIET, WORDS, Notices
from dask_otel.pump.inbox import Inbox
from dask_otel.pump.lanes import SpanLane
from dask_otel.pump.tally import Tally
from dask_otel.pump.thread import PumpThread


class Feeder(PumpThread):
    """The thread that feeds the lanes of one signal, from a bounded queue.

    Parameters
    ----------
    signal
        ``"traces"``, ``"logs"`` or ``"graph"``.
    lanes
        The lanes of its sinks.
    translate
        Makes OpenTelemetry spans, or log records, of an item; called in this thread.
    backlog
        Limit of the records that wait in memory.
    tally
        Counts the losses here.
    wake
        Wakes the thread; the lanes set it too.
    notices
        Gets an event if the queue is full, at most every ten minutes.
    within
        What limits the time of the close, for a message.
    """

    #: The name of its work, in the log and for its unexpected errors; for a message about a loss.
    kind, task = "export", "exported"
    #: Whether everything for the disk is written, after `close`.
    written = True

    def __init__(
        self,
        signal: str,
        lanes: Sequence[SpanLane],
        translate: Callable[[Any], Sequence[Any]],
        backlog: int,
        tally: Tally,
        wake: threading.Event,
        notices: Notices,
        within: str,
    ) -> None:
        self.signal, self.lanes = signal, lanes
        self._all, self._items, _ = WORDS[signal]
        super().__init__(f"dask-otel-{self._all}", self.kind, tally, wake)
        self._translate = translate
        self._inbox = Inbox(backlog)
        #: OpenTelemetry spans between the inbox and the lanes or the disk.
        self._in_hand = 0
        #: The weight of the item that is being translated. The thread that takes it out counts it.
        self._translating: dict[str, int] = {}
        self._notices, self._within = notices, within
        self._noticed_at = -math.inf
        self._breathe = Breath()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.signal}, {self._inbox.waiting} waiting>"

    # ---------------------------------------------------------------- called by other threads

    def offer(
        self, item: FinishedSpan | Progress | ClusterEvent | FinishedGraph, counted: bool = True
    ) -> bool:
        """Queue an item; False if there is no room. Called by the event loop.

        Without lanes it is discarded. `counted` is whether an item without room counts as lost.
        """
        if not self.lanes:
            return True
        # The emptiest lane counts: a dead exporter must not stop the others.
        taken = self._inbox.offer(item, self._in_hand + min(lane.size for lane in self.lanes))
        if not taken and counted:
            self._drop("queue_full", item.weight * len(self.lanes))
            now = time.monotonic()
            if now - self._noticed_at >= QUIET:
                self._noticed_at = now
                about = {semconv.OTEL_SIGNAL: self.signal}
                self._notices.append((semconv.OTEL_QUEUE_FULL, about))
        self.wake.set()
        return taken

    @property
    def size(self) -> int:
        """Records that wait in memory only: the maximum over the sinks."""
        if self._inbox.given_up:
            return 0
        longest = max([lane.size for lane in self.lanes], default=0)
        return self._inbox.waiting + self._in_hand + longest

    def abandon(self) -> None:
        """Count as lost what is not encoded: the thread hangs, or its time is up."""
        left = self._inbox.give_up() + self._translating.pop("weight", 0)
        if left:
            self._drop("shutdown", left * len(self.lanes))
            logger.warning(
                "dask-otel: %d %s could not be %s within %s",
                left,
                self._items,
                self.task,
                self._within,
            )

    # ------------------------------------------------------------------------- the thread

    def work(self) -> float:
        """Feed the lanes until nothing is left to do."""
        while self._step():
            if self.deadline is not None:
                return 0.0
        return 60.0

    def _step(self) -> bool:
        """Give the records of one item to the lanes; return whether there is more to do."""
        item = self._inbox.take()
        if item is not None:
            self._in_hand = item.weight
            self._give(self._encoded(item, self.lanes))
            self._in_hand = 0
        return bool(self._inbox)

    def _encoded(
        self, item: Any, lanes: Sequence[SpanLane], counted: bool = True
    ) -> list[tuple[SpanLane, Any]]:
        """Return the lanes and the bodies of an item's records; count losses if so wanted."""
        found: list[tuple[SpanLane, Any]] = []
        if counted:
            self._translating["weight"] = item.weight
        try:
            self._breathe()
            for record in self._translate(item):
                for lane in lanes:
                    self._breathe()
                    body = lane.encoded(record, counted)
                    if body is not None:
                        found.append((lane, body))
        except BaseException:
            logger.debug("dask-otel: an item could not be translated", exc_info=True)
            self._drop("untranslatable", self._translating.pop("weight", 0) * len(lanes))
            return []
        # Without it, another thread has counted the item as lost.
        return found if not counted or self._translating.pop("weight", 0) else []

    def _give(self, rows: Sequence[tuple[SpanLane, Any]]) -> None:
        """Give records to the lanes from memory."""
        for lane in self.lanes:
            lane.give([body for its, body in rows if its is lane])

    def _drop(self, reason: str, count: int) -> None:
        self._tally.add(semconv.OTEL_DROPPED.name, self.signal, reason, count=count)

    # ------------------------------------------------------------------------------- the end

    def finish(self) -> None:
        """Feed the rest until the deadline."""
        self._finish(self.deadline or 0.0)

    def _finish(self, until: float) -> None:
        while self._inbox and time.monotonic() < until:
            self._step()

    def release(self) -> None:
        """Count the rest as lost; the lanes get no more."""
        self.abandon()
        for lane in self.lanes:
            lane.all_fed.set()

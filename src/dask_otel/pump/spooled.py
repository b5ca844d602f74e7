"""The lane of a sink with a spool: the journal feeds it rows, and removes the rows it has sent.

A row in its queue is also in the spool, or in memory only if the spool is full or can't be written.
A row of the spool can't get lost here: at the end it simply stays there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from dask_otel import semconv
from dask_otel.core.records import Row, SpanRecord
from dask_otel.pump.health import Health, Tally
from dask_otel.pump.lanes import AT_ONCE, SpanLane
from dask_otel.pump.sinks import PumpLimits, SpanSink


class SpooledLane(SpanLane):
    """Exports rows of the spool to one span sink.

    Parameters
    ----------
    sink
        The exporter.
    key
        The key of its rows in the spool.
    limits
        Sizes and times. The queue's size is a window: the other rows wait in the spool.
    tally, health
        Counts and messages.
    notify
        Called when rows have left the queue.
    """

    def __init__(
        self,
        sink: SpanSink,
        key: str,
        limits: PumpLimits,
        tally: Tally,
        health: Health,
        notify: Callable[[], None],
    ) -> None:
        # The journal translates.
        super().__init__(sink, lambda _: (), limits, tally, health)
        self.key = key
        #: Rows of its queue, at most, and of one request.
        self.window, self.batch_size = limits.queue_size, limits.batch_size
        #: Number of the last row fed to it.
        self.fed = 0
        #: Set by the journal while closing: there are no more rows.
        self.all_fed = threading.Event()
        #: Whether it accepts no more rows, and the rest is counted.
        self.over = False
        self._notify = notify
        # Shared by the journal, the lane, and the thread that gives up on a hanging exporter.
        self._accounts = threading.Lock()
        #: Numbers of rows in the queue: those in the spool, and those in memory only (negative).
        self._kept: set[int] = set()
        self._alone: set[int] = set()
        self._given = 0
        #: Rows of the spool that have left for good.
        self._settled: list[int] = []

    # ------------------------------------------------------------------ called by the journal

    @property
    def size(self) -> int:
        """OpenTelemetry spans that wait in memory only."""
        return len(self._alone)

    @property
    def room(self) -> int:
        """How many more rows fit."""
        return 0 if self.over else self.window - len(self._kept) - len(self._alone)

    def encoded(self, record: SpanRecord, counted: bool) -> bytes | None:
        """Return the body of a row; None if the span is not sampled, or can't be encoded."""
        try:
            return self._span_sink.encode(record) if self._span_sink.wants(record) else None
        except (TypeError, ValueError, OverflowError) as error:
            if counted:
                self._outlet.lose(None, repr(error), "unencodable")
            return None

    def feed(self, rows: Sequence[Row]) -> None:
        """Queue rows of the spool."""
        with self._accounts:
            if not self.over:
                self._kept.update(row.number for row in rows)
                self._inbox.extend(rows)
        self._wake_for_more()

    def give(self, bodies: Sequence[bytes]) -> None:
        """Queue spans that are in memory only, and count those without room as dropped."""
        with self._accounts:
            reason = "shutdown" if self.over else "queue_full"
            # An empty queue accepts even more rows than its size.
            fit = len(bodies) if self.room == self.window else min(len(bodies), max(0, self.room))
            for body in bodies[:fit]:
                self._given -= 1
                self._alone.add(self._given)
                self._inbox.append(Row(body, None, self._given))
        self._tally.add(semconv.OTEL_DROPPED.name, "traces", reason, count=len(bodies) - fit)
        self._wake_for_more()

    def take_settled(self) -> list[int]:
        """Return each row to remove, once."""
        with self._accounts:
            settled, self._settled = self._settled, []
        return settled

    def cut_off(self, dropped: set[int]) -> int:
        """Keep rows that the full spool dropped; return how many of them are queued or sent."""
        with self._accounts:
            sent = dropped.intersection(self._settled)
            here = self._kept & dropped
            self._kept -= here
            self._alone |= here
        return len(sent) + len(here)

    def _wake_for_more(self) -> None:
        enough = self.window - self.room >= self.batch_size or self.deadline is not None
        if enough or self._limits.schedule_delay < AT_ONCE:
            self.wake.set()

    # --------------------------------------------------------------------- called by the lane

    def _gone(self, rows: Sequence[Row]) -> None:
        with self._accounts:
            for row in rows:
                # After the end, the row was counted or stays in the spool.
                if row.number in self._kept:
                    self._kept.discard(row.number)
                    self._settled.append(row.number)
                self._alone.discard(row.number)
        self._notify()

    def _take_in(self) -> None:
        while self._inbox and len(self._outlet.queue) < self._outlet.policy.room:
            self._outlet.queue.append(self._inbox.popleft())

    def finish(self) -> float:
        """Export rows until the deadline, and count the losses."""
        deadline = self.deadline or 0.0
        if self._emptied(deadline):
            self.all_fed.wait(max(0.0, deadline - time.monotonic()))
            self._emptied(deadline)
        self.abandon()
        return 0.0

    def _emptied(self, deadline: float) -> bool:
        """Export the queue; False if that is pointless."""
        queue = self._outlet.queue
        while not self.over and time.monotonic() < deadline:
            self._take_in()
            before = len(queue)
            if not before:
                return True
            self._outlet.flush(deadline)
            if len(queue) == before and not self._comes_back(self._outlet.answer):
                break
        return False

    def abandon(self) -> None:
        """Count the rows in memory only as lost, and accept no more.

        Called by the lane at its end, or by another thread if it hangs in its exporter.
        """
        with self._accounts:
            if self.over:
                return
            self.over = self._outlet.abandoned = True
            lost = len(self._alone)
            self._kept.clear()
            self._alone.clear()
        self._lost_at_close(lost)
        self._notify()

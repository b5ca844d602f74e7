"""The lane of a sink with a spool: the journal feeds it rows, and removes the rows it has sent.

A row in its queue is also in the spool, or in memory only (its number is 0) if the spool is full or
can't be written. A row of the spool can't get lost here: at the end it simply stays there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from dask_otel import semconv
from dask_otel.core.records import Row
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
        self._notify = notify
        # Shared by the journal, the lane, and the thread that gives up on a hanging exporter.
        self._accounts = threading.RLock()
        #: How many rows are in the queue, and how many of these in memory only.
        self._queued = self._alone = 0
        #: Rows of the spool that have left for good.
        self._settled: list[int] = []

    # ------------------------------------------------------------------ called by the journal

    @property
    def size(self) -> int:
        """OpenTelemetry spans that wait in memory only."""
        return self._alone

    @property
    def over(self) -> bool:
        """Whether it accepts no more rows, and the rest is counted."""
        return self._outlet.abandoned

    @property
    def room(self) -> int:
        """How many more rows fit."""
        return 0 if self.over else self.window - self._queued

    def feed(self, rows: Sequence[Row]) -> None:
        """Queue rows."""
        with self._accounts:
            if not self.over:
                self._queued += len(rows)
                self._alone += sum(not row.number for row in rows)
                self._inbox.extend(rows)
        enough = self._queued >= self.batch_size or self.deadline is not None
        if enough or self._limits.schedule_delay < AT_ONCE:
            self.wake.set()

    def give(self, bodies: Sequence[bytes]) -> None:
        """Queue spans that are in memory only, and count those without room as dropped."""
        with self._accounts:
            # An empty queue accepts even more rows than its size.
            fit = len(bodies) if self.room == self.window else max(0, self.room)
            reason = "shutdown" if self.over else "queue_full"
            self.feed([Row(body) for body in bodies[:fit]])
        lost = len(bodies[fit:])
        self._tally.add(semconv.OTEL_DROPPED.name, "traces", reason, count=lost)

    def take_settled(self) -> list[int]:
        """Return each row to remove, once."""
        with self._accounts:
            settled, self._settled = self._settled, []
        return settled

    # --------------------------------------------------------------------- called by the lane

    def _gone(self, rows: Sequence[Row]) -> None:
        with self._accounts:
            # After the end, a row was counted or stays in the spool.
            if not self.over:
                self._queued -= len(rows)
                self._alone -= sum(not row.number for row in rows)
                self._settled += [row.number for row in rows if row.number]
        self._notify()

    def _take_in(self) -> None:
        while self._inbox and len(self._outlet.queue) < self._outlet.policy.room:
            self._outlet.queue.append(self._inbox.popleft())

    def _gets_more(self, deadline: float) -> bool:
        """Wait until the journal has fed all rows, or for the deadline."""
        if self.all_fed.is_set():
            return bool(self._inbox)
        self.all_fed.wait(max(0.0, deadline - time.monotonic()))
        return True

    def abandon(self) -> None:
        """Count the rows in memory only as lost, and accept no more.

        Called by the lane at its end, or by another thread if it hangs in its exporter.
        """
        with self._accounts:
            if self.over:
                return
            self._outlet.abandoned = True
            lost, self._alone = self._alone, 0
        self._lost_at_close(lost)
        self._notify()

"""The lane of a sink whose spans are in the spool: fed by the journal, which it tells what is
settled.

A row in its queue is in the spool as well, or, where the spool can't be written or was full, in
memory alone. What is in the spool can't get lost here: at the end it simply stays there.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NoReturn

from dask_otel import semconv
from dask_otel.core.records import FinishedSpan, Progress, Row, SpanRecord
from dask_otel.pump.health import Health, Tally
from dask_otel.pump.lanes import AT_ONCE, SpanLane
from dask_otel.pump.sinks import PumpLimits, SpanSink

#: Seconds between two looks, at the end, for rows that are still to come.
_LOOK: Final = 0.05


class SpooledLane(SpanLane):
    """Carries rows out of the spool to one span sink.

    Parameters
    ----------
    sink
        The exporter.
    key
        Whose rows in the spool these are.
    limits
        Sizes and times. The queue's size is a window: what does not fit it waits in the spool.
    tally, health
        Counts and messages.

    Notes
    -----
    The accounts have a lock, as three threads come to them: the journal, the lane, and the one
    that gives up on an exporter that hangs.
    """

    def __init__(
        self, sink: SpanSink, key: str, limits: PumpLimits, tally: Tally, health: Health
    ) -> None:
        super().__init__(sink, _untranslated, limits, tally, health)
        self.key = key
        #: Called when there is something for the journal: it is to be woken.
        self.tell: Callable[[], None] = _nobody
        #: Up to which row it was fed, and how many rows it may still be fed.
        self.fed = 0
        self.allowance = math.inf
        #: Set by the journal, while closing: nothing comes any more.
        self.all_fed = False
        #: Whether nothing is taken any more: what was left is counted.
        self.over = False
        self._accounts = threading.Lock()
        #: Numbers of rows that are here: in the spool as well, and nowhere else.
        self._kept: set[int] = set()
        self._alone: set[int] = set()
        self._given = 0
        #: Rows of the spool that have left for good.
        self._settled: list[int] = []
        self._left = 0

    # ------------------------------------------------------------------ called by the journal

    @property
    def size(self) -> int:
        """OpenTelemetry spans that wait here, and nowhere else."""
        return 0 if self.over else len(self._alone)

    @property
    def window(self) -> int:
        """How many rows its queue may have."""
        return self._limits.queue_size

    @property
    def batch_size(self) -> int:
        """How many rows go in one request."""
        return self._limits.batch_size

    @property
    def room(self) -> int:
        """How many more rows may wait."""
        if self.over:
            return 0
        return self._limits.queue_size - len(self._kept) - len(self._alone)

    def encoded(self, record: SpanRecord, told: bool) -> Any:
        """Return the body of a row; None where there is none to be.

        The span is not sampled, or can't be encoded, which is counted and told.
        """
        try:
            return self._span_sink.encode(record) if self._span_sink.wants(record) else None
        except (TypeError, ValueError, OverflowError) as error:
            if told:
                self._outlet.lose(None, repr(error), "unencodable")
            return None

    def feed(self, rows: Sequence[Row]) -> None:
        """Queue rows of the spool."""
        self.fed = rows[-1].number
        self.allowance -= len(rows)
        with self._accounts:
            if self.over:
                return
            self._kept.update(row.number for row in rows)
            self._inbox.extend(rows)
        self._wake_for_more()

    def give(self, bodies: Sequence[bytes]) -> None:
        """Queue spans that are in memory alone, and count those for which there is no room."""
        with self._accounts:
            reason = "shutdown" if self.over else "queue_full"
            # More than the whole queue still gets through an empty one.
            empty = not self.over and not self._alone and not self._kept
            fit = len(bodies) if empty else max(0, min(len(bodies), self.room))
            for body in bodies[:fit]:
                self._given -= 1
                self._alone.add(self._given)
                self._inbox.append(Row(body, None, self._given))
        self._tally.add(semconv.OTEL_DROPPED.name, "traces", reason, count=len(bodies) - fit)
        self._wake_for_more()

    def take_settled(self) -> list[int]:
        """Return the rows that are to be removed, once."""
        with self._accounts:
            settled, self._settled = self._settled, []
        return settled

    def cut_off(self, dropped: Collection[int]) -> int:
        """Take note of rows that the spool has dropped, as it is full.

        Returns how many of them are not lost: they wait here, or have been sent.
        """
        with self._accounts:
            kept = [number for number in self._settled if number not in dropped]
            saved = len(self._settled) - len(kept)
            self._settled = kept
            # Where nothing is taken any more, nobody would send them.
            here = set() if self.over else self._kept.intersection(dropped)
            self._kept -= here
            self._alone |= here
        return saved + len(here)

    def _wake_for_more(self) -> None:
        waiting = len(self._kept) + len(self._alone)
        enough = waiting >= self._limits.batch_size or self.deadline is not None
        if enough or self._limits.schedule_delay < AT_ONCE:
            self.wake.set()

    # --------------------------------------------------------------------- called by the lane

    def _gone(self, rows: Sequence[Row]) -> None:
        with self._accounts:
            self._left += len(rows)
            # After the end, the one that gave up has counted them, or left them in the spool.
            for row in () if self.over else rows:
                if row.number in self._alone:
                    self._alone.discard(row.number)
                else:
                    self._kept.discard(row.number)
                    self._settled.append(row.number)
        self.tell()

    def _take_in(self) -> None:
        while self._inbox and len(self._outlet.queue) < self._outlet.policy.room:
            self._outlet.queue.append(self._inbox.popleft())

    def finish(self) -> float:
        """Export what comes until the deadline, and count what is lost."""
        deadline = self.deadline or 0.0
        while time.monotonic() < deadline and not self.over:
            # Before the look at what is there: nothing comes between the two.
            all_fed = self.all_fed
            self._take_in()
            if self._outlet.queue:
                before = self._left
                self._outlet.flush(deadline)
                if self._left == before and not self._comes_back(self._outlet.answer):
                    break
            elif all_fed:
                break
            else:
                self.wake.wait(_LOOK)
                self.wake.clear()
        self.abandon()
        return 0.0

    def abandon(self) -> None:
        """Count what is in memory alone as lost, and take no more.

        Called by the lane at its end, or by another thread where it hangs in its exporter.
        """
        with self._accounts:
            if self.over:
                return
            self.over = True
            self._outlet.abandoned = True
            lost = len(self._alone)
        self._lost_at_close(lost)
        self.tell()


def _untranslated(_: FinishedSpan | Progress) -> NoReturn:
    raise AssertionError("the journal translates")


def _nobody() -> None:
    pass

"""The threads of spans and log records, one for each sink: a dead endpoint delays no other."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from dask_otel import semconv
from dask_otel._log import logger
from dask_otel.core.records import Answer, Row
from dask_otel.pump.destination import WORDS, Sink, SpanSink
from dask_otel.pump.limits import PumpLimits
from dask_otel.pump.policy import Policy
from dask_otel.pump.tally import Tally
from dask_otel.pump.thread import PumpThread

#: With a shorter schedule delay, in seconds, each span wakes the thread: no polling.
AT_ONCE: Final = 0.05
#: Failures in a row, without backoff, before the rest is dropped at the end. Quick failures cost
#: nothing; slow ones end at the deadline.
LAST_TRIES: Final = 10
#: Seconds until an endpoint that accepts no log records is asked again.
ASK_AGAIN: Final = 3600.0

_Sink = TypeVar("_Sink", bound=Sink)


class Lane(PumpThread, Generic[_Sink]):
    """The thread of one sink."""

    def __init__(
        self, sink: _Sink, tally: Tally, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(f"dask-otel-{sink.signal}", "export", tally, threading.Event())
        self.signal = sink.signal
        #: When the sink last accepted something, on the monotonic clock; None before the first one.
        self.succeeded_at: float | None = None
        #: The answer to the last request, or to the last one that was refused.
        self.answer = Answer(True)
        self._sink = sink
        self._destination = sink.destination
        self._now = now

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.signal} to {self._destination.name}>"

    def release(self) -> None:
        """Close the sink."""
        self._sink.close()

    def _comes_back(self) -> bool:
        """While closing, sleep for the pause that the server demands; False without one."""
        worthwhile = 0.0 < self.answer.pause < (self.deadline or 0.0) - time.monotonic()
        if worthwhile:
            time.sleep(self.answer.pause)
        return worthwhile


class SpanLane(Lane[SpanSink]):
    """The queue and the thread of rows, spans or log records, for one sink.

    The feeder adds rows; `policy` decides which ones are sent next, and what an answer means. A row
    with a number is also in the spool. It can't get lost here: at the end it stays there.

    Parameters
    ----------
    sink
        The exporter.
    key
        Tells its rows from those of other lanes, in the spool too.
    stored
        Whether its rows go through the spool.
    limits
        Sizes and times. With a spool the queue's size is a window: other rows wait in the spool.
    tally
        Counts the result of each row.
    notify
        Called when rows have left the queue.
    now
        Seconds on a monotonic clock.
    """

    def __init__(
        self,
        sink: SpanSink,
        key: str,
        stored: bool,
        limits: PumpLimits,
        tally: Tally,
        notify: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(sink, tally, now)
        self.key, self.stored, self.limits = key, stored, limits
        #: Number of the last row fed to it from the spool.
        self.fed = 0
        #: Set by the feeder while closing: there are no more rows.
        self.all_fed = threading.Event()
        #: Owns the queue.
        self.policy = Policy(limits.batch_size)
        #: OpenTelemetry spans that wait in memory only.
        self.size = 0
        #: Whether it accepts no more rows, and the rest is counted.
        self.over = False
        self._notify = notify
        # Held by the feeder, the lane, and the thread that gives up on a hanging exporter, to
        # change the queue and its counts; never during a request.
        self._lock = threading.RLock()
        #: Rows of the spool that have left for good.
        self._settled: list[int] = []
        #: Until then the endpoint is not asked again, because it accepts no log records.
        self._asleep_until = -math.inf
        self._warned: set[str] = set()

    # ------------------------------------------------------------------- called by the feeder

    @property
    def room(self) -> int:
        """How many more rows fit."""
        return 0 if self.over else self.limits.queue_size - len(self.policy.queue)

    def encoded(self, record: Any, counted: bool = True) -> Any:
        """Return the body of a row; None if the span is not sampled, or can't be encoded."""
        try:
            return self._sink.encode(record) if self._sink.wants(record) else None
        except BaseException as error:
            if counted:
                self._lose((), repr(error), "unencodable")
            return None

    def feed(self, rows: Sequence[Row]) -> None:
        """Queue rows."""
        with self._lock:
            if not self.over:
                self.size += sum(not row.number for row in rows)
                self.policy.queue.extend(rows)
        enough = len(self.policy.queue) >= self.limits.batch_size or self.deadline is not None
        if enough or self.limits.schedule_delay < AT_ONCE:
            self.wake.set()

    def give(self, bodies: Sequence[Any]) -> None:
        """Queue spans that are in memory only, and count those without room as dropped."""
        with self._lock:
            # An empty queue accepts even more rows than its size.
            fit = len(bodies) if self.room == self.limits.queue_size else max(0, self.room)
            reason = "shutdown" if self.over else "queue_full"
            self.feed([Row(body) for body in bodies[:fit]])
        self._count(semconv.OTEL_DROPPED, reason, count=len(bodies[fit:]))

    def take_settled(self) -> list[int]:
        """Return each row to remove from the spool, once."""
        with self._lock:
            settled, self._settled = self._settled, []
        return settled

    # --------------------------------------------------------------------- called by the lane

    def work(self) -> float:
        """Export the waiting spans, in small batches."""
        while self.deadline is None and self.attempt():
            pass
        wait = max(AT_ONCE, self.limits.schedule_delay)
        if self.policy.queue:
            wait = min(wait, max(AT_ONCE, self.policy.retry_at - self._now()))
        return wait

    def attempt(self, until: float = math.inf) -> bool:
        """Make one request, if one is due; return whether the next one may follow at once."""
        if self._now() < self._asleep_until:
            return self._refuse_all()
        with self._lock:
            batch = self.policy.next(self._now())
        if not batch:
            return False
        answer = self.answer = self._destination.send(self._sink, batch, until - self._now())
        if answer.unsupported and self.signal == "logs" and self.succeeded_at is None:
            self._asleep_until = self._now() + ASK_AGAIN
            logger.log(
                self._level("unsupported", logging.INFO),
                "dask-otel: %s accepts no logs (%s), so events of the cluster are not exported "
                "there. The bridge tries again each hour; OTEL_LOGS_EXPORTER=none stops that.",
                self._destination.name,
                answer.reason,
            )
            return self._refuse_all()
        with self._lock:
            outcome = self.policy.answered(batch, answer, self._now())
        if outcome.sent:
            self._count_sent(outcome.sent, answer)
        if outcome.rejected is not None:
            row, why = outcome.rejected
            self._lose([row], why, "rejected")
        if outcome.failed and not self.over:
            self._destination.failed(self._sink, answer.reason)
        return bool(self.policy.queue) and not outcome.failed

    def _refuse_all(self) -> bool:
        """Count the queue as unsupported; returns False, as there is nothing to send."""
        with self._lock:
            refused, self.policy = self.policy.queue, Policy(self.limits.batch_size)
        self._gone(refused, "unsupported", len(refused))
        return False

    def flush(self, until: float) -> None:
        """Export the queue until a time, or until the sink has failed several times."""
        failed = 0
        while self.policy.queue and failed < LAST_TRIES and self._now() < until:
            self.policy.retry_at = 0.0
            if self.attempt(until) or not self.policy.queue:
                failed = 0
                continue
            failed += 1
            self.policy.doubt = True
            if self.answer.absent or self.answer.pause > 0.0:
                # `finish` decides how long to wait for it.
                return

    def finish(self) -> None:
        """Export the rest until the deadline, and count the remaining spans as dropped."""
        deadline = self.deadline or 0.0
        while not self.over and self._now() < deadline:
            before = len(self.policy.queue)
            if before:
                self.flush(deadline)
                if len(self.policy.queue) == before and not self._comes_back():
                    break
            elif not self.all_fed.is_set():
                self.all_fed.wait(max(0.0, deadline - self._now()))
            elif not self.policy.queue:
                break
        self.abandon()

    def abandon(self) -> None:
        """Count the rows that are not in the spool as lost, and accept no more.

        Later results don't count. Called by the lane at its end, or by another thread if it hangs
        in its exporter.
        """
        with self._lock:
            if self.over:
                return
            self.over = True
            lost, self.size = self.size, 0
        self._count(semconv.OTEL_DROPPED, "shutdown", count=lost)
        if lost:
            _, several, one = WORDS[self.signal]
            self._destination.gave_up(self._sink, f"{lost} {one if lost == 1 else several}")
        self._notify()

    # ----------------------------------------------------------------------------- counts

    def _count_sent(self, rows: Sequence[Row], answer: Answer) -> None:
        lost = min(answer.lost, len(rows))
        self._gone(rows, self._sink.loss, lost)
        if lost < len(rows):
            self.succeeded_at = self._now()
        if not self.over:
            self._destination.ok(self._sink)
            self._destination.server_message(self._sink, answer, lost, len(rows))

    def _lose(self, rows: Sequence[Row], why: str, reason: str) -> None:
        """Drop one row, or a record before it was one, for a reason of its own; log the first."""
        self._gone(rows, reason, 1)
        logger.log(
            self._level(reason, logging.WARNING),
            "dask-otel dropped a %s that %s does not accept (%s): %s. The others are exported; "
            "later ones like it are only counted (dask.otel.dropped).",
            WORDS[self.signal][2],
            self._destination.name,
            reason,
            why or "no reason given",
        )

    def _level(self, reason: str, first: int) -> int:
        """Return the level of a message: later ones of its kind are for debugging."""
        level = logging.DEBUG if reason in self._warned else first
        self._warned.add(reason)
        return level

    def _gone(self, rows: Sequence[Row], reason: str, lost: int) -> None:
        """Count rows that have left the queue for good: exported, except those that are lost."""
        with self._lock:
            # After the end, a row was counted or stays in the spool.
            if not self.over:
                self.size -= sum(not row.number for row in rows)
                self._settled += [row.number for row in rows if row.number]
                self._count(semconv.OTEL_EXPORTED, count=max(0, len(rows) - lost))
                self._count(semconv.OTEL_DROPPED, reason, count=lost)
        self._notify()

    def _count(self, metric: semconv.Metric, *labels: str, count: int) -> None:
        self._tally.add(metric.name, self.signal, *labels, count=count)

"""The queue in front of one sink of rows: obeys the policy, and counts the results."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from threading import current_thread, main_thread
from typing import Any, Final

from dask_otel import semconv
from dask_otel.core.records import Answer, Row
from dask_otel.pump.health import Health, Tally
from dask_otel.pump.policy import Policy
from dask_otel.pump.sinks import MetricSink, SpanSink

logger = logging.getLogger("distributed.dask_otel")

#: Failures in a row, without backoff, before the rest is dropped at the end. Quick failures cost
#: nothing; slow ones end at the deadline.
LAST_TRIES: Final = 10
#: Seconds until an endpoint that takes no log records is asked again.
ASK_AGAIN: Final = 3600.0
#: By signal, for the log: several items, one, and all of them.
WORDS: Final = {
    "traces": ("spans", "span", "spans"),
    "logs": ("log records", "log record", "logs"),
}


def send(
    sink: SpanSink | MetricSink, items: Sequence[Any], longest: float, health: Health, signal: str
) -> Answer:
    """Send one request within `longest` seconds; an exception of the sink means refusal."""
    health.open[signal] = health.now()
    try:
        return sink.send(items, longest)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
            # The user has interrupted a command.
            raise
        # SystemExit too: it would end this thread silently.
        logger.debug("dask-otel: an exporter raised", exc_info=True)
        return Answer(False, type(error).__name__)
    finally:
        health.open.pop(signal, None)


class Outlet:
    """One sink of rows and its queue. Belongs to one thread.

    Parameters
    ----------
    sink
        The destination of rows.
    batch_size
        Rows of one request.
    tally
        Counts the result of each row.
    health
        Writes the log.
    now
        Seconds on a monotonic clock.
    gone
        Called with rows that have left the queue for good: sent, or dropped and counted.
    signal
        ``"traces"``, or ``"logs"``, which many endpoints do not take.
    """

    def __init__(
        self,
        sink: SpanSink,
        batch_size: int,
        tally: Tally,
        health: Health,
        now: Callable[[], float],
        gone: Callable[[Sequence[Row]], None],
        signal: str = "traces",
    ) -> None:
        self._batch_size = batch_size
        self._begin()
        self._signal = signal
        self._rows, self._row, self._named = WORDS[signal]
        #: Until then the endpoint takes no log records.
        self._asleep_until = -math.inf
        #: Set when another thread has counted the rest, because the sink hangs.
        self.abandoned = False
        #: When the sink last accepted a record; None before the first one.
        self.succeeded_at: float | None = None
        #: The answer to the last request.
        self.answer = Answer(True)
        self._sink = sink
        self._tally = tally
        self._health = health
        self._now = now
        self._gone = gone
        self._warned: set[str] = set()

    def _begin(self) -> None:
        self.policy = Policy(self._batch_size)
        self.queue = self.policy.queue

    def pump(self, until: float = math.inf) -> bool:
        """Make one attempt. Returns whether the next one may follow at once."""
        if self._now() < self._asleep_until:
            return self._refuse_all()
        batch = self.policy.next(self._now())
        if not batch:
            return False
        answer = self.answer = send(
            self._sink, batch, until - self._now(), self._health, self._named
        )
        if answer.unsupported and self._signal == "logs" and self.succeeded_at is None:
            self._asleep_until = self._now() + ASK_AGAIN
            logger.log(
                logging.DEBUG if "unsupported" in self._warned else logging.INFO,
                "dask-otel: %s takes no logs (%s), so events of the cluster are not exported there "
                "(OTEL_LOGS_EXPORTER=none switches this off). The bridge tries again each hour.",
                self._sink.name,
                answer.reason,
            )
            self._warned.add("unsupported")
            return self._refuse_all()
        outcome = self.policy.answered(batch, answer, self._now())
        if outcome.sent:
            self._count_sent(outcome.sent, answer)
        if outcome.rejected is not None:
            self.lose(*outcome.rejected)
        if outcome.failed and not self.abandoned:
            self._health.failed(self._named, answer.reason)
        return bool(self.queue) and not outcome.failed

    def _refuse_all(self) -> bool:
        """Count the queue as unsupported; returns False, as there is nothing to send."""
        self._gone(self.queue)
        self._drop("unsupported", len(self.queue))
        self._begin()
        return False

    def flush(self, until: float) -> None:
        """Export the queue until a time, or until the sink has failed several times."""
        failed = 0
        while self.queue and failed < LAST_TRIES and self._now() < until:
            self.policy.retry_at = 0.0
            before = len(self.queue)
            if self.pump(until) or not self.queue:
                failed = 0
                continue
            failed = failed + 1 if len(self.queue) == before else 0
            self.policy.doubt = True
            if self.answer.absent or self.answer.pause > 0.0:
                # The lane decides how long to wait for it.
                return

    def lose(self, row: Row | None, why: str, reason: str = "rejected") -> None:
        """Drop one row for a reason of its own, and log the first one."""
        if row is not None:
            self._gone([row])
        self._drop(reason, 1)
        level = logging.DEBUG if reason in self._warned else logging.WARNING
        self._warned.add(reason)
        logger.log(
            level,
            "dask-otel dropped a %s that %s does not accept (%s): %s. The others are exported; "
            "later ones like it are only counted (dask.otel.dropped).",
            self._row,
            self._sink.name,
            reason,
            why or "no reason given",
        )

    def _count_sent(self, rows: Sequence[Row], answer: Answer) -> None:
        self._gone(rows)
        lost = min(answer.lost, len(rows))
        if lost < len(rows):
            self.succeeded_at = self._now()
        if not self.abandoned:
            self._tally.add(semconv.OTEL_EXPORTED.name, self._signal, count=len(rows) - lost)
            self._health.ok(self._named)
            if answer.said:
                self._health.server_message(self._rows, lost, len(rows), answer.said)
        self._drop(self._sink.loss, lost)

    def _drop(self, reason: str, count: int) -> None:
        if not self.abandoned:
            self._tally.add(semconv.OTEL_DROPPED.name, self._signal, reason, count=count)

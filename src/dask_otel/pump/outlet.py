"""The queue in front of one span sink: what is tried, kept, taken apart and dropped.

A sink answers yes or no for a whole batch. A no can mean that nothing gets through, that it is
bad luck, or that one record spoils the batch: it is refused as invalid, or the batch is too
large. What tells them apart is whether *another* record gets through at that time:

- A batch that failed is kept and tried again with backoff, for as long as there is room.
- After some failures in a row, or one that says "invalid", a single record is tried instead,
  any of the queue. If it gets through, the sink is alive, and the head of the queue is suspect.
- A suspect batch is halved until it gets through. A record that fails alone, while another
  one gets through directly before or after it, is dropped if the answer blames it; else it
  goes to a random place in the queue, to be tried alone again. Where that happens so often
  that it can't be chance (`dask_otel.pump.suspicion`), it is dropped, too.

So an outage or a flaky endpoint drops nothing while there is room, and a poisoned record costs
itself alone. No threads and no clock of its own.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from dask_otel import semconv
from dask_otel.core.records import SpanRecord
from dask_otel.pump.health import Health, Tally
from dask_otel.pump.sinks import LONGEST_BACKOFF, PumpLimits, SpanSink, pause_of
from dask_otel.pump.suspicion import Suspicion

logger = logging.getLogger("distributed.dask_otel")

#: Failures in a row before a batch is suspected of being the reason itself.
SUSPICIOUS_AFTER: Final = 3
FIRST_BACKOFF: Final = 1.0
#: Failures in a row, without backoff, before the rest is given up at the end. So many quick ones
#: cost nothing; slow ones end at the deadline.
LAST_TRIES: Final = 10
#: Seconds for which a success shows that the sink takes other records.
_FRESH: Final = 1.0


class Outlet:
    """One span sink and its queue. Belongs to one thread.

    Parameters
    ----------
    sink
        Where records go.
    limits
        Size of a batch.
    tally
        Counts what became of each record.
    health
        Tells a person.
    now
        Seconds on a monotonic clock.
    """

    def __init__(
        self,
        sink: SpanSink,
        limits: PumpLimits,
        tally: Tally,
        health: Health,
        now: Callable[[], float],
    ) -> None:
        self.queue: deque[SpanRecord] = deque()
        self.retry_at = 0.0
        #: When the sink last took a record; None before that.
        self.succeeded_at: float | None = None
        #: Set when somebody else has counted what is left, because the sink hangs.
        self.abandoned = False
        #: Told of records that have left the queue for good: sent, or dropped and counted.
        self.gone: Callable[[Sequence[SpanRecord]], None] | None = None
        self._sink = sink
        self._limits = limits
        self._tally = tally
        self._health = health
        self._now = now
        self._size = limits.batch_size
        #: Failures in a row.
        self._failures = 0
        #: Whether the batch itself may be the reason: a single record is tried next.
        self._doubt = False
        #: Whether the sink takes other records than those at the head.
        self._suspect = False
        #: When the last try succeeded; None if it failed.
        self._alive_at: float | None = None
        self._suspicion = Suspicion()
        #: Failures of the batch at the head, as it is, and of nothing that is suspect.
        self._unexplained = 0
        self._warned: set[str] = set()

    @property
    def room(self) -> int:
        """How many records it makes sense to have at hand.

        More after failures: what gets through may be behind what does not.
        """
        return self._limits.batch_size * max(1, self._failures - SUSPICIOUS_AFTER + 2)

    def put(self, records: Sequence[SpanRecord]) -> None:
        """Take in what the sink wants. How much may wait is decided before."""
        self.queue.extend(record for record in records if self._sink.wants(record))

    def pump(self) -> bool:
        """Make one try. Returns whether the next one may follow at once."""
        if not self.queue or self._now() < self.retry_at:
            return False
        if self._doubt and not self._suspect and len(self.queue) > 1:
            return self._probe()
        alive = self._alive_at is not None and self._now() - self._alive_at < _FRESH
        batch = self._next_batch()
        try:
            ok = self._try(batch)
        except (TypeError, ValueError, OverflowError) as error:
            self._unencodable(batch, error)
            return bool(self.queue)
        if ok:
            self._sent(batch)
            return bool(self.queue)
        if self._suspect or self._suspicion.of(batch[0]):
            return self._isolate(batch, alive)
        return self._back_off()

    def _next_batch(self) -> list[SpanRecord]:
        """Return what is at the head; a record under suspicion is tried alone."""
        batch = list(islice(self.queue, self._size))
        suspects = (i for i, record in enumerate(batch) if self._suspicion.of(record))
        return batch[: max(1, next(suspects, len(batch)))]

    def flush(self, until: float) -> None:
        """Export what is there until a time, or until the sink has failed several times."""
        failed = 0
        while self.queue and failed < LAST_TRIES and self._now() < until:
            self.retry_at = 0.0
            before = len(self.queue)
            if self.pump() or not self.queue:
                failed = 0
                continue
            failed = failed + 1 if len(self.queue) == before else 0
            self._doubt = True
            retries = self._sink.retries
            if retries is not None and (retries.absent or retries.pause > 0.0):
                # Whoever asks knows how long that is worth a wait.
                return

    def _try(self, batch: Sequence[SpanRecord]) -> bool:
        """Export; False if it failed. Raises only what says that a record can't be encoded."""
        self._alive_at = None
        try:
            return self._sink.export(batch)
        except OSError:
            # What a network does; `requests` has errors that are ValueErrors as well.
            logger.debug("dask-otel: a span exporter raised", exc_info=True)
            return False
        except (TypeError, ValueError, OverflowError):
            raise
        except BaseException:
            # Also SystemExit: it would end this thread without a word.
            logger.debug("dask-otel: a span exporter raised", exc_info=True)
            return False

    def _sent(self, batch: Sequence[SpanRecord]) -> None:
        for _ in batch:
            self.queue.popleft()
        if self.gone is not None:
            self.gone(batch)
        self._suspicion.passed(batch, self._unexplained)
        self._unexplained = 0
        self._count_sent(len(batch))
        if self._suspect:
            # Back to whole batches step by step: there may be more of that kind.
            self._size = min(self._limits.batch_size, self._size * 2)
            self._suspect = self._size < self._limits.batch_size

    def _count_sent(self, count: int) -> None:
        lost = min(self._sink.lost, count)
        if not self.abandoned:
            self._tally.add(semconv.OTEL_EXPORTED.name, "traces", count=count - lost)
            self._health.ok("spans")
            if self._sink.said:
                self._health.said("spans", lost, count, self._sink.said)
        self._drop(self._sink.loss, lost)
        self._failures = 0
        self._doubt = False
        self._alive_at = self._now()
        if lost < count:
            self.succeeded_at = self._alive_at

    def _back_off(self) -> bool:
        self._failures += 1
        self._unexplained += 1
        self._doubt = self._failures >= SUSPICIOUS_AFTER or self._sink.rejected
        if not self.abandoned:
            self._health.failed("spans", self._sink.last_error())
        doubled = FIRST_BACKOFF * 2.0 ** min(self._failures - 1, 10)
        backoff = min(LONGEST_BACKOFF, doubled) * random.uniform(0.8, 1.2)
        self.retry_at = self._now() + max(backoff, pause_of(self._sink))
        return False

    def _probe(self) -> bool:
        """Try a single record."""
        if not self._gets_through(random.randrange(len(self.queue))):
            return self._back_off()
        self._suspect = True
        return bool(self.queue)

    def _gets_through(self, index: int) -> bool:
        record = self.queue[index]
        try:
            ok = self._try([record])
        except (TypeError, ValueError, OverflowError):
            return False
        if ok:
            del self.queue[index]
            if self.gone is not None:
                self.gone([record])
            self._suspicion.passed([record], 0)
            self._count_sent(1)
        return ok

    def _isolate(self, batch: Sequence[SpanRecord], alive: bool) -> bool:
        """Take a suspect batch apart: smaller ones are next, or a record failed alone."""
        self._failures += 1
        if len(batch) > 1:
            self._unexplained = 0
            self._size = len(batch) // 2
            return True
        reason, blamed = self._sink.last_error(), self._sink.rejected
        if alive or self._another_gets_through():
            self._unexplained = 0
            record = self.queue.popleft()
            if blamed or self._suspicion.strike(record):
                self._suspicion.forget(record)
                self._lose(record, "rejected", reason)
            else:
                # A random place: an endpoint that fails in turns must not meet it each time.
                self.queue.insert(random.randrange(len(self.queue) + 1), record)
            return bool(self.queue)
        # Nothing gets through any more: that is an outage.
        self._suspect = False
        self._size = self._limits.batch_size
        return self._back_off()

    def _another_gets_through(self) -> bool:
        count = len(self.queue)
        return count > 1 and self._gets_through(random.randrange(1, count))

    def _unencodable(self, batch: Sequence[SpanRecord], error: Exception) -> None:
        if len(batch) > 1:
            self._size = len(batch) // 2
            self._suspect = True
            return
        record = self.queue.popleft()
        self._suspicion.forget(record)
        self._lose(record, "unencodable", repr(error))

    def _lose(self, record: SpanRecord, reason: str, why: str) -> None:
        """Drop one record for a reason of its own, and say so the first time."""
        if self.gone is not None:
            self.gone([record])
        self._drop(reason, 1)
        level = logging.DEBUG if reason in self._warned else logging.WARNING
        self._warned.add(reason)
        logger.log(
            level,
            "dask-otel dropped a span that %s does not take (%s): %s. The others are exported; "
            "later ones like it are counted in dask.otel.dropped, without a word.",
            self._sink.name,
            reason,
            why or "no reason given",
        )

    def _drop(self, reason: str, count: int) -> None:
        if not self.abandoned:
            self._tally.add(semconv.OTEL_DROPPED.name, "traces", reason, count=count)

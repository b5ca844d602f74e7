"""Which rows to send next, and what an answer means for the queue: no I/O, no thread, no clock.

A server answers for a whole batch. A refusal can mean an outage, bad luck, or that one row spoils
the batch: the row is invalid, or the batch is too large. The test is whether *another* row gets
through at that time:

- A failed batch is kept and retried with backoff.
- After some failures in a row, or one answer "invalid", any single row of the queue is tried
  instead. If it gets through, the server is alive, and the head of the queue is suspect.
- A suspect batch is halved until it gets through. If a row fails alone, while another one gets
  through directly before or after it, it is dropped if the answer blames it; else it moves to a
  random place in the queue, to be tried alone again.
- A flaky server (one of two behind a balancer is broken) refuses healthy rows too, and accepts
  others directly before and after. A poisoned row never gets through; bad luck hits other rows as
  often. So if nothing else ever fails, a row is dropped after three such failures in a row. If
  other requests failed and later got through, a row is dropped only if chance would explain its
  failures less than once in a million.

So an outage or a flaky server drops nothing while there is room, and a poisoned row costs only
itself.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias

from dask_otel.core.records import Answer, Row

#: Longest time between two attempts, in seconds, whatever a server wants.
LONGEST_BACKOFF: Final = 30.0

#: Failures in a row before the batch itself is suspected.
SUSPICIOUS_AFTER: Final = 3
FIRST_BACKOFF: Final = 1.0
#: Seconds for which a success proves that the server accepts other rows.
_FRESH: Final = 1.0
#: Least failures of a row alone, next to successes of others, before it is dropped.
LEAST_STRIKES: Final = 3
#: Their highest probability by chance, judged by the server's past answers.
CHANCE: Final = 1e-6
#: How many results of requests without suspects are remembered.
_REMEMBERED: Final = 128

#: The head of the queue; a single row, if nothing gets through; another row, after a row failed
#: alone.
_Trial: TypeAlias = Literal["head", "single", "witness"]


def pause_of(answer: Answer) -> float:
    """Return the pause in seconds that a server requests, limited."""
    return min(LONGEST_BACKOFF, answer.pause)


class Outcome(NamedTuple):
    """What an answer means."""

    #: Delivered rows.
    sent: Sequence[Row] = ()
    #: The dropped row and the reason.
    rejected: tuple[Row, str] | None = None
    #: Whether to send nothing for a while.
    failed: bool = False


class Policy:
    """Manages the queue in front of one server.

    Parameters
    ----------
    batch_size
        Rows of one request.
    """

    def __init__(self, batch_size: int) -> None:
        self.queue: deque[Row] = deque()
        self.retry_at = 0.0
        self._batch_size = self._size = batch_size
        #: Failures in a row.
        self._failures = 0
        #: Whether the batch itself may be the reason; then a single row is next. Not while a batch
        #: is suspect.
        self.doubt = False
        #: Whether the server accepts rows, except those at the head.
        self._suspect = False
        #: When the last attempt succeeded; None if it failed.
        self._alive_at: float | None = None
        self._trial: _Trial = "head"
        #: The answer to the head row, if that has failed alone.
        self._alone: Answer | None = None
        #: Failures of the batch at the head since it changed, while no row is suspect.
        self._unexplained = 0
        #: Of requests without suspects: True for a success, False for each failure before it.
        self._innocent: deque[bool] = deque(maxlen=_REMEMBERED)

    def __repr__(self) -> str:
        return f"<Policy: {len(self.queue)} rows, {self._failures} failures in a row>"

    def next(self, now: float) -> list[Row]:
        """Return the rows to send now; none before `retry_at`. They stay in the queue."""
        if not self.queue or now < self.retry_at:
            return []
        count = len(self.queue)
        if self._alone is not None and count > 1:
            self._trial = "witness"
            return [self.queue[random.randrange(1, count)]]
        if self.doubt and count > 1:
            self._trial = "single"
            return [self.queue[random.randrange(count)]]
        self._trial = "head"
        batch = list(islice(self.queue, self._size))
        # A suspect row is tried alone.
        suspects = (index for index, row in enumerate(batch) if row.strikes)
        return batch[: max(1, next(suspects, len(batch)))]

    def answered(self, batch: Sequence[Row], answer: Answer, now: float) -> Outcome:
        """Return what the answer to a batch means."""
        if answer.taken:
            return self._sent(batch, now)
        alive = self._alive_at is not None and now - self._alive_at < _FRESH
        self._alive_at = None
        if self._trial == "head" and (self._suspect or batch[0].strikes):
            return self._isolate(batch, answer, alive, now)
        if self._trial == "witness":
            return self._outage(answer, now)
        return self._back_off(answer, now)

    def _sent(self, batch: Sequence[Row], now: float) -> Outcome:
        failures = sum(row.strikes for row in batch)
        if self._trial == "head":
            for _ in batch:
                self.queue.popleft()
            failures += self._unexplained
            self._unexplained = 0
            if self._suspect:
                # Back to whole batches step by step: there may be more such rows.
                self._size = min(self._batch_size, self._size * 2)
                self._suspect = self._size < self._batch_size
        else:
            self.queue.remove(batch[0])
        self._innocent.extend([False] * failures)
        self._innocent.append(True)
        self._failures = 0
        self.doubt = False
        self._alive_at = now
        if self._trial == "single":
            self._suspect = True
        return Outcome(batch, self._judge() if self._trial == "witness" else None)

    def _isolate(self, batch: Sequence[Row], answer: Answer, alive: bool, now: float) -> Outcome:
        """Split a suspect batch, or handle a row that failed alone."""
        self._failures += 1
        if len(batch) > 1:
            self._unexplained = 0
            self._size = len(batch) // 2
            return Outcome()
        self._alone = answer
        if alive:
            return Outcome(rejected=self._judge())
        # Another row is next, to test whether the server is alive.
        return Outcome() if len(self.queue) > 1 else self._outage(answer, now)

    def _judge(self) -> tuple[Row, str] | None:
        """Drop the head row, which failed alone next to a success, or postpone it."""
        answer, self._alone = self._alone, None
        assert answer is not None
        self._unexplained = 0
        row = self.queue.popleft()
        if answer.blames or self._is_no_chance(row):
            return row, answer.reason
        # A random place: if an endpoint fails in turns, the row must not hit each failure.
        self.queue.insert(random.randrange(len(self.queue) + 1), row)
        return None

    def _is_no_chance(self, row: Row) -> bool:
        row.strikes += 1
        failed = self._innocent.count(False)
        # The rule of succession, since few observations prove little.
        rate = (failed + 1) / (len(self._innocent) + 2)
        return bool(row.strikes >= LEAST_STRIKES and rate**row.strikes <= CHANCE)

    def _outage(self, answer: Answer, now: float) -> Outcome:
        """Handle an outage: nothing gets through."""
        self._alone = None
        self._suspect = False
        self._size = self._batch_size
        return self._back_off(answer, now)

    def _back_off(self, answer: Answer, now: float) -> Outcome:
        self._failures += 1
        self._unexplained += 1
        self.doubt = self._failures >= SUSPICIOUS_AFTER or answer.blames
        doubled = FIRST_BACKOFF * 2.0 ** min(self._failures - 1, 10)
        backoff = min(LONGEST_BACKOFF, doubled) * random.uniform(0.8, 1.2)
        self.retry_at = now + max(backoff, pause_of(answer))
        return Outcome(failed=True)

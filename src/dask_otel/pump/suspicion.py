"""When a failure is a record's own fault: of chance, nobody is condemned.

A flaky endpoint (one of two servers behind a balancer is broken) refuses healthy records as
well, and lets others through directly before and after. What tells poison from bad luck is that
poison never gets through, and that luck is bad for others as often. So a record that failed
alone next to a success of another is tried again and again among the others, and is lost after
three such failures in a row where nothing else ever fails. Where other requests failed that
later got through, it takes as many as would be chance once in a million.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from dask_otel.core.records import SpanRecord

#: Failures of a record alone, next to successes of others, that it takes at least.
LEAST_STRIKES: Final = 3
#: How likely they may be by chance, as far as the endpoint is known.
CHANCE: Final = 1e-6
#: How many requests without suspects are remembered.
_REMEMBERED: Final = 128


class Suspicion:
    """What is held against single records, and how often requests fail without any fault."""

    def __init__(self) -> None:
        #: Failures in a row, by the record's identity: those that wait in a queue live.
        self._strikes: dict[int, int] = {}
        #: Requests that got through: True; their failures before: False.
        self._innocent: deque[bool] = deque(maxlen=_REMEMBERED)

    def of(self, record: SpanRecord) -> bool:
        """Whether a record is under suspicion."""
        return id(record) in self._strikes

    def strike(self, record: SpanRecord) -> bool:
        """Take note of one more failure; whether it can no longer be chance."""
        strikes = self._strikes[id(record)] = self._strikes.get(id(record), 0) + 1
        failed = self._innocent.count(False)
        # The rule of succession: who has seen little is not sure.
        rate = (failed + 1) / (len(self._innocent) + 2)
        return bool(strikes >= LEAST_STRIKES and rate**strikes <= CHANCE)

    def passed(self, records: Iterable[SpanRecord], failures: int) -> None:
        """Take note of a request that got through, after so many failures with the same."""
        if self._strikes:
            failures += sum(self._strikes.pop(id(record), 0) for record in records)
        self._innocent.extend([False] * failures)
        self._innocent.append(True)

    def forget(self, record: SpanRecord) -> None:
        """Drop what is held against a record that is gone."""
        self._strikes.pop(id(record), None)

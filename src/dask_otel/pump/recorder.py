"""Rows of telemetry in memory for reports of a running scheduler: bounded, oldest traces out first.

A row is some lines of OTLP/JSON, or one graph log, as one member of a gzip file: the rows of a
signal, one after the other, are a file as `otel.files.path` would have it.
"""

from __future__ import annotations

import math
import threading
import time as clocks
from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from itertools import takewhile
from typing import Final, TypeAlias

from dask_otel.core.trace import Trace
from dask_otel.pump.parts import parts

#: Bytes of a row besides its data.
_BESIDE: Final = 400
#: Most evicted traces and other rows that are remembered, as a number and a signal.
_MOST_GONE: Final = 100_000


#: The signal, and some lines; of traces and graphs, those of one trace.
RecordedRow: TypeAlias = tuple[str, bytes]


class Recorder:
    """Keeps rows up to a size. Any thread may read; those of the pump write.

    Parameters
    ----------
    most
        Limit of the bytes. Beyond it, what had its last row first is evicted: a whole trace, or a
        row of another signal.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        #: The number of the last row: when it came, in nanoseconds since the epoch, or later.
        self.number = 0
        #: By number: each with when it began.
        self._rows: dict[int, tuple[RecordedRow, int]] = {}
        #: Their numbers in order, with some of evicted ones.
        self._numbers: list[int] = []
        #: The numbers of the rows of each trace, or of one other row, by the last one.
        self._units: OrderedDict[object, list[int]] = OrderedDict()
        #: The last number, and the signal, of what was evicted.
        self._gone: deque[tuple[int, str]] = deque(maxlen=_MOST_GONE)
        # Held by threads that write; who reads never waits, and gets one row after the other.
        self._writing = threading.Lock()

    def add_graphs(self, logs: Iterable[tuple[Trace, bytes]]) -> None:
        """Add graph logs to the rows of their traces."""
        for trace, member in logs:
            self.add("graph", member, f"{trace:032x}")

    def add(self, signal: str, data: bytes, trace: str = "", begun: int = 0) -> None:
        """Add a row, which is compressed already, and evict others if there is no room for it.

        One of a trace has `begun` then, in nanoseconds since the epoch.
        """
        with self._writing:
            self.number = max(self.number + 1, clocks.time_ns())
            key: object = trace or self.number
            self._rows[self.number] = (signal, data), begun or self.number
            self._numbers.append(self.number)
            self._units.setdefault(key, []).append(self.number)
            self._units.move_to_end(key)
            self._size += len(data) + _BESIDE
            while self._size > self._most:
                key, numbers = self._units.popitem(last=False)
                # The first row of a trace can be its graph log. Who reads now must not miss a row
                # that is not among these.
                first = self._rows[numbers[0]][0][0] if key in numbers else "traces"
                self._gone.append((numbers[-1], first))
                rows = [self._rows.pop(number) for number in numbers]
                self._size -= sum(len(data) + _BESIDE for (_, data), _ in rows)
            if len(self._numbers) >= 2 * len(self._rows):
                self._numbers = [*self._rows]

    def since(
        self, start: float, until: float = math.inf
    ) -> tuple[tuple[RecordedRow, ...], dict[str, int]]:
        """Return all rows since a time, and what was evicted of them: see `lost`.

        Those that began after another time are left out.
        """
        number, numbers = int(start * 1e9), self._numbers
        there = map(self._rows.get, numbers[bisect_right(numbers, number) :])
        rows = tuple(row for row, begun in filter(None, there) if begun <= until * 1e9)
        # In this order: what is evicted meanwhile is said.
        return rows, self.lost(number)

    def part(
        self, after: int, most: float, until: int | None = None
    ) -> tuple[tuple[RecordedRow, ...], int, bool]:
        """Return rows after one with that number, `until` another one: `most` bytes or one row.

        Then the number of the last one, and whether there are more.
        """
        numbers = self._numbers
        first = bisect_right(numbers, after)
        end = len(numbers) if until is None else bisect_right(numbers, until)
        waiting = (
            (one, kept[0])
            for one in map(numbers.__getitem__, range(first, end))
            if (kept := self._rows.get(one)) is not None
        )
        found = next(parts(waiting, most, lambda one: len(one[1][1])), [])
        last = found[-1][0] if found else after
        return tuple(row for _, row in found), last, bool(found) and last < numbers[end - 1]

    def lost(self, number: int = 0) -> dict[str, int]:
        """Return how many traces, and rows of other signals, were evicted, by signal."""
        # Those that were quiet longest went first.
        gone = reversed(self._gone.copy())
        return Counter(signal for _, signal in takewhile(lambda one: one[0] > number, gone))

"""The worker with the largest share of its memory in use, or most tasks, up to now."""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter
from typing import Final

from dask_otel.core.records import WorkerPeak

#: Where such a heartbeat has its number.
_NUMBER: Final = 3


class FullestWorkers:
    """Looks at heartbeats. O(1) for each, and O(log) for the largest since any of them.

    Only what nothing larger has followed can be an answer to come. Shares are rounded to a
    thousandth, so that these are some hundreds.
    """

    def __init__(self) -> None:
        #: Number of heartbeats so far.
        self.number = 0
        #: Of each the share, the worker, the time, and its number.
        self._falling: list[tuple[float, str, float, int]] = []

    def heartbeat(self, share: float, worker: str, time: float) -> None:
        """Add a worker's memory, as a share of its limit; or the number of its tasks."""
        # `round` takes 4,000 instructions: it goes by way of a text.
        share = (1000.0 * share + 0.5) // 1.0 / 1000.0
        falling = self._falling
        while falling and falling[-1][0] <= share:
            falling.pop()
        falling.append((share, worker, time, self.number))
        self.number += 1

    def since(self, number: int) -> WorkerPeak | None:
        """Return the largest share from the heartbeat of that number on; None without one."""
        index = bisect_left(self._falling, number, key=itemgetter(_NUMBER))
        if index == len(self._falling):
            return None
        share, worker, time, _ = self._falling[index]
        return WorkerPeak(share, worker, time, self.number - number)

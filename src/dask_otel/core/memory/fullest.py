"""The worker with the largest share of its memory in use, or most tasks, up to now."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter

from dask_otel.core.records import WorkerPeak


class FullestWorkers:
    """Looks at heartbeats. O(1) for each, and O(log) for the largest since any of them.

    Only what nothing larger has followed can be an answer to come. Shares are rounded to a
    thousandth, so that these are some hundreds.
    """

    def __init__(self) -> None:
        #: Number of heartbeats so far.
        self.number = 0
        #: With the number of each instead of the number of all.
        self._falling: list[WorkerPeak] = []

    def heartbeat(self, share: float, worker: str, time: float) -> None:
        """Add a worker's memory, as a share of its limit; or the number of its tasks."""
        share = round(share, 3)
        while self._falling and self._falling[-1].share <= share:
            self._falling.pop()
        self._falling.append(WorkerPeak(share, worker, time, self.number))
        self.number += 1

    def since(self, number: int) -> WorkerPeak | None:
        """Return the largest share from the heartbeat of that number on; None without one."""
        index = bisect_left(self._falling, number, key=attrgetter("heartbeats"))
        if index == len(self._falling):
            return None
        return self._falling[index]._replace(heartbeats=self.number - number)

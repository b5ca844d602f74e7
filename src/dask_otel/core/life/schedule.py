"""The next check of each open span: for the linger, the signs of life, the notes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import inf
from typing import Final

#: Void entries are cleared beyond this number and twice the number of valid ones.
SPARE: Final = 100


class Schedule:
    """Due times of open spans by their Dask ids, one for each; the earliest comes first.

    Parameters
    ----------
    longest
        After the clock was set back, no due time is later than this from then.

    Notes
    -----
    O(log n) for a change. Holds ids, no spans: a void entry may stay until it is due.
    """

    def __init__(self, longest: float = inf) -> None:
        self._longest = longest
        #: The time of the last call of `take`.
        self._taken = -inf
        #: The valid entry of each id. A taken entry is not valid any more.
        self._valid: dict[str, tuple[float, int, int, str]] = {}
        #: (due, rank, number of the entry, Dask id)
        self._entries: list[tuple[float, int, int, str]] = []
        self._number = 0

    def __contains__(self, dask_id: str) -> bool:
        return dask_id in self._valid

    def set(self, dask_id: str, due: float, rank: int = 0) -> None:
        """Set the due time of a span; at equal times, the lowest rank comes first."""
        self._number += 1
        entry = self._valid[dask_id] = due, rank, self._number, dask_id
        heapq.heappush(self._entries, entry)
        if len(self._entries) > 2 * len(self._valid) + SPARE:
            self._entries = sorted(self._valid.values())

    def remove(self, dask_id: str) -> None:
        """Forget a span."""
        self._valid.pop(dask_id, None)

    def is_due(self, now: float) -> bool:
        """Whether `take` has an entry to look at."""
        return bool(self._entries) and self._entries[0][0] <= now

    def take(self, now: float) -> Iterator[str]:
        """Remove and yield the due spans. They may be set again meanwhile."""
        if now < self._taken:  # The clock was set back.
            latest = now + self._longest
            valid = [(min(due, latest), *others) for due, *others in self._valid.values()]
            self._valid = {entry[3]: entry for entry in valid}  # type: ignore[misc]
            self._entries = sorted(self._valid.values())
        self._taken = now
        while self.is_due(now):
            entry = heapq.heappop(self._entries)
            if self._valid.get(entry[3]) is entry:
                del self._valid[entry[3]]
                yield entry[3]

"""The pump's own counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable
from typing import TypeAlias

#: A metric's name and its label values.
Series: TypeAlias = tuple[Hashable, ...]


class Tally:
    """Counts since the start, by metric and labels. Any thread may call it.

    Its lock is held for a few dictionary operations, never during work.
    """

    def __init__(self) -> None:
        self._totals: Counter[Series] = Counter()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Tally of {len(self._totals)} series>"

    def add(self, *series: Hashable, count: int = 1) -> None:
        """Count."""
        with self._lock:
            self._totals[series] += count

    def since(self, seen: Counter[Series]) -> dict[Series, float]:
        """Return the increases since `seen`, and update `seen`."""
        with self._lock:
            totals = self._totals.copy()
        new = totals - seen
        seen.update(new)
        return {**new}

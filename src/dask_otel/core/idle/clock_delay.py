"""When a heartbeat was really taken, from two clocks that do not agree."""

from __future__ import annotations

from typing import Final

#: How long a minimum counts as recent, in seconds. Long enough to see one quick message
#: between slow ones, short enough to follow a clock that drifts (100 ppm are 30 ms).
WINDOW: Final = 300.0


class RecentMinimum:
    """Smallest value of the last one to two windows, in constant memory."""

    __slots__ = ("_before", "_now", "_started")

    def __init__(self) -> None:
        self._started = -WINDOW
        self._now = self._before = float("inf")

    def observe(self, value: float, now: float) -> float:
        """Add `value` and get the recent minimum, which is at most `value`."""
        age = now - self._started
        if age >= WINDOW:
            self._before = self._now if age < 2 * WINDOW else float("inf")
            self._now = float("inf")
            self._started = now
        self._now = min(self._now, value)
        return min(self._now, self._before)

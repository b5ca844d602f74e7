"""The time when a worker made a heartbeat, on the scheduler's clock."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

#: How long a minimum is recent, in seconds. Long enough for one quick message among slow ones,
#: short enough to follow a drifting clock (100 ppm are 30 ms).
WINDOW: Final = 300.0
#: If a heartbeat seems older than the previous one by more than this many seconds, a clock was set,
#: because heartbeats are sent in order. A smaller difference can be an error in the delay.
CLOCK_STEP: Final = 10.0


@dataclass(slots=True, eq=False)
class HeartbeatClock:
    """The times of one worker's heartbeats, in constant memory.

    A delay is the time of receipt minus the time of sending, by two clocks. The smallest delay of
    the last one to two windows counts as the clocks' difference; the rest of a delay is travel
    time.
    """

    #: When the last heartbeat was made; 0.0 before the first.
    last: float = 0.0
    _started: float = -WINDOW
    _now: float = inf
    _before: float = inf

    def made(self, received: float, delay: float) -> float:
        """Return when the heartbeat received just now was made."""
        age = received - self._started
        if age >= WINDOW:
            self._before = self._now if age < 2 * WINDOW else inf
            self._now = inf
            self._started = received
        # `min` would be slower: this runs twice for each heartbeat.
        if delay < self._now:
            self._now = delay
        made = received - delay + (self._now if self._now < self._before else self._before)
        if made < self.last - CLOCK_STEP:
            # Earlier delays belong to another clock setting.
            self._now, self._before = delay, inf
            made = received
        self.last = made
        return made

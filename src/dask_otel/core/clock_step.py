"""Whether a clock was set, as the times of a worker's heartbeats show it."""

from __future__ import annotations

from typing import Final

#: Seconds by which a heartbeat that claims to be older than the one before it shows that a clock
#: was set. Less can be what is not known of the delay.
CLOCK_STEP: Final = 10.0


def was_set(began: float, before: float) -> bool:
    """Whether a heartbeat that began then, and the one `before` it, show that a clock was set.

    Heartbeats are sent one after the other: none is older than the one before it.
    """
    return began < before - CLOCK_STEP

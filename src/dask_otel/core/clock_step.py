"""Detects from the times of a worker's heartbeats that a clock was set."""

from __future__ import annotations

from typing import Final

#: A heartbeat that seems older than the one before it by more seconds shows that a clock was set.
#: Less can be the unknown part of the delay.
CLOCK_STEP: Final = 10.0


def was_set(began: float, before: float) -> bool:
    """Whether the beginnings of a heartbeat and of the one `before` it show that a clock was set.

    Heartbeats are sent in order: none is older than the one before it.
    """
    return began < before - CLOCK_STEP

"""Detects from the times of a worker's heartbeats that a clock was set."""

from __future__ import annotations

from typing import Final

#: If a heartbeat seems older than the one before it by more than this, in seconds, a clock was set.
#: A smaller difference can be an error in the delay.
CLOCK_STEP: Final = 10.0


def was_set(began: float, before: float) -> bool:
    """Whether a clock was set between two heartbeats, by their beginnings.

    Heartbeats are sent in order: none is older than the one before it.
    """
    return began < before - CLOCK_STEP

"""The sizes and times of the pump."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PumpLimits:
    """Sizes in spans or log records, times in seconds."""

    queue_size: int = 2048
    #: Smaller than the SDK's 512, because a failed batch is sent again as a whole.
    batch_size: int = 128
    #: Longest time that a finished span waits for others.
    schedule_delay: float = 1.0

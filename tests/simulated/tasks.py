"""What the tasks of tests do."""

from __future__ import annotations

import time
from typing import Any


def nap(seconds: float, *after: Any) -> float:
    """Sleep, and return for how long."""
    time.sleep(seconds)
    return seconds


def inc(x: int) -> int:
    """Return one more."""
    return x + 1


def boom() -> None:
    """Fail."""
    raise ValueError("no\x1b[31m\nway")

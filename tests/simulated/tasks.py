"""What the tasks of tests do."""

from __future__ import annotations

import time
from typing import Any

from distributed import secede


def nap(seconds: float, *after: Any) -> float:
    """Sleep, and return for how long."""
    time.sleep(seconds)
    return seconds


def inc(x: int, delay: float = 0.0) -> int:
    """Return one more, after a while."""
    if delay:
        time.sleep(delay)
    return x + 1


def apart(seconds: float) -> None:
    """Leave the thread to others at once."""
    secede()
    time.sleep(seconds)


def filled(size: int, *after: Any) -> bytes:
    """Return a result of a size."""
    return bytes(size)


def fail(seconds: float) -> None:
    """Fail after a while."""
    time.sleep(seconds)
    raise ValueError("as asked")


def boom() -> None:
    """Fail."""
    raise ValueError("no\x1b[31m\nway")

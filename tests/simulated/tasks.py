"""What the tasks of tests do."""

from __future__ import annotations

import time
from typing import Any

from distributed import secede
from lab.programs import fail as fail
from lab.programs import nap as nap


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


def boom() -> None:
    """Fail."""
    raise ValueError("no\x1b[31m\nway")

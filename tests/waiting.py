"""Waiting for what must come true, never for an amount of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds after which a wait is a hang; less than a test may take.
GUARD = 600.0


def eventually(check: Callable[[], T], timeout: float = GUARD, what: str = "") -> T:
    """Return the first truthy result of `check`; fail if there is none within the timeout.

    A check that raises AssertionError counts as not true yet; its last message is shown.
    """
    last: object = None
    end = time.monotonic() + timeout
    while True:
        try:
            result = check()
        except AssertionError as error:
            last = error
        else:
            if result:
                return result
            last = result
        if time.monotonic() > end:
            raise AssertionError(f"not in time: {what or check}; last: {last!r}")
        time.sleep(0.05)


def ended(process: Any) -> int:
    """Return the exit code of a process, which must end."""
    eventually(lambda: process.poll() is not None, what="the end of a process")
    return int(process.poll())

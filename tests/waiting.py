"""Waiting for what must come true, never for an amount of time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], timeout: float = 60.0, what: str = "") -> T:
    """Return the first truthy result of `check`; fail if there is none within the timeout.

    A check that raises AssertionError counts as not true yet; its last message is shown. Where
    processes wait for a core, the timeout is as many times as long.
    """
    last: object = None
    while True:
        began = time.monotonic()
        try:
            result = check()
        except AssertionError as error:
            last = error
        else:
            if result:
                return result
            last = result
        if timeout < 0.0:
            raise AssertionError(f"not in time: {what or check}; last: {last!r}")
        time.sleep(0.05)
        # How many processes share a core.
        waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
        timeout -= (time.monotonic() - began) / max(1.0, waiting)


def ended(process: Any) -> int:
    """Return the exit code of a process, which must end."""
    eventually(lambda: process.poll() is not None, what="the end of a process")
    return int(process.poll())

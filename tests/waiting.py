"""Waiting for what must come true, never for an amount of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def last_reports(workers: Iterable[Any]) -> None:
    """Let workers of this process report once more, and then never again.

    What they meter after it is not known to the scheduler either, which may be compared then.
    """
    for worker in workers:
        worker.periodic_callbacks["heartbeat"].stop()
        await worker.heartbeat()


def eventually(check: Callable[[], T], timeout: float = 60.0, what: str = "") -> T:
    """Return the first truthy result of `check`; fail if there is none within the timeout.

    A check that raises AssertionError counts as not true yet; its last message is shown.
    """
    deadline = time.monotonic() + timeout
    last: object = None
    while True:
        try:
            result = check()
        except AssertionError as error:
            last = error
        else:
            if result:
                return result
            last = result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what or check}; last: {last!r}")
        time.sleep(0.05)

"""A library that takes 2 s to import; not on the client, which also is the scheduler here."""

from __future__ import annotations

import multiprocessing
import time

if multiprocessing.parent_process() is not None:
    time.sleep(2.0)


def fit(seconds: float, *after: object) -> float:
    """Work for so long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return seconds

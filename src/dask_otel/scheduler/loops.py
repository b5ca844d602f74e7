"""Samples the event loop of this process for a client: of a scheduler or a worker, for seconds."""

from __future__ import annotations

import asyncio
import sys
import threading
from functools import partial
from time import monotonic, sleep
from typing import Final

from dask_otel._frames import reading_frames
from dask_otel.core.profiles.frames import Stacks
from dask_otel.core.profiles.stacks import BLOB, packed, short_file
from dask_otel.pump.thread import apart

#: Seconds between two samples, and the most seconds.
INTERVAL: Final = 0.02
LONGEST: Final = 60.0
#: Most messages of an answer.
_MOST: Final = 16
#: Where an event loop waits for something to do; that of uvloop, in C, is where it was begun.
_WAITS: Final = ("selectors.py", "asyncio/runners.py", "distributed/compatibility.py")
#: Held while a thread samples.
_sampling: Final = threading.Lock()


async def loop_stacks(seconds: float) -> list[bytes] | None:
    """Return the stacks of this event loop as blobs of `core.profiles.stacks`.

    Their prefixes are ``busy`` and ``idle``. A thread takes the samples, at a true 50 Hz, and
    `seconds` are at most `LONGEST`. None if another client samples this process now.
    """
    sample = partial(_sampled, threading.get_ident(), min(seconds, LONGEST))
    return await asyncio.wrap_future(apart(sample, "dask-otel-loop"))


def _sampled(thread: int, seconds: float) -> list[bytes] | None:
    if not _sampling.acquire(blocking=False):
        return None
    try:
        at, stacks = monotonic(), Stacks()
        until = at + seconds
        while at < until:
            sleep(INTERVAL)
            with reading_frames:
                frame = sys._current_frames().get(thread)
                before, at = at, monotonic()
                if frame is not None:
                    waits = short_file(frame.f_code.co_filename) in _WAITS
                    stacks.add(("", "idle" if waits else "busy"), frame, at - before)
            # It holds the loop's variables.
            del frame
    finally:
        _sampling.release()
    return [message[BLOB] for message in packed(stacks.take(), _MOST)]

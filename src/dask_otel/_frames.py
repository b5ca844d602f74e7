"""The frames of all threads of this process, without a deadlock of Python 3.11."""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType

_LOCK = threading.Lock()


def _without_collection() -> dict[int, FrameType]:
    with _LOCK:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()  # noqa: SLF001
        finally:
            if enabled:
                gc.enable()


# Before Python 3.11.9, a garbage collection in the function waits forever for the lock that the
# function holds, and all threads wait with it (python/cpython#106883).
current_frames = (
    _without_collection if (3, 11) <= sys.version_info < (3, 11, 9) else sys._current_frames  # noqa: SLF001
)

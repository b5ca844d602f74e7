"""The lock for reading the frames of other threads, which Python 3.11 may not survive."""

from __future__ import annotations

import gc
import os
import sys
import threading
from typing import Final


class _NoCollection:
    """A lock; while it is held, no garbage is collected."""

    def __init__(self) -> None:
        self._lock, self._enabled = threading.Lock(), False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        # The thread that holds it is in the parent alone.
        if self._lock.locked():
            self.__exit__()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._enabled:
            gc.enable()
        self._lock.release()


# In Python 3.11, `f_back` makes frames, which may begin a garbage collection. That may run Python
# code, as with Dask's callback; if a function of the other thread returns meanwhile, the process
# crashes. Before 3.11.9, `sys._current_frames` also waits forever (python/cpython#106883).
reading_frames: Final = _NoCollection() if sys.version_info[:2] == (3, 11) else threading.Lock()

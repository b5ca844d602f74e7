"""The spool's troubles: when it is tried again, and what the log says."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger("distributed.dask_otel")

#: Seconds until a spool in trouble is tried again: the first, and the longest.
FIRST_RETRY: Final = 1.0
LONGEST_RETRY: Final = 30.0
#: The part of a full spool that must be free before it counts as one that has room: more than a
#: write drops at once, or the log would say so each time.
_FREE: Final = 0.1
_NOT_OPENED: Final = (
    "dask-otel runs without a spool: otel.spool.path is %s, and %s. The scheduler is not affected, "
    "and spans are exported; those that wait are lost if it is. It goes on trying, without saying "
    "so each time."
)
_FAILED: Final = (
    "dask-otel can't use its spool %s (otel.spool.path): %s. Spans are exported all the same, from "
    "memory; those that wait there are lost if the scheduler is. It goes on trying, without saying "
    "so each time."
)


class SpoolHealth:
    """Logs each change once. For one thread; others may read.

    Parameters
    ----------
    path, max_bytes
        Of the spool.
    now
        Seconds on a monotonic clock.
    """

    def __init__(
        self, path: str, max_bytes: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._now = now
        #: What is wrong with the disk; empty if nothing is.
        self.trouble = ""
        #: Whether old spans are dropped, as there is no room.
        self.full = False
        #: Bytes in use when the last ones were dropped: less than `max_bytes`.
        self._full_at = 0
        self._retry_at, self._retry_after = 0.0, FIRST_RETRY

    @property
    def rest(self) -> float:
        """Seconds until it is tried again."""
        return max(0.0, self._retry_at - self._now())

    def try_now(self) -> None:
        """Let it be tried at once: it is the last time."""
        self._retry_at = 0.0

    def failed(self, error: Exception, opening: bool = False) -> None:
        """Note trouble with the disk; while opening, also that another process has the spool."""
        if not self.trouble:
            level, text = (logging.ERROR, _NOT_OPENED) if opening else (logging.WARNING, _FAILED)
            logger.log(level, text, self._path, error)
        self.trouble = str(error)
        self._retry_at = self._now() + self._retry_after
        self._retry_after = min(LONGEST_RETRY, self._retry_after * 2)

    def works(self, words: str) -> None:
        """Note that it can be used; `words` are logged after trouble."""
        if self.trouble:
            logger.info("dask-otel %s", words)
        self.trouble, self._retry_at, self._retry_after = "", 0.0, FIRST_RETRY

    def wrote(self, dropped: bool, usage: int) -> None:
        """Note a write: whether spans were dropped for it, and the bytes in use."""
        if dropped:
            self._full_at = usage
            if not self.full:
                logger.warning(
                    "dask-otel: the spool %s is full (otel.spool.max-size is %d bytes). Its oldest "
                    "spans are dropped, and counted in dask.otel.dropped as spool_full.",
                    self._path,
                    self._max_bytes,
                )
            self.full = True
        elif self.full and usage < self._full_at * (1 - _FREE):
            self.full = False
            logger.info("dask-otel: the spool %s has room again", self._path)


def found(path: str, waiting: int, recovered: int) -> str:
    """Return what is in a spool at the start, in words."""
    if not waiting:
        return f"spool {path}"
    spans = "a span of an earlier run waits"
    if waiting > 1:
        spans = f"{waiting} spans of earlier runs wait"
    words = f"spool {path}, in which {spans}"
    if recovered:
        verb = "was" if recovered == 1 else "were"
        words += f"; {recovered} of these {verb} open when the scheduler was lost"
    return words

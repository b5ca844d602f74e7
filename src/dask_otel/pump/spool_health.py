"""How the spool does: when it is left alone after trouble, and what a person is told."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger("distributed.dask_otel")

#: Seconds until the spool is tried again where it could not be opened or written: the first, and
#: the longest.
FIRST_RETRY: Final = 1.0
LONGEST_RETRY: Final = 30.0
#: The part of what was in a full spool that must be gone before it counts as one that has room:
#: more than a write drops at once, or each such write would be told.
_FREE: Final = 0.1


class SpoolHealth:
    """Tells a person once of each change. For one thread; others may read.

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
        #: Bytes that were in it when the last ones were dropped: full is less than `max_bytes`.
        self._full_at = 0
        self._retry_at = 0.0
        self._retry_after = FIRST_RETRY

    @property
    def rest(self) -> float:
        """Seconds for which it is left alone."""
        return max(0.0, self._retry_at - self._now())

    def try_now(self) -> None:
        """Leave it alone no longer: it is the last time."""
        self._retry_at = 0.0

    def not_opened(self, error: Exception) -> None:
        """Take note that it can't be had: somebody has it, its folder is missing, or the like."""
        if not self.trouble:
            logger.error(
                "dask-otel runs without a spool: otel.spool.path is %s, and %s. The scheduler is "
                "not affected, and spans are exported; those that wait are lost if it is. It goes "
                "on trying, without saying so each time.",
                self._path,
                error,
            )
        self._wait(error)

    def opened(self, words: str) -> None:
        """Take note that it can be used; `words` are those of `found`."""
        if self.trouble:
            logger.info("dask-otel now uses the %s", words)
        self._well()

    def failed(self, error: OSError) -> None:
        """Take note that the disk makes trouble."""
        if not self.trouble:
            logger.warning(
                "dask-otel can't use its spool %s (otel.spool.path): %s. Spans are exported all "
                "the same, from memory; those that wait there are lost if the scheduler is. It "
                "goes on trying, without saying so each time.",
                self._path,
                error,
            )
        self._wait(error)

    def ok(self, dropped: bool, usage: int) -> None:
        """Take note of a write: whether old spans had to go for it, and the bytes in use."""
        if self.trouble:
            logger.info("dask-otel uses its spool %s again", self._path)
        self._well()
        if dropped:
            self._full_at = usage
        if dropped and not self.full:
            self.full = True
            logger.warning(
                "dask-otel: the spool %s is full (otel.spool.max-size is %d bytes). Its oldest "
                "spans are dropped, and counted in dask.otel.dropped as spool_full.",
                self._path,
                self._max_bytes,
            )
        elif self.full and not dropped and usage < self._full_at * (1 - _FREE):
            self.full = False
            logger.info("dask-otel: the spool %s has room again", self._path)

    def _wait(self, error: Exception) -> None:
        self.trouble = str(error)
        self._retry_at = self._now() + self._retry_after
        self._retry_after = min(LONGEST_RETRY, self._retry_after * 2)

    def _well(self) -> None:
        self.trouble, self._retry_at, self._retry_after = "", 0.0, FIRST_RETRY


def found(path: str, waiting: int, recovered: int) -> str:
    """Return what is told of a spool at the start."""
    if not waiting:
        return f"spool {path}"
    words = f"spool {path}, in which {waiting} spans of earlier runs wait"
    if waiting == 1:
        words = f"spool {path}, in which a span of an earlier run waits"
    if recovered:
        verb = "was" if recovered == 1 else "were"
        words += f"; {recovered} of these {verb} open when the scheduler was lost"
    return words

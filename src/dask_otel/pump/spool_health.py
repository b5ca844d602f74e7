"""The spool's problems: when to retry, and what to log."""

from __future__ import annotations

import logging
import time
from typing import Final

from dask_otel._log import logger

#: Seconds until a failing spool is retried: the first and the longest pause.
FIRST_RETRY: Final = 1.0
LONGEST_RETRY: Final = 30.0
#: The share of a full spool that must be free before it counts as having room again. It is more
#: than a write drops at once; else each write would be logged.
_FREE: Final = 0.1


class SpoolHealth:
    """Logs each change once. For one thread; others may read.

    Parameters
    ----------
    path, max_bytes
        The spool's.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        #: The problem with the disk; empty if there is none.
        self.trouble = ""
        #: Whether the last message was of a failure. A full disk takes some writes, so one success
        #: does not end it.
        self._warned = False
        #: Whether old spans are dropped for lack of room.
        self.full = False
        #: Bytes in use when the last ones were dropped: less than `max_bytes`.
        self._full_at = 0
        self._retry_at, self._retry_after = 0.0, FIRST_RETRY

    def __repr__(self) -> str:
        return f"<SpoolHealth of {self._path}: {self.trouble or 'no trouble'}>"

    @property
    def rest(self) -> float:
        """Seconds until the next retry."""
        return max(0.0, self._retry_at - time.monotonic())

    def failed(self, error: Exception, opening: bool = False) -> None:
        """Record a problem with the disk or, while opening, that another process has the spool."""
        if not self._warned:
            self._warned = True
            logger.log(
                logging.ERROR if opening else logging.WARNING,
                "dask-otel can't use its spool %s (otel.spool.path): %s. Dask is not affected, and "
                "spans are exported from memory; those that wait there are lost if the scheduler "
                "is killed. The bridge retries, without logging each failure.",
                self._path,
                error,
            )
        self.trouble = str(error) or repr(error)
        self._retry_at = time.monotonic() + self._retry_after
        self._retry_after = min(LONGEST_RETRY, self._retry_after * 2)

    def works(self, words: str, calm: float = 0.0) -> None:
        """Record a success; `words` are logged if a failure was, at least `calm` seconds ago."""
        self.trouble = ""
        if self._warned and time.monotonic() >= self._retry_at + calm:
            self._warned, self._retry_after = False, FIRST_RETRY
            logger.info("dask-otel %s", words)

    def wrote(self, dropped: bool, usage: int) -> None:
        """Record a write: whether it dropped spans, and the bytes in use."""
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

"""The pump's own errors: counted, and logged once for each type."""

from __future__ import annotations

import logging
from contextlib import suppress

from dask_otel import semconv
from dask_otel.pump.health import Tally

logger = logging.getLogger("distributed.dask_otel")


class InternalErrors:
    """Handles the unexpected errors of one thread.

    Parameters
    ----------
    tally
        Counts them.
    kind
        The metric's label, and the thread's name in the log.
    """

    def __init__(self, tally: Tally, kind: str) -> None:
        self._tally = tally
        self._kind = kind
        self._logged: set[str] = set()

    def take(self, error: BaseException) -> None:
        """Count and log an error; never raises."""
        # If memory has run out, this can fail too, and the thread must survive.
        with suppress(Exception):
            self._tally.add(semconv.OTEL_INTERNAL_ERRORS.name, self._kind)
            name = type(error).__name__
            if name not in self._logged:
                self._logged.add(name)
                logger.warning(
                    "dask-otel: an error in its %s was swallowed", self._kind, exc_info=error
                )

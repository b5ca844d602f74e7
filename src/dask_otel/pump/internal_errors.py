"""Errors of the pump's own: counted, told once of each kind, and then over."""

from __future__ import annotations

import logging
from contextlib import suppress

from dask_otel import semconv
from dask_otel.pump.health import Tally

logger = logging.getLogger("distributed.dask_otel")


class InternalErrors:
    """Where the errors of one thread end that should not have been.

    Parameters
    ----------
    tally
        Counts them.
    kind
        What is counted, and what a person is told of.
    """

    def __init__(self, tally: Tally, kind: str) -> None:
        self._tally = tally
        self._kind = kind
        self._logged: set[str] = set()

    def take(self, error: BaseException) -> None:
        """Count and tell an error; never raises."""
        # Where memory has run out, this can fail as well, and the thread must live on.
        with suppress(Exception):
            self._tally.add(semconv.OTEL_INTERNAL_ERRORS.name, self._kind)
            name = type(error).__name__
            if name not in self._logged:
                self._logged.add(name)
                logger.warning(
                    "dask-otel: an error in its %s was swallowed", self._kind, exc_info=error
                )

"""Catches the bridge's own errors: counts them by kind, and logs each kind once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dask_otel._log import logger


class ErrorBoundary:
    """Counts the errors of one bridge."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._logged: set[str] = set()

    def failed(self, kind: str) -> None:
        """Count the exception that is being handled."""
        # Without memory even this can fail, and no error may escape.
        with suppress(Exception):
            self._counts[kind] = self._counts.get(kind, 0) + 1
            if kind not in self._logged:
                self._logged.add(kind)
                logger.warning(
                    "dask-otel caught an error in its %s hook. Dask is not affected, but "
                    "telemetry may be incomplete. Later errors of this kind are not logged. Please "
                    "report it, with this traceback, to the project's issue tracker.",
                    kind,
                    exc_info=True,
                )

    @contextmanager
    def guarding(self, kind: str) -> Iterator[None]:
        """Catch and count any exception of the code inside."""
        try:
            yield
        except Exception:
            self.failed(kind)

    def take(self) -> dict[str, int]:
        """Return the number of errors by kind since the last call."""
        counts, self._counts = self._counts, {}
        return counts

"""Where the bridge's own errors end."""

from __future__ import annotations

import logging
from contextlib import suppress

logger = logging.getLogger("distributed.dask_otel")


class ErrorBoundary:
    """Where the bridge's own errors end: counted by kind, logged once a kind, swallowed."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._logged: set[str] = set()

    def failed(self, kind: str) -> None:
        """Take the exception that is being handled."""
        # Where memory has run out, counting and telling fail, too: this is where errors end.
        with suppress(Exception):
            self._take(kind)

    def _take(self, kind: str) -> None:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning(
                "dask-otel: an error in its %s hook was swallowed, and later ones like it will be "
                "without a word; Dask is not affected, telemetry may be incomplete. Please report "
                "it, with this traceback, to the project's issue tracker.",
                kind,
                exc_info=True,
            )

    def take(self) -> dict[str, int]:
        """Return the errors by kind since the last call."""
        counts, self._counts = self._counts, {}
        return counts

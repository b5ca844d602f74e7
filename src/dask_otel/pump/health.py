"""What the pump tells: to a person in the log, and to the metrics as counts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from typing import TypeAlias

logger = logging.getLogger("dask_otel")

#: A metric's name and its label values.
Series: TypeAlias = tuple[Hashable, ...]


class Health:
    """Tells a person once that a destination fails, and once that it works again.

    Spans and metrics mostly go to the same place and then fail together: one object serves
    all sinks of one name, so that it is one warning.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._failing: set[str] = set()
        self._lock = threading.Lock()

    def ok(self, signal: str) -> None:
        """Take note of a success with `signal`: ``"spans"`` or ``"metrics"``."""
        with self._lock:
            if signal not in self._failing:
                return
            self._failing.discard(signal)
            recovered = not self._failing
        if recovered:
            logger.info("dask-otel exports to %s again", self._name)

    def failed(self, signal: str, reason: str) -> None:
        """Take note of a failure."""
        level = self._level(signal)
        if level is not None:
            logger.log(
                level,
                "dask-otel can't export %s to %s: %s. Dask is not affected; the bridge keeps what "
                "fits its queue and goes on trying, without saying so each time. Check that a "
                "collector listens there, and OTEL_EXPORTER_OTLP_ENDPOINT and "
                "OTEL_EXPORTER_OTLP_PROTOCOL.",
                signal,
                self._name,
                reason or "no reason given",
            )

    def gave_up(self, signal: str, what: str) -> None:
        """Take note of what could not be exported before the end."""
        logger.log(
            self._level(signal) or logging.INFO,
            "dask-otel closes, and %s could not be exported to %s within otel.close-timeout",
            what,
            self._name,
        )

    def _level(self, signal: str) -> int | None:
        """Return how loud a failure is: the first one of the destination is a warning."""
        with self._lock:
            known = bool(self._failing)
            if signal in self._failing:
                return None
            self._failing.add(signal)
        return logging.INFO if known else logging.WARNING


class Tally:
    """Counts since the start, by metric and labels. Any thread may call it.

    Its lock is held for a few dictionary operations, never during work.
    """

    def __init__(self) -> None:
        self._totals: dict[Series, int] = {}
        self._lock = threading.Lock()

    def add(self, *series: Hashable, count: int = 1) -> None:
        """Count."""
        if count:
            with self._lock:
                self._totals[series] = self._totals.get(series, 0) + count

    def since(self, seen: dict[Series, int]) -> dict[Series, float]:
        """Return what was added since `seen`, and bring `seen` up to date."""
        with self._lock:
            totals = self._totals.copy()
        new: dict[Series, float] = {
            series: total - seen.get(series, 0)
            for series, total in totals.items()
            if total > seen.get(series, 0)
        }
        seen.update(totals)
        return new

"""The health of the export: messages in the log, and counts for the metrics."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeAlias

from dask_otel import semconv
from dask_otel.core.endpoints.address import Endpoint
from dask_otel.core.endpoints.explaining import UNKNOWN, explain, remedied_by

logger = logging.getLogger("distributed.dask_otel")

#: Least seconds between two warnings of one kind about a destination that fails, works and fails
#: again.
QUIET: Final = 600.0

#: Seconds after which an open request is reported.
LONG: Final = 60.0

#: Events of the bridge itself, for the event loop: their names and facts.
Notices: TypeAlias = "deque[tuple[str, dict[str, Any]]]"
#: Most that wait.
MOST_NOTICES: Final = 100

#: A metric's name and its label values.
Series: TypeAlias = tuple[Hashable, ...]


class Health:
    """Logs once that a destination fails, and once that it works again.

    Spans and metrics mostly go to the same destination and fail together: one object serves all
    sinks of one name, so that there is one warning. A reason of another kind is a warning more,
    because it needs another remedy. A flaky destination causes at most one warning of each kind
    every ten minutes.

    Parameters
    ----------
    name
        The destination's name.
    now
        Seconds on a monotonic clock.
    advice
        What to do after a failure; by default the advice for an endpoint.
    notices
        Gets an event with each first warning and each recovery.
    """

    def __init__(
        self,
        name: str,
        now: Callable[[], float] = time.monotonic,
        advice: str = "",
        notices: Notices | None = None,
    ) -> None:
        self._name = name
        self._endpoint = Endpoint.named(name)
        self._advice = advice
        self._notices: Notices = deque(maxlen=1) if notices is None else notices
        #: The records that the bridge keeps, for the message.
        self.keeps = "what fits its queue"
        self.now = now
        self._failing: set[str] = set()
        #: When the open request of a signal began.
        self.open: dict[str, float] = {}
        self._no_server = False
        #: The reason of the last failure, and its kind (`remedied_by`).
        self._reason = self._kind = ""
        #: The kinds of the present failure that were logged, and the last warning of each kind.
        self._warned: set[str] = set()
        self._warned_at: dict[str, float] = {}
        self._logged: set[tuple[str, bool]] = set()
        self._lock = threading.Lock()

    def expect_no_server(self) -> None:
        """Don't report a missing server until one answers: it was reported already."""
        self._no_server = True

    def ok(self, signal: str) -> None:
        """Record a success with `signal`: ``"spans"``, ``"metrics"`` or ``"logs"``."""
        with self._lock:
            first, self._no_server = self._no_server, False
            if first:
                self._failing.clear()
            self._failing.discard(signal)
            again = bool(self._warned) and not self._failing
            if again:
                self._warned.clear()
        if again:
            about = {semconv.OTEL_DESTINATION: self._name}
            self._notices.append((semconv.OTEL_EXPORT_RECOVERED, about))
        if first or again:
            logger.info("dask-otel exports to %s %s", self._name, "now" if first else "again")

    def failed(self, signal: str, reason: str) -> None:
        """Record a failure."""
        endpoint, standard = self._endpoint, "traces" if signal == "spans" else signal
        trouble = None if endpoint is None else explain(endpoint, standard, reason)
        kind = remedied_by(trouble, reason)
        self._reason, self._kind = reason, kind
        if self._no_server and kind not in ("absent", "unknown"):
            # There is a server now, and it refuses.
            self._no_server = False
        known = bool(self._warned)
        level = self._level(signal, kind)
        if level is None:
            return
        if level == logging.WARNING and not known:
            about = {semconv.OTEL_SIGNAL: standard, semconv.OTEL_DESTINATION: self._name}
            self._notices.append((semconv.OTEL_EXPORT_FAILING, about))
        # The same advice as in ``dask-otel doctor``.
        advice = "The exporter is not one of OTLP's: see its own documentation."
        advice = self._advice or (advice if endpoint is None else str(trouble or UNKNOWN))
        logger.log(
            level,
            "dask-otel can't export %s to %s: %s. %s Dask is not affected; the bridge keeps "
            "%s and retries, without logging each failure.",
            signal,
            self._name,
            reason or "no reason given",
            advice,
            self.keeps,
        )

    def look(self) -> None:
        """Report requests that have been open for a minute, each once. Any thread may call it."""
        for signal, since in self.open.copy().items():
            if self.now() - since >= LONG and self.open.pop(signal, None) is not None:
                self.failed(signal, f"no answer within {LONG:g} s; the request is still open")

    def condition(self) -> dict[str, Any]:
        """Return the failing signals and the last reason, as plain data. Any thread may call it."""
        self.look()
        with self._lock:
            failing = sorted(self._failing)
            return {"destination": self._name, "failing": failing, "reason": self._reason}

    def server_message(self, items: str, lost: int, count: int, words: str) -> None:
        """Record the message of a server that accepted data, except `lost` of `count` items."""
        message = "accepted the %s, with this message: %s. It is logged once."
        values: tuple[Any, ...] = (items, words)
        if lost:
            message = (
                "refused %d of %d %s, with this message: %s. They are lost, because OTLP forbids "
                "sending them again; later ones are only counted (dask.otel.dropped)."
            )
            values = (lost, count, *values)
        with self._lock:
            level = logging.DEBUG if (items, lost > 0) in self._logged else logging.WARNING
            self._logged.add((items, lost > 0))
        logger.log(level, f"dask-otel: %s {message}", self._name, *values)

    def gave_up(self, signal: str, what: str) -> None:
        """Log the records that could not be exported before the end."""
        if not self._no_server:
            # Without a reason, there was no answer yet.
            reason = f". The last reason: {self._reason}" if signal in self._failing else ""
            logger.log(
                max(logging.INFO, self._level(signal, self._kind or "absent") or 0),
                "dask-otel is closing; %s could not be exported to %s within otel.close-timeout%s",
                what,
                self._name,
                reason,
            )

    def _level(self, signal: str, kind: str) -> int | None:
        """Return the log level of a failure: a warning for the first one of its kind.

        None if it is known, or if a similar one was logged recently.
        """
        with self._lock:
            now, new = self.now(), signal not in self._failing
            self._failing.add(signal)
            if self._no_server:
                return None
            if kind in self._warned:
                return logging.DEBUG if new else None
            if now - self._warned_at.get(kind, -math.inf) < QUIET:
                return None
            self._warned.add(kind)
            self._warned_at[kind] = now
        return logging.WARNING


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
        """Return the increases since `seen`, and update `seen`."""
        with self._lock:
            totals = self._totals.copy()
        new: dict[Series, float] = {
            series: total - seen.get(series, 0)
            for series, total in totals.items()
            if total > seen.get(series, 0)
        }
        seen.update(totals)
        return new

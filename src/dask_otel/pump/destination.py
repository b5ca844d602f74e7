"""A destination of telemetry: its address, its sinks, its health, and the messages about it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from dask_otel import semconv
from dask_otel._log import logger
from dask_otel.core.endpoints.address import Endpoint
from dask_otel.core.endpoints.explaining import UNKNOWN, explain, remedied_by
from dask_otel.core.records import Answer

#: Least seconds between two warnings of one kind about a destination that fails, works and fails
#: again.
QUIET: Final = 600.0
#: Seconds after which an open request is reported.
LONG: Final = 60.0

#: Events of the bridge itself, for the event loop: their names and facts.
Notices: TypeAlias = "deque[tuple[str, dict[str, Any]]]"
#: Most that wait.
MOST_NOTICES: Final = 100

#: By signal, for messages: all of it, several items, one item.
WORDS: Final = {
    "traces": ("spans", "spans", "span"),
    "metrics": ("metrics", "data points", "data point"),
    "logs": ("logs", "log records", "log record"),
    "graph": ("graph logs", "graph logs", "graph log"),
}


class Sink(Protocol):
    """The way of one signal to one destination, for one thread."""

    destination: Destination
    #: ``"traces"``, ``"metrics"``, ``"logs"`` or ``"graph"``.
    signal: str

    def send(self, items: Sequence[Any], longest: float) -> Answer:
        """Send one request within `longest` seconds."""

    def close(self) -> None:
        """Release its resources."""


class SpanSink(Sink, Protocol):
    """It sends rows: of spans, log records, or graph logs."""

    #: The reason in `dask.otel.dropped` for items that are lost in an accepted request.
    loss: str
    #: The key of its rows in the spool; None if they are not stored there.
    key: str | None

    def wants(self, record: Any) -> bool:
        """Whether the span is sampled; an unsampled one never enters the queue."""

    def encode(self, record: Any) -> Any:
        """Return the body of a row.

        Raises
        ------
        TypeError, ValueError
            If it can't be encoded.
        """


class MetricSink(Sink, Protocol):
    """It sends metrics, as `MetricRecord`."""

    #: Points of one request: more would hold the GIL, and fill gRPC's 4 MiB. None for no limit.
    max_points: int | None


class Destination:
    """One place that gets telemetry: a server, a folder, an exporter of others.

    It sends the requests of all its sinks, and logs once that it fails, and once that it works
    again: spans and metrics mostly fail together. A reason of another kind is a warning more,
    because it needs another remedy. A flaky destination causes at most one warning of each kind
    every ten minutes.

    Parameters
    ----------
    name
        For people; without secrets.
    endpoint
        The address of an OTLP server; None for anything else.
    advice
        The remedy for a failure; by default the advice for an endpoint.
    """

    def __init__(self, name: str, endpoint: Endpoint | None = None, advice: str = "") -> None:
        self.name, self.endpoint, self.advice = name, endpoint, advice
        #: The signals that it gets.
        self.signals: set[str] = set()
        #: Whether it gets every batch of metrics for now, whatever the export interval is.
        self.eager: Callable[[], bool] = bool
        #: Gets an event with each first warning and each recovery.
        self.notices: Notices = deque(maxlen=1)
        #: What limits the time of a close, for messages.
        self.within = ""
        #: The reason of the last failure, and its kind (`remedied_by`).
        self.reason = self._kind = ""
        self._failing: set[Sink] = set()
        #: When the open request of a sink began.
        self._open: dict[Sink, float] = {}
        self._no_server = False
        #: The kinds of the present failure that were logged, and the last warning of each kind.
        self._warned: set[str] = set()
        self._warned_at: dict[str, float] = {}
        self._logged: set[tuple[str, bool]] = set()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Destination {self.name}, {self.reason if self._failing else 'no failure'}>"

    def send(self, sink: Sink, items: Sequence[Any], longest: float) -> Answer:
        """Send one request within `longest` seconds; an exception of the sink means refusal."""
        began = self._open[sink] = time.monotonic()
        try:
            answer = sink.send(items, longest)
        except BaseException as error:
            # SystemExit too: it would end this thread silently.
            logger.debug("dask-otel: an exporter raised", exc_info=True)
            answer = Answer(False, type(error).__name__)
        finally:
            self._open.pop(sink, None)
        logger.debug(
            "dask-otel: request of %s to %s took %.3f s: %s",
            WORDS[sink.signal][0],
            self.name,
            time.monotonic() - began,
            "accepted" if answer.taken else answer.reason or "refused without a reason",
        )
        return answer

    def expect_no_server(self) -> None:
        """Don't report a missing server until one answers: it was reported already."""
        self._no_server = True

    def ok(self, sink: Sink) -> None:
        """Record a success."""
        with self._lock:
            first, self._no_server = self._no_server, False
            if first:
                self._failing.clear()
            self._failing.discard(sink)
            again = bool(self._warned) and not self._failing
            if again:
                self._warned.clear()
        if again:
            self._notify(semconv.OTEL_EXPORT_RECOVERED)
        if first or again:
            logger.info("dask-otel exports to %s %s", self.name, "now" if first else "again")

    def failed(self, sink: Sink, reason: str) -> None:
        """Record a failure."""
        endpoint = self.endpoint
        trouble = None if endpoint is None else explain(endpoint, sink.signal, reason)
        kind = remedied_by(trouble, reason)
        self.reason, self._kind = reason, kind
        if self._no_server and kind not in ("absent", "unknown"):
            # There is a server now, and it refuses.
            self._no_server = False
        known = bool(self._warned)
        level = self._level(sink, kind)
        if level is None:
            return
        if level == logging.WARNING and not known:
            self._notify(semconv.OTEL_EXPORT_FAILING, {semconv.OTEL_SIGNAL: sink.signal})
        # The same advice as in ``dask-otel doctor``.
        advice = "The exporter is not one of OTLP's: see its own documentation."
        advice = self.advice or (advice if endpoint is None else str(trouble or UNKNOWN))
        logger.log(
            level,
            "dask-otel can't export %s to %s: %s. %s Dask is not affected; the bridge keeps "
            "what fits its queue (spans: its spool, with otel.spool.path) and retries, without "
            "logging each failure.",
            WORDS[sink.signal][0],
            self.name,
            reason or "no reason given",
            advice,
        )

    def _notify(self, event: str, about: dict[str, Any] | None = None) -> None:
        self.notices.append((event, {**(about or {}), semconv.OTEL_DESTINATION: self.name}))

    def look(self) -> None:
        """Report requests that have been open for a minute, each once. Any thread may call it."""
        for sink, since in self._open.copy().items():
            if time.monotonic() - since >= LONG and self._open.pop(sink, None) is not None:
                self.failed(sink, f"no answer within {LONG:g} s; the request is still open")

    def condition(self) -> dict[str, Any]:
        """Return the failing signals and the last reason, as plain data. Any thread may call it."""
        self.look()
        with self._lock:
            failing = sorted({WORDS[sink.signal][0] for sink in self._failing})
            return {"destination": self.name, "failing": failing, "reason": self.reason}

    def server_message(self, sink: Sink, answer: Answer, lost: int, count: int) -> None:
        """Log the message of an answer that accepted all but `lost` of `count` items."""
        if not answer.said:
            return
        items = WORDS[sink.signal][1]
        with self._lock:
            level = logging.DEBUG if (items, lost > 0) in self._logged else logging.WARNING
            self._logged.add((items, lost > 0))
        logger.log(
            level,
            "dask-otel: %s accepted a request, but refused %d of its %d %s, with this message: %s. "
            "Refused ones are lost, because OTLP forbids sending them again; later messages are "
            "not logged, and losses only counted (dask.otel.dropped).",
            self.name,
            lost,
            count,
            items,
            answer.said,
        )

    def gave_up(self, sink: Sink, what: str) -> None:
        """Log the records that could not be exported before the end."""
        if not self._no_server:
            # Without a reason, there was no answer yet.
            why = f": {self.reason}" if sink in self._failing else f" within {self.within}"
            logger.log(
                max(logging.INFO, self._level(sink, self._kind or "absent") or 0),
                "dask-otel: %s could not be exported to %s%s",
                what,
                self.name,
                why,
            )

    def _level(self, sink: Sink, kind: str) -> int | None:
        """Return the log level of a failure: a warning for the first one of its kind.

        None if it is known, or if a similar one was logged recently.
        """
        with self._lock:
            now, new = time.monotonic(), sink not in self._failing
            self._failing.add(sink)
            if self._no_server:
                return None
            if kind in self._warned:
                return logging.DEBUG if new else None
            if now - self._warned_at.get(kind, -math.inf) < QUIET:
                return None
            self._warned.add(kind)
            self._warned_at[kind] = now
        return logging.WARNING

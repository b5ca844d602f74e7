"""Log records of workers: batches on a worker, log records of OpenTelemetry on the scheduler.

A worker sends its records as one blob of bytes, which costs the scheduler's event loop nothing to
read. A thread reads it here.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from pickletools import genops
from typing import Any, Final

from dask_otel import semconv
from dask_otel.core.figures import seconds
from dask_otel.core.records import ClusterEvent, SpanIdentity
from dask_otel.core.text import CUT, Sanitizer, attribute_text
from dask_otel.core.trace import Trace

#: The topic of workers' messages, and the fields of a message.
TOPIC: Final = "dask-otel-logs"
BLOB: Final = "blob"
RECORDS: Final = "records"
LEFT_OUT: Final = "left_out"
#: Facts: the scheduler's clock minus the worker's; the severity; the user's message.
OFFSET: Final = "offset"
SEVERITY: Final = "severity"
MESSAGE: Final = "message"
#: Most bytes and records of a message.
MOST_BYTES: Final = 32_768
MOST_RECORDS: Final = 100
#: Warnings and worse are sent at once, until so many messages were sent without a pause.
_AT_ONCE: Final = 5
#: The part of a message that is kept free for warnings and worse.
_FOR_URGENT: Final = 0.25

#: Characters of a body.
BODY_LIMIT: Final = 4096
#: Most bytes of a record's parts, which fit into a message together. A body has more characters
#: than are exported, if they take three bytes or less, so that its cut is counted.
_BODY_BYTES: Final = 13 * 1024
_STACK_BYTES: Final = 10 * 1024
_TEXT_BYTES: Final = 3 * 1024
_NAME_BYTES: Final = 1024
#: Seconds since the epoch; OTLP has 64 bits for nanoseconds.
_LATEST: Final = 2.0**33
#: Lines that are kept of a worker, their characters, and the workers.
LAST: Final = 5
_LAST_LIMIT: Final = 300
_LAST_WORKERS: Final = 1000

#: By a tenth of Python's level.
_SEVERITIES: Final = tuple(semconv.SEVERITIES)
_OF_ERROR: Final = (semconv.EXCEPTION_TYPE, semconv.EXCEPTION_MESSAGE, semconv.EXCEPTION_STACKTRACE)


class Rate:
    """Allows `per_second` on average, and `burst` at once."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._left, self._at = burst, -math.inf

    def allows(self, now: float, amount: float = 1.0, always: bool = False) -> bool:
        """Return whether there is room for an amount, and take it; or take it anyway."""
        passed = max(0.0, now - self._at)
        self._left = min(self._burst, self._left + passed * self._per_second)
        self._at = now
        if self._left < amount and not always:
            return False
        self._left -= amount
        return True


class LineBatch:
    """The records of a worker that wait for the next message, which follows after a second."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._size = self._left_out = 0
        self._rate = Rate(1.0, _AT_ONCE)
        #: Whether the next message has its time.
        self._planned = False

    def leave_out(self, urgent: bool) -> bool:
        """Return whether the batch is full; then the record is counted."""
        part = 1.0 if urgent else 1.0 - _FOR_URGENT
        full = len(self._lines) >= part * MOST_RECORDS or self._size >= part * MOST_BYTES
        self._left_out += full
        return full

    def add(self, line: bytes, urgent: bool, now: float) -> float | None:
        """Add a record; return the seconds until the next message, if they are to be planned.

        An empty one, which could not be written, is counted.
        """
        # Several threads may have found the last place.
        full = len(self._lines) >= MOST_RECORDS or self._size + len(line) + 2 > MOST_BYTES
        if full or not line:
            self._left_out += 1
        else:
            self._lines.append(line)
            self._size += len(line) + 1
            if urgent and self._rate.allows(now):
                return 0.0
        planned, self._planned = self._planned, True
        return None if planned else 1.0

    def take(self, now: float, planned: bool = True) -> dict[str, Any] | None:
        """Return the next message; None without records. `planned` is whether its time has come."""
        if planned:
            self._planned = False
            self._rate.allows(now, always=True)
        if not self._lines and not self._left_out:
            return None
        blob = b"[" + b",".join(self._lines) + b"]"
        message = {BLOB: blob, RECORDS: len(self._lines), LEFT_OUT: self._left_out}
        self._lines, self._size, self._left_out = [], 0, 0
        return message


def line(
    time: float,
    level: int,
    logger: str,
    text: str,
    key: str | None = None,
    ids: tuple[str, str, str] | None = None,
    error: tuple[str, str, str] | None = None,
) -> bytes:
    """Return the bytes of a log record.

    Parameters
    ----------
    time, level, logger, text
        As in Python's record, with the message as text.
    key
        The task's key.
    ids
        The current span: ids and flags as hex digits.
    error
        Type, message and stack trace of an exception.
    """
    return _json(
        (
            time,
            level,
            _cut(logger, _NAME_BYTES),
            # Twice the exported length: half a credential at the end would not be recognised.
            _cut(text[: 2 * BODY_LIMIT], _BODY_BYTES),
            key and _cut(key, _TEXT_BYTES),
            ids,
            error
            and (
                _cut(error[0], _NAME_BYTES),
                _cut(error[1], _TEXT_BYTES),
                # The last frames are at the end.
                _cut(error[2][::-1], _STACK_BYTES)[::-1],
            ),
        )
    )


def _json(value: object) -> bytes:
    # Escapes would take six bytes for most characters. A lone surrogate stays one.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _cut(text: str, most: int) -> str:
    """Return a text of at most `most` bytes in JSON; a truncated one ends in ``…``."""
    kept, room = text[:most], most - len(CUT.encode())
    while (size := len(_json(kept))) > room:
        kept = kept[: len(kept) * room // size]
    return text if len(kept) == len(text) else kept + CUT


def lines_of(event: ClusterEvent) -> Iterator[ClusterEvent]:
    """Yield an event for each record of a worker's message; an odd one is a text as it is."""
    facts, now = event.facts, event.time - event.facts.get(OFFSET, 0.0)
    lines = json.loads(facts[BLOB]) if BLOB in facts else [_forwarded(now, facts)]
    for one in lines[: event.weight]:
        try:
            yield _event(event, one)
        except (TypeError, ValueError, ArithmeticError):
            yield _event(event, [now, 20, TOPIC, one, None, None, None])


def _event(event: ClusterEvent, record: list[Any]) -> ClusterEvent:
    time, level, logger, text, key, ids, error = record
    at = time + event.facts.get(OFFSET, 0.0)
    facts = {
        **{name: event.facts[name] for name in (semconv.WORKER_NAME, semconv.WORKER_ADDRESS)},
        # Levels can be any numbers.
        SEVERITY: _SEVERITIES[int(min(5, max(1, level / 10))) - 1],
        MESSAGE: text,
        semconv.LOG_LOGGER: logger,
        semconv.TASK_KEY: key,
        **dict(zip(_OF_ERROR, error or (), strict=False)),
    }
    work: tuple[SpanIdentity, ...] = ()
    if ids is not None:
        trace_id, span_id, flags = (int(digits, 16) for digits in ids)
        trace = Trace(trace_id)
        trace.sampled = bool(flags & 1)
        work = (SpanIdentity("", "", (), 1, trace, span_id, None),)
    return ClusterEvent(at if 0 <= at < _LATEST else event.time, event.name, facts, work)


def _forwarded(time: float, facts: Mapping[str, Any]) -> list[Any]:
    """Return the line of a task that used Dask's `print` or `warn`."""
    message = facts[MESSAGE]
    if "args" in message:
        separator = " " if message["sep"] is None else str(message["sep"])
        text = separator.join(map(str, message["args"]))
        return [time, 20, "print", text, None, None, None]
    # A pickle: the last text in it is the warning's; unpickling would run code.
    texts = [text for _, text, _ in genops(message["message"]) if isinstance(text, str)]
    return [time, 30, "py.warnings", texts[-1], None, None, None]


class LastLines:
    """The last lines of workers by address, as they are exported."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[tuple[float, str]]] = {}

    def add(self, event: ClusterEvent, text: str) -> None:
        """Add a line; if there are too many workers, the one that began first is forgotten."""
        address = event.facts[semconv.WORKER_ADDRESS]
        if address not in self._lines and len(self._lines) >= _LAST_WORKERS:
            del self._lines[next(iter(self._lines))]
        kept = self._lines.setdefault(address, deque(maxlen=LAST))
        kept.append((event.time, attribute_text(text, Sanitizer(), _LAST_LIMIT)))

    def ended(self, event: ClusterEvent) -> list[str]:
        """Return the lines of a worker that ended, with the seconds before its end."""
        lines = self._lines.pop(event.facts[semconv.WORKER_ADDRESS], ())
        return [f"{seconds(max(0.0, event.time - time))} before: {text}" for time, text in lines]

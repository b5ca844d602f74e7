"""Trace context as text, for the way with a submission.

The form is always W3C Trace Context, whatever propagators an application has configured, because
both ends are ours. Anything can arrive: nothing here raises.

Sources of the rules: W3C Trace Context (level 1 and 2) and W3C Baggage.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote_plus

from dask_otel.core.identity import span_id, trace_id

#: Annotation with the caller's context, from the client to the scheduler: a dict of strings with
#: `TRACEPARENT`, and optionally `TRACESTATE`, `BAGGAGE` and `NESTED`.
CARRIER_KEY: Final = "dask_otel.context"
#: Annotation with the scheduler's decision for a task, to its worker: a traceparent.
DECISION_KEY: Final = "dask_otel.span"
#: Annotation with the caller's tracestate, to the worker.
STATE_KEY: Final = "dask_otel.state"

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"
#: Marks a carrier from inside of a task.
NESTED: Final = "nested"

#: Limits in characters: of a tracestate, of an entry in it, and of a baggage.
MAX_STATE: Final = 512
_LONG_ENTRY: Final = 128
#: Longer strings are ignored.
_HUGE: Final = 65_536
MAX_BAGGAGE: Final = 8192

_SAMPLED: Final = 0x01
#: The flag of a trace with a random id; it is propagated with the trace.
RANDOM: Final = 0x02
#: Characters of a traceparent of version 00, and a limit for later versions.
_LENGTH: Final = 55
_LONGEST: Final = 512
_TRACEPARENT: Final = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?",
    re.DOTALL | re.ASCII,
)
_HEADER: Final = re.compile(r"[\x20-\x7e\t]*", re.ASCII)


class Traceparent(NamedTuple):
    """A span's identity in W3C Trace Context."""

    trace_id: int
    span_id: int
    flags: int = 0

    @property
    def sampled(self) -> bool:
        """Whether the caller recorded it."""
        return bool(self.flags & _SAMPLED)


class Caller(NamedTuple):
    """The content of a carrier."""

    parent: Traceparent
    #: A valid header value; empty if there is none.
    state: str = ""
    baggage: str = ""
    #: Whether the user opened the span inside of a task.
    nested: bool = False


def parse_traceparent(text: object) -> Traceparent | None:
    """Return the span of a traceparent; None if it is invalid.

    Versions after 00 are read like 00, as W3C Trace Context specifies.
    """
    if not isinstance(text, str) or not _LENGTH <= len(text) <= _LONGEST:
        return None
    found = _TRACEPARENT.fullmatch(text)
    if found is None or found["version"] == "ff" or (found["version"] == "00" and found["more"]):
        return None
    trace_id, span_id = int(found["trace"], 16), int(found["span"], 16)
    if not trace_id or not span_id:
        return None
    return Traceparent(trace_id, span_id, int(found["flags"], 16))


def computed(dask_id: str, root_id: str) -> Traceparent:
    """Return a span's context where nothing was decided: the first generation, sampled."""
    return Traceparent(trace_id(root_id), span_id(dask_id), _SAMPLED)


def format_traceparent(parent: Traceparent) -> str:
    """Return the text of version 00, 55 characters."""
    return f"00-{parent.trace_id:032x}-{parent.span_id:016x}-{parent.flags & 0xFF:02x}"


def bounded_tracestate(text: object) -> str:
    """Return a tracestate cut to its limit by whole entries; empty if there is none.

    Long entries are dropped first, then the last ones, as W3C Trace Context specifies.
    """
    return _bounded(text, MAX_STATE, _LONG_ENTRY)


def bounded_baggage(text: object) -> str:
    """Return a baggage without its last entries beyond the limit."""
    return _bounded(text, MAX_BAGGAGE, _HUGE)


def _bounded(text: object, limit: int, longest: int) -> str:
    if not isinstance(text, str) or len(text) > _HUGE or not _HEADER.fullmatch(text):
        return ""
    if len(text) <= limit:
        return text
    kept, length = [], -1
    for entry in [entry for entry in text.split(",") if len(entry) <= longest]:
        length += 1 + len(entry)
        if length > limit:
            break
        kept.append(entry)
    return ",".join(kept)


def baggage_entries(text: str, wanted: Container[str]) -> dict[str, str]:
    """Return the wanted entries of a baggage, decoded; the last one of a repeated key.

    Properties after a semicolon are ignored. ``+`` may mean a space, as in OpenTelemetry's
    propagator for Python.
    """
    found = {}
    for member in text.split(","):
        key, equals, value = member.partition(";")[0].partition("=")
        key = unquote_plus(key).strip()
        if equals and key in wanted:
            found[key] = unquote_plus(value).strip()
    return found


def make_carrier(caller: Caller) -> dict[str, str]:
    """Return the carrier of a caller, within all limits."""
    carrier = {
        TRACEPARENT: format_traceparent(caller.parent),
        TRACESTATE: bounded_tracestate(caller.state),
        BAGGAGE: bounded_baggage(caller.baggage),
        NESTED: "1" if caller.nested else "",
    }
    return {name: value for name, value in carrier.items() if value}


def read_carrier(value: object) -> Caller | None:
    """Return the content of a carrier; None for garbage.

    Parameters
    ----------
    value
        The annotation `CARRIER_KEY`; a client of any version or a user can put anything there.
    """
    if not isinstance(value, Mapping):
        return None
    try:
        parent = parse_traceparent(value.get(TRACEPARENT))
        if parent is None:
            return None
        return Caller(
            parent,
            bounded_tracestate(value.get(TRACESTATE)),
            bounded_baggage(value.get(BAGGAGE)),
            isinstance(nested := value.get(NESTED), str) and nested == "1",
        )
    except Exception:  # noqa: BLE001 - a mapping of the user's, with code of its own
        return None


def caller_dask_id(parent: Traceparent) -> str:
    """Return the Dask span id of work with a caller's span, but without a Dask span.

    It is a string, as Dask requires, and the same for all work under that span.
    """
    return f"caller-{parent.trace_id:032x}-{parent.span_id:016x}"

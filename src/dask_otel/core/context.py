"""The trace context that travels with a task: the keys of its annotations, and W3C's text.

Two annotations, both Dask's own plain dicts and texts, under keys that nobody else has: what the
caller's propagators wrote, from the client, and what the scheduler decided, for the worker.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

#: Annotation: what the caller's propagators wrote, a dict of texts.
CARRIER_KEY: Final = "dask_otel.context"
#: Annotation: the traceparent of the span that a task belongs to, as the scheduler decided it.
DECISION_KEY: Final = "dask_otel.span"
#: Annotation: the tracestate that goes with it, where the caller had one.
STATE_KEY: Final = "dask_otel.state"

#: Characters of a tracestate; W3C asks for at least 512 to be passed on.
MAX_STATE: Final = 512
#: Characters of a baggage; W3C's own limit is 8192 bytes.
MAX_BAGGAGE: Final = 8192

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Traceparent(NamedTuple):
    """W3C's traceparent. No id is 0."""

    trace_id: int
    span_id: int
    #: Test the bits: 01 is sampled, 03 sampled with a random trace id.
    flags: int


def parse_traceparent(text: object) -> Traceparent | None:
    """Return what a traceparent says; None if it is not a valid one.

    As W3C's text has it: version ff is invalid, other versions than 00 may have more at the end.
    """
    if not isinstance(text, str) or len(text) > MAX_STATE:
        return None
    found = _PARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more):
        return None
    parsed = Traceparent(int(trace_id, 16), int(span_id, 16), int(flags, 16))
    return parsed if parsed.trace_id and parsed.span_id else None


def format_traceparent(tp: Traceparent) -> str:
    """Return the text of a traceparent, in version 00."""
    return f"00-{tp.trace_id:032x}-{tp.span_id:016x}-{tp.flags & 0xFF:02x}"

"""The current OpenTelemetry context: what it is made of, and what it says."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    TraceState,
    get_current_span,
    set_span_in_context,
)

from dask_otel.core.context import Traceparent

__all__ = ["Context", "Ids", "attach", "current_ids", "detach", "get_current", "remote_parent"]

_BAGGAGE = W3CBaggagePropagator()


def remote_parent(
    parent: Traceparent, state: str | None = None, baggage: str | None = None
) -> Context:
    """Return a context in which a span of another process is the current one.

    The span records nothing, and needs no provider: it is a parent for what the user's own makes.

    Parameters
    ----------
    parent
        The span.
    state
        Its W3C tracestate; what is not valid is left out.
    baggage
        W3C baggage of the caller.
    """
    span = NonRecordingSpan(
        SpanContext(
            parent.trace_id,
            parent.span_id,
            is_remote=True,
            trace_flags=TraceFlags(parent.flags),
            trace_state=None if state is None else TraceState.from_header([state]),
        )
    )
    # Not laid over what is current: that is of whoever started the worker.
    context = set_span_in_context(span, Context())
    if baggage is not None:
        context = _BAGGAGE.extract({"baggage": baggage}, context)
    return context


class Ids(NamedTuple):
    """The current span's ids, as texts of hex digits."""

    trace_id: str
    span_id: str
    flags: str


def current_ids() -> Ids | None:
    """Return the ids of the current span; None where there is none."""
    span = get_current_span().get_span_context()
    return _texts(span.trace_id, span.span_id, span.trace_flags) if span.is_valid else None


@lru_cache(256)
def _texts(trace_id: int, span_id: int, flags: int) -> Ids:
    return Ids(f"{trace_id:032x}", f"{span_id:016x}", f"{flags & 0xFF:02x}")

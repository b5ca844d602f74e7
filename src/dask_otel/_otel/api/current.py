"""The current OpenTelemetry context: makes one for a parent span, and reads its ids."""

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

__all__ = [
    "Context",
    "Ids",
    "attach",
    "current_ids",
    "detach",
    "get_current",
    "remote_child",
    "remote_parent",
]

_BAGGAGE = W3CBaggagePropagator()


def remote_parent(
    parent: Traceparent,
    state: str | None = None,
    baggage: str | None = None,
    *,
    is_remote: bool = True,
) -> Context:
    """Return a context in which a span of another process is the current one.

    The span records nothing and needs no provider: it is a parent for the spans of the user's own
    provider.

    Parameters
    ----------
    parent
        The span.
    state
        Its W3C tracestate; invalid parts are left out.
    baggage
        W3C baggage of the caller.
    is_remote
        False for a span of this process.
    """
    span = NonRecordingSpan(
        SpanContext(
            parent.trace_id,
            parent.span_id,
            is_remote=is_remote,
            trace_flags=TraceFlags(parent.flags),
            trace_state=_parsed(state) if state else None,
        )
    )
    # Not based on the current context, which belongs to the process that started the worker.
    context = set_span_in_context(span, Context())
    if baggage is not None:
        context = _BAGGAGE.extract({"baggage": baggage}, context)
    return context


@lru_cache(256)
def _parsed(state: str) -> TraceState:
    # Cached, because OpenTelemetry logs a warning about an invalid one each time.
    return TraceState.from_header([state])


def remote_child(context: Context, parent: int, child: int) -> Context:
    """Return the context of a child of the current span; another process exports the child.

    Parameters
    ----------
    context
        Returned unchanged if its current span is not the parent.
    parent, child
        Span ids.
    """
    span = get_current_span(context).get_span_context()
    if span.span_id != parent:
        return context
    ids = SpanContext(span.trace_id, child, True, span.trace_flags, span.trace_state)
    return set_span_in_context(NonRecordingSpan(ids), context)


class Ids(NamedTuple):
    """The current span's ids, as hex digits."""

    trace_id: str
    span_id: str
    flags: str


def current_ids() -> Ids | None:
    """Return the ids of the current span; None if there is none."""
    span = get_current_span().get_span_context()
    return _texts(span.trace_id, span.span_id, span.trace_flags) if span.is_valid else None


@lru_cache(256)
def _texts(trace_id: int, span_id: int, flags: int) -> Ids:
    return Ids(f"{trace_id:032x}", f"{span_id:016x}", f"{flags & 0xFF:02x}")

"""The caller's context: the current span, its tracestate and the baggage.

The configured propagators decide *whether* the trace context and the baggage travel. The form is
always W3C's, since both ends are ours: with ``OTEL_PROPAGATORS=b3`` the trace continues, and the
scheduler needs no propagator.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

from opentelemetry.context import Context, get_current
from opentelemetry.trace import INVALID_SPAN, Span, get_current_span

from dask_otel._log import logger
from dask_otel._otel.api.current import remote_parent
from dask_otel.core.context import BAGGAGE, TRACESTATE, Caller, Traceparent, parse_traceparent


@cache
def _propagators() -> tuple[Callable[..., None], Callable[[], object]]:
    """Return two functions: one writes a context into a carrier, one returns the propagators.

    If a propagator in ``OTEL_PROPAGATORS`` is not installed, OpenTelemetry raises at each import:
    then W3C's is used.
    """
    try:
        from opentelemetry import propagate
    except Exception as error:  # noqa: BLE001 - whatever a propagator raises
        logger.warning(
            "dask-otel cannot load the propagators of OTEL_PROPAGATORS=%s and uses W3C's "
            "tracecontext instead: %s",
            os.environ.get("OTEL_PROPAGATORS"),
            error,
        )
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        return TraceContextTextMapPropagator().inject, lambda: None
    # Look the propagators up each time: an application may set others.
    return propagate.inject, propagate.get_global_textmap


def _written(context: Context | None = None) -> dict[str, str]:
    """Return the propagators' carrier for a context, by default the current one."""
    carrier: dict[str, str] = {}
    _propagators()[0](carrier, context)
    return carrier


def state() -> tuple[Context, object]:
    """Return two objects: while both are the same, so are `active_span` and `caller_of`."""
    return get_current(), _propagators()[1]()


def active_span() -> Span | None:
    """Return the current span of this context; None if there is none."""
    span = get_current_span()
    return span if span is not INVALID_SPAN and span.get_span_context().is_valid else None


def identity_of(span: Span) -> tuple[object, object]:
    """Return two objects: while both are the same, `caller_of` returns the same.

    Except for the baggage, which is not part of the span.
    """
    return span.get_span_context(), _propagators()[1]()


def parent_of(span: Span) -> Traceparent:
    """Return the ids and flags of a span."""
    context = span.get_span_context()
    return Traceparent(context.trace_id, context.span_id, int(context.trace_flags))


def caller_of(span: Span, baggage: bool) -> Caller | None:
    """Return the current span with the tracestate and baggage that the propagators allow.

    Parameters
    ----------
    span
        The result of `active_span`.
    baggage
        Whether baggage travels at all.

    Returns
    -------
    caller
        None if the configured propagators send no trace context
        (``OTEL_PROPAGATORS=none``, or only ``baggage``).
    """
    written = _written()
    carried = written.pop(BAGGAGE, "")
    if not written:
        return None
    return Caller(parent_of(span), written.get(TRACESTATE, ""), carried if baggage else "")


def name_of(span: Span | None) -> str:
    """Return the span's name, if it has one, as an SDK's spans do; else ``traced``."""
    name = getattr(span, "name", None)
    return name if isinstance(name, str) and name else "traced"


def environment_caller() -> Caller | None:
    """Return the caller in the environment; None if there is none.

    Batch systems, CI and shell steps pass their context in ``TRACEPARENT`` and ``TRACESTATE``,
    OpenTelemetry's environment variable carriers.
    """
    text = os.environ.get("TRACEPARENT", "").strip()
    if not text:
        return None
    parent = parse_traceparent(text)
    if parent is None:
        logger.warning("dask-otel ignores TRACEPARENT, which is not valid: %.100r", text)
        return None
    if not _written(remote_parent(parent)).keys() - {BAGGAGE}:
        return None
    return Caller(parent, os.environ.get("TRACESTATE", ""))

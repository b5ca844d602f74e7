"""The context of whoever is calling: the span that is current, and what travels with it.

The configured propagators decide *whether* the trace context and the baggage travel; the form
is W3C's whatever theirs is, as both ends are ours: with ``OTEL_PROPAGATORS=b3`` the trace goes
on, and the scheduler needs no propagator.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final, Protocol

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    Span,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from dask_otel.core.context import BAGGAGE, TRACESTATE, Caller, Traceparent, parse_traceparent

logger = logging.getLogger("distributed.dask_otel")

#: OpenTelemetry's environment variable carriers.
ENVIRONMENT_TRACEPARENT: Final = "TRACEPARENT"
ENVIRONMENT_TRACESTATE: Final = "TRACESTATE"

#: What a span is called that does not say its name.
NAMELESS: Final = "traced"


class _Inject(Protocol):
    """Writes what the propagators make of a context, by default of the current one."""

    def __call__(self, carrier: dict[str, str], context: Context | None = None) -> None:
        """Write into the carrier."""


def _w3c() -> _Inject:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().inject


def _configured() -> tuple[_Inject, Callable[[], object]]:
    """Return what writes a context; W3C's where the configured propagators are missing.

    OpenTelemetry raises at import, and again at each further one, if a propagator that
    ``OTEL_PROPAGATORS`` names is not installed.
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
        return _w3c(), lambda: None
    # It looks the propagators up each time: an application may set others.
    return propagate.inject, propagate.get_global_textmap


class _Propagators:
    """The configured propagators, loaded when they are first needed."""

    def __init__(self) -> None:
        self._loaded: tuple[_Inject, Callable[[], object]] | None = None

    def load(self) -> tuple[_Inject, Callable[[], object]]:
        """Return what writes a context, and what says which propagators these are now."""
        if self._loaded is None:
            self._loaded = _configured()
        return self._loaded

    def write(self, context: Context | None = None) -> dict[str, str]:
        """Return what they make of a context."""
        carrier: dict[str, str] = {}
        self.load()[0](carrier, context)
        return carrier

    def current(self) -> object:
        """Return something that changes when the propagators do."""
        return self.load()[1]()


_propagators = _Propagators()


def prepare() -> None:
    """Load the configured propagators now, and not with the first submission."""
    _propagators.load()


def active_span() -> Span | None:
    """Return the span that is current in this context; None if there is none."""
    span = get_current_span()
    if span is INVALID_SPAN or not span.get_span_context().is_valid:
        return None
    return span


def identity_of(span: Span) -> tuple[object, object]:
    """Return two objects that, while both are the same, make `caller_of` say the same.

    But for the baggage, which is no part of the span.
    """
    return span.get_span_context(), _propagators.current()


def parent_of(span: Span) -> Traceparent:
    """Return which span it is."""
    context = span.get_span_context()
    return Traceparent(context.trace_id, context.span_id, int(context.trace_flags))


def caller_of(span: Span, baggage: bool) -> Caller | None:
    """Return what travels with the current span.

    Parameters
    ----------
    span
        What `active_span` gave.
    baggage
        Whether baggage travels at all.

    Returns
    -------
    caller
        None where the configured propagators let no trace context travel
        (``OTEL_PROPAGATORS=none``, or ``baggage`` alone).
    """
    written = _propagators.write()
    carried = written.pop(BAGGAGE, "")
    if not written:
        return None
    return Caller(parent_of(span), written.get(TRACESTATE, ""), carried if baggage else "")


def name_of(span: Span | None) -> str:
    """Return the span's name where it tells one: spans of an SDK do."""
    name = getattr(span, "name", None)
    return name if isinstance(name, str) and name else NAMELESS


def environment_caller() -> Caller | None:
    """Return the caller that the environment names; None if there is none.

    Batch systems, CI and shell steps hand their context over in ``TRACEPARENT`` and
    ``TRACESTATE``.
    """
    text = os.environ.get(ENVIRONMENT_TRACEPARENT)
    if text is None:
        return None
    parent = parse_traceparent(text.strip())
    if parent is None:
        logger.warning("dask-otel ignores TRACEPARENT, which is not valid: %.100r", text)
        return None
    span = NonRecordingSpan(
        SpanContext(parent.trace_id, parent.span_id, True, TraceFlags(parent.flags))
    )
    if not _propagators.write(set_span_in_context(span, Context())).keys() - {BAGGAGE}:
        return None
    return Caller(parent, os.environ.get(ENVIRONMENT_TRACESTATE, ""))

"""Sampling, for whole traces."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from dask_otel import semconv
from dask_otel.core.records import SpanRecord
from dask_otel.core.text import Sanitizer, attribute_text
from dask_otel.core.trace import Trace

KINDS: Final = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
NOT_SAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)


class TraceSampler:
    """Decides for whole traces, with a sampler of the SDK. Any thread may call it.

    A root's part of a trace is decided once, and the decision kept with its `Trace`, for as long as
    that is known: by the trace's id, the root's name, and the caller where it has one, which are
    known from the start. So a sampler that goes by its parent, as the default one does, honours
    the caller's decision. The other spans follow as the sampler sees fit.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._lock = threading.Lock()

    def decides(self, trace: Trace) -> bool:
        """Return whether a root's part of a trace is sampled."""
        if trace.sampled is None:
            with self._lock:
                if trace.sampled is None:
                    trace.sampled = self._ask(trace)
        return trace.sampled

    def exemplar(self, trace_id: int) -> bool:
        """Return whether an exemplar may point to the trace."""
        return self.decides(Trace.of(trace_id, ""))

    def span(self, record: SpanRecord) -> bool:
        """Return whether the span is sampled."""
        trace = trace_of(record)
        decided = self.decides(trace)
        if is_local_root(record):
            return decided
        result = self._sampler.should_sample(
            self.parent(record),
            record.trace_id,
            record.name,
            KINDS[record.kind],
            record.attributes,
            (),
        )
        return result.decision is Decision.RECORD_AND_SAMPLE

    def parent(self, record: SpanRecord) -> Context:
        """Return a context with the span's parent, sampled or not as its trace is."""
        trace = trace_of(record)
        if is_local_root(record):
            return caller_of(trace)
        assert record.parent_span_id is not None
        flags = SAMPLED if self.decides(trace) else NOT_SAMPLED
        parent = SpanContext(
            int(trace), record.parent_span_id, record.remote_parent, flags, state_of(trace)
        )
        return set_span_in_context(NonRecordingSpan(parent), Context())

    def _ask(self, trace: Trace) -> bool:
        name = attribute_text(trace.name, Sanitizer()) or semconv.EMPTY
        result = self._sampler.should_sample(
            caller_of(trace), int(trace), name, SpanKind.SERVER, {}, ()
        )
        return result.decision is Decision.RECORD_AND_SAMPLE


def trace_of(record: SpanRecord) -> Trace:
    """Return the record's trace, with what was decided for it."""
    return Trace.of(record.trace_id, record.root_name)


def is_local_root(record: SpanRecord) -> bool:
    """Whether nothing of ours is above the span in its trace."""
    if record.parent_span_id is None:
        return True
    caller = trace_of(record).caller
    return caller is not None and caller.span_id == record.parent_span_id


def state_of(trace: Trace) -> TraceState | None:
    """Return the caller's tracestate, which its trace goes on with."""
    return _parsed(trace.state) if trace.state else None


@lru_cache(256)
def _parsed(state: str) -> TraceState:
    # Kept, for the SDK logs a warning about one that is not valid, each time.
    return TraceState.from_header([state])


def caller_of(trace: Trace) -> Context:
    """Return a context with the caller's span; an empty one where there is none."""
    caller = trace.caller
    if caller is None:
        return Context()
    parent = SpanContext(
        caller.trace_id, caller.span_id, True, TraceFlags(caller.flags), state_of(trace)
    )
    return set_span_in_context(NonRecordingSpan(parent), Context())


def make_sampler(resource: Resource) -> TraceSampler:
    """Return the sampler that ``OTEL_TRACES_SAMPLER`` names."""
    # A provider that processes nothing: the public way to the SDK's parsed sampler.
    return TraceSampler(TracerProvider(resource=resource, shutdown_on_exit=False).sampler)

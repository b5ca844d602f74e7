"""Sampling, for whole traces."""

from __future__ import annotations

import threading
from collections import OrderedDict
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
    set_span_in_context,
)

from dask_otel.core.records import SpanRecord

KINDS: Final = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
NOT_SAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)
#: Traces whose decision is remembered.
_MAX_DECISIONS: Final = 4096


class TraceSampler:
    """Decides for whole traces, with a sampler of the SDK. Any thread may call it.

    A trace is decided by its id and its root's name alone, which are known from the start;
    its spans follow the parent's decision as the sampler sees fit.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._decisions: OrderedDict[int, bool] = OrderedDict()
        self._lock = threading.Lock()

    def trace(self, trace_id: int, root_name: str) -> bool:
        """Return whether the trace is sampled."""
        with self._lock:
            decided = self._decisions.get(trace_id)
            if decided is None:
                decided = self._ask(trace_id, root_name)
                self._decisions[trace_id] = decided
                if len(self._decisions) > _MAX_DECISIONS:
                    self._decisions.popitem(last=False)
            return decided

    def exemplar(self, trace_id: int) -> bool:
        """Return whether an exemplar may point to the trace.

        The root's name is not known here: what is found is not remembered, so that a sampler
        that goes by names decides about the trace itself.
        """
        with self._lock:
            decided = self._decisions.get(trace_id)
            return self._ask(trace_id, "") if decided is None else decided

    def span(self, record: SpanRecord) -> bool:
        """Return whether the span is sampled."""
        if record.parent_span_id is None:
            return self.trace(record.trace_id, record.root_name)
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
        if record.parent_span_id is None:
            return Context()
        flags = SAMPLED if self.trace(record.trace_id, record.root_name) else NOT_SAMPLED
        parent = SpanContext(record.trace_id, record.parent_span_id, False, flags)
        return set_span_in_context(NonRecordingSpan(parent), Context())

    def _ask(self, trace_id: int, root_name: str) -> bool:
        result = self._sampler.should_sample(
            Context(), trace_id, root_name, SpanKind.SERVER, {}, ()
        )
        return result.decision is Decision.RECORD_AND_SAMPLE


def make_sampler(resource: Resource) -> TraceSampler:
    """Return the sampler that ``OTEL_TRACES_SAMPLER`` names."""
    # A provider that processes nothing: the public way to the SDK's parsed sampler.
    return TraceSampler(TracerProvider(resource=resource, shutdown_on_exit=False).sampler)

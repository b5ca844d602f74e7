"""Sampling, for whole traces."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from queue import Empty, SimpleQueue
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import (
    DEFAULT_ON,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    StaticSampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from dask_otel import semconv
from dask_otel._otel.sdk.transport import uninstrumented
from dask_otel.core.records import SpanRecord
from dask_otel.core.text import Sanitizer, attribute_text
from dask_otel.core.trace import Trace

logger = logging.getLogger("distributed.dask_otel")

#: Seconds to wait for a sampler that is not the SDK's, and to leave it alone after it was late: so
#: it costs the event loop a hundredth of its time at most.
PATIENCE: Final = 0.02
REST: Final = 2.0
#: Seconds without a question after which its thread ends.
_IDLE: Final = 10.0

KINDS: Final = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class _Question:
    """A trace for a sampler to decide, and its answer."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.sampled: bool | None = None
        self.problem = f"gave no answer within {PATIENCE:g} s"
        self.answered = threading.Event()


class _Apart:
    """A thread that asks a sampler of somebody else's: it may take its time, or hang.

    It has one question at a time, and ends when there was none for a while.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._questions = SimpleQueue[_Question]()
        self._last: _Question | None = None
        self._rest_until = 0.0
        self._lock = threading.Lock()
        self._runs = False

    def ask(self, trace: Trace) -> _Question | None:
        """Ask, and wait a moment; None where the sampler is busy, or left alone."""
        busy = self._last is not None and not self._last.answered.is_set()
        if busy or time.monotonic() < self._rest_until:
            return None
        question = self._last = _Question(trace)
        with self._lock:
            self._questions.put(question)
            # Where there is no room for one more thread, there is no answer either.
            with suppress(RuntimeError):
                if not self._runs:
                    # A daemon: one that hangs must not hold up the end of the process.
                    threading.Thread(
                        target=self._answer, name="dask-otel-sampler", daemon=True
                    ).start()
                    self._runs = True
        if not question.answered.wait(PATIENCE):
            self._rest_until = time.monotonic() + REST
        return question

    def _answer(self) -> None:
        with uninstrumented():
            while (question := self._next()) is not None:
                try:
                    question.sampled = _ask(self._sampler, question.trace)
                except BaseException as error:
                    question.problem = f"raised {type(error).__name__}"
                    logger.debug("dask-otel: the sampler raised", exc_info=True)
                question.answered.set()

    def _next(self) -> _Question | None:
        while True:
            with suppress(Empty):
                return self._questions.get(timeout=_IDLE)
            with self._lock:
                if self._questions.empty():
                    self._runs = False
                    return None


def _ask(sampler: Sampler, trace: Trace) -> bool:
    name = attribute_text(trace.name, Sanitizer()) or semconv.EMPTY
    result = sampler.should_sample(caller_of(trace), int(trace), name, SpanKind.SERVER, {}, ())
    return result.decision is Decision.RECORD_AND_SAMPLE


def _is_prompt(sampler: object) -> bool:
    """Whether a sampler is one of the SDK's that only calculate, with all that it asks."""
    if type(sampler) in (ParentBased, ParentBasedTraceIdRatio):
        return all(map(_is_prompt, vars(sampler).values()))
    return type(sampler) in (StaticSampler, TraceIdRatioBased)


class TraceSampler:
    """Decides for whole traces, with a sampler of the SDK. Any thread may call it.

    A root's part of a trace is decided once, and the decision kept with its `Trace`, for as long as
    that is known: by the trace's id, the root's name, and the caller where it has one, which are
    known from the start. So a sampler that goes by its parent, as the default one does, honours
    the caller's decision. All spans of that part follow.

    A sampler that is not the SDK's is asked in a thread of its own. Where it gives no answer in
    time, the default one's is the decision, and a late answer changes nothing.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._apart = None if _is_prompt(sampler) else _Apart(sampler)
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def decides(self, trace: Trace) -> bool:
        """Return whether a root's part of a trace is sampled."""
        if trace.sampled is None:
            with self._lock:
                if trace.sampled is None:
                    trace.sampled = self._decide(trace)
        return trace.sampled

    def exemplar(self, trace_id: int) -> bool:
        """Return whether an exemplar may point to the trace."""
        return self.decides(Trace.of(trace_id, ""))

    def span(self, record: SpanRecord) -> bool:
        """Return whether the span is sampled: as its root."""
        return self.decides(trace_of(record))

    def _decide(self, trace: Trace) -> bool:
        if self._apart is None:
            return _ask(self._sampler, trace)
        question = self._apart.ask(trace)
        sampled = None if question is None else question.sampled
        if sampled is not None:
            return sampled
        if question is not None and question.problem not in self._told:
            self._told.add(question.problem)
            logger.warning(
                "dask-otel: the sampler %s %s; where it does not answer, traces are sampled as by "
                "OpenTelemetry's default one (parentbased_always_on)",
                type(self._sampler).__name__,
                question.problem,
            )
        return trace.sampled_by_default


def parent_of(record: SpanRecord) -> Context:
    """Return a context with the parent of a span that is sampled."""
    trace = trace_of(record)
    if is_local_root(record):
        return caller_of(trace)
    assert record.parent_span_id is not None
    parent = SpanContext(
        int(trace),
        record.parent_span_id,
        record.remote_parent,
        flags_of(trace),
        state_of(trace),
    )
    return set_span_in_context(NonRecordingSpan(parent), Context())


def flags_of(trace: Trace) -> TraceFlags:
    """Return the flags of a trace that is sampled."""
    return TraceFlags(trace.flags(sampled=True))


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


def _load_sampler(entry: EntryPoint) -> Sampler:
    try:
        sampler = entry.load()(os.environ.get("OTEL_TRACES_SAMPLER_ARG"))
        if isinstance(sampler, Sampler):
            return sampler
        problem = f"it is a {type(sampler).__name__}"
    except (Exception, SystemExit) as error:
        problem = repr(error)
    logger.warning(
        "dask-otel: OTEL_TRACES_SAMPLER names %r, and that sampler could not be made (%s); "
        "OpenTelemetry's default one is used (parentbased_always_on)",
        entry.name,
        problem,
    )
    return DEFAULT_ON


def make_sampler(resource: Resource) -> TraceSampler:
    """Return the sampler that ``OTEL_TRACES_SAMPLER`` names: the SDK's, or a package's."""
    name = os.environ.get("OTEL_TRACES_SAMPLER", "").strip()
    for entry in entry_points(group="opentelemetry_traces_sampler", name=name):
        if entry.module != Sampler.__module__:
            return TraceSampler(_load_sampler(entry))
    # A provider that processes nothing: the public way to the SDK's parsed sampler.
    return TraceSampler(TracerProvider(resource=resource, shutdown_on_exit=False).sampler)

"""Sampling of whole traces."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer  # another class on Python 3.10
from contextlib import suppress
from functools import partial
from importlib.metadata import EntryPoint
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    StaticSampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import (
    SpanKind,
    TraceFlags,
)

from dask_otel import semconv
from dask_otel._log import logger
from dask_otel._otel.api.current import remote_parent
from dask_otel._otel.sdk.environment import first_set, mistaken, variables
from dask_otel._otel.sdk.transport import uninstrumented
from dask_otel._version import entry_points
from dask_otel.core.context import Traceparent
from dask_otel.core.records import SpanRecord
from dask_otel.core.text import Sanitizer, attribute_text
from dask_otel.core.trace import Trace
from dask_otel.pump.thread import apart, promptly

#: Seconds to wait for a sampler that is not the SDK's, and to pause after a late answer: so it
#: takes at most a hundredth of the event loop's time.
PATIENCE: Final = 0.02
REST: Final = 2.0

SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)

_VARIABLE, _ARGUMENT = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
#: What happens without the one that it names.
_INSTEAD: Final = "OpenTelemetry's default sampler is used (parentbased_always_on)"
#: What installed packages register their samplers in.
_GROUP: Final = "opentelemetry_traces_sampler"
#: The SDK's samplers, by their names in the specification.
_STATIC: Final[dict[str, Sampler]] = {
    "always_on": ALWAYS_ON,
    "always_off": ALWAYS_OFF,
    "parentbased_always_on": DEFAULT_ON,
    "parentbased_always_off": DEFAULT_OFF,
}
_BY_SHARE: Final[dict[str, Callable[[float], Sampler]]] = {
    "traceidratio": TraceIdRatioBased,
    "parentbased_traceidratio": ParentBasedTraceIdRatio,
}


def _ask(sampler: Sampler, trace: Trace) -> bool:
    name = attribute_text(trace.name, Sanitizer()) or semconv.EMPTY
    with uninstrumented():
        result = sampler.should_sample(caller_of(trace), int(trace), name, SpanKind.SERVER, {}, ())
    return result.decision is Decision.RECORD_AND_SAMPLE


def _is_prompt(sampler: object) -> bool:
    """Whether a sampler and all its inner samplers are the SDK's and only calculate."""
    if type(sampler) in (ParentBased, ParentBasedTraceIdRatio):
        return all(map(_is_prompt, vars(sampler).values()))
    return type(sampler) in (StaticSampler, TraceIdRatioBased)


class TraceSampler:
    """Decides for whole traces, with a sampler of the SDK. Any thread may call it.

    A root's part of a trace is decided once, by facts that are known from the start: the trace's
    id, the root's name, and the caller, if any. The decision is stored in its `Trace`, and applies
    to all spans of that part. So a parent-based sampler, as the default one is, follows the
    caller's decision.

    A sampler that is not the SDK's runs in its own thread. If it does not answer in time, the
    default sampler decides, and a late answer is ignored.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._is_prompt = _is_prompt(sampler)
        #: The last question to a sampler that is not prompt; it may still be open.
        self._asked: Future[bool] | None = None
        self._rest_until = 0.0
        self._lock = threading.Lock()
        self._logged: set[str] = set()

    def decides(self, trace_id: int) -> bool:
        """Return whether a root's part of a trace is sampled: its spans and exemplars."""
        trace = Trace.of(trace_id)
        if trace.sampled is None:
            with self._lock:
                if trace.sampled is None:
                    trace.sampled = self._decide(trace)
        return trace.sampled

    def _decide(self, trace: Trace) -> bool:
        """Ask the sampler; after a brief wait at most, or an error, decide as the default one."""
        if self._is_prompt:
            return _ask(self._sampler, trace)
        busy = self._asked is not None and not self._asked.done()
        if busy or time.monotonic() < self._rest_until:
            return trace.sampled_by_default
        try:
            self._asked = apart(partial(_ask, self._sampler, trace), "dask-otel-sampler")
            return self._asked.result(PATIENCE)
        except NoAnswer:
            self._rest_until = time.monotonic() + REST
            problem = f"gave no answer within {PATIENCE:g} s"
        except Exception as error:
            problem = f"raised {type(error).__name__}"
        if problem not in self._logged:
            self._logged.add(problem)
            logger.warning(
                "dask-otel: the sampler %s %s; for traces without its answer, OpenTelemetry's "
                "default sampler decides (parentbased_always_on)",
                type(self._sampler).__name__,
                problem,
            )
        return trace.sampled_by_default


def parent_of(record: SpanRecord) -> Context:
    """Return a context with a sampled span's parent; for a local root, with the caller's span."""
    trace = Trace.of(record.trace_id)
    parent = record.parent_span_id
    if parent is None or (trace.caller is not None and trace.caller.span_id == parent):
        return caller_of(trace)
    own = Traceparent(int(trace), parent, trace.flags(sampled=True))
    return remote_parent(own, trace.state, is_remote=record.remote_parent)


def caller_of(trace: Trace) -> Context:
    """Return a context with the caller's span; an empty one if there is no caller."""
    return Context() if trace.caller is None else remote_parent(trace.caller, trace.state)


def _load_sampler(entry: EntryPoint) -> Sampler:
    argument = variables().get(_ARGUMENT)
    try:
        sampler = promptly(lambda: entry.load()(argument))
        if isinstance(sampler, Sampler):
            return sampler
        problem = f"it is a {type(sampler).__name__}"
    except Exception as error:
        problem = repr(error)
    mistaken(_VARIABLE, entry.name, f"which could not be made ({problem}), so {_INSTEAD}")
    return DEFAULT_ON


def _share() -> float:
    """Return the argument of a sampler of a share of all traces; as specified, 1 by default."""
    _, text = first_set(_ARGUMENT) or ("", "1")
    with suppress(ValueError):
        if 0 <= (share := float(text)) <= 1:
            return share
    mistaken(_ARGUMENT, text, "so 1 is used, for all traces", "a number from 0 to 1")
    return 1.0


def make_sampler() -> TraceSampler:
    """Return the sampler that ``OTEL_TRACES_SAMPLER`` names: the SDK's, or a package's.

    A wrong one is `mistaken`, and no error, as specified.
    """
    _, name = first_set(_VARIABLE) or ("", "parentbased_always_on")
    if (sampler := _STATIC.get(name.lower())) is not None:
        return TraceSampler(sampler)
    if (make := _BY_SHARE.get(name.lower())) is not None:
        return TraceSampler(make(_share()))
    for entry in entry_points(group=_GROUP, name=name):
        return TraceSampler(_load_sampler(entry))
    known = sorted({*_STATIC, *_BY_SHARE, *(one.name for one in entry_points(group=_GROUP))})
    mistaken(_VARIABLE, name, f"so {_INSTEAD}", ", ".join(known))
    return TraceSampler(DEFAULT_ON)

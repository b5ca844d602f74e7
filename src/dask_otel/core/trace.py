"""A trace as one root knows it: its id, and what was decided about it, once."""

from __future__ import annotations

from collections.abc import Hashable

from dask_otel.core.context import RANDOM, Caller, Traceparent


class Trace(int):
    """A trace id, with what was decided for one root's part of that trace.

    It is that number: it compares, hashes and formats as it. Several roots can be in one trace,
    where callers have asked for their work there; each has its own object, and so its own
    decision, which its spans, its continuations and its exemplars share for as long as any of
    them is known.

    Parameters
    ----------
    trace_id
        128 bits.
    name
        First tag of the root, as the user gave it: samplers may go by names.
    caller
        Whose trace it is; None for one of our own.
    """

    #: The span that the root hangs below; None in a trace of our own.
    caller: Traceparent | None
    #: The caller's tracestate.
    state: str
    name: Hashable
    #: Whether it is sampled; None until somebody asked. Set once, by the sampler.
    sampled: bool | None

    def __new__(cls, trace_id: int, name: Hashable = "", caller: Caller | None = None) -> Trace:
        """Return the number with what belongs to it."""
        trace = super().__new__(cls, trace_id)
        trace.name = name
        trace.caller = None if caller is None else caller.parent
        trace.state = "" if caller is None else caller.state
        trace.sampled = None
        return trace

    @property
    def sampled_by_default(self) -> bool:
        """What OpenTelemetry's default sampler decides, ``parentbased_always_on``."""
        return self.caller is None or self.caller.sampled

    def flags(self, sampled: bool) -> int:
        """Return the flags of W3C Trace Context for its spans."""
        return sampled | (0 if self.caller is None else self.caller.flags & RANDOM)

    @classmethod
    def of(cls, trace_id: int, name: Hashable) -> Trace:
        """Return what is a trace already; a bare number as a trace of our own."""
        return trace_id if isinstance(trace_id, cls) else cls(trace_id, name)

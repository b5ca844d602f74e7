"""One root's view of a trace: its id and its sampling decision."""

from __future__ import annotations

from collections.abc import Hashable

from dask_otel.core.context import RANDOM, Caller, Traceparent


class Trace(int):
    """A trace id with the sampling decision for one root's part of the trace.

    It compares, hashes and formats as the number. Several roots can be in one trace, if a caller
    submits them there. Each root has its own object and its own decision, which its spans,
    continuations and exemplars share. So equal traces can have different decisions: keep the
    object, don't look one up by its number.

    It is a number because six kinds of records carry trace ids to the exporters' threads
    (identities, their first generations, span records, deltas, observations, exemplars), and all
    need the decision. Otherwise each would need one more field, or there would be one more bounded
    table.

    Parameters
    ----------
    trace_id
        128 bits.
    name
        First tag of the root, as the user gave it: samplers may decide by names.
    caller
        The owner of the trace; None for a trace of our own.
    """

    #: The root's parent span; None in a trace of our own.
    caller: Traceparent | None
    #: The caller's tracestate.
    state: str
    name: Hashable
    #: Whether it is sampled; None until the sampler decides, once.
    sampled: bool | None

    def __new__(cls, trace_id: int, name: Hashable = "", caller: Caller | None = None) -> Trace:
        """Return the number with its name and caller."""
        trace = super().__new__(cls, trace_id)
        trace.name = name
        trace.caller = None if caller is None else caller.parent
        trace.state = "" if caller is None else caller.state
        trace.sampled = None
        return trace

    @property
    def sampled_by_default(self) -> bool:
        """The decision of OpenTelemetry's default sampler, ``parentbased_always_on``."""
        return self.caller is None or self.caller.sampled

    def flags(self, sampled: bool) -> int:
        """Return the flags of W3C Trace Context for its spans."""
        return sampled | (0 if self.caller is None else self.caller.flags & RANDOM)

    @classmethod
    def of(cls, trace_id: int) -> Trace:
        """Return the trace itself; for a plain number, a new trace of our own."""
        return trace_id if isinstance(trace_id, cls) else cls(trace_id)

"""Generations and traces: which OpenTelemetry span comes next for a Dask span.

What has been exported is kept in mind in bounded tables, for continuations need it: also by a
bridge that is taken off its scheduler and put on again. When a
table overflows, the oldest lines go; a continuation of a span that is not remembered takes
a generation that no forgotten span ever had, in a trace of its own, so its ids are new for
certain, and still deterministic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

from dask_otel.core import identity
from dask_otel.core.life.open_span import Limits
from dask_otel.core.records import FinishedSpan, SpanIdentity, Tags


class _Exported(NamedTuple):
    """What a span's next generation must know of the one before."""

    generation: int
    stop: float


@dataclass(slots=True)
class _Trace:
    """What a root's later continuations must know of its trace."""

    spans: int = 0
    last_stop: float = 0.0


class Generations:
    """The exported generations of Dask spans, as far as they are remembered.

    Parameters
    ----------
    limits
        ``remember`` bounds the tables; ``trace_gap`` and ``max_per_trace`` say when a
        continuation leaves its root's trace.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        #: Last exported generation, by Dask id.
        self._exported: OrderedDict[str, _Exported] = OrderedDict()
        self._traces: OrderedDict[str, _Trace] = OrderedDict()
        #: Highest generation that any forgotten line had.
        self._forgotten = 1
        #: Whether any line was ever forgotten.
        self._has_forgotten = False

    def resume(self, limits: Limits) -> None:
        """Go on under other limits: the bridge was taken off, and is put on again."""
        self._limits = limits
        self._forget()

    def may_have_exported(self, dask_id: str) -> bool:
        """Whether any generation of a Dask span has been exported, as far as that is certain."""
        return self._has_forgotten or dask_id in self._exported

    def first(self, dask_id: str, tags: Tags, ancestors: tuple[str, ...]) -> SpanIdentity:
        """Return the identity of a Dask span's first generation."""
        root_id = ancestors[0] if ancestors else dask_id
        return SpanIdentity(
            dask_id=dask_id,
            root_id=root_id,
            tags=tags,
            generation=1,
            trace_id=identity.trace_id(root_id),
            span_id=identity.span_id(dask_id),
            parent_span_id=identity.span_id(ancestors[-1]) if ancestors else None,
        )

    def next(
        self,
        dask_id: str,
        tags: Tags,
        ancestors: tuple[str, ...],
        start: float,
        open_ids: Container[str],
    ) -> SpanIdentity:
        """Return the identity of a Dask span's next generation.

        Parameters
        ----------
        start
            Time of its first new work.
        open_ids
            Ids of the spans that are open: while the root is, its trace is.
        """
        root_id = ancestors[0] if ancestors else dask_id
        known = self._exported.get(dask_id)
        generation = (self._forgotten if known is None else known.generation) + 1
        trace_id, parent_span_id = identity.trace_id(root_id), None
        first = (trace_id, identity.span_id(dask_id))
        if known is None or self._trace_is_over(root_id, start, open_ids):
            trace_id = identity.continuation_trace_id(dask_id, generation)
        else:
            # A root's continuations hang below its first span, so that the trace keeps one
            # root; any other's below the same parent as the first.
            parent_span_id = identity.span_id(ancestors[-1] if ancestors else dask_id)
        return SpanIdentity(
            dask_id=dask_id,
            root_id=root_id,
            tags=tags,
            generation=generation,
            trace_id=trace_id,
            span_id=identity.span_id(dask_id, generation),
            parent_span_id=parent_span_id,
            first=first,
        )

    def earliest_start(self, dask_id: str) -> float:
        """Return the stop of a span's last generation: the next one does not begin before.

        It would where the clock was set back.
        """
        known = self._exported.get(dask_id)
        return 0.0 if known is None else known.stop

    def _trace_is_over(self, root_id: str, start: float, open_ids: Container[str]) -> bool:
        """Whether a continuation that starts now has to leave its root's trace."""
        trace = self._traces.get(root_id)
        if trace is not None and trace.spans >= self._limits.max_per_trace:
            return True
        if root_id in open_ids:
            return False
        return trace is None or start - trace.last_stop > self._limits.trace_gap

    def claim(self, ident: SpanIdentity) -> bool:
        """Return whether a trace has room for one more sign of life, and count it.

        The trace of a continuation alone always has: there are few signs of one span.
        """
        if ident.trace_id != identity.trace_id(ident.root_id):
            return True
        trace = self._trace(ident.root_id)
        if trace.spans >= self._limits.max_per_trace:
            return False
        trace.spans += 1
        return True

    def _trace(self, root_id: str) -> _Trace:
        trace = self._traces.setdefault(root_id, _Trace())
        self._traces.move_to_end(root_id)
        self._forget()
        return trace

    def _forget(self) -> None:
        """Let the oldest lines go."""
        while len(self._traces) > self._limits.remember:
            self._traces.popitem(last=False)
        while len(self._exported) > self._limits.remember:
            _, oldest = self._exported.popitem(last=False)
            self._forgotten = max(self._forgotten, oldest.generation)
            self._has_forgotten = True

    def remember(self, finished: FinishedSpan) -> None:
        """Take note that a generation has been exported."""
        ident = finished.identity
        self._exported[ident.dask_id] = _Exported(ident.generation, finished.stop)
        self._exported.move_to_end(ident.dask_id)
        trace = self._trace(ident.root_id)
        if ident.trace_id == identity.trace_id(ident.root_id):
            trace.spans += finished.weight
        if ident.dask_id == ident.root_id:
            trace.last_stop = max(trace.last_stop, finished.stop)

"""Generations and traces: the next OpenTelemetry span of a Dask span.

This module decides a root's trace, once for each of its generations: its own trace, derived from
its id, or its caller's. The span ids are the same in both.

Bounded tables remember the exported spans for their continuations, even while the bridge is removed
from its scheduler. An overflow discards the oldest entries. The continuation of a forgotten span
gets a generation number that no forgotten span ever had, and its own trace: so its ids are
certainly new, and still deterministic. A root with open spans is not forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass
from itertools import islice
from math import inf

from dask_otel.core import identity
from dask_otel.core.context import Caller
from dask_otel.core.life.open_span import Limits
from dask_otel.core.life.summaries import SpanSummary, total
from dask_otel.core.records import FinishedSpan, SpanIdentity, Tags
from dask_otel.core.trace import Trace


@dataclass(slots=True)
class _Exported(SpanSummary):
    """The facts of an exported span that its next generation needs, and its clients.

    The summary is of all its generations; number and end are those of the last one.
    """

    generation: int = 1
    ended: float = 0.0
    #: Trace of the first generation; None if unknown.
    trace: Trace | None = None


@dataclass(slots=True)
class _Root:
    """The facts of a root that later spans need."""

    #: Trace of its first generation; None if forgotten.
    trace: Trace | None
    #: Open spans of its tree.
    open: int = 0
    #: Spans of the tree that were exported in that trace.
    spans: int = 0
    #: Last end of its own spans.
    last_stop: float = -inf


class Generations:
    """The remembered exported generations of Dask spans.

    Parameters
    ----------
    limits
        ``remember`` bounds the tables; ``trace_gap`` and ``max_per_trace`` decide when a
        continuation leaves its root's trace.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        #: Last exported generation, by Dask id.
        self._exported: OrderedDict[str, _Exported] = OrderedDict()
        #: Roots with open spans, and roots without, by Dask id.
        self._live: dict[str, _Root] = {}
        self._traces: OrderedDict[str, _Root] = OrderedDict()
        #: Highest generation of all forgotten entries; 0 if none was ever forgotten.
        self._forgotten = 0
        #: Whether a root in a caller's trace was ever forgotten.
        self._adoption_forgotten = False

    def resume(self, limits: Limits) -> None:
        """Continue with other limits: the bridge was removed, and is installed again."""
        self._limits = limits
        self._forget()

    def may_have_exported(self, dask_id: str) -> bool:
        """Whether a generation of a Dask span may have been exported."""
        return self._forgotten > 0 or self.knows(dask_id)

    def knows(self, dask_id: str) -> bool:
        """Whether an exported generation of a Dask span is remembered."""
        return dask_id in self._exported

    def summary(self, dask_id: str, present: SpanSummary | None = None) -> SpanSummary | None:
        """Return the sum of a span's generations; None if it is unknown.

        Parameters
        ----------
        present
            The generation that has not been exported, if there is one.
        """
        known = self._exported.get(dask_id)
        return present if known is None else total((known, present))

    def first(
        self,
        dask_id: str,
        tags: Tags,
        ancestors: tuple[str, ...],
        caller: Caller | None = None,
    ) -> SpanIdentity:
        """Return the identity of a Dask span's first generation.

        Parameters
        ----------
        caller
            A root joins the caller's trace. Any other span becomes the caller's child if the caller
            is a span opened inside a task of the same trace.
        """
        if not ancestors:
            ident = self._identity(dask_id, tags, ancestors, 1, None, caller)
            self._opened(dask_id, tags).trace = ident.trace_id
            return ident
        root = self._opened(ancestors[0], tags)
        if root.trace is None:
            # The root's trace is forgotten, and so is the place of the span above.
            caller = None
        return self._identity(dask_id, tags, ancestors, 1, root.trace, caller)

    def next(
        self,
        dask_id: str,
        tags: Tags,
        ancestors: tuple[str, ...],
        start: float,
        open_ids: Container[str],
        caller: Caller | None = None,
    ) -> SpanIdentity:
        """Return the identity of a Dask span's next generation.

        Parameters
        ----------
        start
            Time of its first new work.
        open_ids
            Ids of the open spans: while the root is open, so is its trace.
        caller
            The span joins the caller's trace if it leaves its root's.
        """
        root_id = ancestors[0] if ancestors else dask_id
        known = self._exported.get(dask_id)
        generation = (max(1, self._forgotten) if known is None else known.generation) + 1
        root = self._opened(root_id, tags)
        is_full = root.spans >= self._limits.max_per_trace
        is_old = root_id not in open_ids and start - root.last_stop > self._limits.trace_gap
        begun = root.trace if known is None else known.trace
        if is_full and caller is not None and caller.parent.trace_id == root.trace:
            caller = None
        trace = None if known is None or is_full or is_old else root.trace
        first = None if begun is None else (begun, identity.span_id(dask_id))
        return self._identity(dask_id, tags, ancestors, generation, trace, caller, first)

    @staticmethod
    def _identity(
        dask_id: str,
        tags: Tags,
        ancestors: tuple[str, ...],
        generation: int,
        trace: Trace | None,
        caller: Caller | None,
        first: tuple[Trace, int] | None = None,
    ) -> SpanIdentity:
        """Return an identity in `trace`; without one, in the caller's trace, or in its own."""
        above = None
        if trace is None:
            own = identity.trace_id(dask_id, generation)
            trace = Trace(own if caller is None else caller.parent.trace_id, _name(tags), caller)
        else:
            # A root's continuations are children of its first span, so that the trace keeps one
            # root; other continuations have the same parent as their first span.
            above = identity.span_id(ancestors[-1] if ancestors else dask_id)
            # A span opened inside a task of this trace is a closer parent.
            nested = caller is not None and caller.nested and caller.parent.trace_id == trace
            caller = caller if ancestors and nested else None
        return SpanIdentity(
            dask_id=dask_id,
            root_id=ancestors[0] if ancestors else dask_id,
            tags=tags,
            generation=generation,
            trace_id=trace,
            span_id=identity.span_id(dask_id, generation),
            parent_span_id=above if caller is None else caller.parent.span_id,
            first=first,
            remote=caller is not None,
        )

    def trace_of(self, dask_id: str, root_id: str, name: object = "") -> Trace | None:
        """Return the trace of a Dask span's first generation; None if unknown."""
        known = self._exported.get(dask_id)
        if known is not None:
            return known.trace
        root = self._live.get(root_id) or self._traces.get(root_id)
        return self._computed(root_id, name) if root is None else root.trace

    def _computed(self, root_id: str, name: object) -> Trace | None:
        """Return the trace of a root without an entry; None if its caller may be forgotten."""
        return None if self._adoption_forgotten else Trace(identity.trace_id(root_id), name)

    def _opened(self, root_id: str, tags: Tags) -> _Root:
        """Count a newly open span of the tree: until it ends, its root is not forgotten."""
        if root_id not in self._live:
            known = self._traces.pop(root_id, None)
            self._live[root_id] = known or _Root(self._computed(root_id, _name(tags)))
        root = self._live[root_id]
        root.open += 1
        return root

    def __repr__(self) -> str:
        return f"<Generations: {len(self._live)} live roots, {len(self._exported)} spans known>"

    def earliest_start(self, dask_id: str) -> float:
        """Return the stop of a span's last generation, as the earliest start of the next one.

        Without it, the next one could begin earlier if the clock was set back.
        """
        known = self._exported.get(dask_id)
        return 0.0 if known is None else known.ended

    def last_roots(self, most: int) -> list[str]:
        """Return the ids of roots without open spans, the last one that ended first."""
        return [*islice(reversed(self._traces), most)]

    def claim(self, ident: SpanIdentity) -> bool:
        """Return whether the trace of an open span has room for a sign of life, and count it.

        The trace of a single continuation always has room: one span has few signs.
        """
        root = self._live[ident.root_id]
        if ident.trace_id != root.trace:
            return True
        if root.spans >= self._limits.max_per_trace:
            return False
        root.spans += 1
        return True

    def _forget(self) -> None:
        """Discard the oldest entries."""
        while len(self._traces) > self._limits.remember:
            root_id, root = self._traces.popitem(last=False)
            if root.trace != identity.trace_id(root_id):
                self._adoption_forgotten = True
        while len(self._exported) > self._limits.remember:
            _, oldest = self._exported.popitem(last=False)
            self._forgotten = max(self._forgotten, oldest.generation)

    def remember(self, finished: FinishedSpan, summary: SpanSummary) -> None:
        """Remember an exported generation."""
        ident = finished.identity
        root_id = ident.root_id
        known = self._exported.get(ident.dask_id)
        first = ident.first[0] if ident.first else None
        trace = ident.trace_id if ident.generation == 1 else first
        exported = _Exported(generation=ident.generation, ended=finished.stop, trace=trace)
        exported.add(summary)
        if known is not None:
            exported.add(known)
        self._exported[ident.dask_id] = exported
        self._exported.move_to_end(ident.dask_id)
        root = self._live[root_id]
        if ident.trace_id == root.trace:
            root.spans += finished.weight
        if ident.dask_id == root_id:
            root.last_stop = finished.stop
        self.discard(ident)

    def discard(self, ident: SpanIdentity) -> None:
        """Count an open span less: it has ended. Without `remember`, its ids are free again."""
        root = self._live[ident.root_id]
        root.open -= 1
        if not root.open:
            del self._live[ident.root_id]
            self._traces[ident.root_id] = root
        self._forget()


def _name(tags: Tags) -> object:
    return tags[0] if tags else ""

"""Callers: the trace contexts of submissions, and their use.

The scheduler decides the trace of each root's generation once; see `Generations`. This module
decides which caller influences that, which callers become links, and which context each task
gets. A carrier can be anything: nothing raises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Final, Literal, TypeAlias

from dask_otel.core.context import (
    Caller,
    Traceparent,
    baggage_entries,
    format_traceparent,
    read_carrier,
)
from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.records import Tags
from dask_otel.core.trace import Trace

Propagation: TypeAlias = Literal["adopt", "link", "off"]

#: The context that a task gets: a traceparent, and a tracestate (empty if there is none).
TaskContext: TypeAlias = tuple[str, str]

#: Tags of the span that Dask gives to work outside of any span. Different callers share it, so it
#: is in no caller's trace.
DEFAULT_SPAN: Final[Tags] = ("default",)

#: Limit of a span's links to callers; with a continuation's link, it is the number exported.
MAX_LINKS: Final = 31

_UNREAD: Final = object()


class Callers:
    """The callers' contexts on one scheduler.

    Parameters
    ----------
    propagation
        See ``otel.propagation``.
    count
        Called with the use of each context: ``adopted``, ``linked``, ``dropped`` (a link beyond
        the limit) or ``malformed``.
    baggage
        Baggage keys that become attributes: see ``otel.spans.baggage``.

    Notes
    -----
    Belongs to the thread that runs the scheduler's event loop. Holds up to two entries for each
    open span with a caller.
    """

    def __init__(
        self,
        propagation: Propagation,
        count: Callable[[str], None],
        baggage: Collection[str] = (),
    ) -> None:
        self.propagation = propagation
        self._count = count
        self._keys = frozenset(baggage)
        #: The sampler, which is made some time after the start. Until then tasks get the default
        #: sampler's decision: the caller's, or to sample if there is no caller.
        self.sampled: Callable[[Trace], bool] = attrgetter("sampled_by_default")
        #: By open span: callers of other traces, and the first caller's baggage entries to export.
        self.links: dict[OpenSpan, tuple[Traceparent, ...]] = {}
        self.baggage: dict[OpenSpan, Mapping[str, str]] = {}
        #: The last carrier and its caller: all tasks of a submission share one carrier.
        self._read: tuple[object, Caller | None] = (_UNREAD, None)

    def read(self, carrier: object) -> Caller | None:
        """Return the caller in a carrier; None if there is none, or for garbage (counted)."""
        if carrier is None or self.propagation == "off":
            return None
        if self._read[0] is carrier:
            return self._read[1]
        caller = read_carrier(carrier)
        self._read = (carrier, caller)
        if caller is None:
            self._count("malformed")
        return caller

    def opens(self, tags: Tags, is_root: bool, caller: Caller | None) -> Caller | None:
        """Return the caller if it influences the place of a new span; else None.

        Parameters
        ----------
        tags
            The span's tags.
        is_root
            Whether it is the root of its tree.
        caller
            The caller of its first work.
        """
        alone = is_root and (self.propagation != "adopt" or tags == DEFAULT_SPAN)
        return None if alone else caller

    def opened(self, span: OpenSpan, caller: Caller | None) -> None:
        """Begin a generation with this caller's work."""
        if caller is None:
            return
        ident = span.identity
        if self._keys and caller.baggage and ident.tags != DEFAULT_SPAN:
            self.baggage[span] = baggage_entries(caller.baggage, self._keys)
        trace = ident.trace_id
        if trace.caller == caller.parent and ident.parent_span_id == caller.parent.span_id:
            self._count("adopted")
        elif trace != caller.parent.trace_id and ident.dask_id == ident.root_id:
            self._link(span, caller.parent)

    def task_context(self, span: OpenSpan, carrier: object) -> TaskContext:
        """Return the context for a task of the span that came with this carrier.

        If the task's caller differs from its span's, the task keeps its own: concurrent callers can
        share a TaskGroup, which Dask assigns to the first caller's span.
        """
        trace, caller = span.identity.trace_id, self.read(carrier)
        if caller is not None and caller.parent.trace_id != trace:
            self._link(span, caller.parent)
            if self.propagation == "adopt":
                return format_traceparent(caller.parent), caller.state
        own = Traceparent(trace, span.identity.span_id, trace.flags(self.sampled(trace)))
        return format_traceparent(own), trace.state

    def _link(self, span: OpenSpan, caller: Traceparent) -> None:
        """Add a link from a span to a caller of another trace, unless its tree has it."""
        if any(caller in self.links.get(above, ()) for above in (span, *span.above)):
            return
        links = self.links.get(span, ())
        if len(links) >= MAX_LINKS:
            self._count("dropped")
            return
        self.links[span] = (*links, caller)
        self._count("linked")

    def exported(self, span: OpenSpan) -> None:
        """Forget a span: its generation is over."""
        self.links.pop(span, None)
        self.baggage.pop(span, None)

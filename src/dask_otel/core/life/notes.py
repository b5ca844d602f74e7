"""Notes of open spans, which are exported if the scheduler is lost.

They are made only with a spool (`otel.spool.path`). A span is noted at the first check after its
start, then from time to time, and when its work is done; a span that ends before the first check is
never noted.
The wait for the next note is 5 s at first, and later a tenth of the span's age. A span without
changes since its last note gets no new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from dask_otel.core.life.completion import earliest
from dask_otel.core.life.open_span import Cluster, OpenSpan
from dask_otel.core.life.progress import SHARE
from dask_otel.core.life.schedule import Schedule
from dask_otel.core.records import OpenNote, SpanIdentity

#: The least wait between two notes of a span, in seconds.
RENEWAL: Final = 5.0
#: Limits of one call, which must not block the event loop: first notes, and later ones.
FIRST_AT_ONCE: Final = 100
LATER_AT_ONCE: Final = 32


class OpenNotes:
    """The times of the open spans' notes.

    Parameters
    ----------
    cluster
        Dask's side.
    open_spans
        The open spans by Dask id; only read.
    refresh
        Called before a span is read.

    Notes
    -----
    O(1) for a span that opens or ends, O(log n) for one that settles or is due.
    """

    def __init__(
        self, cluster: Cluster, open_spans: Mapping[str, OpenSpan], refresh: Callable[[], None]
    ) -> None:
        self._cluster, self._refresh = cluster, refresh
        self._open = open_spans
        #: Noted generations that ended without a record.
        self.withdrawn: list[SpanIdentity] = []
        #: Dask ids of spans without a note, and the last notes of the others.
        self._new: dict[str, None] = {}
        self._last: dict[str, OpenNote] = {}
        self.due = Schedule(RENEWAL)

    def opened(self, span: OpenSpan) -> None:
        """Add a new generation."""
        self._new[span.identity.dask_id] = None

    def settled(self, span: OpenSpan) -> None:
        """Make a note due at once: the span's work is done and known."""
        if span.identity.dask_id in self._last:
            self.due.set(span.identity.dask_id, 0.0)

    def ended(self, span: OpenSpan) -> None:
        """Remove a finished generation: its record, if it is not empty, replaces its note."""
        self._new.pop(span.identity.dask_id, None)
        if self._last.pop(span.identity.dask_id, None) and span.empty:
            self.withdrawn.append(span.identity)
        self.due.remove(span.identity.dask_id)

    def take(self, now: float) -> list[OpenNote]:
        """Return the due notes that differ from the last ones, up to the limits of one call."""
        first = list(islice(self._new, FIRST_AT_ONCE))
        notes = []
        for dask_id in (*first, *islice(self.due.take(now), LATER_AT_ONCE)):
            self._new.pop(dask_id, None)
            span = self._open[dask_id]
            note = self._note(span, now)
            if note != self._last.get(dask_id):
                self._last[dask_id] = note
                notes.append(note)
            self.due.set(dask_id, now + max(RENEWAL, SHARE * (now - span.start)))
        return notes

    def _note(self, span: OpenSpan, now: float) -> OpenNote:
        self._refresh()
        facts = self._cluster.span_facts(span)
        return OpenNote(
            identity=span.identity,
            start=span.start,
            time=now,
            first_start=earliest(span.first_start, span.below.start if span.below else 0.0) or None,
            counts=span.counts_so_far() if span.groups or span.below is not None else None,
            collections=facts.collections,
            code=facts.code,
            requested=span.requested,
            late=span.late,
            attributes={**facts.baggage, **(span.attributes or {})},
            callers=facts.callers,
        )

"""Notes of open spans, which are exported if the scheduler is lost.

Only with a spool (`otel.spool.path`). A span is noted at the first check after it began, then from
time to time, and when its work is done; a span that ends before the first check is never noted.
The wait for the next note is 5 s at first, and later a tenth of the span's age. A span that has
not changed since its last note gets no new one.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from dask_otel.core.life.open_span import Cluster, OpenSpan
from dask_otel.core.life.progress import SHARE, SPARE, counts_so_far
from dask_otel.core.records import OpenNote

#: The least wait between two notes of a span, in seconds.
RENEWAL: Final = 5.0
#: First notes, and later ones, in one call, which must not block the event loop.
FIRST_AT_ONCE: Final = 100
LATER_AT_ONCE: Final = 32


@dataclass(slots=True)
class _Line:
    """The last note of a span, and its place in the heap."""

    last: OpenNote
    #: Number of the span's valid entry; older ones are void.
    entry: int


class OpenNotes:
    """The times of the open spans' notes.

    Parameters
    ----------
    cluster
        Dask's side.
    open_spans
        The open spans by Dask id; only read.

    Notes
    -----
    O(1) for a span that opens, settles or ends, O(log n) for one that is due.
    """

    def __init__(self, cluster: Cluster, open_spans: Mapping[str, OpenSpan]) -> None:
        self._cluster = cluster
        self._open = open_spans
        #: Dask ids of spans without a note, and the lines of the others.
        self._new: dict[str, None] = {}
        self._lines: dict[str, _Line] = {}
        #: (due, number of the entry, Dask id)
        self._due: list[tuple[float, int, str]] = []
        self._entries = 0

    def opened(self, span: OpenSpan) -> None:
        """Add a new generation."""
        self._new[span.identity.dask_id] = None

    def settled(self, span: OpenSpan) -> None:
        """Make a note due at once: the span's work is done and known."""
        line = self._lines.get(span.identity.dask_id)
        if line is not None:
            self._push(0.0, span.identity.dask_id, line)

    def ended(self, span: OpenSpan) -> None:
        """Remove a generation that is over: its record replaces its note."""
        self._new.pop(span.identity.dask_id, None)
        self._lines.pop(span.identity.dask_id, None)

    def take(self, now: float) -> list[OpenNote]:
        """Return the notes that are due, up to the limits of one call."""
        notes = []
        for dask_id in list(islice(self._new, FIRST_AT_ONCE)):
            del self._new[dask_id]
            span = self._open[dask_id]
            line = self._lines[dask_id] = _Line(self._note(span, now), 0)
            notes.append(line.last)
            self._push(now + _wait(span, now), dask_id, line)
        looked_at = 0
        while self._due and self._due[0][0] <= now and looked_at < LATER_AT_ONCE:
            _, entry, dask_id = heapq.heappop(self._due)
            current = self._lines.get(dask_id)
            if current is None or current.entry != entry:
                continue
            looked_at += 1
            span = self._open[dask_id]
            note = self._note(span, now)
            if _differs(note, current.last):
                current.last = note
                notes.append(note)
            self._push(now + _wait(span, now), dask_id, current)
        return notes

    def clock_set_back(self, now: float) -> None:
        """Bring forward the notes that are too far in the future."""
        latest = now + RENEWAL
        self._due = [(min(due, latest), *entry) for due, *entry in self._due]  # type: ignore[misc]
        heapq.heapify(self._due)

    def _push(self, due: float, dask_id: str, line: _Line) -> None:
        if len(self._due) > 2 * len(self._lines) + SPARE:
            # Most entries belong to spans that have ended.
            self._due = [entry for entry in self._due if self._is_current(entry)]
            heapq.heapify(self._due)
        self._entries += 1
        line.entry = self._entries
        heapq.heappush(self._due, (due, line.entry, dask_id))

    def _is_current(self, entry: tuple[float, int, str]) -> bool:
        line = self._lines.get(entry[2])
        return line is not None and line.entry == entry[1]

    def _note(self, span: OpenSpan, now: float) -> OpenNote:
        facts = self._cluster.span_facts(span)
        starts = [span.first_start, 0.0 if span.below is None else span.below.start]
        return OpenNote(
            identity=span.identity,
            start=span.start,
            time=now,
            first_start=min((start for start in starts if start), default=None),
            counts=counts_so_far(span) if span.groups or span.below is not None else None,
            collections=facts.collections,
            code=facts.code,
            requested=span.requested,
            late=span.late,
            attributes={**facts.baggage, **(span.attributes or {})},
            callers=facts.callers,
        )


def _wait(span: OpenSpan, now: float) -> float:
    return max(RENEWAL, SHARE * (now - span.start))


def _differs(note: OpenNote, last: OpenNote) -> bool:
    """Whether anything but the time has changed."""
    return (
        note.counts != last.counts
        or note.first_start != last.first_start
        or note.attributes != last.attributes
        or note.callers != last.callers
        or note.collections != last.collections
        or note.code != last.code
        or note.requested is not last.requested
    )

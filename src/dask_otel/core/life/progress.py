"""Signs of life: spans that show a long span before it ends.

A span is exported once, at its end, because tracing backends cannot replace an early copy: Tempo
keeps the first copy of a span id. So a long span exports children of itself: a marker of no length
at its start, then, from time to time, its progress since the last sign. Their ids are
deterministic, like all others.

A cap on their number would silence a week-long span. Instead, the wait for the next sign grows: it
is the configured interval, but at least a tenth of the span's age. With 5 minutes that is about 45
signs in the first day and 65 in the first week.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Final

from dask_otel.core.life.generations import Generations
from dask_otel.core.life.open_span import Limits, OpenSpan, Phase
from dask_otel.core.records import Progress, TaskCounts

#: The least wait for the next sign, as a part of the span's age.
SHARE: Final = 0.1

#: Signs in one call: ten thousand spans that are due at once must flood neither the event loop
#: nor the export queue.
AT_ONCE: Final = 32

#: Entries of ended spans are cleared beyond this number and the number of open spans.
SPARE: Final = 100

#: The least wait for the next check of a span whose work is done and which will end soon.
LATER: Final = 1.0


class LongSpans:
    """The times of the open spans' next signs.

    Parameters
    ----------
    limits
        Times.
    generations
        Counts the signs in their traces.
    open_spans
        The open spans by Dask id; only read.

    Notes
    -----
    O(log n) for a span that opens or is due. Holds ids, no spans, and not many more of them than
    there are open spans.
    """

    def __init__(
        self, limits: Limits, generations: Generations, open_spans: Mapping[str, OpenSpan]
    ) -> None:
        self._after = limits.progress_after
        self._interval = limits.progress_interval
        self._later = max(limits.linger, LATER)
        self._generations = generations
        self._open = open_spans
        #: (due, number of the entry, Dask id, generation)
        self._due: list[tuple[float, int, str, int]] = []
        self._sequence = 0

    def opened(self, span: OpenSpan) -> None:
        """Add a new generation."""
        if self._after is not None:
            self._push(span.start + self._after, span.identity.dask_id, span.identity.generation)

    def signs(self, now: float) -> list[Progress]:
        """Return the signs of life that are due, at most `AT_ONCE`."""
        signs: list[Progress] = []
        while self._due and self._due[0][0] <= now and len(signs) < AT_ONCE:
            _, _, dask_id, generation = heapq.heappop(self._due)
            span = self._current(dask_id, generation)
            if span is None:
                continue
            if span.phase is not Phase.OPEN:
                # Its work is done: a sign would show it longer than it is. It ends or gets new
                # work within the linger.
                self._push(now + self._later, dask_id, generation)
            elif self._generations.claim(span.identity):
                signs.append(_sign(span, now))
                wait = max(self._interval, SHARE * (now - span.start))
                self._push(now + wait, dask_id, generation)
        return signs

    def clock_set_back(self, now: float) -> None:
        """Bring forward the signs that are too far in the future."""
        latest = now + max(self._interval, self._after or 0.0)
        self._due = [(min(due, latest), *entry) for due, *entry in self._due]  # type: ignore[misc]
        heapq.heapify(self._due)

    def _current(self, dask_id: str, generation: int) -> OpenSpan | None:
        span = self._open.get(dask_id)
        return span if span is not None and span.identity.generation == generation else None

    def _push(self, due: float, dask_id: str, generation: int) -> None:
        if len(self._due) > 2 * len(self._open) + SPARE:
            # Most entries belong to short spans that have ended.
            self._due = [line for line in self._due if self._current(*line[2:]) is not None]
            heapq.heapify(self._due)
        self._sequence += 1
        heapq.heappush(self._due, (due, self._sequence, dask_id, generation))


def _sign(span: OpenSpan, now: float) -> Progress:
    ordinal = span.signs
    span.signs += 1
    if not ordinal:
        return Progress(span.identity, 0, span.start, span.start)
    # The clock may have been set back.
    since = min(span.last_sign, now)
    span.last_sign = now
    return Progress(span.identity, ordinal, since, now, counts_so_far(span))


def counts_so_far(span: OpenSpan) -> TaskCounts:
    """Return the counts of a span's own tasks, and of the spans below that have ended."""
    counts = TaskCounts()
    for group in span.groups:
        counts.add(group.counts)
    if span.below is not None:
        counts.add(span.below.counts)
    return counts

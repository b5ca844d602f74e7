"""Signs of life: child spans that make a long span visible before it ends.

A span is exported once, at its end, because tracing backends cannot replace an early copy: Tempo
keeps the first copy of a span id. So a long span exports children: a marker of length zero at its
start, then, from time to time, its progress since the last sign. Their ids are deterministic, like
all others.

A cap on their number would silence a week-long span. Instead, the wait for the next sign grows: it
is the configured interval, but at least a tenth of the span's age. With 5 minutes that makes about
45 signs in the first day and 65 in the first week.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dask_otel.core.life.generations import Generations
from dask_otel.core.life.open_span import Limits, OpenSpan, Phase
from dask_otel.core.life.schedule import Schedule
from dask_otel.core.records import Progress

#: The least wait for the next sign, as a share of the span's age.
SHARE: Final = 0.1

#: Limit of the signs in one call: ten thousand spans due at once must flood neither the event loop
#: nor the export queue.
AT_ONCE: Final = 32

#: The least wait for the next check of a span whose work is done.
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
    """

    def __init__(
        self, limits: Limits, generations: Generations, open_spans: Mapping[str, OpenSpan]
    ) -> None:
        self._limits = limits
        self._generations = generations
        self._open = open_spans
        self.due = Schedule(max(limits.progress_interval, limits.progress_after or 0.0))

    def opened(self, span: OpenSpan) -> None:
        """Add a new generation."""
        if self._limits.progress_after is not None:
            self.due.set(span.identity.dask_id, span.start + self._limits.progress_after)

    def signs(self, now: float) -> list[Progress]:
        """Return the due signs of life, at most `AT_ONCE`."""
        signs: list[Progress] = []
        for dask_id in self.due.take(now):
            span = self._open[dask_id]
            if span.phase is not Phase.OPEN:
                # Its work is done, so a sign would make it look longer than it is. It ends or gets
                # new work within the linger.
                self.due.set(dask_id, now + max(self._limits.linger, LATER))
            elif self._generations.claim(span.identity):
                signs.append(_sign(span, now))
                wait = max(self._limits.progress_interval, SHARE * (now - span.start))
                self.due.set(dask_id, now + wait)
                if len(signs) == AT_ONCE:
                    break
        return signs


def snapshot(span: OpenSpan, now: float) -> Progress:
    """Return the life of an open span up to now, or to the end of its work, as one sign.

    It is no sign of the span's own, and changes nothing. Later snapshots have other ids.
    """
    stop = now if span.busy else span.quiet_since
    ordinal, counts = int(now * 1e6), span.counts_so_far()
    return Progress(span.identity, ordinal, span.start, stop, counts, span.requested)


def _sign(span: OpenSpan, now: float) -> Progress:
    ordinal = span.signs
    span.signs += 1
    if not ordinal:
        return Progress(span.identity, 0, span.start, span.start)
    # The clock may have been set back.
    since = min(span.last_sign or span.start, now)
    span.last_sign = now
    return Progress(span.identity, ordinal, since, now, span.counts_so_far())

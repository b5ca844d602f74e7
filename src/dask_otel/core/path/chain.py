"""The chain of links that leads to the end of a span, and what it says of the span's time.

A chain holds its newest links one by one. The older ones are folded into sums, so that it stays
small however many tasks follow one another, in whatever spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf
from operator import add, itemgetter
from typing import Final

from dask_otel.core.path.link import (
    CLIENT,
    END,
    NOT_FETCHED,
    SPAN,
    UNKNOWN,
    Folded,
    Link,
    OnPath,
    RawLink,
    Share,
    SpanPath,
    cut,
)
from dask_otel.core.records import SpanPathFacts

#: The longest chain of single links.
MAX_LINKS: Final = 64
#: The most links of a span that stay when others are folded, or that are exported.
MAX_LONGEST: Final = 32
#: The most spans whose links are folded; time in the others is ``other_span``.
MAX_SPANS: Final = 64
#: Rounding.
_NOTHING: Final = 1e-6

_seconds = itemgetter(0)
_end, _span = itemgetter(END), itemgetter(SPAN)


def folded(last: RawLink) -> Folded:
    """Return a chain as sums."""
    recent = dict([*_shares(last, None, inf).items()][-MAX_SPANS:])
    for share in recent.values():
        share.longest = [
            # Without the links before them.
            (took, since, ((None, *link[0][1:]), *link[1:]) if link[0] and link[0][0] else link)
            for took, since, link in sorted(share.longest, key=_seconds)[-MAX_LONGEST:]
        ]
        if len(share.longest) == MAX_LONGEST:
            share.least = share.longest[0][0]
    return Folded(recent, last[END])


def most_of_path(links: Iterable[OnPath], most: int) -> list[OnPath]:
    """Return the longest links, in their order."""
    longest = sorted(links, key=_seconds, reverse=True)[: min(most, MAX_LONGEST)]
    return sorted(longest, key=lambda one: one.link.end)


def _shares(last: RawLink | None, only: SpanPath | None, until: float) -> dict[SpanPath, Share]:
    """Return the parts of a chain by span, the most recent span last.

    Parameters
    ----------
    only
        The span that is asked for; None for all open ones.
    """
    links: list[RawLink] = []
    since = -inf if only is None else only.start
    while type(last) is tuple and last[END] > since:
        links.append(last)
        last = last[0] and last[0][0]
    links.reverse()
    shares: dict[SpanPath, Share] = {}
    earliest = -inf if last is None else last[END]
    if isinstance(last, Folded):
        for span, share in last.shares.items():
            if not span.exported and (only is None or span is only):
                shares[span] = replace(share, longest=[*share.longest])
    for own, same in groupby(links, _span):
        run = [*same]
        ends = [*map(_end, run)]
        since = inf
        above: SpanPath | None = own
        while above is not None:
            if not above.exported and (only is None or above is only):
                begin = above.start if above.start > earliest else earliest
                if begin != since:
                    since, parts = begin, _parts(run, begin, until)
                # It becomes the most recent one.
                shares[above] = share = shares.pop(above) if above in shares else Share()
                share.parts = [*map(add, share.parts, parts)]
                share.tasks += len(run)
                share.known = share.known and all(map(_seconds, run)) and not own.partial
                if above is own:
                    begins = [begin, *ends[:-1]]
                    if begin > ends[0]:
                        begins = [max(begin, end) for end in begins]
                    share.longest += [
                        (end - since, since, link)
                        for end, since, link in zip(ends, begins, run, strict=True)
                        if end - since > share.least
                    ]
            above = above.parent
        earliest = ends[-1]
    return shares


def _parts(run: list[RawLink], begin: float, until: float) -> Sequence[float]:
    """Return the sums of `cut` over links that follow one another."""
    client = scheduler = no_thread = queue = compute = report = 0.0
    others: list[Sequence[float]] = []
    since = begin
    for link in run:
        readiness, end, _, _, sent, fetched, start, stop, _, _, _, _ = link
        _, submitted, ready, _, again = readiness or UNKNOWN
        if (
            since <= submitted <= ready <= sent <= start <= stop <= end <= until
            and fetched is NOT_FETCHED
            and not again
        ):
            # As `cut` does, inline: most links are so, and a chain can have thousands.
            client += submitted - since
            scheduler += ready - submitted
            no_thread += sent - ready
            queue += start - sent
            compute += stop - start
            report += end - stop
        else:
            others.append(cut(link, since, until))
        since = end if end > begin else begin
    first = client, scheduler, no_thread, 0.0, 0.0, queue, compute, report
    return [*map(sum, zip(first, *others, strict=True))]


def path_of(span: SpanPath, stop: float) -> tuple[SpanPathFacts, tuple[OnPath, ...]] | None:
    """Return the path of a span that ends now, and the longest of its own links; None if unknown.

    Parameters
    ----------
    stop
        The end of the span. If that is after its last link, the client was waited for.
    """
    share = _shares(span.last, span, stop).get(span) or Share()
    end = span.start if span.last is None else max(span.start, min(stop, span.last[END]))
    elsewhere = end - span.start - sum(share.parts)
    if span.partial or not share.known or elsewhere < -_NOTHING:
        return None
    share.parts[CLIENT] += stop - end
    longest = []
    for _, since, link in sorted(share.longest, key=_seconds)[-MAX_LONGEST:]:
        parts = cut(link, since, stop)
        longest.append(OnPath(sum(parts), parts, Link._make(link)))
    facts = SpanPathFacts((*share.parts, max(0.0, elsewhere)), share.tasks)
    return facts, tuple(sorted(longest, key=lambda one: one.link.end))

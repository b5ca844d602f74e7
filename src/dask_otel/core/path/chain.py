"""The chain of links that leads to the end of a span, and what it says of the span's time.

A chain holds its newest links one by one. The older ones are folded into sums, so that it stays
small however many tasks follow one another, in whatever spans.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from heapq import nlargest
from math import inf
from operator import itemgetter
from typing import Final

from dask_otel.core.path.link import (
    CLIENT,
    END,
    SPAN,
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


def folded(last: RawLink) -> Folded:
    """Return a chain as sums."""
    recent = dict([*_shares(last, None, inf).items()][-MAX_SPANS:])
    for share in recent.values():
        longest = nlargest(MAX_LONGEST, share.longest, key=_seconds)
        # Without the links before them.
        share.longest = [(took, parts, (None, *link[1:])) for took, parts, link in longest]
    return Folded(recent, last[END])


def most_of_path(links: Iterable[OnPath], most: int) -> list[OnPath]:
    """Return the longest links, in their order."""
    longest = nlargest(min(most, MAX_LONGEST), links, key=_seconds)
    return sorted(longest, key=lambda one: one.link.end)


def _shares(last: RawLink | None, only: SpanPath | None, until: float) -> dict[SpanPath, Share]:
    """Return the parts of a chain by span, the most recent span last.

    Parameters
    ----------
    only
        The span that is asked for; None for all open ones.
    """
    links: list[RawLink] = []
    while last is not None and type(last) is tuple and (only is None or last[END] > only.start):
        links.append(last)
        last = None if last[0] is None else last[0][0]
    shares: dict[SpanPath, Share] = {}
    if isinstance(last, Folded):
        for span, share in last.shares.items():
            if not span.exported and (only is None or span is only):
                shares[span] = replace(share, longest=[*share.longest])
    # By span, the most recent first: parts, links, and whether these are known.
    cuts: dict[SpanPath, list[tuple[tuple[float, ...], RawLink, bool]]] = {}
    for link in links:
        readiness, own = link[0], link[SPAN]
        before = None if readiness is None else readiness[0]
        earliest = -inf if before is None else before[END]
        known = readiness is not None and not own.partial
        since = inf
        above: SpanPath | None = own
        while above is not None:
            if not above.exported and (only is None or above is only):
                begin = above.start if above.start > earliest else earliest
                if begin != since:
                    since, parts = begin, cut(link, begin, until)
                if above not in cuts:
                    cuts[above] = []
                cuts[above].append((parts, link, known))
            above = above.parent
    for span, found in reversed(cuts.items()):
        # It becomes the most recent one.
        shares[span] = share = shares.pop(span) if span in shares else Share()
        all_parts, _, all_known = zip(*found, strict=True)
        share.parts = [*map(sum, zip(share.parts, *all_parts, strict=True))]
        share.tasks += len(found)
        share.known = share.known and all(all_known)
        share.longest += [
            (sum(parts), parts, link) for parts, link, _ in found if link[SPAN] is span
        ]
    return shares


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
    longest = [OnPath(seconds, parts, Link._make(link)) for seconds, parts, link in share.longest]
    facts = SpanPathFacts((*share.parts, max(0.0, elsewhere)), share.tasks)
    return facts, tuple(sorted(longest, key=lambda one: one.link.end))

"""The chain of links that leads to the end of a span, and what it says of the span's time.

A chain holds its newest links one by one. The older ones are folded into sums, so that it stays
small however many tasks follow one another, in whatever spans.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from math import inf
from typing import Final

from dask_otel.core.path.link import (
    CLIENT,
    END,
    Folded,
    Link,
    OnPath,
    RawLink,
    Share,
    SpanPath,
    cut,
)
from dask_otel.core.records import SpanPathFacts
from dask_otel.semconv import PATH_PARTS

#: The longest chain of single links.
MAX_LINKS: Final = 64
#: The most links of a span that stay when others are folded, or that are exported.
MAX_LONGEST: Final = 32
#: The most spans whose links are folded; time in the others is ``other_span``.
MAX_SPANS: Final = 64
#: Rounding.
_NOTHING: Final = 1e-6


def folded(last: RawLink) -> Folded:
    """Return a chain as sums."""
    recent = dict(list(_shares(last, None, inf).items())[-MAX_SPANS:])
    for share in recent.values():
        share.longest = most_of_path(share.longest)
    return Folded(recent, last[END])


def most_of_path(links: Iterable[OnPath], most: int = MAX_LONGEST) -> tuple[OnPath, ...]:
    """Return the longest links, in their order."""
    longest = nlargest(min(most, MAX_LONGEST), links, key=lambda one: one.seconds)
    return tuple(sorted(longest, key=lambda one: one.link.end))


def _shares(last: RawLink | None, only: SpanPath | None, until: float) -> dict[SpanPath, Share]:
    """Return the parts of a chain by span, the most recent span last.

    Parameters
    ----------
    only
        The span that is asked for; None for all open ones.
    """
    links: list[Link] = []
    while last is not None and type(last) is tuple and (only is None or last[END] > only.start):
        links.append(Link._make(last))
        last = None if last[0] is None else last[0][0]
    shares: dict[SpanPath, Share] = {}
    if isinstance(last, Folded):
        for span, share in last.shares.items():
            if not span.exported and (only is None or span is only):
                shares[span] = Share([*share.parts], share.tasks, share.known, share.longest)
    for link in reversed(links):
        known = link.readiness is not None and not link.span.partial
        above: SpanPath | None = link.span
        while above is not None:
            if not above.exported and (only is None or above is only):
                share = shares.pop(above) if above in shares else Share([0.0] * len(PATH_PARTS))
                # It becomes the most recent one.
                shares[above] = share
                parts = cut(link, above.start, until)
                for index, seconds in enumerate(parts):
                    share.parts[index] += seconds
                share.tasks += 1
                share.known = share.known and known
                if above is link.span:
                    share.longest += (OnPath(parts, link._replace(readiness=None)),)
            above = above.parent
    return shares


def path_of(span: SpanPath, stop: float) -> tuple[SpanPathFacts, tuple[OnPath, ...]] | None:
    """Return the path of a span that ends now, and the longest of its own links; None if unknown.

    Parameters
    ----------
    stop
        The end of the span. If that is after its last link, the client was waited for.
    """
    share = _shares(span.last, span, stop).get(span) or Share([0.0] * len(PATH_PARTS))
    end = span.start if span.last is None else max(span.start, min(stop, span.last[END]))
    elsewhere = end - span.start - sum(share.parts)
    if span.partial or not share.known or elsewhere < -_NOTHING:
        return None
    share.parts[CLIENT] += stop - end
    share.parts[-1] = max(0.0, elsewhere)
    return SpanPathFacts(tuple(share.parts), share.tasks), share.longest

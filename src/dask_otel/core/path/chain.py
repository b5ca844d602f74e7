"""The chain of steps that leads to the end of a span, and what it says of the span's time.

A chain holds its newest steps one by one. The older ones are folded into sums, so that it stays
small however many tasks follow one another, in whatever spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from operator import itemgetter
from typing import Any, Final

from dask_otel.core.path.step import (
    BEFORE,
    CLIENT,
    END,
    FETCHED,
    SENT,
    SPAN,
    START,
    STOP,
    Folded,
    LongStep,
    RawStep,
    Share,
    SpanPath,
    Step,
    cut,
)
from dask_otel.core.path.waiting import STATE, TAKEN
from dask_otel.core.records import SpanPathFacts

#: The longest chain of single steps.
MAX_STEPS: Final = 64
#: The most steps of a span that stay when others are folded, or that are exported.
MAX_LONGEST: Final = 32
#: The most spans whose steps are folded; time in the others is ``other_span``.
MAX_SPANS: Final = 64
#: Rounding.
_NOTHING: Final = 1e-6

_seconds = itemgetter(0)


def folded(last: RawStep) -> Folded:
    """Return a chain as sums."""
    recent = dict([*_shares(last, None, inf).items()][:MAX_SPANS])
    for share in recent.values():
        share.longest = [
            # Without the steps before them.
            (took, since, step if step[BEFORE] is None else (None, *step[BEFORE + 1 :]))
            for took, since, step in sorted(share.longest, key=_seconds)[-MAX_LONGEST:]
        ]
    return Folded(recent, last[END])


def on_path(steps: Iterable[LongStep], until: float) -> list[tuple[Step, tuple[float, ...]]]:
    """Return steps of a path with their parts, in their order."""
    cuts = ((Step._make(step), cut(step, since, until)) for _, since, step in steps)
    return sorted(cuts, key=lambda one: one[0].end)


def path_of(span: SpanPath, stop: float) -> tuple[SpanPathFacts, list[LongStep]] | None:
    """Return the path of a span that ends now, and the longest of its own steps; None if unknown.

    It is unknown, too, if it is not followed, or was exported. The longest one is the last.

    Parameters
    ----------
    stop
        The end of the span. If that is after its last step, the client was waited for.
    """
    share = _shares(span.last, span, stop).get(span) or Share()
    last = -inf if span.last is None else span.last[END]
    end = max(span.start, min(stop, max(last, span.vain_until)))
    elsewhere = end - span.start - sum(share.parts)
    if span.closed or span.unknown or not share.known or elsewhere < -_NOTHING:
        return None
    share.parts[CLIENT] += stop - end
    return (
        SpanPathFacts((*share.parts, max(0.0, elsewhere)), share.tasks, share.submitted),
        sorted(share.longest, key=_seconds)[-MAX_LONGEST:],
    )


def _shares(last: Any, only: SpanPath | None, until: float) -> dict[SpanPath, Share]:
    """Return the parts of a chain by span, the most recent span first.

    Parameters
    ----------
    only
        The span that is asked for; None for all open ones.
    """
    shares: dict[SpanPath, Share] = {}
    oldest = -inf if only is None else only.start
    while type(last) is tuple and last[END] > oldest:
        own: SpanPath = last[SPAN]
        asked = [
            span for span in (own, *own.above) if not span.closed and (only is None or span is only)
        ]
        last, parts, submitted, others, steps, known = stretch(
            last, max([span.start for span in asked], default=inf), oldest, until
        )
        for span in reversed(asked):
            share = shares.setdefault(span, Share())
            cuts = [cut(step, max(since, span.start), until) for since, step in others]
            joined = sum(
                step[BEFORE] is not None and since >= span.start and cut_[CLIENT] > _NOTHING
                for (since, step), cut_ in zip(others, cuts, strict=True)
            )
            known = known and not own.unknown
            share.add(len(steps), submitted + joined, known, parts, *cuts)
            share.longest += steps if span is own else ()
    for span, old in last.shares.items() if isinstance(last, Folded) else ():
        if not span.closed and (only is None or span is only):
            share = shares.setdefault(span, Share())
            share.add(old.tasks, old.submitted, old.known, old.parts)
            share.longest += old.longest
    return shares


def stretch(
    last: Any, begin: float, oldest: float, until: float
) -> tuple[Any, Sequence[float], int, list[tuple[float, RawStep]], list[LongStep], bool]:
    """Return the sums of a step and of those before it that are of its span.

    Returns what is before them; the sums of those in order, as `cut` returns them; how many of
    these only the client led to; the others, and when each began; all of them, the last one first;
    and whether all are known.

    Parameters
    ----------
    begin
        Steps that began earlier are cut.
    oldest
        Steps that ended earlier are left out.
    """
    own = last[SPAN]
    client = scheduler = no_thread = starting = compute = report = 0.0
    joined = 0
    others: list[tuple[float, RawStep]] = []
    steps: list[LongStep] = []
    known = True
    while last is not None and last[SPAN] is own:
        before, end, _, _, waited, _, run, sent_to, place = last
        sent, start, stop = run[SENT], run[START], run[STOP]
        since = -inf if before is None else before[END]
        if waited is None:
            in_order = since <= sent
        else:
            submitted, ready, _, again, ready_to, _ = waited
            in_order = (
                since <= submitted <= ready <= sent
                and not again
                # In most waits, all threads were taken, and nothing changed.
                and (
                    ready == sent
                    or (ready_to and ready_to is sent_to[0] and ready_to[STATE] == TAKEN)
                )
            )
        if (
            in_order
            and place is None
            and sent_to[2] is None
            and not run[FETCHED]
            and begin <= since
            and sent <= start
            and start <= stop
            and stop <= end <= until
        ):
            # As `cut` does, inline: most steps are so, and a chain can have thousands.
            if waited is None:
                scheduler += sent - since
            else:
                client += submitted - since
                if submitted - since > _NOTHING and before is not None:
                    joined += 1
                scheduler += ready - submitted
                no_thread += sent - ready
            starting += start - sent
            compute += stop - start
            report += end - stop
            steps.append((end - since, since, last))
        elif end > oldest:
            others.append((since, last))
            known = known and (before is not None or waited is not None)
            since = max(since, begin)
            steps.append((min(end, until) - since, since, last))
        else:
            break
        last = before
    parts = client, scheduler, 0.0, no_thread, 0.0, 0.0, 0.0, starting, compute, 0.0, report
    return last, parts, joined, others, steps, known

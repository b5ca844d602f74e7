"""The replays of a run as text, plain data, and a section of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import floor
from typing import Any, Final

from dask_otel.report import words
from dask_otel.report.money import Price
from dask_otel.whatif.result import Replayed, WhatIf

#: More threads are worth a sentence if the run is so much shorter.
_MUCH: Final = 0.9
#: The smallest share that counts as a difference; most columns of a bar.
_LEAST, _BAR = 0.02, 24
_HEADINGS: Final = ("replayed", "duration", "change", "error", "idle", "thread-hours", "cost")
#: Thread-hours look like costs.
_HOURS: Final = Price(1.0)


@dataclass(frozen=True, repr=False)
class WhatIfReport:
    """What a run would have taken with other workers, or without its faults.

    It is printed as text, and displayed in a notebook as a curve and a table.

    Attributes
    ----------
    result
        The recorded run and its replays.
    price
        The price of a thread-hour; without it, no costs are shown.
    span_id
        The id of the span in its trace, in hexadecimal digits.
    """

    result: WhatIf
    price: Price | None = None
    span_id: str = ""

    def headline(self) -> str:
        """Return the most useful result in one sentence."""
        it, base = self.result, self.result.replayed
        if it.refused or base is None:
            return f"No answer for {it.span}: {it.refused}"
        if best := self._best(base, it.experiments):
            said = self._compared(base, best)
            return said[:1].upper() + said[1:]
        took, tried = words.seconds(base.seconds), it.experiments
        return (
            f"Nothing that was tried saves more than {self._least(*tried):.0%} of {took}; "
            f"{self._within(*tried)}"
        )

    def of_threads(self) -> str:
        """Return the best other number of threads in a sentence; empty if none is of much use."""
        it, base = self.result, self.result.replayed
        if it.refused or base is None or not base.threads:
            return ""
        others = [
            one
            for one in it.experiments
            if one.threads and (one.threads < base.threads or one.seconds < _MUCH * base.seconds)
        ]
        best = self._best(base, others)
        if best is None or not best.threads:
            return ""
        return f"A replay of {it.span} with {self._compared(base, best)}."

    def _least(self, *tried: Replayed) -> float:
        """Return the smallest share of the run that counts as a difference."""
        return max(self.result.error_of(*tried) or 0.0, _LEAST)

    def _within(self, *tried: Replayed) -> str:
        return f"± {_above(self.result.error_of(*tried) or 0.0)}"

    def _best(self, base: Replayed, tried: Sequence[Replayed]) -> Replayed | None:
        """Return the shortest run, or the cheapest of those as fast; None if none is better."""
        knee, least = self.result.knee, self._least
        shorter = [one for one in tried if one.seconds < (1 - least(one)) * base.seconds]
        useful = [one for one in shorter if not knee or (one.threads or 0) <= knee.threads]
        if shorter:
            return min(useful or shorter, key=lambda one: one.seconds)
        as_fast = [one for one in tried if one.seconds <= (1 + _LEAST) * base.seconds]
        cheaper = [
            one for one in as_fast if one.thread_hours < (1 - least(one)) * base.thread_hours
        ]
        return min(cheaper, key=lambda one: one.thread_hours, default=None)

    def _compared(self, base: Replayed, one: Replayed) -> str:
        """Return what an experiment saves, and what it costs."""
        what, more = one.name, (one.threads or 0) - (base.threads or 0)
        if one.threads and base.threads and more:
            threads, cores = (words.noun(abs(more), one) for one in ("thread", "core"))
            # Tasks that compute take as long as before only with a core each.
            what = (
                f"{more:,} more {threads} and {cores}" if more > 0 else f"{-more:,} fewer {threads}"
            )
        cost = one.thread_hours / (base.thread_hours or 1.0) - 1
        took = f"{words.seconds(one.seconds)} instead of {words.seconds(base.seconds)}"
        costs = f"{abs(cost):.0%} {'more' if cost > 0 else 'less'} cost"
        return f"{what}: {took}, {costs}; {self._within(one)}"

    def notes(self) -> Iterator[str]:
        """Yield how many threads are of use, the error, and what is assumed, in sentences."""
        it, knee = self.result, self.result.knee
        if it.refused or it.replayed is None:
            return
        yield from it.stuck
        if knee:
            saved = f"less than {_above(knee.saved)} on average" if knee.saved else "nothing"
            yield f"Beyond {words.counted(knee.threads, 'thread')}, each further one saves {saved}."
        elif it.curve[1:] and all(one.seconds > other.seconds for one, other in pairwise(it.curve)):
            yield f"Each further thread is of use up to {it.curve[-1].threads:,}, the most tried."
        apart = abs(it.replayed.seconds / it.recorded - 1) if it.recorded else 0.0
        yield (
            f"{it.span} took {words.seconds(it.recorded)}; its replay took "
            f"{words.seconds(it.replayed.seconds)}, a difference of {apart:.1%}."
        )
        yield from it.assumptions

    def table(self) -> list[tuple[str, ...]]:
        """Return the headings and a row for each replay; empty without an answer."""
        base, rows = self.result.replayed, [_HEADINGS]
        if self.result.refused or base is None:
            return []
        for one in (base, *self.result.experiments):
            took, hours = words.seconds(one.seconds), 3600 * one.thread_hours
            change = "" if one is base else f"{round(one.seconds / base.seconds - 1, 2) + 0.0:+.0%}"
            cost = self.price.text(hours) if self.price else ""
            idle, error = f"{one.idle:.0%}", self._within(one)
            rows.append((one.name, took, change, error, idle, _HOURS.text(hours), cost))
        return [row if self.price else row[:-1] for row in rows]

    def text(self, width: int = 100, *, ascii_only: bool = False) -> str:
        """Return the result for a terminal: the headline, a table, a curve, and notes."""
        notes = (line for note in self.notes() for line in words.wrapped(note, width))
        table = words.aligned(self.table(), _HEADINGS[1:], width)
        parts = [self.headline()], table, self.curve(width), notes
        lines = (map(words.one_line, part) for part in parts)
        text = "\n\n".join(filter(None, ("\n".join(part) for part in lines)))
        return words.in_ascii(text) if ascii_only else text

    def curve(self, width: int = 100) -> Iterator[str]:
        """Yield the lines of the curve of durations and thread-hours over threads, if any."""
        curve, bar = self.result.curve, min(_BAR, (width - 37) // 2)
        if len(curve) < 2:
            return
        longest = max(one.seconds for one in curve)
        most = max(one.thread_hours for one in curve)
        yield f"{'threads':>8}{'duration':>11}  {'':<{bar}}{'thread-hours':>14}"
        for one in curve:
            took, hours = words.seconds(one.seconds), _HOURS.text(3600 * one.thread_hours)
            drawn = f"{words.bar(one.seconds / longest, bar):<{bar}}{hours:>14}"
            yield f"{one.threads:>8,}{took:>11}  {drawn}  {words.bar(one.thread_hours / most, bar)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data, for scripts."""
        it, base, price = self.result, self.result.replayed, self.price
        shown = [
            {
                **asdict(one),
                "error": it.error_of(one),
                "cost": price and price.of(3600 * one.thread_hours),
            }
            for one in (base, *it.experiments)
            if one
        ]
        return {
            "version": 1,
            "headline": self.headline(),
            "span": it.span,
            "recorded": it.recorded,
            "replayed": base and base.seconds,
            "error": it.error,
            "refused": it.refused,
            "as_it_was": shown[0] if base else None,
            "experiments": shown[1:],
            "knee": it.knee and it.knee.threads,
            "assumptions": it.assumptions,
            "stuck": it.stuck,
        }

    def __repr__(self) -> str:
        return self.text()

    def html(self) -> str:
        """Return the curve and the table as a section of a page."""
        from dask_otel.report.page.replays import replays

        it, knee = self.result, self.result.knee
        shown = self.headline(), self.table(), it.curve, knee and knee.threads
        return replays(*shown, [*self.notes()])

    _repr_html_ = html


def _above(share: float) -> str:
    """Return the next tenth of a percent above a share; from 1 % on, the next whole one."""
    tenths = 10 if share >= 0.01 else 1
    return f"{(floor(share * 1000 / tenths) + 1) * tenths / 10:g}%"

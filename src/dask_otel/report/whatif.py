"""The replays of a run as text, plain data, and a section of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from math import floor
from typing import Any, Final

from dask_otel.report import words
from dask_otel.report.money import Price
from dask_otel.whatif.result import Replayed, WhatIf

#: More threads are worth a sentence if the run is so much shorter.
_MUCH: Final = 0.9
#: The smallest share that counts as a difference; fewest columns of a name, most of a bar.
_LEAST, _NAME, _BAR = 0.02, 12, 24
_HEADINGS: Final = ("replayed", "duration", "change", "idle", "thread-hours", "cost")
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
        it, base, knee = self.result, self.result.replayed, self.result.knee
        if it.refused or base is None:
            return f"No answer for {it.span}: {it.refused}"
        least = max(it.error or 0.0, _LEAST)
        shorter = [one for one in it.experiments if one.seconds < (1 - least) * base.seconds]
        useful = [one for one in shorter if not knee or (one.threads or 0) <= knee.threads]
        as_fast = [one for one in it.experiments if one.seconds <= (1 + least) * base.seconds]
        cheaper = [one for one in as_fast if one.thread_hours < (1 - least) * base.thread_hours]
        if shorter:
            best = min(useful or shorter, key=lambda one: one.seconds)
        else:
            best = min(cheaper, key=lambda one: one.thread_hours, default=base)
        took, within = words.seconds(base.seconds), f"± {_above(it.error or 0.0)}"
        if best is base:
            return f"Nothing that was tried saves more than {least:.0%} of {took}; {within}"
        more = best.thread_hours / (base.thread_hours or 1.0) - 1
        costs = f"{abs(more):.0%} {'more' if more > 0 else 'less'} cost"
        what = _named(best, base)
        said = f"{what[:1].upper()}{what[1:]}: {words.seconds(best.seconds)} instead of {took}"
        return f"{said}, {costs}; {within}"

    def of_threads(self) -> str:
        """Return the best other number of threads in a sentence; empty if none is of much use."""
        it, base = self.result, self.result.replayed
        useful = [
            one
            for one in it.experiments
            if base
            and one.threads
            and base.threads
            and (one.threads < base.threads or one.seconds < _MUCH * base.seconds)
        ]
        said = replace(self, result=replace(it, experiments=tuple(useful))).headline()
        # Else nothing saves anything.
        core = "" if "fewer" in said else ", with a core for each"
        return f"{it.span} with {said}{core}." if said[0].isdigit() else ""

    def about_threads(self) -> str:
        """Return how many threads are of use, in one sentence; empty without a curve."""
        curve, knee = self.result.curve, self.result.knee
        if len(curve) < 2:
            return ""
        if knee is None:
            return f"Up to {curve[-1].threads:,} threads, most of each further one is of use."
        saved = f"less than {_above(knee.saved)}" if knee.saved else "nothing"
        return f"Beyond {words.counted(knee.threads, 'thread')}, each further one saves {saved}."

    def notes(self) -> list[str]:
        """Return what the figures mean and assume, in sentences."""
        it = self.result
        if it.replayed is None:
            return []
        error = "" if it.error is None else f", a difference of {it.error:.1%}"
        took = f"{words.seconds(it.recorded)}; its replay took {words.seconds(it.replayed.seconds)}"
        said = [self.about_threads(), f"{it.span} took {took}{error}.", *it.assumptions]
        return [one for one in said if one]

    def table(self) -> list[tuple[str, ...]]:
        """Return the headings and a row for each replay; empty without one."""
        base, rows = self.result.replayed, [_HEADINGS]
        if base is None:
            return []
        for one in (base, *self.result.experiments):
            took, hours = words.seconds(one.seconds), 3600 * one.thread_hours
            change = "" if one is base else f"{one.seconds / base.seconds - 1:+.0%}"
            cost = self.price.text(hours) if self.price else ""
            rows.append((one.name, took, change, f"{one.idle:.0%}", _HOURS.text(hours), cost))
        return [row if self.price else row[:-1] for row in rows]

    def text(self, width: int = 100, *, ascii_only: bool = False) -> str:
        """Return the result for a terminal: the headline, a table, a curve, and notes."""
        notes = (line for note in self.notes() for line in words.wrapped(note, width))
        parts = [self.headline()], _aligned(self.table(), width), self._bars(width), notes
        lines = (map(words.one_line, part) for part in parts)
        text = "\n\n".join(filter(None, ("\n".join(part) for part in lines)))
        return words.in_ascii(text) if ascii_only else text

    def _bars(self, width: int) -> Iterator[str]:
        """Yield the curve of durations and thread-hours over threads, if there is one."""
        curve = self.result.curve
        if len(curve) > 1:
            bar = min(_BAR, (width - 37) // 2)
            longest = max(one.seconds for one in curve)
            most = max(one.thread_hours for one in curve) or 1.0
            yield f"{'threads':>8}{'duration':>11}  {'':<{bar}}{'thread-hours':>14}"
            for one in curve:
                took, hours = words.seconds(one.seconds), _HOURS.text(3600 * one.thread_hours)
                drawn = (
                    words.bar(one.seconds / longest, bar),
                    words.bar(one.thread_hours / most, bar),
                )
                yield f"{one.threads:>8,}{took:>11}  {drawn[0]:<{bar}}{hours:>14}  {drawn[1]}"

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data, for scripts."""
        it, base, knee = self.result, self.result.replayed, self.result.knee

        def figures(one: Replayed) -> dict[str, Any]:
            cost = self.price.of(3600 * one.thread_hours) if self.price else None
            return {**asdict(one), "cost": cost}

        return {
            "version": 1,
            "headline": self.headline(),
            "span": it.span,
            "recorded": it.recorded,
            "replayed": base and base.seconds,
            "error": it.error,
            "refused": it.refused,
            "as_it_was": base and figures(base),
            "experiments": [figures(one) for one in it.experiments],
            "knee": knee and knee.threads,
            "assumptions": it.assumptions,
        }

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def html(self) -> str:
        """Return the curve and the table as a section of a page.

        Raises
        ------
        ImportError
            If bokeh is missing; ``dask-otel[report]`` installs it.
        """
        from dask_otel.report.page.html import replays

        knee = self.result.knee
        curve = self.result.curve, knee and knee.threads
        return replays(self.headline(), self.table(), *curve, self.notes())

    def _repr_html_(self) -> str | None:
        # Without it, a notebook shows the text.
        return self.html() if find_spec("bokeh") else None


def _named(one: Replayed, base: Replayed) -> str:
    """Return the name of an experiment; of another number of threads, the difference."""
    more = (one.threads or 0) - (base.threads or 0)
    if not (one.threads and base.threads and more):
        return one.name
    return f"{abs(more):,} {'more' if more > 0 else 'fewer'} {words.noun(abs(more), 'thread')}"


def _above(share: float) -> str:
    """Return the next tenth of a percent above a share; from 1 % on, the next whole one."""
    tenths = 10 if share >= 0.01 else 1
    return f"{(floor(share * 1000 / tenths) + 1) * tenths / 10:g}%"


def _aligned(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield the lines of a table: names to the left, cut to the width, and figures to the right."""
    first, *wide = (max(map(len, column)) for column in zip(*rows, strict=True)) if rows else (0,)
    first = min(first, max(_NAME, width - sum(wide) - 2 * len(wide)))
    for name, *figures in rows:
        cells = (f"{cell:>{room}}" for cell, room in zip(figures, wide, strict=True))
        yield "  ".join((words.fit(name, first), *cells))

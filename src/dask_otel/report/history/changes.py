"""What changed from run to run of one name, with known rates of false alarms.

A change point is found by ranks: runs are split where the normal scores of the ranks before and
after differ most, and a change is reported only beyond a limit. Ranks have the same distribution
for all noise, so the limit holds for any. ``benchmarks/changes.py`` simulates the rates.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, median, stdev
from typing import Final

from dask_otel.report import words
from dask_otel.report.history.difference import (
    difference,
    in_words,
    named,
    parts_in_words,
    path_parts,
)
from dask_otel.report.history.past import PastRun, Terms, total
from dask_otel.report.telemetry.model import grouped

#: Fewest runs for a statement, and for a change point: in fewer, even the clearest order of ranks
#: is too probable.
FEWEST: Final = 8
FEWEST_SPLIT: Final = 13
#: Most runs that are compared, and most predecessors of an unusual one.
MOST: Final = 100
_PREDECESSORS: Final = 30
#: A slower level is a regression for this many runs; later it is the usual one.
RECENT: Final = 10

#: The standard deviation of a normal distribution in median absolute deviations.
_DEVIATIONS: Final = 1.4826

#: The figures that raise alarms, and how a run has them.
FIGURES: Final[dict[str, Callable[[PastRun], float | None]]] = {
    "duration": lambda run: run.seconds,
    "thread-time": lambda run: run.thread_seconds,
}


@dataclass(frozen=True)
class Change:
    """A change of a figure: medians before and after, and numbers of runs.

    `since` is the start of the first run after it. `parts` are the differences of the mean seconds
    of a run by part (of the thread-time, or of the path), `terms` those by function, too: the sum
    of each is the difference of the means. They are empty if a run lacks them. The `verdict` has
    "more work" or "less work" if that is more than a quarter of it, and "slower" or "faster" if the
    rest is. `beside` has in words what else differs.
    """

    figure: str
    since: float
    before: float
    after: float
    runs_before: int
    runs_after: int
    verdict: str
    parts: dict[str, float]
    terms: Terms
    beside: list[str]

    def texts(self) -> list[str]:
        """Return it as text: the change, what it is made of, and what else differs."""
        before, after = (
            f"{words.seconds(value)} (median of {words.counted(runs, 'run')})"
            for value, runs in ((self.before, self.runs_before), (self.after, self.runs_after))
        )
        since = f"{self.after / self.before - 1:+.0%} since {words.when(round(self.since * 1e9))}"
        by_function = in_words(named(self.terms)) if any(self.terms) else ""
        made_of = filter(None, (parts_in_words(self.parts), by_function))
        mean = sum(self.parts.values()) or total(self.terms)
        titles = (f"the mean {words.signed(mean)}", "by function")
        return [
            f"{self.figure} {since}: {before} before, {after} after; {self.verdict}",
            *(f"{title}: {text}" for title, text in zip(titles, made_of, strict=False)),
            *self.beside,
        ]


@dataclass(frozen=True)
class Unusual:
    """A last run outside the interval that its predecessors give, at a rate of one in 100."""

    figure: str
    value: float
    least: float
    most: float
    predecessors: int

    def texts(self) -> list[str]:
        """Return it as text."""
        least, most = words.seconds(self.least), words.seconds(self.most)
        return [
            f"the last run's {self.figure} is unusual: {words.seconds(self.value)}",
            f"its {self.predecessors} predecessors give {least} to {most}",
        ]


@dataclass
class Trend:
    """The comparison of all successful runs of a name; `regression` is about the last one."""

    name: str
    runs: int
    changes: list[Change] = field(default_factory=list)
    unusual: list[Unusual] = field(default_factory=list)
    regression: bool = False

    def texts(self) -> list[list[str]]:
        """Return it as text: each change and unusual figure in its parts."""
        runs = f"{self.runs} succeeded, at least {{}} are needed"
        if self.runs < FEWEST:
            return [[f"too few runs to tell: {runs.format(FEWEST)}"]]
        found = [one.texts() for one in self.changes]
        found += [one.texts() for one in self.unusual]
        if self.runs < FEWEST_SPLIT:
            found.append([f"too few runs to tell of a lasting change: {runs.format(FEWEST_SPLIT)}"])
        return found or [[f"no change beyond chance in {self.runs} runs"]]

    def lines(self) -> list[str]:
        """Return it as text, each part of `texts` on one line."""
        return ["; ".join(one) for one in self.texts()]


def trends(runs: Sequence[PastRun]) -> list[Trend]:
    """Return the trend of each name, those with news first; `runs` are in order of their start."""
    same = grouped(runs, lambda run: run.name)
    return sorted(
        (_trend(name, found) for name, found in same.items()),
        key=lambda one: (not one.regression, not (one.changes or one.unusual), one.name),
    )


def _trend(name: str, runs: Sequence[PastRun]) -> Trend:
    # A run that fails early is not a fast one.
    compared = [run for run in runs if run.result == "success"][-MOST:]
    trend = Trend(name, len(compared))
    for figure, value_of in FIGURES.items():
        known = [(run, value) for run in compared if (value := value_of(run)) and value > 0]
        values = [value for _, value in known]
        levels = [0, *change_points([math.log(one) for one in values]), len(values)]
        for start, middle, end in zip(levels, levels[1:], levels[2:], strict=False):
            before, after = median(values[start:middle]), median(values[middle:end])
            found = difference(
                [run for run, _ in known[start:middle]], [run for run, _ in known[middle:end]]
            )
            is_time = figure == "thread-time"
            change = Change(
                figure,
                since=known[middle][0].start,
                before=before,
                after=after,
                runs_before=middle - start,
                runs_after=end - middle,
                verdict=found.verdict_of(after - before),
                parts=found.parts if is_time else dict(path_parts(found.path)),
                terms=found.terms if is_time else found.path,
                beside=found.beside,
            )
            trend.changes.append(change)
            is_last = end == len(values) and end - middle <= RECENT and known[-1][0] is runs[-1]
            is_slower = change.verdict.startswith("slower")
            trend.regression |= is_last and is_slower and values[-1] > math.sqrt(before * after)
        latest = values[levels[-2] :] if values else []
        if latest and known[-1][0] is runs[-1]:
            trend.unusual += _unusual(figure, latest)
    return trend


def _unusual(figure: str, values: Sequence[float]) -> Iterator[Unusual]:
    """Yield the last value if it is outside the interval of its predecessors."""
    logs = [math.log(value) for value in values[-_PREDECESSORS - 1 : -1]]
    if len(logs) < FEWEST:
        return
    middle = median(logs)
    spread = _DEVIATIONS * median(abs(one - middle) for one in logs)
    # Of 1,000 values of normal noise, at most ten are farther out: simulated for 8 to 30.
    reach = (2.15 + 30 / len(logs)) * spread
    least, most = math.exp(middle - reach), math.exp(min(middle + reach, 700.0))
    if spread and not least <= values[-1] <= most:
        yield Unusual(figure, values[-1], least, most, len(logs))


def change_points(values: Sequence[float]) -> list[int]:
    """Return the indices at which a new level begins."""
    if not _has_change(values):
        return []
    # Ranks say that there is a change; the distances from both medians, where.
    places = range(FEWEST, len(values) - 1)
    split = min(places, key=lambda at: _distances(values[:at]) + _distances(values[at:]))
    after = [split + one for one in change_points(values[split:])]
    return [*change_points(values[:split]), split, *after]


def _distances(values: Sequence[float]) -> float:
    middle = median(values)
    return sum(abs(value - middle) for value in values)


def _has_change(values: Sequence[float]) -> bool:
    """Return whether the ranks before and after some index differ by more than chance."""
    count = len(values)
    if count < FEWEST_SPLIT or len(set(values)) == 1:
        return False
    scores = _scores(values)
    sums = list(itertools.accumulate(scores))
    largest = max(
        abs(sums[at - 1]) * math.sqrt(count / (at * (count - at)))
        for at in range(FEWEST, count - 1)
    )
    # The largest is beyond it in 6 of 1,000 histories without a change: simulated for 13 to 100.
    return largest > (3.98 - 4.32 / math.sqrt(count)) * stdev(scores)


def _scores(values: Sequence[float]) -> list[float]:
    """Return the normal scores of the ranks; equal values have the mean of their scores."""
    order = sorted(values)
    count, inv_cdf = len(order), NormalDist().inv_cdf
    scores = [inv_cdf(rank / (count + 1)) for rank in range(1, count + 1)]
    return [fmean(scores[bisect_left(order, one) : bisect_right(order, one)]) for one in values]

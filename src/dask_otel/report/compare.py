"""Two reports side by side: their spans by name, and their functions by what they cost.

It says by how much, and never better or worse: a machine that was busy with something else makes
the same program slower, and one run of each can't tell the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final

from dask_otel.report import words
from dask_otel.report.meanings import PART_TITLES
from dask_otel.report.seconds import SpanTime, by_function, merged, run_parts, span_times
from dask_otel.report.telemetry.model import Run

#: Thread-seconds from which on the change of a part is listed.
_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Side:
    """What the runs of one report say of a span's name. None is what was not exported."""

    #: Spans of all runs.
    count: int
    #: From start to end, on average of these spans.
    lasted: float | None
    #: Thread-seconds of a run, idle among them, on average. None for a span without own tasks.
    seconds: float | None
    parts: dict[str, float]


@dataclass(frozen=True)
class Difference:
    """One name in both reports; a side is None where the name is not in it."""

    name: str
    before: Side | None
    after: Side | None

    def changes(self) -> list[tuple[str, float]]:
        """Return by how many thread-seconds a run each part grew, the largest change first."""
        before = self.before.parts if self.before else {}
        after = self.after.parts if self.after else {}
        grown = ((part, after.get(part, 0.0) - before.get(part, 0.0)) for part in PART_TITLES)
        return sorted(
            ((part, seconds) for part, seconds in grown if abs(seconds) >= _SECONDS),
            key=lambda item: -abs(item[1]),
        )

    def changes_in_words(self, most: int) -> str:
        """Return the largest changes of the parts as a text."""
        changes = self.changes()[:most]
        return ", ".join(
            f"{words.signed(seconds)} {words.inside(part)}" for part, seconds in changes
        )

    def cells(self) -> list[str]:
        """Return how long it lasted in A and in B, and its thread-time in A and in B."""
        sides = (self.before, self.after)
        values = [side.lasted if side else None for side in sides]
        values += [side.seconds if side else None for side in sides]
        return [*map(words.known, values)]


@dataclass(frozen=True)
class Function:
    """The tasks of one prefix: tasks and thread-seconds of a run, on average, in A and in B."""

    name: str
    tasks: tuple[float, float]
    seconds: tuple[float, float]

    @property
    def each(self) -> list[float | None]:
        """The thread-seconds of one task in A and in B; None where there is none."""
        both = zip(self.tasks, self.seconds, strict=True)
        return [seconds / tasks if tasks else None for tasks, seconds in both]

    @property
    def change(self) -> float:
        """The thread-seconds that a run of B took more than one of A."""
        return self.seconds[1] - self.seconds[0]

    def cells(self) -> list[str]:
        """Return the tasks in A and in B, the time of each, and by how much a run changed."""
        tasks = [f"{count:,.4g}" if count else "" for count in self.tasks]
        return [*tasks, *map(words.known, self.each), words.signed(self.change)]


@dataclass(frozen=True)
class Comparison:
    """All names of two reports; `whole` is that of the clusters, `functions` by their change."""

    before: str
    after: str
    whole: Difference
    names: list[Difference]
    functions: list[Function]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        whole, *spans = (
            {**asdict(one), "parts": dict(one.changes())} for one in (self.whole, *self.names)
        )
        return {
            "before": self.before,
            "after": self.after,
            "whole": whole,
            "spans": spans,
            "functions": [
                {**asdict(one), "each": one.each, "change": one.change} for one in self.functions
            ],
        }


def compare(
    before: Sequence[Run], after: Sequence[Run], titles: tuple[str, str] = ("A", "B")
) -> Comparison:
    """Compare the runs of two reports; several runs of one are averaged.

    Names come in the order of the first, those that are new after them.
    """
    first, second = _sides(before), _sides(after)
    names = list(dict.fromkeys([*first, *second]))
    return Comparison(
        f"{titles[0]} ({words.counted(len(before), 'run')})",
        f"{titles[1]} ({words.counted(len(after), 'run')})",
        Difference("all", _whole(before), _whole(after)),
        [Difference(name, first.get(name), second.get(name)) for name in names],
        _functions(before, after),
    )


def _functions(before: Sequence[Run], after: Sequence[Run]) -> list[Function]:
    first, second = _per_run(before), _per_run(after)
    none = (0.0, 0.0)
    found = []
    for name in dict.fromkeys([*first, *second]):
        (tasks, seconds), (tasks_after, seconds_after) = (
            side.get(name, none) for side in (first, second)
        )
        found.append(Function(name, (tasks, tasks_after), (seconds, seconds_after)))
    return sorted(found, key=lambda one: -abs(one.change))


def _per_run(runs: Sequence[Run]) -> dict[str, tuple[float, float]]:
    """Return the tasks and thread-seconds of each function, on average of the runs."""
    result: dict[str, tuple[float, float]] = {}
    for run in runs:
        for name, (tasks, seconds) in by_function(run).items():
            known = result.get(name, (0.0, 0.0))
            result[name] = (known[0] + tasks / len(runs), known[1] + seconds / len(runs))
    return result


def _sides(runs: Sequence[Run]) -> dict[str, Side]:
    times: dict[str, list[SpanTime]] = {}
    lasted: dict[str, list[float]] = {}
    for run in runs:
        for entry in span_times(run):
            times.setdefault(entry.name, []).append(entry)
        for span in run.of_type("span"):
            if not span.unfinished:
                lasted.setdefault(span.full_name, []).append(span.seconds)
    result = {}
    for name, entries in times.items():
        entry = merged(name, entries)
        known = lasted.get(name, [])
        worked = entry.activities or entry.idle is not None
        seconds = entry.seconds / len(runs) if worked else None
        result[name] = Side(
            len(known), fmean(known) if known else None, seconds, _averages(entry.parts(), runs)
        )
    return result


def _whole(runs: Sequence[Run]) -> Side:
    parts = dict.fromkeys(PART_TITLES, 0.0)
    for run in runs:
        for part, seconds in run_parts(run).items():
            parts[part] += seconds
    parts = _averages(parts, runs)
    lasted = fmean(run.seconds for run in runs) if runs else None
    return Side(len(runs), lasted, sum(parts.values()), parts)


def _averages(parts: dict[str, float], runs: Sequence[Run]) -> dict[str, float]:
    return {part: seconds / len(runs) for part, seconds in parts.items()}

"""Compares two reports: their spans by name, and their functions by cost.

It reports differences, and never calls them better or worse: other load on the machine also makes a
program slower, and one run of each cannot separate the two causes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Final

from dask_otel.report import words
from dask_otel.report.meanings import PART_TITLES, PATH
from dask_otel.report.path import Waits, path
from dask_otel.report.seconds import by_function, merged_by, run_parts, span_times
from dask_otel.report.telemetry.model import Run

#: The smallest change of a part that is listed, in thread-seconds.
_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Side:
    """The figures of one report for a span's name. None if they were not exported."""

    #: Number of spans in all runs.
    count: int
    #: Mean seconds from a span's start to its end.
    lasted: float | None
    #: Mean thread-seconds of a run, with idle. None for a span without own tasks.
    seconds: float | None
    parts: dict[str, float]
    #: Seconds of a span's path by part, and of its longest tasks by function; empty if unknown.
    path: dict[str, float] = field(default_factory=dict)
    path_functions: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """One name in both reports; a side is None if its report lacks the name."""

    name: str
    before: Side | None
    after: Side | None

    def changes(self) -> list[tuple[str, float]]:
        """Return the change of each part in thread-seconds per run, the largest first."""
        before = self.before.parts if self.before else {}
        after = self.after.parts if self.after else {}
        return _changes(before, after, PART_TITLES)

    def changes_in_words(self, most: int) -> str:
        """Return the largest changes of the parts as text."""
        return _in_words(self.changes()[:most])

    def path_in_words(self, most: int) -> str:
        """Return the largest changes of the path of a span as text: of parts, then of functions.

        Empty if a side has no path.
        """
        before, after = self.before, self.after
        if not before or not after or not before.path or not after.path:
            return ""
        parts = _changes(before.path, after.path, PATH)[:most]
        names = dict.fromkeys([*before.path_functions, *after.path_functions])
        functions = _changes(before.path_functions, after.path_functions, names)[:most]
        return _in_words(
            [(PATH[part].title, by) for part, by in parts]
            + [(f"in {prefix}", by) for prefix, by in functions]
        )

    def cells(self) -> list[str]:
        """Return its duration in A and B, and its thread-time in A and B."""
        sides = (self.before, self.after)
        values = [side.lasted if side else None for side in sides]
        values += [side.seconds if side else None for side in sides]
        return [*map(words.known, values)]


@dataclass(frozen=True)
class Function:
    """The tasks of one prefix: mean tasks and thread-seconds of a run, in A and in B."""

    name: str
    tasks: tuple[float, float]
    seconds: tuple[float, float]

    @property
    def each(self) -> list[float | None]:
        """The thread-seconds of one task in A and in B; None without tasks."""
        both = zip(self.tasks, self.seconds, strict=True)
        return [seconds / tasks if tasks else None for tasks, seconds in both]

    @property
    def change(self) -> float:
        """The thread-seconds of a run in B minus those in A."""
        return self.seconds[1] - self.seconds[0]

    def cells(self) -> list[str]:
        """Return the tasks in A and B, the time of one in A and B, and the change of a run."""
        tasks = [f"{count:,.4g}" if count else "" for count in self.tasks]
        return [*tasks, *map(words.known, self.each), words.signed(self.change)]


@dataclass(frozen=True)
class Comparison:
    """All names of two reports; `whole` compares the clusters, `functions` are by their change."""

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
    """Compare two reports; several runs of one report are averaged.

    Names are in the order of the first report; new names follow.
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


def _changes(
    before: dict[str, float], after: dict[str, float], names: Iterable[str]
) -> list[tuple[str, float]]:
    grown = ((name, after.get(name, 0.0) - before.get(name, 0.0)) for name in names)
    return sorted(
        ((name, seconds) for name, seconds in grown if abs(seconds) >= _SECONDS),
        key=lambda item: -abs(item[1]),
    )


def _in_words(changes: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{words.signed(seconds)} {words.inside(name)}" for name, seconds in changes)


def _functions(before: Sequence[Run], after: Sequence[Run]) -> list[Function]:
    first, second = _per_run(before), _per_run(after)
    none = (0.0, 0.0)
    found = [
        Function(name, *zip(first.get(name, none), second.get(name, none), strict=True))
        for name in dict.fromkeys([*first, *second])
    ]
    return sorted(found, key=lambda one: -abs(one.change))


def _per_run(runs: Sequence[Run]) -> dict[str, tuple[float, float]]:
    """Return the mean tasks and thread-seconds of each function in a run."""
    result: dict[str, tuple[float, float]] = {}
    for run in runs:
        for name, (tasks, seconds) in by_function(run).items():
            known = result.get(name, (0.0, 0.0))
            result[name] = (known[0] + tasks / len(runs), known[1] + seconds / len(runs))
    return result


def _sides(runs: Sequence[Run]) -> dict[str, Side]:
    lasted: dict[str, list[float]] = {}
    for span in (span for run in runs for span in run.of_type("span") if not span.unfinished):
        lasted.setdefault(span.full_name, []).append(span.seconds)
    paths: dict[str, list[Waits]] = {}
    for waits in (one for found in map(path, runs) if found for one in found.names):
        paths.setdefault(waits.name, []).append(waits)
    result = {}
    for entry in merged_by((one.name, one) for run in runs for one in span_times(run)):
        known = lasted.get(entry.name, [])
        worked = entry.activities or entry.idle is not None
        result[entry.name] = Side(
            len(known),
            fmean(known) if known else None,
            entry.seconds / len(runs) if worked else None,
            {part: seconds / len(runs) for part, seconds in entry.parts().items()},
            *_path_of(paths.get(entry.name, [])),
        )
    return result


def _path_of(found: Sequence[Waits]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean parts and functions of the path of one span."""
    parts: dict[str, float] = {}
    functions: dict[str, float] = {}
    count = sum(one.count for one in found)
    for one in found:
        for part, seconds in one.parts.items():
            parts[part] = parts.get(part, 0.0) + seconds / count
        for prefix, (_, seconds) in one.functions().items():
            functions[prefix] = functions.get(prefix, 0.0) + seconds / count
    return parts, functions


def _whole(runs: Sequence[Run]) -> Side:
    found = [run_parts(run) for run in runs]
    parts = {title: fmean(one[title] for one in found) for title in PART_TITLES}
    return Side(len(runs), fmean(run.seconds for run in runs), sum(parts.values()), parts)

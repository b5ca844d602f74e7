"""What the difference of two groups of runs of one name is made of, as sums that close.

All figures are means of a run. A function's change is divided in two: more or less work, and more
or less time for the same work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from statistics import fmean, median
from typing import Any, Final, NamedTuple, TypeAlias

from dask_otel.core.sums import summed
from dask_otel.report import profiles, words
from dask_otel.report.history.past import COMPUTING, MOVED, RUNNING, PastRun, Terms, ended, total
from dask_otel.report.meanings import PATH
from dask_otel.report.seconds import add
from dask_otel.report.telemetry.model import Session

#: The text without any run.
NOTHING: Final = "no root span has ended: there is nothing to compare"
#: Fewest runs of each side for a statement about their spread, and so about their time.
FEWEST: Final = 3
#: Smaller relative differences are never a difference.
_SMALLEST: Final = 0.01
#: The share of a change that more work, or more time for the same work, has to have to be named.
_PART: Final = 0.25
#: The smallest change that the text has, in seconds, and as a share of all changes.
_SECONDS, _SHARE = 0.0005, 0.01
#: Those of a span have at least so many seconds; most changes of a text.
_LISTED, _MOST = 0.05, 4

#: Figures beside a change: their words, their field, and how they are written.
_BESIDE: Final = (
    ("tasks", "tasks", words.whole),
    ("size of all results", "output", words.size),
    ("memory peak", "memory_peak", words.size),
    ("memory-time", "memory_time", words.byte_seconds),
    ("workers", "workers", words.whole),
    ("threads", "threads", words.whole),
)

#: Of units of work: the words behind the unit, and the field by which they are divided.
_RATES: Final = {"": "", " per second": "seconds", " per thread-second": "thread_seconds"}

Side: TypeAlias = Sequence[PastRun]
#: A figure in A and in B; None if it is unknown.
Pair: TypeAlias = Sequence[float | None]


class Work(NamedTuple):
    """What a function did in a run."""

    tasks: float
    bytes: float
    seconds: float


@dataclass(frozen=True)
class Function:
    """The tasks of one prefix: means of a run, in A and in B.

    `spreads` are the least and the most thread-seconds of one task in the runs of a side.
    `change` are the thread-seconds in B minus those in A; `more_work`, those of them that more
    tasks took, or more bytes. `each` has the thread-seconds of one task, None without tasks.
    """

    name: str
    tasks: Sequence[float]
    bytes: Sequence[float]
    seconds: Sequence[float]
    spreads: Sequence[tuple[float, float] | None]
    verdict: str
    more_work: float
    change: float
    each: list[float | None]

    def cells(self) -> list[str]:
        """Return the tasks in A and B, the time of one in A and B, and the change."""
        tasks = [f"{count:,.4g}" if count else "" for count in self.tasks]
        return [*tasks, *map(words.known, self.each), words.signed(self.change)]

    def spread(self) -> str:
        """Return the spread of a task in A and in B as text; empty with too few runs."""
        known = [
            f"{words.seconds(least)} to {words.seconds(most)}"
            for least, most in filter(None, self.spreads)
        ]
        return ", then ".join(known)


@dataclass(frozen=True)
class StepDifference:
    """The spans of one name: mean duration, thread-seconds of a run, and changes that close."""

    name: str
    lasted: Pair
    seconds: Pair
    parts: dict[str, float]
    path: Terms

    def cells(self) -> list[str]:
        """Return its duration in A and B, and its thread-time in A and B."""
        return [*map(words.known, (*self.lasted, *self.seconds))]

    def changes_in_words(self) -> str:
        """Return the changes of its thread-time by part."""
        return parts_in_words(self.parts, _LISTED)

    def path_in_words(self) -> str:
        """Return the changes of its path by part, then by function."""
        functions = ((f"in {name}", sum(one.values())) for name, one in self.path.items() if name)
        both = (in_words(path_parts(self.path), _LISTED), in_words(functions, _LISTED))
        return ", ".join(filter(None, both))


@dataclass(frozen=True)
class Difference:
    """All runs of one name in A and in B.

    `apart` is 1 if the thread-time is larger in B beyond chance, -1 if it is smaller, else 0. The
    sum of `parts` and that of `terms` are the change of the mean thread-time, the sum of `path` is
    that of the mean duration; they are empty if a run lacks them. `more_work` are the seconds of
    `terms` that more work took. `beside` has in words what else differs.
    """

    name: str
    runs: tuple[int, int]
    lasted: Pair
    seconds: Pair
    apart: int
    more_work: float
    parts: dict[str, float]
    terms: Terms
    path: Terms
    functions: list[Function]
    steps: list[StepDifference]
    beside: list[str]
    #: The change of a run's sampled seconds by place in the code; empty without profiles.
    code: list[tuple[str, float]] = field(default_factory=list)
    #: In words, the seconds of the change of the duration from the last run of A to that of B;
    #: empty without replays. If recorded runs can't be replayed, the reason.
    replayed: list[tuple[str, float]] = field(default_factory=list)
    not_replayed: str = ""

    def verdict_of(self, change: float) -> str:
        """Return what a change of the duration or the thread-time is, if it is no chance."""
        seconds = _change(self.seconds)
        # A duration that changes in the other direction has another reason.
        share = self.more_work / seconds if seconds * change > 0 else 0.0
        pace, work = ("slower", "more work") if change > 0 else ("faster", "less work")
        return " and ".join([pace] * (share < 1 - _PART) + [work] * (share > _PART))

    @property
    def verdict(self) -> str:
        """What happened to the thread-time; empty if its change can be chance."""
        return self.verdict_of(self.apart) if self.apart else ""

    def lines(self) -> Iterator[str]:
        """Yield it as text, without functions and steps."""
        counts = " and ".join(f"{count:,}" for count in self.runs)
        if not all(self.runs):
            yield f"{counts} runs: only one side has it"
            return
        head = [
            f"{what} {words.seconds(old)}, then {words.seconds(new)} ({new / old - 1:+.0%})"
            for what, (old, new) in (("lasted", self.lasted), ("thread-time", self.seconds))
            if old and new
        ]
        yield "; ".join(filter(None, (f"{counts} runs", *head, self.verdict)))
        if min(self.runs) < FEWEST:
            yield (
                f"fewer than {FEWEST} runs of a side do not show how much equal runs differ, so "
                "nothing is called slower or faster"
            )
        changes = {
            "the thread-time": in_words(named(self.terms)),
            "by part": parts_in_words(self.parts),
            "more or less work": in_words([("of these", self.more_work)]),
            "the path": in_words(named(self.path)),
            "the code": in_words(self.code, _LISTED),
            "the last run of each, replayed": in_words(self.replayed) or self.not_replayed,
        }
        yield from (f"{what}: {said}" for what, said in changes.items() if said)
        yield from self.beside


@dataclass(frozen=True)
class Comparison:
    """The runs of two reports by name, the largest change first."""

    before: str
    after: str
    names: list[Difference]
    #: By name, the stacks of a mean run in A and in B, where both have profiles.
    code: Mapping[str, tuple[profiles.Seconds, profiles.Seconds]]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without stacks."""
        names = [
            {**asdict(one), "lines": list(one.lines()), "verdict": one.verdict}
            for one in self.names
        ]
        return {"before": self.before, "after": self.after, "names": names}


def compare(
    before: Iterable[Session], after: Iterable[Session], titles: tuple[str, str] = ("A", "B")
) -> Comparison:
    """Compare the ended runs of two reports, those of one name together."""
    sessions = [*before], [*after]
    sides = [[one for run in runs for one in ended(run, "")] for runs in sessions]
    names = dict.fromkeys(run.name for side in sides for run in side)
    code, found = {}, []
    for name in names:
        before_it, after_it = (profiles.mean_run(side, name) for side in sessions)
        one = difference(*([run for run in side if run.name == name] for side in sides))
        if before_it and after_it:
            code[name] = before_it, after_it
            tasks = {function.name: function.tasks for function in one.functions}
            one = replace(one, code=profiles.changes(before_it, after_it, tasks))
        found.append(one)
    first, second = (f"({words.counted(len(side), 'run')})" for side in sides)
    return Comparison(
        f"{titles[0]} {first}",
        f"{titles[1]} {second}",
        sorted(found, key=lambda one: -abs(_change(one.seconds))),
        code,
    )


def difference(before: Side, after: Side) -> Difference:
    """Return the difference of two groups of runs of one name."""
    sides = (before, after)
    of_runs = _alike([[run.functions for run in side] for side in sides])
    functions = _functions(sides, of_runs)
    all_known = all(run.thread_seconds is not None for side in sides for run in side)
    steps = dict.fromkeys(name for side in sides for run in side for name in run.steps)
    return Difference(
        name=(*before, *after)[0].name,
        runs=(len(before), len(after)),
        lasted=[_mean(run.seconds for run in side) for side in sides],
        seconds=[_mean(run.thread_seconds for run in side) for side in sides],
        apart=apart(
            *([one for run in side if (one := run.thread_seconds) is not None] for side in sides),
            fewest=FEWEST,
        ),
        more_work=sum(one.more_work for one in functions) + _overhead(before, after),
        parts=_minus_parts(*([run.parts for run in side] for side in sides)),
        terms=_minus(*of_runs) if all_known else {},
        path=_minus(*([run.path for run in side] for side in sides)),
        functions=functions,
        steps=[_step(name, sides) for name in steps],
        beside=list(_beside(before, after)) if before and after else [],
    )


def _change(pair: Pair) -> float:
    return (pair[1] or 0.0) - (pair[0] or 0.0)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _functions(sides: tuple[Side, Side], of_runs: Sequence[Sequence[Terms]]) -> list[Function]:
    """Return all functions, the largest change first; `of_runs` has the terms of each run."""
    names = dict.fromkeys(name for side in of_runs for terms in side for name in terms)

    def work(name: str, side: int) -> list[Work]:
        return [
            Work(
                run.work.get(name, {}).get("tasks", 0.0),
                run.work.get(name, {}).get("bytes", 0.0),
                sum(terms.get(name, {}).values()),
            )
            for run, terms in zip(sides[side], of_runs[side], strict=True)
            # The smallest functions of a run are in its rest.
            if name in terms or name not in run.work
        ]

    found = [_function(name, work(name, 0), work(name, 1)) for name in names if name]
    return sorted(found, key=lambda one: -abs(one.change))


def _function(name: str, before: list[Work], after: list[Work]) -> Function:
    sides = (before, after)
    tasks, sizes, seconds = (
        [_mean(one[place] for one in side) or 0.0 for side in sides] for place in range(3)
    )
    each = [[one.seconds / one.tasks for one in side if one.tasks >= 1] for side in sides]
    per_task = [[one.bytes / one.tasks for one in side if one.tasks >= 1] for side in sides]
    # More bytes in each task are more work, if they go with more time.
    sign = apart(*per_task, fewest=1)
    by_size = sign and sign == apart(*each, fewest=1) and all(sizes)
    unit = attrgetter("bytes" if by_size else "tasks")
    units = [[*map(unit, side)] for side in sides]
    paces = [[one.seconds / unit(one) for one in side if unit(one) >= 1] for side in sides]
    slower = apart(*paces, fewest=FEWEST)
    more = apart(*units, fewest=1)
    said = [{1: "slower", -1: "faster"}.get(slower), {1: "more work", -1: "less work"}.get(more)]
    first, second = (_mean(side) or 0.0 for side in units)
    pace = _mean(
        took / work for took, work in zip(seconds, (first, second), strict=True) if work >= 1
    )
    return Function(
        name,
        tasks,
        sizes,
        seconds,
        spreads=[(min(side), max(side)) if len(side) >= FEWEST else None for side in each],
        verdict=" and ".join(filter(None, said)),
        more_work=(second - first) * (pace or 0.0) if more else 0.0,
        change=seconds[1] - seconds[0],
        each=[
            took / count if count >= 1 else None for took, count in zip(seconds, tasks, strict=True)
        ],
    )


def _overhead(before: Side, after: Side) -> float:
    """Return how much of the change of the rest more work explains; at most all of it."""
    rest = _function("", _rest(before), _rest(after))
    is_alike = rest.more_work * rest.change > 0
    return min(rest.more_work, rest.change, key=abs) if is_alike else 0.0


def _rest(side: Side) -> list[Work]:
    """Return what no function has, such as the overhead of tasks, by all tasks of each run."""
    return [
        Work(
            run.tasks or 0.0,
            run.output or 0.0,
            (run.thread_seconds or 0.0) - total({**run.functions, "": {}}),
        )
        for run in side
    ]


def apart(before: Sequence[float], after: Sequence[float], *, fewest: int) -> int:
    """Return 1 if the values after are larger, -1 if they are smaller, 0 if that can be chance.

    The gap between the two groups has to be wider than both groups together. Of more than four
    values, a group is the middle half.
    """
    if min(len(before), len(after)) < fewest:
        return 0
    first, second = _inner(before), _inner(after)
    low, high = sorted((first, second))
    spread = low[-1] - low[0] + high[-1] - high[0]
    is_apart = high[0] - low[-1] > max(spread, _SMALLEST * abs(low[-1]))
    return is_apart * (1 if low is first else -1)


def _inner(values: Sequence[float]) -> list[float]:
    cut = len(values) // 4 if len(values) > 4 else 0
    return sorted(values)[cut : len(values) - cut]


def _alike(sides: Sequence[Sequence[Terms]]) -> list[list[Terms]]:
    """Return the terms of all runs in as much detail as all of them have."""
    is_coarse = any(RUNNING in one for side in sides for terms in side for one in terms.values())
    return [[_coarse(terms) if is_coarse else terms for terms in side] for side in sides]


def _coarse(terms: Terms) -> Terms:
    """Return terms with the computing of each function; other activities are in the rest."""
    alike = (
        (name, RUNNING if key in COMPUTING else key, seconds)
        for name, one in terms.items()
        for key, seconds in one.items()
    )
    result: Terms = {name: {RUNNING: 0.0} for name in terms}
    for name, key, seconds in alike:
        add(result.setdefault(name if key == RUNNING else "", {}), key, seconds)
    return result


def _minus(before: Sequence[Terms], after: Sequence[Terms]) -> Terms:
    """Return the differences of the means; empty if a run has no terms."""
    if not (before and after and all((*before, *after))):
        return {}
    names = dict.fromkeys(name for terms in (*before, *after) for name in terms)
    return {
        name: _minus_parts(*([terms.get(name, {}) for terms in side] for side in (before, after)))
        for name in names
    }


def _minus_parts(
    before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Return the differences of the means of each part; empty if nothing is known."""
    keys = dict.fromkeys(key for one in (*before, *after) for key in one)
    if not before or not after:
        return {}
    return {
        key: fmean(one.get(key, 0.0) for one in after) - fmean(one.get(key, 0.0) for one in before)
        for key in keys
    }


def _step(name: str, sides: tuple[Side, Side]) -> StepDifference:
    steps = [[run.steps[name] for run in side if name in run.steps] for side in sides]
    return StepDifference(
        name,
        [
            # A summary that others wrote may say that there was none.
            sum(s.seconds for s in side) / sum(s.count for s in side)
            if any(s.count > 0 for s in side)
            else None
            for side in steps
        ],
        [_mean(sum(s.parts.values()) for s in side if s.parts) for side in steps],
        _minus_parts(*([step.parts for step in side] for side in steps)),
        _minus(*([step.path for step in side] for side in steps)),
    )


def path_parts(path: Terms) -> Iterator[tuple[str, float]]:
    """Return the sum of each part of a path over the functions, by the part's words."""
    return ((_title(part), seconds) for part, seconds in summed(path.values()).items())


def _title(key: str) -> str:
    return words.inside(PATH[key]) if key in PATH else key


def named(terms: Terms) -> Iterator[tuple[str, float]]:
    """Yield the words of each term with its seconds."""
    for name, one in terms.items():
        for key, seconds in one.items():
            if name:
                yield f"{_title(key)} of {name}" if key != RUNNING else f"in {name}", seconds
            else:
                yield "other functions" if key == RUNNING else _title(key), seconds


def parts_in_words(parts: Mapping[str, float], least: float = _SECONDS) -> str:
    """Return the largest changes of the thread-time by part as text."""
    return in_words(((words.inside(part), seconds) for part, seconds in parts.items()), least)


def in_words(changes: Iterable[tuple[str, float]], least: float = _SECONDS) -> str:
    """Return the largest changes as text, and the sum of the rest."""
    ordered = sorted(changes, key=lambda item: -abs(item[1]))
    smallest = max(least, _SHARE * sum(abs(value) for _, value in ordered))
    shown = [item for item in ordered[:_MOST] if abs(item[1]) >= smallest]
    rest = ordered[len(shown) :]
    if abs(left := sum(value for _, value in rest)) >= least:
        shown.append(("in the rest", left) if rest[1:] else rest[0])
    return ", ".join(f"{words.signed(value)} {words.one_line(name)}" for name, value in shown)


def _rate(run: PastRun, unit: str, taken: str) -> float | None:
    """Return a run's units of work, or how many there are for a second or thread-second."""
    amount = getattr(run, taken) if taken else 1.0
    return run.units.get(unit, 0.0) / amount if amount else None


def _beside(before: Side, after: Side) -> Iterator[str]:
    """Yield what may explain a change: other numbers of tasks, threads, bytes; other versions."""
    sides = (before, after)
    figures = [
        (title, [[getattr(run, field) for run in side] for side in sides], shown)
        for title, field, shown in _BESIDE
    ]
    figures += [
        (
            MOVED.get(key, key),
            [[r.moved.get(key, 0.0) for r in side if r.moved] for side in sides],
            words.size,
        )
        for key in dict.fromkeys(key for run in (*before, *after) for key in run.moved)
    ]
    figures += [
        (
            words.one_line(unit) + title,
            [[_rate(run, unit, taken) for run in side if run.units] for side in sides],
            words.quantity,
        )
        for unit in dict.fromkeys(unit for run in (*before, *after) for unit in run.units)
        for title, taken in _RATES.items()
    ]
    for title, values, shown in figures:
        known = [[one for one in side if one is not None] for side in values]
        old, new = map(_mean, known)
        # Of the means, about twice their standard error.
        noise = sum(
            fmean(abs(o - median(one)) for o in one) / len(one) ** 0.5 for one in known if one
        )
        least = max(_SMALLEST * (old or 0.0), 2 * noise)
        if old is not None and new is not None and abs(new - old) > least:
            yield f"{title}: {shown(old)} before, {shown(new)} after"
    kinds = {cause.partition(":")[0]: cause for cause in (before[-1].cause, after[0].cause)}
    if len(kinds) > 1:
        yield "cause: {} before; {} after".format(*(cause or "unknown" for cause in kinds.values()))
    for title in ("result", "python", "distributed", "dask_otel"):
        earlier, later = getattr(before[-1], title), getattr(after[0], title)
        if earlier != later:
            yield f"{title}: {earlier or 'unknown'} before, {later or 'unknown'} after"

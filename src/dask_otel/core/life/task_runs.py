"""The runs of tasks that become spans of their own, and their limits.

There are four kinds: runs that failed for good, the longest ones on the span's path, the slowest
runs of each group, and a sample chosen by the tasks' keys. The kept and the exported runs of a
generation are bounded; the others are counted.

This code sees every task, so it compares with the group's `floor` first, and does nothing else for
a run that is not slow enough.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from dask_otel.core.identity import is_sampled
from dask_otel.core.life.open_span import Group, KeptRuns, OpenSpan, TaskLimits
from dask_otel.core.path.chain import on_path
from dask_otel.core.path.step import KEY, NUMBER, RUN, SECONDS, LongStep
from dask_otel.core.records import FinishedTask, RawRun, TaskPath, TaskRun

#: Tasks of a generation whose runs are counted.
REPEATED: Final = 1000


def repeated(span: OpenSpan, key: Hashable) -> None:
    """Count a task that will run again."""
    tasks = _runs(span)
    known = tasks.repeated.get(key)
    if known is not None or len(tasks.repeated) < REPEATED:
        tasks.repeated[key] = (known or 1) + 1


def attempt(span: OpenSpan, key: Hashable) -> int | None:
    """Return the number of a task's present run; None if unknown."""
    known = span.runs.repeated if span.runs else {}
    return None if span.unknown else known.get(key, 1 if len(known) < REPEATED else None)


def succeeded(group: Group, run: RawRun, limits: TaskLimits) -> None:
    """Keep a run with a result if it is among the slowest or in the sample."""
    seconds: float = run[SECONDS]
    if seconds > group.floor:
        most = min(limits.slowest, limits.most)
        slowest = group.slowest = tuple(sorted((*group.slowest, run), reverse=True)[:most])
        if len(slowest) == most:
            group.floor = slowest[-1][SECONDS]
    if is_sampled(run[KEY], limits.ratio):
        runs = _runs(group.span)
        runs.sampled_count += 1
        heapq.heappush(runs.sampled, (run, group))
        if len(runs.sampled) > limits.most:
            heapq.heappop(runs.sampled)


def failed(group: Group, run: RawRun, limits: TaskLimits) -> None:
    """Keep a run that failed for good: the first ones, up to the limit."""
    runs, key = _runs(group.span).failed, run[KEY]
    runs[key] = (run, group) if len(runs) < limits.most or runs.get(key) else None


def _runs(span: OpenSpan) -> KeptRuns:
    if span.runs is None:
        span.runs = KeptRuns()
    return span.runs


@dataclass(frozen=True, slots=True)
class ShownTasks:
    """The runs of a finished span to export. Nothing of it changes: a thread may iterate."""

    #: When the span began.
    start: float
    #: The ordinals of its groups.
    ordinals: Mapping[Group, int]
    #: The failed, the slowest and the sampled ones, by number.
    runs: Mapping[int, tuple[RawRun, Group]]
    #: The longest steps on its path, and the end of the path.
    steps: Sequence[LongStep]
    until: float
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[FinishedTask]:
        found = {number: (TaskRun._make(run), group) for number, (run, group) in self.runs.items()}
        paths: dict[int, TaskPath] = {}
        before = None
        for step, parts in on_path(self.steps, self.until):
            run = TaskRun._make(step.run)
            if run.number is not None:
                paths[run.number] = TaskPath(parts, before)
                before = run.key, run.number
                found.setdefault(run.number, (run, step.group))
        # The failed ones, those on the path, then the others; of each, the longest.
        shown = sorted(
            found,
            key=lambda n: (found[n][0].failure is None, n not in paths, -found[n][0].seconds),
        )[: self.count]
        for number in sorted(
            shown, key=lambda n: (found[n][0].failure is None, -found[n][0].seconds, n)
        ):
            run, group = found[number]
            # As for the group itself: no run starts before its span.
            begin = max(run.start, self.start)
            yield FinishedTask(
                run._replace(
                    worker=None if run.worker is None else str(run.worker),
                    start=begin,
                    stop=max(begin, run.stop),
                ),
                group.name,
                group.prefix,
                self.ordinals[group],
                paths.get(number),
            )


def finish_tasks(
    span: OpenSpan,
    ordinals: Mapping[Group, int],
    limits: TaskLimits,
    longest: Sequence[LongStep] = (),
    until: float = inf,
) -> tuple[ShownTasks, int]:
    """Return the runs to export, and how many more there would be without the limit.

    Parameters
    ----------
    ordinals
        The ordinals of the span's groups.
    longest
        The longest steps of its own tasks on its path, the longest one last.
    until
        The end of the path.
    """
    kept = span.runs or KeptRuns()
    failed = [*filter(None, kept.failed.values())]
    room = max(0, limits.most - len(failed))
    count = len(kept.failed) + kept.sampled_count
    runs = {run[NUMBER]: (run, group) for run, group in (*failed, *kept.sampled)}
    for group in span.groups:
        for run in group.slowest:
            runs[run[NUMBER]] = run, group
            # The others were counted earlier.
            count += not is_sampled(run[KEY], limits.ratio)
    steps = longest[-room:] if room and limits.slowest else ()
    new = {step[RUN][NUMBER] for _, _, step in steps} - {None, *runs}
    shown = min(max(limits.most, len(failed)), len(runs) + len(new))
    return ShownTasks(span.start, ordinals, runs, steps, until, shown), count + len(new) - shown

"""The runs of tasks that become spans of their own, and their limits.

There are four kinds: runs that failed for good, the longest ones on the span's path, the slowest
runs of each group, and a sample chosen by the tasks' keys. The kept and the exported runs of a
generation are bounded; the others are counted.

This code sees every task, so it compares with the group's `floor` first, and does nothing else for
a run that is not slow enough.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from dask_otel.core.identity import is_sampled
from dask_otel.core.life.open_span import Group, OpenSpan, ShownRuns, TaskLimits
from dask_otel.core.path.chain import on_path
from dask_otel.core.path.link import KEY, NO_THREAD, NUMBER, LongLink
from dask_otel.core.records import Failure, FinishedTask, TaskPath, TaskRun

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
    return None if span.partial else known.get(key, 1 if len(known) < REPEATED else None)


def succeeded(group: Group, run: TaskRun, sampled: bool, limits: TaskLimits) -> None:
    """Keep a run with a result if it is among the slowest or in the sample."""
    if run.seconds > group.floor:
        most = min(limits.slowest, limits.most)
        slowest = group.slowest = tuple(sorted((*group.slowest, tuple(run)), reverse=True)[:most])
        if len(slowest) == most:
            group.floor = TaskRun._make(slowest[-1]).seconds
    if sampled:
        runs = _runs(group.span)
        runs.sampled_count += 1
        heapq.heappush(runs.sampled, (run, group))
        if len(runs.sampled) > limits.most:
            heapq.heappop(runs.sampled)


def failed(group: Group, run: TaskRun, failure: Failure, limits: TaskLimits) -> None:
    """Keep a run that failed for good: the first ones, up to the limit."""
    runs = _runs(group.span).failed
    runs[run.key] = (run, group, failure) if len(runs) < limits.most or runs.get(run.key) else None


def forgiven(span: OpenSpan, key: Hashable) -> None:
    """Forget a failure that is not final: a client has the task retried."""
    if span.runs is not None:
        span.runs.failed.pop(key, None)


def _runs(span: OpenSpan) -> ShownRuns:
    if span.runs is None:
        span.runs = ShownRuns()
    return span.runs


@dataclass(frozen=True, slots=True)
class ShownTasks:
    """The runs of a finished span to export. Nothing of it changes: a thread may iterate."""

    #: When the span began.
    start: float
    #: The ordinals of its groups.
    ordinals: Mapping[Group, int]
    failed: Sequence[tuple[TaskRun, Group, Failure]]
    #: The slowest and the sampled ones, by number.
    others: Mapping[int, tuple[TaskRun, Group]]
    #: The longest links on its path, and the end of the path.
    links: Sequence[LongLink]
    until: float
    count: int
    #: Tasks that ran more than once, and the number of the run of any other; None if unknown.
    repeated: Mapping[Hashable, int]
    attempt: int | None

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[FinishedTask]:
        failed = {run.key: run.number for run, _, _ in self.failed}
        others = dict(self.others)
        paths: dict[int, TaskPath] = {}
        before = None
        for link, parts in on_path(self.links, self.until):
            number = failed.get(link.key, link.number)
            if number is not None:
                paths[number] = TaskPath(parts, before)
                before = link.key, number
                if link.key not in failed and number not in others:
                    others[number] = (
                        TaskRun(
                            link.stop - link.start,
                            number,
                            link.key,
                            None if link.worker is None else str(link.worker),
                            link.start,
                            link.stop,
                            None if link.key in self.repeated else self.attempt,
                            parts[NO_THREAD],
                            parts=link.fetched[0],
                        ),
                        link.group,
                    )
        # Those on the path before the others; of each, the longest.
        order = sorted(others, key=lambda number: (number not in paths, -others[number][0].seconds))
        shown = sorted(
            [(*others[number], None) for number in order[: self.count - len(self.failed)]],
            key=lambda one: (-one[0].seconds, one[0].number),
        )
        for run, group, failure in (*self.failed, *shown):
            # As for the group itself: no run starts before its span.
            begin = max(run.start, self.start)
            yield FinishedTask(
                run
                if begin == run.start <= run.stop
                else run._replace(start=begin, stop=max(begin, run.stop)),
                group.name,
                group.prefix,
                self.ordinals[group],
                failure,
                paths.get(run.number),
            )


def finish_tasks(
    span: OpenSpan,
    ordinals: Mapping[Group, int],
    limits: TaskLimits,
    longest: Sequence[LongLink] = (),
    until: float = inf,
) -> tuple[ShownTasks, int]:
    """Return the runs to export, and how many more there would be without the limit.

    Parameters
    ----------
    ordinals
        The ordinals of the span's groups.
    longest
        The longest links of its own tasks on its path, the longest one last.
    until
        The end of the path.
    """
    runs = span.runs or ShownRuns()
    failed = [*filter(None, runs.failed.values())]
    room = max(0, limits.most - len(failed))
    count = len(runs.failed) + runs.sampled_count
    others = {run.number: (run, group) for run, group in runs.sampled}
    for group in span.groups:
        for run in map(TaskRun._make, group.slowest):
            others[run.number] = run, group
            # The others were counted earlier.
            count += not is_sampled(run.key, limits.ratio)
    links = longest[-room:] if room and limits.slowest else ()
    new = {link[NUMBER] for _, _, link in links if not runs.failed.get(link[KEY])}
    new -= {None, *others}
    shown = len(failed) + min(room, len(others) + len(new))
    # No task has this key.
    first = attempt(span, None)
    return (
        ShownTasks(span.start, ordinals, failed, others, links, until, shown, runs.repeated, first),
        count + len(new) - shown,
    )


def last_run(
    startstops: Iterable[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], float]:
    """Return a worker's actions for the last run of a task, and its compute times.

    A worker appends to the list while it knows the task, so earlier runs may be in it.
    """
    parts: list[Mapping[str, Any]] = []
    last, computed = parts, 0.0
    for startstop in startstops:
        if startstop["action"] == "compute":
            last, parts, computed = parts, [], startstop["start"]
        else:
            parts.append(startstop)
    return last, computed

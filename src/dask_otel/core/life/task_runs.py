"""The runs of tasks that become spans of their own, and their limits.

There are four kinds: runs that failed for good, the longest ones on the span's path, the slowest
runs of each group, and a sample chosen by the tasks' keys. The kept and the exported runs of a
generation are bounded; the others are counted.

This code sees every task, so it compares with the group's `floor` first, and does nothing else for
a run that is not slow enough.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

from dask_otel.core.identity import is_sampled
from dask_otel.core.life.open_span import Group, OpenSpan, ShownRuns, TaskLimits
from dask_otel.core.path.chain import most_of_path
from dask_otel.core.path.link import NO_THREAD, OnPath
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
    if span.partial:
        return None
    if span.runs is None:
        return 1
    known = span.runs.repeated
    return known.get(key, 1 if len(known) < REPEATED else None)


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
    room = len(runs) < limits.most or runs.get(run.key) is not None
    runs[run.key] = (run, group, failure) if room else None


def forgiven(span: OpenSpan, key: Hashable) -> None:
    """Forget a failure that is not final: a client has the task retried."""
    if span.runs is not None:
        span.runs.failed.pop(key, None)


def _runs(span: OpenSpan) -> ShownRuns:
    if span.runs is None:
        span.runs = ShownRuns()
    return span.runs


def finish_tasks(
    span: OpenSpan,
    ordinals: Mapping[Group, int],
    limits: TaskLimits,
    on_path: Iterable[OnPath] = (),
) -> tuple[tuple[FinishedTask, ...], int]:
    """Return the runs to export, and how many more there would be without the limit.

    Parameters
    ----------
    ordinals
        The ordinals of the span's groups.
    on_path
        The longest links of its own tasks on its path, in their order.
    """
    runs = span.runs or ShownRuns()
    shown = [
        _finished(run, group, ordinals[group], failure)
        for run, group, failure in filter(None, runs.failed.values())
    ]
    room = max(0, limits.most - len(shown))
    count = len(runs.failed) + runs.sampled_count
    others = {run.number: (run, group) for run, group in runs.sampled}
    for group in span.groups:
        for run in map(TaskRun._make, group.slowest):
            others[run.number] = run, group
            # The others were counted earlier.
            count += not is_sampled(run.key, limits.ratio)
    paths: dict[int, TaskPath] = {}
    before = None
    for one in most_of_path(on_path, room if limits.slowest else 0):
        link = one.link
        kept = runs.failed.get(link.key)
        number = kept[0].number if kept else link.number
        if number is not None:
            paths[number] = TaskPath(one.parts, before)
            before = link.key, number
            if not kept and number not in others:
                others[number] = _run_of(one, number, span), link.group
                count += 1
    # Those on the path before the others; of each, the longest.
    order = sorted(others, key=lambda number: (number not in paths, -others[number][0].seconds))
    longest = sorted([others[number] for number in order[:room]], key=_longest_first)
    shown += [_finished(run, group, ordinals[group], None) for run, group in longest]
    shown = [task._replace(path=paths.get(task.run.number)) for task in shown]
    return tuple(shown), count - len(shown)


def _longest_first(kept: tuple[TaskRun, Group]) -> tuple[float, int]:
    return -kept[0].seconds, kept[0].number


def _run_of(one: OnPath, number: int, span: OpenSpan) -> TaskRun:
    """Return the run of a link that was not kept for another reason."""
    link = one.link
    repeated = span.runs is not None and link.key in span.runs.repeated
    return TaskRun(
        link.stop - link.start,
        number,
        link.key,
        None if link.worker is None else str(link.worker),
        link.start,
        link.stop,
        None if repeated else attempt(span, link.key),
        one.parts[NO_THREAD],
        parts=link.fetched[0],
    )


def _finished(run: TaskRun, group: Group, ordinal: int, failure: Failure | None) -> FinishedTask:
    # As for the group itself: no run starts before its span.
    start = max(run.start, group.span.start)
    run = run._replace(start=start, stop=max(start, run.stop))
    return FinishedTask(run, group.name, group.prefix, ordinal, failure)


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

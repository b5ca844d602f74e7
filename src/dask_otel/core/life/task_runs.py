"""Which runs of tasks are shown by themselves, and how many of them are kept.

Three kinds are: those that failed for good, the slowest of each group, and a part of all that is
chosen by their keys. What is kept of a generation is bounded, and so is what is exported; what is
beyond that is counted.

Every task comes here, so a comparison with the group's `floor` comes first, and nothing else is
done for a run that is not slow enough. What is kept are plain tuples of texts and numbers:
Python's collector of garbage passes over these, and there are many of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from dask_otel.core.identity import is_sampled
from dask_otel.core.life.open_span import Group, KeptRun, OpenSpan, ShownRuns, TaskLimits
from dask_otel.core.records import Failure, FinishedTask, TaskPart

_SECONDS: Final = 0
_RUN: Final = 1
_KEY: Final = 2

#: Tasks of a generation of which it is kept in mind how often they ran.
REPEATED: Final = 1000


def repeated(span: OpenSpan, key: Hashable) -> None:
    """A task is to run again."""
    tasks = _of(span)
    known = tasks.repeated.get(key)
    if known is not None or len(tasks.repeated) < REPEATED:
        tasks.repeated[key] = (known or 1) + 1


def attempt(span: OpenSpan, key: Hashable) -> int | None:
    """Return which run of a task is the present one; None if that is not known."""
    if span.partial:
        return None
    if span.runs is None:
        return 1
    known = span.runs.repeated
    return known.get(key, 1 if len(known) < REPEATED else None)


def succeeded(group: Group, run: KeptRun, sampled: bool, limits: TaskLimits) -> None:
    """Keep a run that gave a result, if it is among the slowest or was chosen by its key."""
    if run[_SECONDS] > group.floor:
        _keep_slow(group, run, min(limits.slowest, limits.most))
    if sampled:
        tasks = _of(group.span)
        tasks.sampled_count += 1
        entry = (run[_SECONDS], run[_RUN], run, group)
        if len(tasks.sampled) < limits.most:
            heapq.heappush(tasks.sampled, entry)
        else:
            heapq.heappushpop(tasks.sampled, entry)


def _keep_slow(group: Group, run: KeptRun, most: int) -> None:
    if most == 1:
        # Not in a list: of most groups no more than one is kept, and there are many groups.
        group.slowest = run
        group.floor = run[_SECONDS]
        return
    slowest = group.slowest
    if not isinstance(slowest, list):
        slowest = group.slowest = [run]
    elif len(slowest) < most:
        heapq.heappush(slowest, run)
    else:
        heapq.heapreplace(slowest, run)
    if len(slowest) == most:
        group.floor = slowest[0][_SECONDS]


def slowest_of(group: Group) -> Sequence[KeptRun]:
    """Return the slowest runs of a group that gave a result, in no order."""
    slowest = group.slowest
    if slowest is None:
        return ()
    return slowest if isinstance(slowest, list) else (slowest,)


def failed(group: Group, run: KeptRun, failure: Failure, limits: TaskLimits) -> None:
    """Keep a run that failed for good: the first ones, up to the limit."""
    runs = _of(group.span).failed
    room = len(runs) < limits.most or runs.get(run[_KEY]) is not None
    runs[run[_KEY]] = (run, group, failure) if room else None


def forgiven(span: OpenSpan, key: Hashable) -> None:
    """A client has a task retried that had failed for good: it did not."""
    if span.runs is not None:
        span.runs.failed.pop(key, None)


def _of(span: OpenSpan) -> ShownRuns:
    if span.runs is None:
        span.runs = ShownRuns()
    return span.runs


def finish_tasks(
    span: OpenSpan, ordinals: Mapping[Group, int], limits: TaskLimits
) -> tuple[tuple[FinishedTask, ...], int]:
    """Return the runs to be shown, and how many more there would be without the limit.

    Parameters
    ----------
    ordinals
        Of all groups of the span.
    """
    tasks = span.runs
    failures = () if tasks is None else tuple(tasks.failed.values())
    shown = [
        _finished(run, group, ordinals[group], failure)
        for run, group, failure in filter(None, failures)
    ]
    count = len(failures)
    others: dict[int, tuple[KeptRun, Group]] = {}
    if tasks is not None:
        others.update((run[_RUN], (run, group)) for _, _, run, group in tasks.sampled)
        count += tasks.sampled_count
    for group in span.groups:
        for run in slowest_of(group):
            others[run[_RUN]] = run, group
            # The others were counted where they came.
            count += not is_sampled(run[_KEY], limits.ratio)
    longest = sorted(others.values(), key=_descending)
    for run, group in longest[: max(0, limits.most - len(shown))]:
        shown.append(_finished(run, group, ordinals[group], None))
    return tuple(shown), count - len(shown)


def _descending(entry: tuple[KeptRun, Group]) -> tuple[float, int]:
    run = entry[0]
    return -run[_SECONDS], run[_RUN]


def _finished(run: KeptRun, group: Group, ordinal: int, failure: Failure | None) -> FinishedTask:
    seconds, number, key, worker, start, stop, attempt, queued, nbytes, kind, parts = run
    # As the group's own: nothing starts before it was asked for.
    start = max(start, group.span.start)
    return FinishedTask(
        key=key,
        run=number,
        group=group.name,
        prefix=group.prefix,
        ordinal=ordinal,
        start=start,
        stop=max(start, stop),
        seconds=seconds,
        worker=worker,
        attempt=attempt,
        queued=queued,
        nbytes=nbytes,
        type=kind,
        parts=tuple([TaskPart(*part) for part in parts]),
        failure=failure,
    )


def last_run(
    startstops: Iterable[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], float]:
    """Return what a worker did for the last run of a task before it computed, and when it did.

    A worker appends to the list for as long as it knows the task, so earlier runs may be in it.
    """
    parts: list[Mapping[str, Any]] = []
    last, computed = parts, 0.0
    for startstop in startstops:
        if startstop["action"] == "compute":
            last, parts, computed = parts, [], startstop["start"]
        else:
            parts.append(startstop)
    return last, computed

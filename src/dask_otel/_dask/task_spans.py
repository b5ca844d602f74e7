"""Collects Dask's facts about runs of tasks that get spans of their own.

The scheduler has all these facts. Most runs are too short to be chosen: see
`dask_otel.core.life.task_runs`.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from dask_otel._dask.stimuli import ENDS
from dask_otel.core.identity import is_sampled
from dask_otel.core.life import task_runs
from dask_otel.core.life.clock_offsets import ClockOffsets
from dask_otel.core.life.open_span import Group, OpenSpan, TaskLimits
from dask_otel.core.life.tasks import SpanTasks
from dask_otel.core.records import Failure, TaskRun

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

#: Most queued tasks whose waiting time is measured; beyond it, the time is unknown. A task takes
#: ten times as much memory on the scheduler as here.
MAX_QUEUED: Final = 100_000

#: Most parts of one run; the longest are kept.
MAX_PARTS: Final = 16

#: A worker's activities for a task before it runs.
_PARTS: Final = frozenset({"transfer", "disk-read"})

Part: TypeAlias = tuple[str, float, float]


class Ended(NamedTuple):
    """The facts of a run that ended."""

    #: The worker's message.
    info: Mapping[str, Any]
    #: Compute seconds.
    seconds: float
    #: When it was sent to the worker (0.0 if unknown), and when it began and stopped computing.
    sent: float
    start: float
    stop: float
    #: When it entered the scheduler's queue, as in `TaskSpans.since`; 0.0 if that has no entry.
    queued: float | None
    #: Id of the worker's message.
    stimulus_id: str
    #: The worker that it was sent to.
    assigned: WorkerState | None


class TaskSpans:
    """Collects the runs to export, in their open spans."""

    def __init__(self, scheduler: Scheduler, limits: TaskLimits, clocks: ClockOffsets) -> None:
        self._scheduler = scheduler
        self._limits = limits
        self._clocks = clocks
        self._measures = limits.most > 0
        #: Whether runs are sampled by their keys.
        self.sampling = limits.ratio > 0.0 and limits.most > 0
        #: When unfinished tasks entered the queue; None if unknown.
        self.since: dict[Hashable, float | None] = {}
        self.most_queued = MAX_QUEUED if self._measures else 0
        #: Whether `since` lacks queued tasks, so that they look like tasks that never queued.
        self.overflowed = False

    # --------------------------------------------------------------------- in the queue

    def attach(self) -> None:
        """Add the tasks that are already waiting, since an unknown time."""
        waiting = (*self._scheduler.queued, *self._scheduler.unrunnable)
        self.since.update((task.key, None) for task in waiting[: self.most_queued])
        self.overflowed = len(waiting) > self.most_queued

    def repair(self) -> None:
        """Forget tasks whose end was missed, after an error of ours."""
        tasks = self._scheduler.tasks
        for key in list(self.since):
            if key not in tasks or tasks[key].state not in ("queued", "no-worker", "processing"):
                del self.since[key]

    def clear(self) -> None:
        """Forget all tasks."""
        self.since.clear()
        self.overflowed = False

    # ------------------------------------------------------------------------- the runs

    def succeeded(self, group: Group, task: TaskState, end: Ended) -> None:
        """Keep a run with a result if it is among the slowest or is sampled by its key."""
        self._prepared(group, end)
        sampled = self.sampling and is_sampled(task.key, self._limits.ratio)
        if sampled or end.seconds > group.floor:
            run = self._run(group, task, end)
            if run is not None:
                task_runs.succeeded(group, run, sampled, self._limits)

    def failed(self, group: Group, task: TaskState, end: Ended, failure: Failure) -> None:
        """Keep a run whose failure is final."""
        self._prepared(group, end)
        if self._measures:
            run = self._run(group, task, end)
            if run is not None:
                task_runs.failed(group, run, failure, self._limits)

    def _prepared(self, group: Group, end: Ended) -> None:
        """Extend a group's time to a worker's first activity for a run."""
        first = min([start for _, start, _ in self.parts(end)[0]], default=end.start)
        SpanTasks.prepared(group, first)

    def repeated(self, span: OpenSpan, key: Hashable) -> None:
        """Count a further run of a task."""
        if self._measures:
            task_runs.repeated(span, key)

    def _waited(self, end: Ended) -> float | None:
        """Return a task's seconds in the queue; None if unknown."""
        if not end.sent or end.queued is None:
            return None
        if end.queued:
            return max(0.0, end.sent - end.queued)
        return None if self.overflowed else 0.0

    def _run(self, group: Group, task: TaskState, end: Ended) -> TaskRun | None:
        number = task.run_id
        if number is None or not end.stimulus_id.startswith(ENDS) or not end.seconds < inf:
            return None
        info = end.info
        nbytes, kind = info.get("nbytes"), info.get("typename")
        return TaskRun(
            end.seconds,
            number,
            task.key,
            None if end.assigned is None else str(end.assigned.name),
            end.start,
            end.stop,
            task_runs.attempt(group.span, task.key),
            self._waited(end),
            nbytes if type(nbytes) is int else None,
            kind if type(kind) is str else None,
            # Most runs only compute.
            () if len(info["startstops"]) == 1 else self.parts(end)[0],
        )

    def parts(self, end: Ended) -> tuple[tuple[Part, ...], float]:
        """Return the longest activities before the computation, and the time with any of them.

        Of each, action, start and seconds. A transfer is shifted with its run. A disk read has the
        time of the worker's own clock.
        """
        before, computed = task_runs.last_run(end.info["startstops"])
        offset = self._clocks.offset(end.info.get("worker"))
        parts: list[Part] = []
        spent: list[tuple[float, float]] = []
        for startstop in before:
            action = startstop["action"]
            shift = end.start - computed if action == "transfer" else offset
            took = startstop["stop"] - startstop["start"]
            if action not in _PARTS or shift is None:
                continue
            stop = min(startstop["stop"] + shift, end.start)
            # An activity that ended before the task was sent belongs to an earlier run.
            if 0.0 <= took < inf and stop >= end.sent:
                start = max(stop - took, end.sent)
                parts.append((action, start, took))
                spent.append((start, stop))
        busy, until = 0.0, end.sent
        for start, stop in sorted(spent):
            busy += max(0.0, stop - max(start, until))
            until = max(until, stop)
        if len(parts) > MAX_PARTS:
            parts = sorted(heapq.nlargest(MAX_PARTS, parts, itemgetter(2)), key=itemgetter(1))
        return tuple(parts), busy

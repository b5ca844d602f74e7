"""Reads what the scheduler knows now of a task, or of a span's unfinished tasks: `dask_otel.why`.

A question visits some hundreds of tasks at most, however many there are, and each worker once for a
task that no worker takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from heapq import nsmallest
from itertools import chain, islice, takewhile
from typing import Any, Final

from distributed.core import Status
from distributed.metrics import time
from distributed.scheduler import TaskState, WorkerState, heartbeat_interval
from distributed.spans import Span

from dask_otel import semconv
from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.diagnosing import diagnosis
from dask_otel._dask.facts import UNFINISHED, measured
from dask_otel._dask.runs import NOT_READY, QUEUED, SENT_AT
from dask_otel._dask.settled import missing
from dask_otel.core.life.open_span import Phase
from dask_otel.core.path.chain import path_of
from dask_otel.core.path.step import END
from dask_otel.core.reasons import reasons
from dask_otel.core.text import ATTRIBUTE_LIMIT, NAMED, line_name, line_text, span_tags

#: Most tasks, groups or spans that one walk visits.
MOST: Final = 300
#: Characters of a span's name; a longer text is no name.
_LONGEST: Final = 8192
#: Most tasks in an answer that hold up the one in question.
_SHOWN: Final = 3
#: Heartbeats that a silent worker has left out, as in the doctor's rule.
_LATE: Final = 10.0


class Present:
    """The scheduler's state at the time of one question."""

    def __init__(self, adapter: SchedulerAdapter) -> None:
        self._adapter = adapter
        self._scheduler = adapter.scheduler
        self._now = time()
        self._interval = float(heartbeat_interval(len(adapter.scheduler.workers)))

    def reasons(self, asked: Sequence[Hashable]) -> list[dict[str, Any]]:
        """Return the reasons for the first of `asked` that exists; see `core.reasons`.

        `asked` are keys of tasks, ids of spans, or full names of spans.
        """
        return reasons(self._facts(asked), self._cluster())

    def span(self, span: Span) -> dict[str, Any]:
        """Return the facts of a span as plain data, and the reasons of tasks that hold it up."""
        facts, *tasks = self._tree(span)
        return facts | {"tasks": reasons(tasks, self._cluster())}

    def _cluster(self) -> dict[str, Any]:
        scheduler = self._scheduler
        sent = Counter(scheduler._task_prefix_count_global).most_common(NAMED)
        return {
            "workers": len(scheduler.workers),
            "deserted": not scheduler.workers,
            "running_workers": len(scheduler.running),
            "idle": len(scheduler.idle),
            "all_threads": scheduler.total_nthreads,
            "queued": len(scheduler.queued),
            "busiest": {line_text(prefix): count for prefix, count in sent},
        }

    def _facts(self, asked: Sequence[Hashable]) -> list[dict[str, Any]]:
        """Return the facts of a task or a span, and then of tasks that hold it up."""
        for key in asked:
            if (task := self._scheduler.tasks.get(key)) is not None:
                return self._chain(task)
            if (span := self.named(key)) is not None:
                return self._tree(span)
        return [{"name": line_text(asked[0]), "state": "unknown"}]

    # --------------------------------------------------------------------------- spans

    def named(self, key: Hashable) -> Span | None:
        """Return a span by its id or full name: the first open one, or else the last one."""
        extension, still_open = self._scheduler.extensions["spans"], self._adapter.lifecycle.open
        # Splitting a text of megabytes would block the event loop for seconds.
        tags = span_tags(str(key)) if len(str(key)) <= _LONGEST else ()
        named: list[Span] = extension.spans_search_by_name.get(tags, [])[-MOST:]
        found = [extension.spans.get(key), *(span for span in named if span.id in still_open)]
        return next((span for span in (*found, *named[-1:]) if span is not None), None)

    def _tree(self, span: Span) -> list[dict[str, Any]]:
        """Return the facts of a span with those below it, and of its oldest tasks at work."""
        scheduler = self._scheduler
        present = self._adapter.lifecycle.open.get(span.id)
        below = list(islice(span.traverse_spans(), MOST))
        groups = list(islice(chain.from_iterable(one.groups for one in below), MOST))
        states = {
            state: sum(group.states[state] for group in groups) for state in sorted(UNFINISHED)
        }
        facts: dict[str, Any] = {
            "name": line_name(span.name),
            "state": "span",
            "states": states,
            "ended": sum(sum(group.states.values()) for group in groups) - sum(states.values()),
            "least": "at least " if MOST in (len(below), len(groups)) else "",
            # Nothing is missing of a span that lingers.
            "missing": (
                "it has ended"
                if present is None or present.phase is Phase.LINGERING
                else line_text(missing(present))
            ),
        }
        if present is not None and present.last is not None:
            # What it waits for since then is below.
            end = present.last[END]
            if found_path := path_of(present, end):
                parts = found_path[0].parts
                facts["path"] = dict(zip(semconv.PATH_PARTS, parts, strict=True))
                facts["since"] = self._now - end
                known = [self._adapter.summary(one.id) for one in below]
                facts["diagnosis"] = diagnosis(
                    self._adapter.scheduler, below, known, parts, found_path[1], end
                )
        # And the groups that these depend on, which may be of other spans: the list grows.
        foreign = dict.fromkeys(groups, False)
        for group in groups:
            new = set(islice(group.dependencies, MOST - len(foreign))) - foreign.keys()
            foreign |= dict.fromkeys(new, True)
            groups += new
        sent = self._adapter.time.accounting.oldest(MOST)
        assigned: Iterator[TaskState | None] = (scheduler.tasks.get(key) for key in sent)
        ready: Iterator[TaskState] = chain(
            islice(scheduler.unrunnable, MOST), islice(scheduler.queued, MOST)
        )
        found = {
            task: (foreign[task.group], *self._urgency(task))
            for task in chain(assigned, ready)
            if task and task.group in foreign
        }
        shown = _SHOWN if any(states.values()) else 0
        return [facts, *map(self._task, nsmallest(shown, found, found.__getitem__))]

    # --------------------------------------------------------------------------- tasks

    def _chain(self, task: TaskState) -> list[dict[str, Any]]:
        """Return the facts of a task, and of some that it waits for in the end."""
        # Unfinished tasks, and how many steps they are before the one in question.
        steps, todo = {task: 0}, [task]
        while todo:
            one = todo.pop()
            # Half of the room that is left, so that many dependencies leave some for long chains.
            new = set(islice(one.waiting_on or (), (MOST - len(steps) + 1) // 2)) - steps.keys()
            steps |= dict.fromkeys(new, steps[one] + 1)
            todo += new
        found = [one for one in steps if one is not task and one.state != "waiting"]
        oldest = nsmallest(_SHOWN, found, self._urgency)
        facts = self._task(task) | {"visited": len(steps), "found": len(found)}
        facts["depth"] = steps[oldest[0]] if oldest else 0
        return [facts, *map(self._task, oldest)]

    def _urgency(self, task: TaskState) -> tuple[bool, float]:
        """Return the order of tasks: first those that don't end by themselves, then the oldest."""
        ws = task.processing_on
        works = ws is None or (ws.status is Status.running and not self._is_silent(ws))
        return works and task.state != "no-worker", -(self._seconds(task) or 0.0)

    def _seconds(self, task: TaskState) -> float | None:
        """Return how long ago a task was sent to its worker, or was ready for any."""
        record = self._adapter.task_events.ready.get(task.key, NOT_READY)
        since = record[SENT_AT] or record[QUEUED]
        # A task can wait for its dependencies again.
        return self._now - since if since and task.state != "waiting" else None

    def _task(self, task: TaskState) -> dict[str, Any]:
        scheduler, state, blame = self._scheduler, task.state, task.exception_blame
        queued, resources = scheduler.queued, task.resource_restrictions or {}
        mean = task.prefix.duration_average
        places = {*(task.worker_restrictions or ()), *(task.host_restrictions or ())}
        entered = self._adapter.task_events.ready
        ranked = state == "queued" and max(len(queued), len(entered)) <= MOST
        # Of equal priority, such as of submissions in a loop, those that entered the queue earlier.
        earlier = {*takewhile(lambda key: key != task.key, entered)} if ranked else set()
        # Queued tasks have a worker as long as one takes tasks.
        unserved = state == "no-worker" or (
            state == "queued" and all(map(self._is_silent, scheduler.running))
        )
        facts = {
            "name": line_text(task.key),
            "state": state,
            "seconds": self._seconds(task),
            "mean": mean if mean > 0 else None,
            "dependencies": len(task.dependencies),
            "waiting": len(task.waiting_on or ()),
            "waits": [
                (
                    line_text(one.key),
                    one.state,
                    one.processing_on and one.processing_on.address,
                    self._seconds(one),
                )
                for one in islice(task.waiting_on or (), NAMED)
            ],
            "places": [line_text(place) for place in islice(places, MOST)],
            "resources": [
                (line_text(name), asked, max(scheduler.resources.get(name, {}).values(), default=0))
                for name, asked in resources.items()
            ],
            # As Dask decides it, but of workers that take no tasks.
            "fitting": [
                self._described(ws)
                for ws in (scheduler.workers.values() if unserved else ())
                if (ws.status is not Status.running or self._is_silent(ws))
                and (not places or places & {ws.address, ws.host, ws.name})
                and all(ws.resources.get(name, 0) >= asked for name, asked in resources.items())
            ],
            "ahead": (
                sum(
                    one.priority < task.priority
                    or (one.priority == task.priority and one.key in earlier)
                    for one in queued
                )
                if ranked
                else None
            ),
            "holders": [ws.address for ws in islice(task.who_has or (), NAMED)],
            "wanted": bool(task.who_wants or task.waiters),
            "blame": None if blame is None or blame is task else line_text(blame.key),
            "error": blame
            and line_text(" ".join(str(blame.exception_text).split()), ATTRIBUTE_LIMIT),
        }
        ws = task.processing_on
        return facts if ws is None else facts | self._at_worker(task, ws)

    def _at_worker(self, task: TaskState, ws: WorkerState) -> dict[str, Any]:
        """Return the facts of a task's worker, which are as old as its last heartbeat."""
        age, seconds = self._now - ws.last_seen, self._seconds(task)
        running = [one for one in ws.executing if one not in ws.long_running]
        used = measured(ws.metrics.get("memory"))
        remote = [
            one for one in islice(task.dependencies, MOST) if ws not in (one.who_has or (ws,))
        ]
        return {
            "worker": ws.address,
            "status": ws.status.name,
            "leaving": ws.status not in (Status.running, Status.paused),
            "paused": ws.status is Status.paused,
            "silent": self._is_silent(ws),
            "heartbeat": age,
            "memory": None if used is None else (used, ws.memory_limit),
            "threads": ws.nthreads,
            "busy": len(running) >= ws.nthreads,
            "running": dict(Counter(line_text(one.prefix.name) for one in running)),
            "longest": max((ws.executing[one] for one in running), default=0.0) + age,
            "processing": len(ws.processing),
            "seceded": task in ws.long_running,
            "executing": task in ws.executing,
            "began": ws.executing.get(task, 0.0) + age,
            # A worker that has begun it says so in its next heartbeat, which may be on its way.
            "unheard": seconds is not None and seconds < age + 2 * self._interval,
            "remote": len(remote),
            "sources": list({self._described(next(iter(one.who_has))): None for one in remote}),
        }

    def _described(self, ws: WorkerState) -> str:
        return f"{ws.address} ({'silent' if self._is_silent(ws) else ws.status.name})"

    def _is_silent(self, ws: WorkerState) -> bool:
        """Whether several heartbeats of a worker have not come."""
        return bool(self._now - ws.last_seen > _LATE * self._interval)

"""Records the graph logs: what a replay of a root needs. Only made if they are written.

The hot path is not concerned: a submission's tasks are recorded together, and so are the runs of a
group, when `Computing` adds them up. Most of a log is what the bridge has made anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Hashable, Mapping
from math import inf
from typing import Any, Final
from weakref import WeakSet

from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskGroup, TaskState, WorkerState

from dask_otel.core.graph import BLOCK, MOST, MOST_OF_ONE
from dask_otel.core.life.open_span import Group, OpenSpan
from dask_otel.core.records import (
    GraphLog,
    GraphPart,
    GraphWorker,
    RawRun,
    Restriction,
    Submission,
    TaskRun,
)

#: Most workers that left which are remembered.
_MOST_GONE: Final = 1000
#: By how a run without a result ended.
_OUTCOMES: Final = {"error": "f", "rescheduled": "r", "worker_lost": "l"}


class Graphs:
    """The logs of the open roots of one scheduler, except those that began before it."""

    def __init__(self, scheduler: Scheduler, groups: Container[object]) -> None:
        self.scheduler = scheduler
        #: The cluster's task groups of open spans.
        self._groups = groups
        self._logs: dict[OpenSpan, GraphLog] = {}
        #: All that anybody holds.
        self._held: WeakSet[GraphLog] = WeakSet()
        #: Of each group with a run, the log, and the group's runs with a result in it.
        self._parts: dict[Group, tuple[GraphLog, GraphPart]] = {}
        #: The submissions with tasks of each of the cluster's task groups.
        self.submissions: dict[object, list[Submission]] = {}
        #: Their tasks, at most; and after how many the groups that are gone are forgotten.
        self._tasks, self._most = 0, BLOCK
        self._workers: dict[str, GraphWorker] = {}
        #: Their resources as Dask has and changes them.
        self._resources: dict[str, Mapping[str, Any]] = {}
        self._gone: deque[GraphWorker] = deque(maxlen=_MOST_GONE)
        self._began = time()
        for ws in scheduler.workers.values():
            self.worker_added(ws, 0.0)

    def __repr__(self) -> str:
        return f"<Graphs: {len(self._logs)} roots, {self._tasks} submitted tasks>"

    def submitted(
        self,
        priorities: Mapping[Hashable, tuple[Any, ...] | None],
        tasks: Collection[TaskState],
        groups: Collection[TaskGroup],
        is_restricted: bool,
    ) -> None:
        """Record tasks of some groups that a client has submitted, or that will run again."""
        self._tasks += len(tasks)
        if self._tasks > self._most:
            self._forget()
        needs: list[Collection[Hashable]]
        try:
            # Dask has it anyway. To look at each task that one needs takes five times as long.
            needs = [task.run_spec._dependencies for task in tasks]
        except AttributeError:
            needs = [[one.key for one in task.dependencies] for task in tasks]
        limits = {task.key: _restriction(task) for task in tasks} if is_restricted else {}
        known = [one.prefix for one in groups if one not in self.submissions]
        durations = tuple([(one.name, one.duration_average, one.max_exec_time) for one in known])
        expected = durations, self.scheduler.bandwidth, self.scheduler.n_tasks
        submission = Submission(
            time(), priorities, ([task.key for task in tasks], needs), limits, *expected
        )
        for group in groups:
            self.submissions.setdefault(group, []).append(submission)

    def again(self, task: TaskState) -> None:
        """Record that a task will run again."""
        self.submitted({task.key: task.priority}, [task], [task.group], True)

    def _forget(self) -> None:
        """Forget the submissions of groups without an open span; all of them if there are many."""
        for group in [one for one in self.submissions if one not in self._groups]:
            del self.submissions[group]
        known = {id(one): len(one.priorities) for own in self.submissions.values() for one in own}
        self._tasks = sum(known.values())
        if self._tasks > MOST:
            # Their runs are left out, and that is said.
            for own in self.submissions.values():
                own.clear()
            self._tasks = 0
        self._most = 2 * self._tasks + BLOCK

    def worker_added(self, ws: WorkerState, when: float) -> None:
        """Record that a worker is there; `when` is 0.0 if it was before these logs."""
        about = ws.name, ws.address, ws.host, ws.nthreads, {**ws.resources}
        self._workers[ws.address] = GraphWorker(*about, when, hash(ws))
        self._resources[ws.address] = ws.resources

    def worker_removed(self, address: str) -> None:
        """Record that a worker left."""
        worker = self._workers.pop(address, None)
        if worker is not None:
            resources = self._resources.pop(address)
            self._gone.append(worker._replace(went=time(), resources=resources))

    def ended(self, group: Group, runs: list[RawRun], outcome: str = "m") -> None:
        """Record runs of a group that ended alike."""
        log, part = self._parts.get(group) or self._part(group)
        if outcome != "m":
            part = part._replace(outcome=outcome, rows=[])
            log.parts.append(part)
        if log.size + len(runs) > log.room:
            if not log.left_out:
                free = MOST - sum([one.size for one in self._held])
                log.room = min(MOST_OF_ONE, log.size + min(BLOCK, max(0, free)))
            room = log.room - log.size
            if room < len(runs):
                log.left_out += len(runs) - room
                runs = runs[:room]
                self.submissions.pop(group.source, None)
        log.size += len(runs)
        part.rows.extend(runs)

    def _part(self, group: Group) -> tuple[GraphLog, GraphPart]:
        """Return the log for a group's runs, and an entry for those with a result."""
        root = group.span.root
        log = self._logs.get(root)
        if log is None:
            log = GraphLog()
            # Earlier runs of a root that was there before are unknown.
            log.left_out = int(root.start < self._began)
            if not log.left_out:
                self._logs[root] = log
                self._held.add(log)
        part = GraphPart(group.prefix, "m", [], self.submissions.setdefault(group.source, []))
        log.parts.append(part)
        found = self._parts[group] = log, part
        return found

    def seceded(self, group: Group, key: Hashable, sent: float, after: float) -> None:
        """Record that a run left its thread to others after some seconds."""
        log, _ = self._parts.get(group) or self._part(group)
        if not log.left_out:
            log.seceded[key, sent] = after

    def interrupted(
        self,
        group: Group,
        key: Hashable,
        ws: WorkerState,
        sent: float,
        ran: tuple[float, float] | None,
        how: str,
    ) -> None:
        """Record a run without a result, after which the task will run again.

        Parameters
        ----------
        ran
            When it began and ended; None if unknown.
        how
            See `stimuli.interruption`.
        """
        if how in _OUTCOMES:
            start, stop = ran or (0.0, 0.0)
            run = TaskRun(stop - start, None, key, ws.name, start, stop, sent=sent)
            self.ended(group, [tuple(run)], _OUTCOMES[how])

    def of(self, span: OpenSpan) -> GraphLog | None:
        """Return the log of a root that ends now; None for any other span, or without runs."""
        log = self._logs.get(span)
        if log is not None:
            gone = [one for one in self._gone if one.went and one.went >= span.start]
            # A thread writes them while Dask changes its own.
            for address, resources in self._resources.items():
                worker = self._workers[address]
                if worker.resources != resources:
                    self._workers[address] = worker._replace(resources={**resources})
            log.workers = (*gone, *self._workers.values())
            known = self.scheduler
            log.seen = {address: ws.last_seen for address, ws in known.workers.items()}
            stealing = known.periodic_callbacks.get("stealing")
            copies = known.periodic_callbacks.get(f"amm-{id(known.extensions.get('amm'))}")
            saturation = known.WORKER_SATURATION
            log.scheduler = {
                "stealing": "stealing" in known.extensions,
                "stealing_interval": stealing and stealing.callback_time / 1000,
                "stealing_at": _first(stealing, time() - span.start),
                "copies_interval": copies and copies.callback_time / 1000,
                "copies_at": _first(copies, time() - span.start),
                "saturation": saturation if saturation < inf else None,
                "unknown_duration": known.UNKNOWN_TASK_DURATION,
            }
        return log

    def exported(self, span: OpenSpan) -> None:
        """Forget a span."""
        self._logs.pop(span, None)
        for group in span.groups:
            self._parts.pop(group, None)
            self.submissions.pop(group.source, None)


def _first(periodic: Any, now: float) -> float | None:
    """Return when a periodic callback was due first, by a clock that shows `now`."""
    due = getattr(periodic, "_next_timeout", None)
    if due is None:
        return None
    first: float = (now + due - periodic.io_loop.time()) % (periodic.callback_time / 1000)
    return first


def _restriction(task: TaskState) -> Restriction | None:
    """Return to which workers a task is restricted; None if it is not."""
    workers, hosts = task.worker_restrictions or (), task.host_restrictions or ()
    resources = tuple((task.resource_restrictions or {}).items())
    if not (workers or hosts or resources):
        return None
    return tuple(sorted(workers)), tuple(sorted(hosts)), resources, task.loose_restrictions

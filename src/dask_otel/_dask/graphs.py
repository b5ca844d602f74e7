"""Records the graph logs: what a replay of a root needs. Only made if they are written.

So the hot path has no question whether they are: `RecordedPaths` takes the place of `Paths`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from distributed.metrics import time

from dask_otel.core.graph import BLOCK, MOST, MOST_OF_ONE, Restriction
from dask_otel.core.life.open_span import Group, OpenSpan
from dask_otel.core.path.following import Paths
from dask_otel.core.path.step import KEY, WAITED, RawStep, Readiness
from dask_otel.core.path.waiting import UNKNOWN, Place, Sent
from dask_otel.core.records import GraphLog, GraphWorker, RawRun, TaskRun

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

#: Most workers that left which are remembered.
_MOST_GONE: Final = 1000
# Of what a task waited for.
_READY, _AGAIN = 1, 3
_FAILURE: Final = TaskRun._fields.index("failure")
#: By how a run without a result ended.
_OUTCOMES: Final = {"error": "f", "rescheduled": "r", "worker_lost": "l"}


class Graphs:
    """The logs of the open roots of one scheduler, except those that began before it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._logs: dict[OpenSpan, GraphLog] = {}
        #: All that anybody holds.
        self._held: WeakSet[GraphLog] = WeakSet()
        #: Of each group with a run, the log and the group's number in it.
        self.parts: dict[Group, tuple[GraphLog, int]] = {}
        #: When the tasks that have not run were submitted.
        self.submitted: dict[Hashable, float] = {}
        self._workers: dict[str, GraphWorker] = {}
        self._gone: deque[GraphWorker] = deque(maxlen=_MOST_GONE)
        self._began = time()
        for ws in scheduler.workers.values():
            self.worker_added(ws, 0.0)

    def __repr__(self) -> str:
        return f"<Graphs: {len(self._logs)} roots, {len(self.submitted)} tasks have not run>"

    def tasks_submitted(self, tasks: Iterable[TaskState]) -> None:
        """Record that a client has submitted some tasks."""
        now, known = time(), self.scheduler.tasks
        # Others are dependencies of an earlier submission.
        new = [task.key for task in tasks if task.state == "released"]
        self.submitted.update(dict.fromkeys(new, now))
        if len(self.submitted) > 2 * len(known):
            # Some were forgotten without a run.
            for key in self.submitted.keys() - known.keys():
                del self.submitted[key]

    def worker_added(self, ws: WorkerState, when: float) -> None:
        """Record that a worker is there; `when` is 0.0 if it was before these logs."""
        about = ws.name, ws.address, ws.host, ws.nthreads, ws.resources
        self._workers[ws.address] = GraphWorker(*about, when)

    def worker_removed(self, address: str) -> None:
        """Record that a worker left."""
        worker = self._workers.pop(address, None)
        if worker is not None:
            self._gone.append(worker._replace(went=time()))

    def part(self, group: Group) -> tuple[GraphLog, int]:
        """Return the log for a group's runs, and the group's number in it."""
        span = group.span
        root = span.above[-1] if span.above else span
        log = self._logs.get(root)
        if log is None:
            log = GraphLog()
            # Earlier runs of a root that was there before are unknown.
            log.left_out = int(root.start < self._began)
            if not log.left_out:
                self._logs[root] = log
                self._held.add(log)
        part = self.parts[group] = log, len(log.groups)
        log.groups.append((group.prefix, span.identity))
        return part

    def has_room(self, log: GraphLog) -> bool:
        """Return whether a full log may go on; if not, count the run that is left out."""
        size = len(log.rows)
        if log.left_out or size >= MOST_OF_ONE or sum(len(one.rows) for one in self._held) >= MOST:
            log.left_out += 1
            return False
        log.room = size + BLOCK
        return True

    def interrupted(
        self,
        group: Group,
        key: Hashable,
        ws: WorkerState,
        sent: float,
        ran: tuple[float, float] | None,
        how: str,
        readiness: Readiness | None,
    ) -> None:
        """Record a run without a result, after which the task will run again.

        Parameters
        ----------
        ran
            When it began and ended; None if unknown.
        how
            See `stimuli.interruption`.
        readiness
            What it waited for; None if unknown.
        """
        if how not in _OUTCOMES:
            return
        log, number = self.parts.get(group) or self.part(group)
        if len(log.rows) < log.room or self.has_room(log):
            start, stop = ran or (0.0, 0.0)
            run = TaskRun(stop - start, None, key, ws.name, start, stop, sent=sent)
            ready = None if readiness is None else readiness[1][_AGAIN] or readiness[1][_READY]
            task = self.scheduler.tasks[key]
            before = tuple([one.key for one in task.dependencies])
            about = before, task.priority, self.submitted.pop(key, None), restriction(task)
            log.rows.append((tuple(run), _OUTCOMES[how], ready, None, number, *about))

    def of(self, span: OpenSpan) -> GraphLog | None:
        """Return the log of a root that ends now; None for any other span, or without runs."""
        log = self._logs.get(span)
        if log is not None:
            gone = [one for one in self._gone if one.went and one.went >= span.start]
            log.workers = (*gone, *self._workers.values())
            known = self.scheduler
            log.scheduler = "stealing" in known.extensions, known.WORKER_SATURATION
        return log

    def exported(self, span: OpenSpan) -> None:
        """Forget a span."""
        self._logs.pop(span, None)
        for group in span.groups:
            self.parts.pop(group, None)


class RecordedPaths(Paths):
    """Records each run that ends, too."""

    def __init__(self, graphs: Graphs, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._graphs = graphs
        self._parts, self._submitted = graphs.parts, graphs.submitted
        self._tasks = graphs.scheduler.tasks

    def ended(
        self,
        stimulus: str | None,
        now: float,
        group: Any,
        run: RawRun,
        before: RawStep | None = None,
        sent_to: Sent = UNKNOWN,
        place: Place = None,
    ) -> None:
        """See `Paths.ended`."""
        Paths.ended(self, stimulus, now, group, run, before, sent_to, place)
        log, number = self._parts.get(group) or self._graphs.part(group)
        rows = log.rows
        if len(rows) >= log.room and not self._graphs.has_room(log):
            return
        key, waited = run[KEY], self._last[WAITED]
        task = self._tasks[key]
        needs = task.dependencies
        # In the order of `core.graph.Row`.
        rows.append(
            (
                run,
                "m" if stimulus is not None else "c" if run[_FAILURE] is None else "e",
                None if waited is None else waited[_AGAIN] or waited[_READY],
                sent_to[2],
                number,
                tuple([one.key for one in needs]) if needs else (),
                task.priority,
                self._submitted.pop(key, None),
                None
                if task.worker_restrictions is None
                and task.resource_restrictions is None
                and task.host_restrictions is None
                and not task.actor
                else restriction(task),
            )
        )


def restriction(task: TaskState) -> Restriction | None:
    """Return to which workers a task is restricted; None if it may run anywhere."""
    workers, hosts = task.worker_restrictions, task.host_restrictions
    resources = task.resource_restrictions
    if not (workers or hosts or resources or task.actor):
        return None
    return (
        tuple(sorted(workers or ())),
        tuple(sorted(hosts or ())),
        tuple((resources or {}).items()),
        task.loose_restrictions,
        bool(task.actor),
    )

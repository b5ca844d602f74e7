"""What happens to tasks: transitions and their relatives, told to the core."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from distributed.metrics import time

from dask_otel import semconv
from dask_otel._dask.boundary import Boundary
from dask_otel._dask.callers import TaskContexts
from dask_otel._dask.facts import UNFINISHED, pickled_class
from dask_otel._dask.runs import RunsUnderWay, Seen
from dask_otel._dask.spans import DaskSpans
from dask_otel._dask.task_spans import Ended, TaskSpans
from dask_otel._dask.threads import ThreadTime, run_times
from dask_otel.core.life.clock_offsets import ClockOffsets
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import Cause, Group, RetryReason, Run
from dask_otel.core.metrics.batch import Batches, Distribution, MetricBatch
from dask_otel.core.records import Failure
from dask_otel.core.text import STACKTRACE_LIMIT
from dask_otel.semconv import Metric

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

#: Characters of a traceback that are kept: its end, as much again as can be exported, for who
#: redacts it.
LONGEST_TRACEBACK: Final = 2 * STACKTRACE_LIMIT


class TaskEvents:
    """Follows the tasks of one scheduler.

    Parameters
    ----------
    scheduler
        A running scheduler.
    lifecycle, time, clocks, spans, shown, contexts
        Told of what happens, or asked.
    batches
        Where counts and durations add up.
    boundary
        Takes every error of ours.

    Notes
    -----
    `transition` is the hot path, and is bound on the plugin as it is. Its other methods may
    raise: the adapter has the boundary.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        lifecycle: Lifecycle,
        time: ThreadTime,
        clocks: ClockOffsets,
        spans: DaskSpans,
        shown: TaskSpans,
        contexts: TaskContexts,
        batches: Batches,
        boundary: Boundary,
    ) -> None:
        self._scheduler = scheduler
        self._outcomes = lifecycle.tasks
        self._time = time
        self._clocks = clocks
        self._spans = spans
        self._groups = spans.groups
        self._shown = shown
        self._queued_since = shown.since
        self._most_queued = shown.most_queued
        self._contexts = contexts
        self._batches = batches
        self._boundary = boundary
        #: Runs whose end the transitions do not tell.
        self.under_way = RunsUnderWay(lifecycle)
        self._seen_runs = self.under_way.seen
        #: Where the tasks in processing were sent, and when.
        self.assigned: dict[Hashable, WorkerState] = {}
        self._sent: dict[Hashable, float] = {}
        #: Compute seconds of the runs that ended, by prefix.
        self._durations: dict[str, Distribution] = {}
        #: Runs that ended in memory and are not in the batch yet. Every task counts here, and a
        #: group is hashed in no time, its series is not.
        self._in_memory: dict[Group, int] = {}
        #: When anything became of a task last: in the same stimulus it is still now.
        self._now = 0.0
        #: Whether an error of ours may have left the counts of unfinished tasks wrong.
        self.drifted = False

    # ------------------------------------------------------------------ attach, detach

    def attach(self) -> None:
        """Take in what is processing."""
        for ws in self._scheduler.workers.values():
            self.assigned.update((task.key, ws) for task in ws.processing)
        self._shown.attach()

    def close(self, now: float) -> None:
        """Tell of the runs that are still under way."""
        for key, ws in self.assigned.items():
            seen = self.under_way.ended(key)
            if seen is not None:
                group = self._groups.get(self._scheduler.tasks[key].group)
                if group is not None:
                    self._outcomes.ran(group, Run(ws.address, seen.start, now), now)

    def all_gone(self) -> None:
        """The scheduler was restarted, or the bridge lets go of it."""
        self.assigned.clear()
        self.under_way.clear()
        self._sent.clear()
        self._shown.clear()

    def repair(self) -> None:
        """Forget what is not processing any more."""
        workers = self._scheduler.workers.values()
        processing = {task.key for ws in workers for task in ws.processing}
        for key in [key for key in self.assigned if key not in processing]:
            del self.assigned[key]
            self.under_way.ended(key)
            self._sent.pop(key, None)
        self._shown.repair()

    # ------------------------------------------------------------------------- metrics

    def book(self, batch: MetricBatch) -> None:
        """Add what was counted since the last call to a batch."""
        for prefix, durations in self._durations.items():
            batch.distributions[semconv.TASK_DURATION.name, prefix] = durations
        self._durations = {}
        for group, runs in self._in_memory.items():
            _book_runs(batch, group, runs)
        self._in_memory.clear()

    def let_go(self, group: Group) -> None:
        """A group's generation is over: book what was counted for it."""
        if group in self._in_memory:
            _book_runs(self._batches.open, group, self._in_memory.pop(group))

    # --------------------------------------------------------------------- transitions

    # Positional-only: else Python compares what Dask tells of a run, ten names, with each of ours.
    def transition(self, key: Hashable, start: str, finish: str, /, **info: Any) -> None:
        """See ``SchedulerPlugin.transition``. About six calls a task: this is the hot path."""
        try:
            if finish in UNFINISHED:
                if start not in UNFINISHED:
                    self._entered(key, info["stimulus_id"])
                elif finish == "processing":
                    task = self._scheduler.tasks[key]
                    self.assigned[key] = task.processing_on
                    self._sent[key] = time()
                    self._time.assigned(key, task)
                elif finish != "waiting":
                    # It could run, and there is no worker for it yet.
                    if len(self._queued_since) < self._most_queued:
                        self._queued_since[key] = self._now
                    else:
                        self._shown.overflowed = True
            elif start in UNFINISHED:
                self._left(key, start, finish, info)
            elif finish == "forgotten":
                if self._outcomes.coming_back:
                    self._forgotten(key)
            elif finish == "erred":
                self._erred_at_rest(key, info["stimulus_id"])
        except Exception:
            self.drifted = True
            self._boundary.failed("transition")

    def _entered(self, key: Hashable, stimulus_id: str) -> None:
        """A task has work left to do."""
        now = self._now = time()
        task = self._scheduler.tasks[key]
        dask_group = task.group
        group = self._groups.get(dask_group)
        if group is None:
            group = self._spans.adopt(task, now)
            if group is None:
                return
        self._contexts.annotate(task, group.span)
        # As `startswith`, for a fifth of the instructions.
        if stimulus_id[:12] == "update-graph":
            reason = self._outcomes.added(group, key, now)
            if self._spans.requested:
                self._spans.submitted(group, dask_group)
        else:
            cause = self._cause(key, stimulus_id)
            reason = self._outcomes.added(group, key, now, cause)
        if reason is not None:
            self._repeated(group, key, reason, now)

    def _repeated(self, group: Group, key: Hashable, reason: RetryReason, now: float) -> None:
        """A task is to run again."""
        self._batches.open.add(
            semconv.TASK_RETRIED.name, group.span.identity.tags, group.prefix, reason
        )
        self._shown.repeated(group.span, key)
        if reason == "rescheduled":
            # As it wished: no trouble, of which the events tell.
            return
        said = self._time.failure_of(key).get("exception_text")
        self._outcomes.incident(
            group.span,
            now,
            semconv.EVENT_TASK_RETRIED,
            {semconv.TASK_KEY: str(key), semconv.TASK_RETRY_REASON: reason},
            Failure(now, str(key), group.prefix, None, said, None) if said else None,
        )

    def _cause(self, key: Hashable, stimulus_id: str) -> Cause:
        """Return why a task is unfinished that nobody has submitted just now."""
        if not stimulus_id.startswith("stimulus-retry"):
            return "recomputed"
        # Set where the task failed in a worker, and never taken back: with `Client.retry`,
        # what depends on it comes back with it.
        return "retried" if self._scheduler.tasks[key].exception_text else "unblamed"

    def _left(self, key: Hashable, start: str, finish: str, info: dict[str, Any]) -> None:
        """A task has no work left to do, or is about to begin again."""
        stimulus_id: str = info["stimulus_id"]
        started = stopped = computed = 0.0
        startstops = info.get("startstops") or ()
        if startstops:
            started, stopped, seconds = run_times(startstops)
        assigned = run = None
        sent = 0.0
        if start == "processing":
            assigned = self.assigned.pop(key, None)
            sent = self._sent.pop(key, 0.0)
            seen = self.under_way.ended(key) if self._seen_runs else None
            if assigned is not None:
                if startstops:
                    self._time.ended(assigned, key, seconds)
                else:
                    lost = assigned.address not in self._scheduler.workers
                    if lost:
                        self._lost(key)
                    run = self._run(key, assigned, stimulus_id, seen, sent, lost)
                    self._time.left(assigned, key, stimulus_id)
        queued = self._queued_since.pop(key, 0.0)
        task = self._scheduler.tasks[key]
        group = self._groups.get(task.group)
        if group is None:
            return
        now = self._now = time()
        outcomes = self._outcomes
        worker: str | None = info.get("worker")
        if stopped:
            computed = stopped - started
            started, stopped = self._clocks.corrected(
                worker, started, stopped, stimulus_id, sent, now
            )
        if finish == "memory":
            outcomes.finished(group, worker, started, stopped, now)
            if start == "processing":
                runs = self._in_memory
                runs[group] = runs.get(group, 0) + 1
                if stopped:
                    self._ran(group.prefix, computed)
                    # What was done before it computed can be the first of its group.
                    first = sent < group.start and len(startstops) > 1
                    if computed > group.floor or self._shown.sampling or first:
                        ended = Ended(
                            info, computed, sent, started, stopped, queued, stimulus_id, assigned
                        )
                        outcomes.prepared(group, self._shown.began(ended))
                        self._shown.succeeded(group, task, ended)
        elif finish == "erred":
            if info.get("cause") == key:
                if run is not None:
                    # The last of those that its workers died with.
                    outcomes.ran(group, run, now)
                failure = self._failed(group, key, info, started, stopped, now, assigned)
                if stopped:
                    self._ran(group.prefix, computed)
                    ended = Ended(
                        info, computed, sent, started, stopped, queued, stimulus_id, assigned
                    )
                    outcomes.prepared(group, self._shown.began(ended))
                    self._shown.failed(group, task, ended, failure)
            else:
                outcomes.blamed(group, now)
        elif task.exception_blame is not None:
            outcomes.blamed(group, now)
        elif not task.has_lost_dependencies and (task.who_wants or task.waiters):
            reason = _reason(stimulus_id) if start == "processing" else None
            outcomes.interrupted(group, key, reason, now, run)
        else:
            worker = None if assigned is None else assigned.address
            outcomes.cancelled(group, worker, now, run)
            if start == "processing":
                if worker is not None and run is None:
                    self.under_way.cancelled(key, worker, group, now)
                self._count(semconv.TASK_FINISHED, group, "cancelled")

    def _run(
        self,
        key: Hashable,
        assigned: WorkerState,
        stimulus_id: str,
        seen: Seen | None,
        sent: float,
        lost: bool,
    ) -> Run | None:
        """Return what is known of a run whose end the transition does not tell."""
        if stimulus_id.startswith("task-erred"):
            # It failed, with retries left.
            started, stopped, _ = run_times(self._time.failure_of(key).get("startstops") or ())
            if stopped:
                worker = assigned.address
                shown = self._clocks.corrected(worker, started, stopped, stimulus_id, sent, time())
                return Run(worker, *shown)
        if seen is None:
            return None
        # It ran until now, or until its worker was lost, nobody knows when.
        return Run(assigned.address, seen.start, seen.last if lost else time())

    def _lost(self, key: Hashable) -> None:
        """A run was lost with its worker, whatever becomes of the task."""
        group = self._groups.get(self._scheduler.tasks[key].group)
        if group is not None:
            self._outcomes.lost(group)
            self._batches.open.add(semconv.TASK_LOST.name, group.span.identity.tags, group.prefix)

    def executing(self, ws: WorkerState, executing: Mapping[Hashable, float]) -> None:
        """A heartbeat says for how long the tasks have been running that a worker executes."""
        self.under_way.heartbeat(ws.address, executing, self.assigned)

    def _erred_at_rest(self, key: Hashable, stimulus_id: str) -> None:
        """A task erred that had no work left to do.

        It is an actor, whose worker left, or was submitted when what it depends on had failed
        already. Older releases (2025.1 for one) say released→erred of both: but an actor
        blames itself.
        """
        task = self._scheduler.tasks[key]
        lost = task.actor and task.exception_blame is task
        if not lost and not stimulus_id.startswith("update-graph"):
            return
        now = time()
        group = self._groups.get(task.group) or self._spans.adopt(task, now)
        if group is None:
            return
        if lost:
            self._failed(group, key, {}, 0.0, 0.0, now, None, was_unfinished=False)
        else:
            self._outcomes.added(group, key, now)
            self._outcomes.blamed(group, now)

    def _forgotten(self, key: Hashable) -> None:
        group = self._groups.get(self._scheduler.tasks[key].group)
        if group is not None:
            self._outcomes.forgotten(group, key)

    def _name_of(self, address: str | None, assigned: WorkerState | None) -> str | None:
        """Return the name of a worker as the metrics have it; it may have left just now."""
        if address is None:
            return None
        if assigned is None or assigned.address != address:
            assigned = self._scheduler.workers.get(address)
        return None if assigned is None else str(assigned.name)

    def _failed(
        self,
        group: Group,
        key: Hashable,
        info: dict[str, Any],
        started: float,
        stopped: float,
        now: float,
        assigned: WorkerState | None,
        was_unfinished: bool = True,
    ) -> Failure:
        worker: str | None = info.get("worker")
        text = info.get("exception_text")
        scheduler_error = None
        if text is None:
            scheduler_error = pickled_class(info.get("exception")) or "RuntimeError"
        failure = Failure(
            time=stopped or now,
            key=str(key),
            prefix=group.prefix,
            worker=worker,
            worker_name=self._name_of(worker, assigned),
            text=text,
            traceback=_end(info.get("traceback_text")),
            scheduler_error=scheduler_error,
        )
        self._outcomes.failed(group, key, failure, started, stopped, now, was_unfinished)
        if was_unfinished:
            self._count(semconv.TASK_FINISHED, group, "erred")
        # Beyond the cap on details, without the largest of them.
        return failure if group.span.failed[key] else replace(failure, traceback=None)

    def _ran(self, prefix: str, seconds: float) -> None:
        try:
            durations = self._durations[prefix]
        except KeyError:
            durations = self._durations[prefix] = Distribution()
        durations.add(seconds)

    def _count(self, metric: Metric, group: Group, what: str) -> None:
        tags = group.span.identity.tags
        self._batches.open.add(metric.name, tags, group.prefix, what)

    def stolen(self, message: Any) -> None:
        """A task was moved to another worker, for which there is no transition."""
        if type(message) is tuple and len(message) > 4 and message[0] == "confirm":
            key, thief = message[1], message[4]
            try:
                known = key in self.assigned and thief in self._scheduler.workers
            except TypeError:
                # Any client may log any event.
                known = False
            if known:
                victim, self.assigned[key] = self.assigned[key], self._scheduler.workers[thief]
                self._time.stolen(key, victim, self.assigned[key])


def _book_runs(batch: MetricBatch, group: Group, runs: int) -> None:
    tags = group.span.identity.tags
    batch.add(semconv.TASK_FINISHED.name, tags, group.prefix, "memory", value=runs)


def _end(traceback: object) -> str | None:
    """Return as much of a traceback as may be shown, and some more to be redacted.

    Dask does not cut them. A queue of spans that wait holds this, and not what a recursion left.
    """
    return traceback[-LONGEST_TRACEBACK:] if isinstance(traceback, str) else None


def _reason(stimulus_id: str) -> RetryReason | None:
    """Return why a run is to be repeated that gave no result."""
    if stimulus_id.startswith("task-erred"):
        return "error"
    if stimulus_id.startswith("reschedule"):
        # The task raised `Reschedule`.
        return "rescheduled"
    if stimulus_id.startswith("steal"):
        # Its thief left when it had been given up: it had not started.
        return None
    return "worker_lost"

"""Turns transitions of tasks into calls of the core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from math import inf
from time import monotonic
from typing import Any, Final, TypeAlias

from distributed.metrics import time
from distributed.scheduler import TaskGroup, TaskState, WorkerState

from dask_otel import semconv
from dask_otel._dask.facts import UNFINISHED, pickled_class, run_times
from dask_otel._dask.runs import (
    ACCOUNT,
    NOT_READY,
    QUEUED,
    SEEN,
    SENT_AT,
    SENT_TO,
    TASK,
    WAITED,
    WORKER,
    Part,
    Ready,
    RunsUnderWay,
    actions,
)
from dask_otel._dask.spans import DaskSpans
from dask_otel._dask.stimuli import (
    END,
    LENGTH,
    RETRY,
    SUBMISSION,
    interruption,
    submission_time,
)
from dask_otel._dask.threads import ThreadTime
from dask_otel._dask.wrapping import Wrappers
from dask_otel.core.idle.worker import WorkerTime
from dask_otel.core.life import task_runs
from dask_otel.core.life.clock_offsets import UNKNOWN_OFFSET, ClockOffsets
from dask_otel.core.life.computing import TOGETHER
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import Cause, Group, RetryReason, TaskLimits
from dask_otel.core.memory.sums import Moves
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.path.following import AtOnce, Paths, after
from dask_otel.core.path.step import (
    KEY,
    NUMBER,
    PARTS,
    SECONDS,
    SENT,
    STOP,
    Lost,
    Readiness,
    lost_run,
)
from dask_otel.core.path.waiting import (
    AT_ONCE,
    MOMENT,
    UNKNOWN,
    Place,
    Sent,
    how_waited,
    last_ends,
    turn_of,
)
from dask_otel.core.records import Failure, RawRun, Retry, TaskRun
from dask_otel.core.text import STACKTRACE_LIMIT

#: Limit of a traceback in characters; its end stays. It is twice the export's limit, so that
#: redaction sees the whole. Dask does not limit tracebacks, and spans wait in a queue.
LONGEST_TRACEBACK: Final = 2 * STACKTRACE_LIMIT

#: When a run computed.
Times: TypeAlias = tuple[float, float]


class TaskEvents:
    """Follows the tasks of one scheduler.

    `transition` is the hot path, and is bound on the plugin directly. The other methods may raise:
    the adapter guards them.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        time: ThreadTime,
        clocks: ClockOffsets,
        spans: DaskSpans,
        under_way: RunsUnderWay,
        limits: TaskLimits,
    ) -> None:
        # Python finds the attributes of an object faster if there are at most 29, and if all
        # objects of the class have the same ones.
        self._tasks: dict[Hashable, TaskState] = spans.scheduler.tasks
        self._spans = spans
        self._groups = spans.groups
        self._contexts = spans.contexts
        self._open = lifecycle.open
        self._outcomes = lifecycle.outcomes
        self._computing = lifecycle.computing
        self._follows = lifecycle.follows
        #: The results in memory; None if they are not followed.
        self._memory = memory = lifecycle.memory
        #: The state that results leave, if they are followed.
        self._leaves = "" if memory is None else "memory"
        self._moves: dict[Any, Moves] = {} if memory is None else memory.moves
        self._came: list[Group] = [] if memory is None else memory.came
        self._time = time
        self._accounting = time.accounting
        self._workers = time.accounting.workers
        #: What bounds the spans, if it is followed.
        self.paths = Paths(submission_time, self._accounting)
        self._clocks = clocks
        #: Which runs are kept, to become spans; see `task_runs`.
        self._limits = limits
        self._samples = limits.ratio > 0.0 and limits.most > 0
        #: Runs whose end is in no transition, and the records of the tasks that are ready.
        self.under_way = under_way
        self.ready = under_way.ready
        #: Tasks that wait since their results were lost, and the open group that has counted the
        #: result, if any: such a task is no work until it is sent to a worker.
        self._lost: dict[Hashable, Group | None] = {}
        #: Those that were sent, and whether their group had counted the result.
        self._sent_again: dict[Hashable, bool] = {}
        #: The last stimulus of a task with work left, and the same if it was a submission.
        self._stimulus = ""
        self._submission: str | None = None
        #: The last task that will not run since another one failed, and the stimulus.
        self._blamed: tuple[Hashable, str] | None = None
        #: The time of the last event. Further events of the same stimulus have the same time.
        self._now = 0.0

    # ------------------------------------------------------------------ attach, detach

    def attach(self) -> None:
        """Add the tasks that are processing; the active spans must be known."""
        accounting = self._accounting
        for ws in self._spans.scheduler.workers.values():
            for task in ws.processing:
                account = self._workers.get(ws.address)
                accounting.task_assigned(account, task.key, task.group.span_id, monotonic)
                self._record(task.key)[WORKER:SENT_AT] = ws, account
                if task in ws.long_running:
                    accounting.task_seceded(ws.address, task.key, None, monotonic())
        self._recount()
        for task in (*self._spans.scheduler.queued, *self._spans.scheduler.unrunnable):
            self._record(task.key)

    def close(self, now: float) -> None:
        """Record the runs that are still under way, and recomputations that have not begun."""
        for key, record in self.ready.items():
            task: TaskState = record[TASK]
            ws: WorkerState = record[WORKER]
            seen = record[SEEN]
            group = self._groups.get(task.group)
            if seen is not None and group is not None:
                self._outcomes.ran(group, ws.address, seen[0], now, now)
            elif group is not None and key in self._sent_again:
                self._outcomes.not_recomputed(group, self._sent_again[key], now)

    def all_gone(self) -> None:
        """Forget all tasks: the scheduler was restarted, or the bridge releases it."""
        self.under_way.clear()
        self._lost, self._sent_again = {}, {}
        self.paths = Paths(submission_time, self._accounting)
        if self._memory is not None:
            self._memory.recount({})

    def repair(self) -> None:
        """Forget tasks that are no longer ready, or no longer unfinished."""
        self._recount()
        unfinished = {k: task for k, task in self._tasks.items() if task.state in UNFINISHED}
        ready = {
            key
            for key, task in unfinished.items()
            if (record := self.ready.get(key))
            and task.state != "waiting"
            and task.processing_on is record[WORKER]
            and task is record[TASK]
        }
        self.paths.repair(unfinished)
        for table, keys in (
            (self._lost, unfinished),
            (self._sent_again, unfinished),
            (self.ready, ready),
        ):
            for key in table.keys() - keys:
                del table[key]

    def resting(self) -> Counter[TaskGroup]:
        """Return the unfinished tasks that are no work: they wait to be computed again."""
        tasks = self._tasks
        waiting: list[TaskState] = [tasks[key] for key in self._lost if key in tasks]
        return Counter(task.group for task in waiting if task.state in UNFINISHED)

    # ------------------------------------------------------------------------- metrics

    def add_to(self, batch: MetricBatch) -> None:
        """Add the counts since the last call to a batch."""
        computing = self._computing
        computing.add_all()
        for prefix, durations in computing.durations.items():
            batch.distributions[semconv.TASK_DURATION.name, prefix] = durations
        computing.durations.clear()
        for group in [*computing.counts]:
            self.flush(group)

    def flush(self, group: Group) -> None:
        """Add a group's counts to the batch: at an export, or when its generation is over."""
        if group.new_runs:
            self._computing.add(group)
        if runs := self._computing.counts.pop(group, 0):
            self._count(semconv.TASK_FINISHED.name, group, "memory", value=runs)

    def _count(self, metric: str, group: Group, *labels: str, value: float = 1) -> None:
        tags = group.span.identity.tags
        self._spans.batches.open.add(metric, tags, group.prefix, *labels, value=value)

    # -------------------------------------------------------------- results in memory

    def wrap(self, wrappers: Wrappers) -> None:
        """Wrap the ways in which scattered data comes, which is no transition."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def update_data(**message: Any) -> Any:
                wrappers.run("update_data", self._scatter, message["who_has"], -1)
                try:
                    return original(**message)
                finally:
                    # It may have failed halfway.
                    wrappers.run("update_data", self._scatter, message["who_has"], 1)

            return update_data

        if self._memory is not None:
            wrappers.method(self._spans.scheduler, "update_data", make)
            wrappers.handler(self._spans.scheduler.handlers, "update_data", make)
            wrappers.handler(self._spans.scheduler.stream_handlers, "update-data", make)

    def _scatter(self, keys: Iterable[Hashable], sign: int) -> None:
        """Add data in memory to its groups, or remove it: it may change."""
        assert self._memory is not None
        for key in keys:
            task: TaskState | None = self._tasks.get(key)
            if task is not None and task.state == "memory":
                self._memory.move(task.group, sign * task.get_nbytes(), monotonic())

    def _recount(self) -> None:
        """Count the results in memory anew."""
        if self._memory is not None:
            sizes: Counter[TaskGroup] = Counter()
            for task in self._tasks.values():
                if task.state == "memory":
                    sizes[task.group] += task.get_nbytes()
            self._memory.recount(sizes)

    # --------------------------------------------------------------------- transitions

    # All that Dask passes with a result has a name here: to collect and to compare ten other names
    # takes 2,000 instructions.
    def transition(
        self,
        key: Hashable,
        start: str,
        finish: str,
        /,
        stimulus_id: str = "",
        worker: str | None = None,
        metadata: object = None,
        status: object = None,
        nbytes: object = None,
        type: object = None,  # noqa: A002
        typename: object = None,
        thread: object = None,
        startstops: Any = (),
        **info: Any,
    ) -> None:
        """See ``SchedulerPlugin.transition``. About six calls a task: this is the hot path."""
        try:
            # Comparing with one name takes a third of the instructions of a lookup in a set.
            if finish == "waiting":
                if start != "waiting":
                    self._to_waiting(key, stimulus_id)
            elif finish == "processing":
                record = self.ready.get(key) or self._record(key)
                task: TaskState = record[TASK]
                ws = task.processing_on
                now = time()
                if self._lost and key in self._lost:
                    record[WAITED] = self._recomputed(task, start, stimulus_id, now, record[WAITED])
                if start == "waiting":
                    record[QUEUED] = 0.0
                    if stimulus_id is not self._submission and self._follows:
                        record[WAITED] = self.paths.at_once(stimulus_id) or self._waited(
                            key, stimulus_id, now
                        )
                record[WORKER] = ws
                record[ACCOUNT] = account = self._workers.get(ws.address)
                record[SENT_AT] = now
                record[SENT_TO] = self._accounting.task_assigned(
                    account, key, task.group.span_id, monotonic
                )
            elif start in UNFINISHED:
                if finish != "queued" and finish != "no-worker":
                    self._from_unfinished(key, start, finish, stimulus_id, worker, startstops, info)
                    return
                # It waits for a worker, if it did not in its submission.
                if start != "waiting" or stimulus_id is not self._submission:
                    record = self.ready.get(key) or self._record(key)
                    if start == "waiting" and self._follows:
                        record[WAITED] = self._waited(key, stimulus_id, self._now)
                    record[QUEUED] = self._now
            else:
                if start == self._leaves and finish != "memory":
                    # Without calls: one takes 500 instructions.
                    task = self._tasks[key]
                    moves, size = self._moves[task.group], task.nbytes
                    if size < 0:
                        size = task.get_nbytes()
                    moves.bytes -= size
                    moves.moment -= monotonic() * size
                if finish == "forgotten":
                    if self._outcomes.coming_back or self._lost:
                        self._to_forgotten(key)
                elif finish == "erred":
                    self._rest_to_erred(key, start, stimulus_id)
        except Exception:
            self._spans.drifted = True
            self._spans.boundary.failed("transition")

    def _to_waiting(self, key: Hashable, stimulus_id: str) -> None:
        """A task has work left to do."""
        now = self._now = time()
        task = self._tasks[key]
        if stimulus_id is not self._stimulus:
            self._stimulus = stimulus_id
            self._submission = stimulus_id if stimulus_id[:LENGTH] == SUBMISSION else None
        group = self._groups.get(task.group)
        if self._submission is None and self._result_lost(task, stimulus_id, group):
            return
        if group is None:
            group = self._spans.adopt(task, now)
            if group is None:
                return
        span, contexts = group.span, self._contexts
        reason, has_run = None, True
        if contexts.plain is not span or len(task.annotations or ()) != contexts.own:
            contexts.annotate(task, span)
        if self._submission is not None:
            if self._lost:
                self._lost.pop(key, None)
            if span.reruns or not span.active:
                reason = self._outcomes.added(group, key, now)
            else:
                # Most tasks: `added` without a call.
                group.tasks += 1
                span.unfinished += 1
            if not task.waiting_on:
                paths = self.paths
                if stimulus_id is paths.submission and group is paths.alike and now <= paths.until:
                    waited: Readiness | None = paths.shared
                else:
                    waited = paths.submitted(group, stimulus_id, now) if self._follows else None
                # Queued from now on, unless it is sent at once.
                self.ready[key] = [task, waited, now, None, None, 0.0, UNKNOWN, None]
            if self._spans.requested and (tags := self._spans.requested.get(task.group)):
                span.requested = tags
        else:
            # Set for a task that failed on a worker, and not for its dependents, which are retried
            # with it.
            cause: Cause = "retried" if task.exception_text else "unblamed"
            known = group.tasks
            reason = self._outcomes.added(group, key, now, cause)
            has_run = reason != "client" or group.tasks == known
            if self._follows:
                self.paths.recomputed(key, span)
            if self._spans.graphs is not None:
                self._spans.graphs.again(task)
        if reason is not None:
            # An exported failure was a run of an earlier generation.
            self._repeated(group, key, reason, now, has_run)

    def _result_lost(self, task: TaskState, stimulus_id: str, group: Group | None) -> bool:
        """Return whether a task waits since its result was lost, and record that.

        It is no work yet, and its span keeps the result: most clusters close while clients hold
        results, and workers leave before their scheduler.
        """
        key = task.key
        if key not in self._lost:
            returns = group is not None and key in (group.span.reruns or ())
            if returns or stimulus_id.startswith(RETRY):
                return False
            self._lost[key] = group if group is not None and group.memory else None
            # The group can be new to a generation that other ones have begun.
            span = self._open.get(task.group.span_id)
            if span is not None and self._follows:
                self.paths.recomputed(key, span)
        return True

    def _recomputed(
        self,
        task: TaskState,
        start: str,
        stimulus_id: str,
        now: float,
        waited: Readiness | AtOnce | None = None,
    ) -> Readiness | AtOnce | None:
        """Record that a task whose result was lost is work again: it is sent to a worker.

        Returns what it waited for, if that is known by now.
        """
        key = task.key
        group = self._groups.get(task.group)
        if group is None:
            # The span was exported meanwhile.
            group = self._spans.adopt(task, now)
            if group is None:
                self.paths.forget(key)
                return None
        counted = self._sent_again[key] = self._lost.pop(key) is group and group.memory > 0
        self._outcomes.recomputed(group, counted, now)
        if self._spans.graphs is not None:
            self._spans.graphs.again(task)
        if self._follows and waited is None:
            self.paths.recomputed(key, group.span)
            if start != "waiting":
                return self._waited(key, stimulus_id, now)
        return waited

    def _record(self, key: Hashable) -> Ready:
        """Return the record of a task that was not ready when it was submitted."""
        record = self.ready[key] = [self._tasks[key], None, None, None, None, 0.0, UNKNOWN, None]
        return record

    def _waited(self, key: Hashable, stimulus_id: str, now: float) -> Readiness | None:
        """Return what a task waited for that was not ready when it was submitted."""
        group = self._groups.get(self._tasks[key].group)
        # If a result was lost, its span may have been exported.
        if group is None and key not in self._lost:
            return None
        return self.paths.ready(key, stimulus_id, now, None if group is None else group.span)

    def _repeated(
        self, group: Group, key: Hashable, reason: RetryReason, now: float, has_run: bool = True
    ) -> None:
        """Record that a task runs again; `has_run` is whether it did so in this generation."""
        self._count(semconv.TASK_RETRIED.name, group, reason)
        if has_run and self._limits.most:
            task_runs.repeated(group.span, key)
        if reason == "rescheduled":
            # The task requested it, and events are only for problems.
            return
        text = self._time.failure_of(key).get("exception_text")
        failure = Failure(now, str(key), group.prefix, None, text, None) if text else None
        self._outcomes.repeated(group.span, Retry(now, str(key), reason, failure))

    def _from_unfinished(
        self,
        key: Hashable,
        start: str,
        finish: str,
        stimulus_id: str,
        worker: str | None,
        startstops: Any,
        info: dict[str, Any],
    ) -> None:
        """A task has no work left to do, or will begin again. Here its `TaskRun` is made."""
        others = startstops = startstops or ()
        if len(startstops) == 1 and (only := startstops[0])["action"] == "compute":
            # Most runs: `run_times` without a call and a loop.
            others, started, stopped = (), only["start"], only["stop"]
        else:
            started, stopped = run_times(startstops)
        computed = stopped - started
        known, waited_for, queued, ws, of_worker, sent, sent_to, seen = self.ready.pop(
            key, NOT_READY
        )
        assigned: WorkerState | None = ws
        account: WorkerTime | None = of_worker
        task: TaskState = self._tasks[key] if known is None else known
        # Not the message's copy: tables find the same object without comparing.
        key, group = task.key, self._groups.get(task.group)
        clock = monotonic()
        ran = lost = None
        threads, waits, held = sent_to
        if assigned is None:
            sent_to = (self._accounting.present, AT_ONCE, None)
        elif startstops:
            self._accounting.task_done(account, key, computed, clock)
        else:
            ran, lost = self._ended_without_times(
                task, assigned, account, stimulus_id, sent, sent_to, seen, group
            )
        now = self._now = time()
        if self._lost and key in self._lost:
            self.paths.forget(key)
            if finish != "erred" and task.exception_blame is None:
                self._came_back(task, finish, clock)
                return
            # It fails without being sent again, since another one failed.
            self._recomputed(task, start, stimulus_id, now)
            group = self._groups.get(task.group)
        if group is None:
            self._came_back(task, finish, clock)
            return
        if ran is not None and assigned is not None:
            self._outcomes.ran(group, assigned.address, *ran, now)
        if self._sent_again and key in self._sent_again:
            counted = self._sent_again.pop(key)
            again = finish == "released" and task.exception_blame is None
            if again and interruption(stimulus_id) not in ("error", "rescheduled"):
                # It may be sent again.
                self._outcomes.not_recomputed(group, counted, now)
                self._lost[key] = group if counted else None
                self._interrupted(group, key, assigned, sent, ran, stimulus_id, waited_for, lost)
                return
            if sent:
                group.recomputed += 1
                self._repeated(group, key, "recomputed", now, counted)
        span, number = group.span, None
        parts: tuple[Part, ...] = ()
        place: Place = None
        fetched = 0.0
        if stopped:
            clock_of = UNKNOWN_OFFSET if account is None else account.offset
            error = clock_of.error
            if started >= clock_of.settled and sent <= started - error <= stopped - error <= now:
                # Most runs: `corrected` without a call.
                started, stopped = started - error, stopped - error
            else:
                started, stopped = self._clocks.corrected(
                    worker, started, stopped, stimulus_id, sent, now
                )
            if held is not None and computed > held:
                span.seceded += computed - held
                if self._spans.graphs is not None:
                    self._spans.graphs.seceded(group, key, sent, held)
            if stimulus_id[0] == END:
                # A message with another id may repeat the times of a run with another number.
                number = task.run_id
                if account is not None:
                    # Without calls. The first entry is no end.
                    ends, free, tied = account.ends, account.free, task.resource_restrictions
                    # The message of an end at its beginning would have come by then.
                    if waits and sent < account.released < started + now - stopped + MOMENT:
                        waits = how_waited(waits, tied, ends, key, sent, started, account.released)
                        sent_to = (threads, waits, held)
                    elif not waits and (tied or (started > sent + MOMENT and len(ends) > 1)):
                        waits = how_waited(waits, tied, ends, key, sent, started)
                        # Most wait for nothing, and share theirs.
                        sent_to = (threads, waits, held) if waits else sent_to
                    if waits or not free or account.pauses:
                        end = (stimulus_id, stopped, self._accounting.present, key, not free)
                        if (free or held is not None) and not tied:
                            # No other task waited for this end; a seceded one had left its thread.
                            place = [*last_ends(ends), end]
                        else:
                            ends.append(end)
                            place = ends
            if others:
                offset = self._clocks.offset(worker)
                place = turn_of(place, waits, key, sent, started, stopped)
                began = sent if place is None else max(sent, place[0])
                parts, fetched = actions(others, sent, began, started, offset)
        elif waits or (assigned is not None and task.resource_restrictions):
            # The unknown part of its run was a wait for a thread of its worker.
            place = (inf, self._accounting.present)
        if not queued:
            waited = 0.0 if sent and queued is not None else None
        else:
            waited = sent - queued if queued < sent else 0.0
        # In the order of `TaskRun`.
        run: RawRun = (
            computed,
            number,
            key,
            None if assigned is None else assigned.name,
            started,
            stopped,
            1 if span.runs is None and not span.unknown else task_runs.attempt(span, key),
            waited,
            size := task.nbytes,
            task.type,
            parts,
            sent,
            fetched,
            None,
        )
        if finish == "memory":
            if stopped and worker is not None:
                if self._memory is not None:
                    # As `_came_back`, without calls. Python multiplies a float by an integer with
                    # fewer instructions than the other way round, and compares it with fewer than
                    # it asks for its truth.
                    moment = group.moment
                    if moment == 0.0:
                        self._came.append(group)
                    group.came += size
                    group.moment = moment + clock * size
                runs = group.new_runs
                if not runs:
                    self._computing.waiting[group] = None
                runs.append(run)
                if len(runs) == TOGETHER:
                    self._computing.add(group)
                span.workers[worker] = True
                if parts:
                    self._outcomes.prepared(group, run)
                if (computed > group.floor or self._samples) and self._is_whole(run):
                    task_runs.succeeded(group, run, self._limits)
            else:
                self._came_back(task, finish, clock)
                if start == "processing":
                    self._computing.counts[group] += 1
                self._outcomes.at_work_until(span, now)
                # Without the times of the run, the path is unknown.
                self.paths.forget(key)
                waited_for = None
            group.memory += 1
            span.unfinished -= 1
            if not span.unfinished:
                self._outcomes.activity(span, False, now)
            if self._follows:
                self.paths.ended(stimulus_id, now, group, run, waited_for, sent_to, place)
            return
        if waited_for is not None and waited_for[1] is None:
            waited_for = after(waited_for[0], sent, threads)
        if finish == "erred" and info.get("cause") == key:
            # The last of its runs on workers that died, if it has none now.
            failure = self._failed(group, key, worker, info, started, stopped, now, assigned)
            run = TaskRun._make(run)._replace(nbytes=None, type=None, failure=failure)
            self._end_path(group, run, start, ran, now, waited_for, sent_to, place)
            self._to_erred(group, run)
        elif finish == "erred" and start != "processing" and not info:
            # It failed within this transition, in one of its own: its worker has less memory than
            # it needs.
            pass
        elif finish == "erred" or task.exception_blame is not None:
            self._outcomes.blamed(group, now)
            self._blamed = key, stimulus_id
            self.paths.in_vain(group.span, key, now)
        elif not task.has_lost_dependencies and (task.who_wants or task.waiters):
            how = interruption(stimulus_id) if start == "processing" else "stolen"
            self._outcomes.interrupted(group, key, None if how == "stolen" else how, now)
            self._interrupted(group, key, assigned, sent, ran, stimulus_id, waited_for, lost)
        else:
            # It is cancelled: nobody wants its result. It may still run where it was assigned.
            self._end_path(group, run, start, ran, now, waited_for, sent_to, place)
            address = None if assigned is None else assigned.address
            self._outcomes.cancelled(group, address, now)
            if address is not None and ran is None:
                self.under_way.cancelled(key, address, group, now)
            if start == "processing":
                self._count(semconv.TASK_FINISHED.name, group, "cancelled")

    def _came_back(self, task: TaskState, finish: str, clock: float) -> None:
        """Let a result come to memory, if one did, whose run is unknown."""
        if self._memory is not None and finish == "memory":
            self._memory.move(task.group, task.get_nbytes(), clock)

    def _interrupted(
        self,
        group: Group,
        key: Hashable,
        assigned: WorkerState | None,
        sent: float,
        ran: Times | None,
        stimulus_id: str,
        waited: Readiness | None,
        lost: Lost | None,
    ) -> None:
        """Record for path and graph that a ready task will be ready again."""
        if (graphs := self._spans.graphs) is not None and assigned is not None:
            graphs.interrupted(group, key, assigned, sent, ran, interruption(stimulus_id))
        self.paths.interrupted(key, waited, lost)

    def _to_erred(self, group: Group, run: RawRun) -> None:
        """A task failed for good."""
        self._count(semconv.TASK_FINISHED.name, group, "erred")
        if run[STOP]:
            self._computing.durations[group.prefix].add(run[SECONDS])
            if run[PARTS]:
                self._outcomes.prepared(group, run)
        if self._limits.most and self._is_whole(run):
            task_runs.failed(group, run, self._limits)

    def _end_path(
        self,
        group: Group,
        run: RawRun,
        start: str,
        ran: Times | None,
        now: float,
        waited: Readiness | None,
        sent_to: Sent,
        place: Place,
    ) -> None:
        """Record for the path that a ready task ended without a result."""
        if not self._follows or start == "waiting":
            self.paths.in_vain(group.span, run[KEY], now)
            return
        if not run[STOP]:
            # The unknown part of its run was a wait for the worker, or for a thread.
            began, stopped = ran or (now, now)
            sent = run[SENT] or now
            run = TaskRun._make(run)._replace(start=began, stop=stopped, sent=sent)
        self.paths.ended(None, now, group, run, waited, sent_to, place)
        if self._spans.graphs is not None:
            outcome = "e" if TaskRun._make(run).failure else "c"
            self._spans.graphs.ended(group, [tuple(run)], outcome)

    @staticmethod
    def _is_whole(run: RawRun) -> bool:
        """Return whether a run can become a span; its worker can report any seconds."""
        return run[NUMBER] is not None and 0.0 <= run[SECONDS] < inf

    def _ended_without_times(
        self,
        task: TaskState,
        assigned: WorkerState,
        account: WorkerTime | None,
        stimulus_id: str,
        sent: float,
        sent_to: Sent,
        seen: Times | None,
        group: Group | None,
    ) -> tuple[Times | None, Lost | None]:
        """Record the end of a run whose message lacks its times; return what is known of them."""
        key, address = task.key, assigned.address
        lost = address not in self._spans.scheduler.workers
        # Workers that close in turn send lost results to each other, which never run.
        if lost and group is not None and (seen is not None or key not in self._sent_again):
            group.lost += 1
            self._count(semconv.TASK_LOST.name, group)
        how, message = interruption(stimulus_id), self._time.failure_of(key)
        startstops = message.get("startstops") or ()
        started, stopped = run_times(startstops)
        # If another task failed, nobody wants this one any more, and its run goes on.
        if how == "rescheduled" or (how == "error" and message):
            # The run has ended, and a retry follows.
            known = stopped - started if startstops else None
            self._accounting.task_done(account, key, known, monotonic())
            resources = bool(task.resource_restrictions)
            self._time.freed(account, address, key, stimulus_id, resources)
        else:
            account = None
            self._accounting.task_released(address, key, monotonic())
        threads, waits, _ = sent_to
        began = (sent, threads, sent, threads, sent) if sent else None
        if how == "error" and stopped:
            if group is not None:
                self._computing.durations[group.prefix].add(stopped - started)
            ran = self._clocks.corrected(address, started, stopped, stimulus_id, sent, time())
            if account is not None and sent:
                end = (stimulus_id, ran[1], self._accounting.present, key, True)
                waits = how_waited(waits, resources, account.ends, key, sent, ran[0])
                waited: Sent = (threads, waits, None)
                began = lost_run([*last_ends(account.ends), end], waited, key, sent, *ran)
            return ran, began
        # It ran until now, or until its worker was lost at an unknown time.
        return None if seen is None else (seen[0], seen[1] if lost else time()), began

    def _rest_to_erred(self, key: Hashable, start: str, stimulus_id: str) -> None:
        """A task fails that had no work left to do.

        It is an actor whose worker left, or it was submitted after its dependency had failed. In
        older releases (such as 2025.1) both are the transition released→erred, but an actor blames
        itself. A submission can also make waiting tasks fail: this is then their second transition.
        """
        task = self._tasks[key]
        lost = task.actor and task.exception_blame is task
        if not lost and (stimulus_id[:LENGTH] != SUBMISSION or self._blamed == (key, stimulus_id)):
            return
        if lost and start == "released" and self._memory is not None:
            # Older releases do not say that it leaves memory.
            self._memory.move(task.group, -task.get_nbytes(), monotonic())
        now = time()
        group = self._groups.get(task.group) or self._spans.adopt(task, now)
        if group is None:
            return
        if lost:
            self._failed(group, key, None, {}, 0.0, 0.0, now, None, was_unfinished=False)
        else:
            self._outcomes.added(group, key, now)
            self._outcomes.blamed(group, now)

    def _failed(
        self,
        group: Group,
        key: Hashable,
        worker: str | None,
        info: Mapping[str, Any],
        started: float,
        stopped: float,
        now: float,
        assigned: WorkerState | None,
        was_unfinished: bool = True,
    ) -> Failure:
        ws = self._spans.scheduler.workers.get(worker)
        if assigned is not None and assigned.address == worker:
            # It may just have left.
            ws = assigned
        text, trace = info.get("exception_text"), info.get("traceback_text")
        failure = Failure(
            time=stopped or now,
            key=str(key),
            prefix=group.prefix,
            worker=worker,
            worker_name=None if ws is None else str(ws.name),
            text=text,
            traceback=trace[-LONGEST_TRACEBACK:] if isinstance(trace, str) else None,
            scheduler_error=(pickled_class(info.get("exception")) or "RuntimeError")
            if text is None
            else None,
        )
        self._outcomes.failed(group, key, failure, started, stopped, now, was_unfinished)
        # Beyond the limit on details, omit the traceback, the largest one.
        return failure if (group.span.failed or {}).get(key) else replace(failure, traceback=None)

    def _to_forgotten(self, key: Hashable) -> None:
        """Dask knows a task no more."""
        group = self._groups.get(self._tasks[key].group)
        if group is not None:
            self._outcomes.forgotten(group, key)
        self.paths.forget(key)
        self._lost.pop(key, None)

    def stolen(self, message: Any) -> None:
        """Record that a task moved to another worker, which is not a transition."""
        if type(message) is tuple and len(message) > 4 and message[0] == "confirm":
            _, key, _, _, thief, *_ = message
            try:
                record = self.ready.get(key)
                ws = self._spans.scheduler.workers.get(thief)
            except TypeError:
                # Any client may log any event.
                return
            if record is None or record[WORKER] is None or ws is None:
                return
            task: TaskState
            victim: WorkerState
            task, waited, queued, victim, _, sent, sent_to, _ = record
            key, now = task.key, time()
            if waited is not None and waited[1] is None:
                waited = after(waited[0], sent, sent_to[0])
            sent_to = self._accounting.task_stolen(key, victim.address, ws.address, monotonic())
            # It is in no queue of the scheduler meanwhile.
            queued = queued and queued + now - sent
            account = self._workers.get(thief)
            record[:] = task, waited, queued, ws, account, now, sent_to, None

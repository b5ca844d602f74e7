"""The adapter of one scheduler: turns what Dask does into calls of the core.

It hangs on the scheduler with everything it knows, and takes itself off again without a trace.
"""

from __future__ import annotations

import pickletools
import re
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from distributed.core import Status
from distributed.metrics import time

from dask_otel import semconv
from dask_otel._dask.callers import TaskContexts
from dask_otel._dask.clients import ClientBlocks
from dask_otel._dask.past import Past, leave, past_of
from dask_otel._dask.runs import RunsUnderWay, Seen
from dask_otel._dask.threads import ThreadTime, made_at, run_times
from dask_otel._dask.workers import LoopHealth, WorkerSamples
from dask_otel.core import identity
from dask_otel.core.context import Caller
from dask_otel.core.life.blocks import TOPIC
from dask_otel.core.life.callers import DEFAULT_SPAN, Callers, Propagation
from dask_otel.core.life.clock_offsets import ClockOffsets
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import (
    Cause,
    Group,
    GroupFacts,
    Limits,
    OpenSpan,
    RetryReason,
    Run,
    SpanFacts,
)
from dask_otel.core.life.summaries import SpanSummary, Summaries, summarize
from dask_otel.core.metrics.batch import MetricBatch, SpanDeltas
from dask_otel.core.metrics.distribution import Distribution
from dask_otel.core.records import Failure, Tags
from dask_otel.core.trace import Trace

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskGroup, TaskState, WorkerState
    from distributed.spans import Span, SpansSchedulerExtension

#: Task states in which there is work left to do.
UNFINISHED: Final = frozenset({"waiting", "no-worker", "queued", "processing"})

#: States of a scheduler that is about to end, and its work with it.
_ENDING: Final = frozenset(
    {
        Status.stopping,
        Status.stopped,
        Status.closing,
        Status.closing_gracefully,
        Status.closed,
        Status.failed,
    }
)

#: The states that are counted: all but ``forgotten``, which is no state to be in.
_STATES: Final = (*sorted(UNFINISHED), "released", "memory", "erred")

#: Contexts that spans own; their cluster-wide sums would be counted twice.
_SPAN_CONTEXTS: Final = frozenset({"execute", "p2p"})

_DEFINITION: Final = re.compile(r"\s*(?:async\s+)?def\s+(\w+)")

_LATE_KINDS: Final = frozenset({"seconds", "bytes", "count"})


class UnsupportedScheduler(RuntimeError):
    """The scheduler lacks something that the bridge can't do without."""


class Boundary(Protocol):
    """Where the bridge's own errors end."""

    def failed(self, kind: str) -> None:
        """Count the exception that is being handled, and log the first of its kind."""


class _Continued:
    """A TaskGroup that had worked before the generation began, and its sums at that time."""

    __slots__ = ("durations", "group", "nbytes")

    def __init__(self, group: TaskGroup) -> None:
        self.group = group
        self.nbytes: int = group.nbytes_total
        self.durations: Mapping[str, float] = group.all_durations

    def facts(self) -> GroupFacts:
        whole = _group_facts(self.group)
        durations = {
            action: seconds - self.durations.get(action, 0.0)
            for action, seconds in whole.durations.items()
        }
        return GroupFacts(
            output_bytes=max(0, whole.output_bytes - self.nbytes),
            durations={action: seconds for action, seconds in durations.items() if seconds > 0},
            types=whole.types,
        )


def _group_facts(group: TaskGroup) -> GroupFacts:
    durations = {action: seconds for action, seconds in group.all_durations.items() if seconds > 0}
    return GroupFacts(max(0, group.nbytes_total), durations, tuple(group._types))


def _task_group(group: Group) -> TaskGroup:
    source: Any = group.source
    return source.group if type(source) is _Continued else source


class SchedulerAdapter:
    """Feeds the core from one scheduler.

    Parameters
    ----------
    scheduler
        A running scheduler.
    limits
        For the lifecycle.
    boundary
        Takes every error of ours: none may reach Dask, whose extension methods are not
        guarded. An exception in ``heartbeat`` closes the worker, one in ``observe_tasks``
        fails the user's graph.
    max_workers
        Workers with metrics of their own.
    propagation
        What becomes of callers' contexts.

    Raises
    ------
    UnsupportedScheduler
        If the scheduler has no spans extension.

    Notes
    -----
    All methods belong to the scheduler's event loop.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        limits: Limits,
        boundary: Boundary,
        max_workers: int = 100,
        propagation: Propagation = "adopt",
    ) -> None:
        extension = scheduler.extensions.get("spans")
        if extension is None:
            raise UnsupportedScheduler(
                "this scheduler runs without Dask's 'spans' extension, so there are no spans "
                "to export; start it with its default extensions"
            )
        self.scheduler = scheduler
        #: Of a bridge that was taken off this scheduler.
        self._past = past = past_of(scheduler)
        self.lifecycle = Lifecycle(limits, self, None if past is None else past.generations)
        self.runs = RunsUnderWay(self.lifecycle)
        self.time = ThreadTime(scheduler, boundary, self._executing)
        self.blocks = ClientBlocks(scheduler, self.lifecycle, limits)
        self.loops = LoopHealth(scheduler)
        self._workers = WorkerSamples(scheduler, max_workers)
        #: Compute seconds of the runs that ended, by prefix.
        self._durations: dict[str, Distribution] = {}
        #: What changed in the metrics since the last `swap`.
        self.batch = MetricBatch()
        if past is None:
            self._summaries = Summaries(limits.remember)
        else:
            self._summaries = past.summaries
            self._summaries.resume(limits.remember)
        #: Callers and their contexts, and what becomes of them.
        self.callers = Callers(propagation, partial(self._count, semconv.OTEL_CALLERS.name))
        self._contexts = TaskContexts(self.callers)
        self._boundary = boundary
        self._extension: SpansSchedulerExtension = extension
        self._groups: dict[TaskGroup, Group] = {}
        #: Keys of metrics in the batch, without their span ids.
        self._own_keys: dict[tuple[Hashable, ...], tuple[Hashable, ...]] = {}
        #: Where the tasks in processing were sent.
        self._assigned: dict[Hashable, WorkerState] = {}
        #: When they were.
        self._sent: dict[Hashable, float] = {}
        self._clocks = ClockOffsets(made_at)
        #: Runs that ended in memory and are not in the batch yet. Every task counts here, and a
        #: group is hashed in no time, its series is not.
        self._runs: dict[Group, int] = {}
        #: By group, the span that the client asked for in the submission at hand.
        self._requested: dict[TaskGroup, Tags] = {}
        #: How many of Dask's spans we have taken in. Dask adds them at the end, and keeps them.
        self._seen = 0
        #: Whether an error of ours may have left the counts of unfinished tasks wrong.
        self._drifted = False
        #: Whether the bridge was taken off a scheduler that goes on; known when it is closed.
        self.taken_off = False
        #: Seconds of the event loop that heartbeats and submissions took, up to now.
        self.spent = 0.0
        self._unwrap: list[Callable[[], None]] = []

    # ------------------------------------------------------------------ attach, detach

    def attach(self) -> None:
        """Begin to observe: take in what is there, then wrap the extension's methods."""
        self.time.attach()
        for address, ws in self.scheduler.workers.items():
            self._first_report(address)
            self._assigned.update((task.key, ws) for task in ws.processing)
        now = time()
        known = self._known_before()
        self._contexts.submitted(self.scheduler.tasks.values(), list(self._extension.spans))
        for group in self.scheduler.task_groups.values():
            self._take_in(group, now, known)
        self.time.take_in_tasks()
        self._tell_all()
        self._seen = len(self._extension.spans)
        self._wrap("heartbeat", self._wrapped_heartbeat)
        self._wrap("observe_tasks", self._wrapped_observe_tasks)

    def close(self, now: float) -> None:
        """Export what is open: the scheduler closes, or the bridge is taken off it."""
        for key, ws in self._assigned.items():
            seen = self.runs.ended(key)
            if seen is not None:
                group = self._groups.get(self.scheduler.tasks[key].group)
                if group is not None:
                    self.lifecycle.ran(group, Run(ws.address, seen.start, now), now)
        self.taken_off = self.scheduler.status not in _ENDING
        self.lifecycle.close(now, "unknown" if self.taken_off else "error")

    def detach(self, exported: bool = True) -> None:
        """Put everything back as it was, and let go of Dask's objects.

        Parameters
        ----------
        exported
            Whether anything was exported, for the next bridge to know.
        """
        if exported and self.attached:
            seen = len(self._extension.spans)
            leave(self.scheduler, Past(self.lifecycle.generations, self._summaries, seen))
        self.time.detach()
        while self._unwrap:
            self._unwrap.pop()()
        self._groups.clear()
        self._assigned.clear()
        self.runs.clear()
        self._sent.clear()

    def _wrap(self, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace a method on the extension's instance, which Dask looks up for each call."""
        extension = self._extension
        shadowed = vars(extension).get(name)
        original = getattr(extension, name)
        wrapper = make(original)
        setattr(extension, name, wrapper)

        def unwrap() -> None:
            if vars(extension).get(name) is not wrapper:
                # Somebody wrapped it after us: ours stays below theirs, and does nothing.
                return
            if shadowed is None:
                delattr(extension, name)
            else:
                setattr(extension, name, shadowed)

        self._unwrap.append(unwrap)

    @property
    def attached(self) -> bool:
        """Whether the adapter observes the scheduler."""
        return bool(self._unwrap)

    def _known_before(self) -> Callable[[str], bool]:
        """Return what tells whether an earlier bridge may have exported a span."""
        if self._past is None:
            return lambda _: False
        spans = self._extension.spans
        since = set(islice(reversed(spans), len(spans) - self._past.seen))
        may_have_exported = self.lifecycle.generations.may_have_exported
        return lambda dask_id: dask_id not in since and may_have_exported(dask_id)

    def _take_in(self, group: TaskGroup, now: float, known: Callable[[str], bool]) -> None:
        """Adopt the unfinished work that was there before the bridge."""
        unfinished = _unfinished(group)
        if not unfinished or not group.span_id:
            return
        dask_span = self._extension.spans[group.span_id]
        span = self.lifecycle.open.get(dask_span.id)
        if span is None:
            if known(dask_span.id):
                span = self._reopened(dask_span, now)
            else:
                span = self._created(dask_span, known)
            span.partial |= any(_has_ended(group) for group in dask_span.groups)
        own = self._add_group(span, group)
        self.lifecycle.tasks_taken_in(own, unfinished, now)

    def _tell_all(self) -> None:
        """Tell the tasks their contexts that were there before the bridge, and have not run."""
        for task in self.scheduler.tasks.values():
            if task.state in UNFINISHED:
                self._tell_again(task)

    def _tell_again(self, task: TaskState) -> None:
        group = self._groups.get(task.group)
        if group is not None:
            self._contexts.tell(task, group.span)

    # ---------------------------------------------------------------- the Dask plugin's

    def transition(
        self,
        key: Hashable,
        start: str,
        finish: str,
        *args: Any,
        stimulus_id: str,
        **kwargs: Any,
    ) -> None:
        """See ``SchedulerPlugin.transition``. About six calls a task: this is the hot path."""
        try:
            if finish in UNFINISHED:
                if start not in UNFINISHED:
                    self._entered(key, stimulus_id)
                elif finish == "processing":
                    task = self.scheduler.tasks[key]
                    self._assigned[key] = task.processing_on
                    self._sent[key] = time()
                    self.time.assigned(key, task)
            elif start in UNFINISHED:
                self._left(key, start, finish, stimulus_id, kwargs)
            elif finish == "forgotten":
                if self.lifecycle.interrupted:
                    self._forgotten(key)
            elif finish == "erred":
                self._erred_at_rest(key, stimulus_id)
        except Exception:
            self._drifted = True
            self._boundary.failed("transition")

    def transitions(self) -> int:
        """Return how many transitions there were since the scheduler's start."""
        return int(self.scheduler.transition_counter)

    def restart(self) -> None:
        """See ``SchedulerPlugin.restart``: every task is gone."""
        try:
            self._assigned.clear()
            self.runs.clear()
            self._sent.clear()
            self.lifecycle.all_forgotten(time())
        except Exception:
            self._drifted = True
            self._boundary.failed("restart")

    def log_event(self, topic: str, message: Any) -> None:
        """See ``SchedulerPlugin.log_event``: for what Dask tells nowhere else."""
        try:
            if topic == "stealing":
                self._stolen(message)
            elif topic == "scheduler":
                self._graph_failed(message)
            elif topic == TOPIC:
                self.blocks.told(message, time())
        except Exception:
            self._boundary.failed("log_event")

    def remove_client(self, client: str) -> None:
        """See ``SchedulerPlugin.remove_client``."""
        try:
            self.blocks.client_gone(client, time())
        except Exception:
            self._boundary.failed("remove_client")

    def add_worker(self, address: str) -> None:
        """See ``SchedulerPlugin.add_worker``."""
        try:
            self.time.worker_added(self.scheduler.workers[address])
            self._first_report(address)
        except Exception:
            self._boundary.failed("add_worker")

    def remove_worker(self, address: str) -> None:
        """See ``SchedulerPlugin.remove_worker``."""
        try:
            self.lifecycle.reports.left(address)
            self.runs.worker_removed(address)
            self._clocks.left(address)
            self.loops.worker_removed(address)
            self.time.worker_removed(address)
        except Exception:
            self._boundary.failed("remove_worker")

    # ----------------------------------------------------------------- task transitions

    def _entered(self, key: Hashable, stimulus_id: str) -> None:
        """A task has work left to do."""
        now = time()
        task = self.scheduler.tasks[key]
        dask_group = task.group
        group = self._groups.get(dask_group)
        if group is None:
            group = self._adopt(dask_group, now, task)
            if group is None:
                return
        self._contexts.tell(task, group.span)
        if stimulus_id.startswith("update-graph"):
            reason = self.lifecycle.task_added(group, key, now)
            if self._requested and dask_group in self._requested:
                group.span.requested = self._requested[dask_group]
        else:
            cause = self._cause(key, stimulus_id)
            reason = self.lifecycle.task_added(group, key, now, cause)
        if reason is not None:
            self._repeated(group, key, reason, now)

    def _repeated(self, group: Group, key: Hashable, reason: RetryReason, now: float) -> None:
        """A task is to run again."""
        self._count(semconv.TASK_RETRIED.name, group.span.identity.tags, group.prefix, reason)
        if reason == "rescheduled":
            # As it wished: no trouble, of which the events tell.
            return
        self.lifecycle.incident(
            group.span,
            now,
            semconv.EVENT_TASK_RETRIED,
            {semconv.TASK_KEY: str(key), semconv.TASK_RETRY_REASON: reason},
        )

    def _cause(self, key: Hashable, stimulus_id: str) -> Cause:
        """Return why a task is unfinished that nobody has submitted just now."""
        if not stimulus_id.startswith("stimulus-retry"):
            return "recomputed"
        # Set where the task failed in a worker, and never taken back: with `Client.retry`,
        # what depends on it comes back with it.
        return "retried" if self.scheduler.tasks[key].exception_text else "unblamed"

    def _left(
        self, key: Hashable, start: str, finish: str, stimulus_id: str, info: dict[str, Any]
    ) -> None:
        """A task has no work left to do, or is about to begin again."""
        started = stopped = computed = 0.0
        startstops = info.get("startstops")
        if startstops:
            started, stopped, seconds = run_times(startstops)
        assigned = run = None
        sent = 0.0
        if start == "processing":
            assigned = self._assigned.pop(key, None)
            sent = self._sent.pop(key, 0.0)
            seen = self.runs.ended(key)
            if assigned is not None:
                if startstops:
                    self.time.ended(assigned, key, seconds)
                else:
                    run = self._run(key, assigned, stimulus_id, seen, sent)
                    self.time.left(assigned, key, stimulus_id)
        task = self.scheduler.tasks[key]
        group = self._groups.get(task.group)
        if group is None:
            return
        now = time()
        lifecycle = self.lifecycle
        worker: str | None = info.get("worker")
        if stopped:
            computed = stopped - started
            started, stopped = self._clocks.shown(worker, started, stopped, stimulus_id, sent, now)
        if finish == "memory":
            lifecycle.task_finished(group, worker, started, stopped, now)
            if start == "processing":
                runs = self._runs
                runs[group] = runs.get(group, 0) + 1
                if stopped:
                    self._ran(group.prefix, computed)
        elif finish == "erred":
            if info.get("cause") == key:
                self._failed(group, key, info, started, stopped, now, assigned)
                if stopped:
                    self._ran(group.prefix, computed)
            else:
                lifecycle.task_blamed(group, now)
        elif task.exception_blame is not None:
            lifecycle.task_blamed(group, now)
        elif not task.has_lost_dependencies and (task.who_wants or task.waiters):
            reason = _reason(stimulus_id) if start == "processing" else None
            lifecycle.task_interrupted(group, key, reason, now, run)
        else:
            worker = None if assigned is None else assigned.address
            lifecycle.task_cancelled(group, worker, now, run)
            if start == "processing":
                if worker is not None and run is None:
                    self.runs.cancelled(key, worker, group, now)
                self._count(
                    semconv.TASK_FINISHED.name, group.span.identity.tags, group.prefix, "cancelled"
                )

    def _run(
        self,
        key: Hashable,
        assigned: WorkerState,
        stimulus_id: str,
        seen: Seen | None,
        sent: float,
    ) -> Run | None:
        """Return what is known of a run whose end the transition does not tell."""
        if stimulus_id.startswith("task-erred"):
            # It failed, with retries left.
            started, stopped, _ = run_times(self.time.failed_run(key))
            if stopped:
                worker = assigned.address
                shown = self._clocks.shown(worker, started, stopped, stimulus_id, sent, time())
                return Run(worker, *shown)
        if seen is None:
            return None
        # It ran until now, or until its worker was lost, nobody knows when.
        lost = assigned.address not in self.scheduler.workers
        return Run(assigned.address, seen.start, seen.last if lost else time())

    def _executing(self, ws: WorkerState, executing: Mapping[Hashable, float]) -> None:
        """A heartbeat says for how long the tasks have been running that a worker executes."""
        self.runs.heartbeat(ws.address, executing, self._assigned)

    def _erred_at_rest(self, key: Hashable, stimulus_id: str) -> None:
        """A task erred that had no work left to do.

        It is an actor, whose worker left, or was submitted when what it depends on had failed
        already. Older releases (2025.1 for one) say released→erred of both: but an actor
        blames itself.
        """
        task = self.scheduler.tasks[key]
        lost = task.actor and task.exception_blame is task
        if not lost and not stimulus_id.startswith("update-graph"):
            return
        now = time()
        group = self._groups.get(task.group) or self._adopt(task.group, now, task)
        if group is None:
            return
        if lost:
            self._failed(group, key, {}, 0.0, 0.0, now, None, was_unfinished=False)
        else:
            self.lifecycle.task_added(group, key, now)
            self.lifecycle.task_blamed(group, now)

    def _forgotten(self, key: Hashable) -> None:
        group = self._groups.get(self.scheduler.tasks[key].group)
        if group is not None:
            self.lifecycle.task_forgotten(group, key)

    def _name_of(self, address: str | None, assigned: WorkerState | None) -> str | None:
        """Return the name of a worker as the metrics have it; it may have left just now."""
        if address is None:
            return None
        if assigned is None or assigned.address != address:
            assigned = self.scheduler.workers.get(address)
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
    ) -> None:
        worker: str | None = info.get("worker")
        text = info.get("exception_text")
        scheduler_error = None
        if text is None:
            scheduler_error = _pickled_class(info.get("exception")) or "RuntimeError"
        failure = Failure(
            time=stopped or now,
            key=str(key),
            prefix=group.prefix,
            worker=worker,
            worker_name=self._name_of(worker, assigned),
            text=text,
            traceback=info.get("traceback_text"),
            scheduler_error=scheduler_error,
        )
        self.lifecycle.task_failed(group, key, failure, started, stopped, now, was_unfinished)
        if was_unfinished:
            self._count(semconv.TASK_FINISHED.name, group.span.identity.tags, group.prefix, "erred")

    def _ran(self, prefix: str, seconds: float) -> None:
        try:
            durations = self._durations[prefix]
        except KeyError:
            durations = self._durations[prefix] = Distribution()
        durations.add(seconds)

    def _count(self, *series: Hashable, count: int = 1) -> None:
        self.batch.add(*series, value=count)

    def _stolen(self, message: Any) -> None:
        """A task was moved to another worker, for which there is no transition."""
        if type(message) is tuple and len(message) > 4 and message[0] == "confirm":
            key, thief = message[1], message[4]
            if key in self._assigned and thief in self.scheduler.workers:
                victim, self._assigned[key] = self._assigned[key], self.scheduler.workers[thief]
                self.time.moved(key, victim, self._assigned[key])

    def _graph_failed(self, message: Any) -> None:
        """A graph could not be made into tasks: it has no span, and no transition."""
        if type(message) is not dict or message.get("action") != "update-graph":
            return
        if message.get("status") == "error":
            self._count(semconv.OTEL_DROPPED.name, "traces", "graph_failed")

    # ----------------------------------------------------------------- spans and groups

    def _wrapped_observe_tasks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def observe_tasks(tss: Iterable[TaskState], *args: Any, **kwargs: Any) -> Any:
            if not self.attached:
                return original(tss, *args, **kwargs)
            tss = tss if isinstance(tss, list) else list(tss)
            began = perf_counter()
            try:
                self._requested = self._collisions(tss)
            except Exception:
                self._requested = {}
                self._boundary.failed("observe_tasks")
            self.spent += perf_counter() - began
            result = original(tss, *args, **kwargs)
            began = perf_counter()
            try:
                self._take_in_spans(tss)
            except Exception:
                self._drifted = True
                self._boundary.failed("observe_tasks")
            self.spent += perf_counter() - began
            return result

        return observe_tasks

    def _collisions(self, tasks: list[TaskState]) -> dict[TaskGroup, Tags]:
        """Return the span that the client asked for, by group, where it will not get it.

        A TaskGroup belongs to one span for life; ``observe_tasks`` overwrites the annotation
        of tasks that come later under another span.
        """
        requested: dict[TaskGroup, Tags] = {}
        for task in tasks:
            span_id = task.group.span_id
            if span_id:
                if task.state in UNFINISHED:
                    # Submitted again before it ran: Dask has replaced its annotations.
                    self._tell_again(task)
                asked = (task.annotations or {}).get("span")
                if asked:
                    if asked["ids"][-1] != span_id:
                        requested[task.group] = tuple(asked["name"])
                elif self._extension.spans[span_id].name != DEFAULT_SPAN:
                    requested[task.group] = DEFAULT_SPAN
        return requested

    def submission_over(self) -> None:
        """Forget what concerns one submission alone; call it between loop callbacks.

        After an error of ours, this is also when the counts are compared with Dask's: between
        two callbacks of the loop its own are consistent.
        """
        if self._requested:
            self._requested = {}
        if self.blocks.leaving:
            try:
                self.blocks.look(time())
            except Exception:
                self._boundary.failed("blocks")
        if self._drifted:
            try:
                self._repair()
                self._drifted = False
            except Exception:
                self._boundary.failed("repair")

    def _repair(self) -> None:
        """Take over Dask's counts of unfinished tasks."""
        now = time()
        self._take_in_spans()
        unfinished: dict[str, int] = {}
        for group in self.scheduler.task_groups.values():
            count = _unfinished(group)
            if count and group.span_id:
                unfinished[group.span_id] = unfinished.get(group.span_id, 0) + count
                if group not in self._groups:
                    self._adopt(group, now)
        self.lifecycle.repair(unfinished, now)
        processing = {task.key for ws in self.scheduler.workers.values() for task in ws.processing}
        for key in [key for key in self._assigned if key not in processing]:
            del self._assigned[key]
            self.runs.ended(key)
            self._sent.pop(key, None)

    def _take_in_spans(self, tasks: Iterable[TaskState] = ()) -> None:
        """Open the spans that Dask has made since the last call, for these tasks."""
        spans = self._extension.spans
        if self._seen == len(spans):
            return
        born = list(islice(reversed(spans.values()), len(spans) - self._seen))
        self._contexts.submitted(tasks, [dask_span.id for dask_span in born])
        for dask_span in reversed(born):
            if dask_span.id not in self.lifecycle.open:
                self._created(dask_span)
            self._seen += 1

    def _created(self, dask_span: Span, known: Callable[[str], bool] | None = None) -> OpenSpan:
        ancestors = _ancestors(dask_span)
        for ancestor in ancestors:
            # Only where the bridge came to a running cluster: else they are there, or gone.
            missing = known is not None and ancestor.id not in self.lifecycle.open
            if missing and known is not None and not known(ancestor.id):
                self._created(ancestor, known)
        dask_id, tags = dask_span.id, dask_span.name
        caller = self.callers.opens(tags, not ancestors, self._contexts.opener(dask_id))
        span = self.lifecycle.span_created(
            dask_id, tags, tuple(a.id for a in ancestors), dask_span.enqueued, caller
        )
        self.callers.opened(span, self._contexts.opener(dask_id))
        return span

    def _reopened(self, dask_span: Span, now: float, caller: Caller | None = None) -> OpenSpan:
        span = self.lifecycle.open.get(dask_span.id)
        if span is None:
            ancestors = tuple(ancestor.id for ancestor in _ancestors(dask_span))
            tags = dask_span.name
            asked = self.callers.opens(tags, not ancestors, caller)
            span = self.lifecycle.span_reopened(dask_span.id, tags, ancestors, now, asked)
            self.callers.opened(span, caller)
            # What it did before is forgotten, or was never seen.
            span.partial = not self._summaries.knows(dask_span.id)
        return span

    def _adopt(self, group: TaskGroup, now: float, task: TaskState | None = None) -> Group | None:
        """Return our record of a task group, on its span's open generation.

        Parameters
        ----------
        task
            With which it begins.
        """
        if not group.span_id:
            # Data that a Variable or Queue announced: no span, and no work, yet.
            return None
        if self._seen != len(self._extension.spans):
            self._take_in_spans()
        dask_span = self._extension.spans[group.span_id]
        caller = None if task is None else self._contexts.caller(task)
        return self._add_group(self._reopened(dask_span, now, caller), group)

    def _add_group(self, span: OpenSpan, group: TaskGroup) -> Group:
        source = _Continued(group) if group.duration or group.nbytes_total else group
        own = self.lifecycle.add_group(span, group.name, group.prefix.name, source)
        self._groups[group] = own
        return own

    # ---------------------------------------------------------------------- heartbeats

    def _wrapped_heartbeat(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def heartbeat(ws: WorkerState, data: dict[tuple[Hashable, ...], float]) -> None:
            original(ws, data)
            if self.attached:
                began = perf_counter()
                try:
                    self._heartbeat(ws, data)
                except Exception:
                    self._boundary.failed("heartbeat")
                self.spent += perf_counter() - began

        return heartbeat

    def _heartbeat(self, ws: WorkerState, data: dict[tuple[Hashable, ...], float]) -> None:
        metrics = ws.metrics
        cancelled = metrics.get("task_counts", {}).get("cancelled", 0)
        self.lifecycle.reports.heartbeat(ws.address, ws.last_seen, ws.time_delay, cancelled)
        # How long the worker waited for the answer to the heartbeat before.
        waited = metrics.get("digests_total_since_heartbeat", {}).get("latency")
        waited = waited if type(waited) is float else None
        self._clocks.heartbeat(ws.address, ws.last_seen, ws.time_delay, waited)
        self._worker_deltas(metrics)
        if data:
            self._span_deltas(ws.address, data)
        self.loops.heartbeat(ws)

    def _first_report(self, address: str) -> None:
        """Take in what a worker sent with its registration, which is no heartbeat of the spans."""
        ws = self.scheduler.workers[address]
        self.lifecycle.reports.heartbeat(address, ws.last_seen, ws.time_delay, 0)
        self._clocks.heartbeat(address, ws.last_seen, ws.time_delay, None)
        self.loops.heartbeat(ws)
        if self.attached:
            self._worker_deltas(ws.metrics)

    def _worker_deltas(self, metrics: Mapping[str, Any]) -> None:
        for key, value in metrics.get("digests_total_since_heartbeat", {}).items():
            if type(key) is tuple and key and key[0] not in _SPAN_CONTEXTS:
                self.batch.add_of_worker(key, value)

    def _span_deltas(self, worker: str, data: dict[tuple[Hashable, ...], float]) -> None:
        open_spans = self.lifecycle.open
        by_span = self.batch.span_deltas
        own_keys = self._own_keys
        span_id: Any = None
        span: OpenSpan | None = None
        values: dict[tuple[Hashable, ...], float] = {}
        for key, value in data.items():
            if key[1] != span_id:
                span_id = key[1]
                span = open_spans.get(span_id)
                deltas = by_span.get(span_id)
                if deltas is None:
                    deltas = self._deltas_of(span_id, span)
                values = deltas.values
                if span is not None:
                    span.reporters[worker] = None
            own_key = (key[0], *key[2:])
            # One tuple for all spans: many that live until the export set off full
            # collections of garbage, which stop a large scheduler for 0.3 s.
            own_key = own_keys.setdefault(own_key, own_key)
            values[own_key] = values.get(own_key, 0) + value
            if span is None:
                self._late(key[-1], value)
            if key[0] == "execute" and key[-1] == "seconds":
                activity = key[3] if len(key) == 5 else key[3:-1]
                self.time.metered(span_id, activity, value)
                if span is not None:
                    # Also of runs that gave no result.
                    span.workers[worker] = None
                    activities = span.activities
                    activities[activity] = activities.get(activity, 0.0) + value
                    span.execute_seconds += value

    def _deltas_of(self, span_id: str, span: OpenSpan | None) -> SpanDeltas:
        if span is not None:
            ident = span.identity
            return self.batch.deltas_of(span_id, ident.tags, (ident.trace_id, ident.span_id))
        dask_span = self._extension.spans[span_id]
        trace = self.trace_of(dask_span)
        ids = None if trace is None else (trace, identity.span_id(span_id))
        return self.batch.deltas_of(span_id, dask_span.name, ids)

    def trace_of(self, dask_span: Span) -> Trace | None:
        """Return the trace that a span's first generation is in; None if that is forgotten."""
        ancestors = _ancestors(dask_span)
        root = ancestors[0] if ancestors else dask_span
        return self.lifecycle.generations.trace_of(dask_span.id, root.id, root.name[0])

    def _late(self, unit: Hashable, value: float) -> None:
        kind = unit if unit in _LATE_KINDS else "other"
        self.batch.add(semconv.OTEL_LATE.name, kind, value=value)

    # ------------------------------------------------- what the lifecycle asks and tells

    def thread_seconds(self, start: float, stop: float) -> float:
        """Return the integral of ``total_nthreads`` over the interval."""
        history = self.scheduler.total_nthreads_history
        first = max(0, bisect_right(history, start, key=_time_of) - 1)
        total, since, threads = 0.0, start, 0
        for when, count in islice(history, first, None):
            if when >= stop:
                break
            if when > since:
                total += (when - since) * threads
                since = when
            threads = count
        return total + max(0.0, stop - since) * threads

    def threads_at(self, time: float) -> int:
        """Return ``total_nthreads`` at that time."""
        history = self.scheduler.total_nthreads_history
        index = bisect_right(history, time, key=_time_of) - 1
        return int(history[max(0, index)][1])

    def group_facts(self, group: Group) -> GroupFacts:
        """Read the TaskGroup's sums; there are none where they can't be read."""
        try:
            source: Any = group.source
            return source.facts() if type(source) is _Continued else _group_facts(source)
        except Exception:
            self._boundary.failed("group_facts")
            return GroupFacts(0, {}, ())

    def span_facts(self, span: OpenSpan) -> SpanFacts:
        """Read the accounting of its time, and what users can fill with anything."""
        # A span without tasks of its own has no idle time, rather than none of it.
        idle, capacity = self.time.span_totals(span) if span.groups else (None, None)
        links = self.callers.links(span)
        try:
            dask_span = self._extension.spans[span.identity.dask_id]
            return SpanFacts(_collection_types(dask_span), _code(dask_span), idle, capacity, links)
        except Exception:
            self._boundary.failed("span_facts")
            return SpanFacts(idle=idle, capacity=capacity, callers=links)

    def span_opened(self, span: OpenSpan) -> None:
        """Let the accounting of its time begin; hold it, if a client is in its block."""
        self.time.span_opened(span)
        self.blocks.span_opened(span)

    def span_active(self, span: OpenSpan, now: float) -> None:
        """Count the span as active."""
        self.time.span_active(span)
        self.batch.add(semconv.SPAN_ACTIVE.name, span.identity.tags)

    def span_inactive(self, span: OpenSpan, now: float) -> None:
        """Count the span as no longer active."""
        self.time.span_inactive(span)
        self.batch.add(semconv.SPAN_ACTIVE.name, span.identity.tags, value=-1)

    def summary(self, span_id: str) -> SpanSummary | None:
        """Return what is known of a span's own work, exported or not; None if nothing is."""
        span = self.lifecycle.open.get(span_id)
        return self._summaries.of(span_id, None if span is None else self._summarized(span))

    def _summarized(self, span: OpenSpan) -> SpanSummary:
        return summarize(span, *(self.time.span_totals(span) if span.groups else (None, None)))

    def span_exported(self, span: OpenSpan) -> None:
        """Keep what Dask forgets, and let go of the span's block and TaskGroups."""
        self.blocks.span_exported(span)
        self.callers.exported(span)
        self._summaries.keep(span.identity.dask_id, self._summarized(span))
        for group in span.groups:
            self._groups.pop(_task_group(group), None)
            if group in self._runs:
                self._book_runs(group, self._runs.pop(group))

    # -------------------------------------------------------------------------- metrics

    def swap(self, time_ns: int) -> MetricBatch:
        """Hand over what changed since the last call, with the levels of now."""
        batch = self.batch
        batch.time_ns = time_ns
        self.time.export(batch, self.lifecycle.open, self.tags_of)
        batch.levels.update(self._levels())
        self.loops.export(batch)
        try:
            self._workers.sample(batch)
        except Exception:
            # Users can put anything into what workers report.
            self._boundary.failed("workers")
        for prefix, durations in self._durations.items():
            batch.distributions[semconv.TASK_DURATION.name, prefix] = durations
        self._durations = {}
        for group, runs in self._runs.items():
            self._book_runs(group, runs)
        self._runs.clear()
        self.batch = MetricBatch()
        self._own_keys = {}
        return batch

    def prepare(self) -> Iterator[None]:
        """Prepare the next `swap` in short steps, one for each item."""
        try:
            yield from self._workers.prepare()
        except Exception:
            # Users can put anything into what workers report.
            self._boundary.failed("workers")
        yield
        yield from self.time.prepare(self.lifecycle.open, self.tags_of)

    def fold_time(self) -> Iterator[None]:
        """Add the time that passed to the batch without a `swap`, in short steps."""
        yield from self.time.prepare(self.lifecycle.open, self.tags_of)
        yield
        self.time.export(self.batch, self.lifecycle.open, self.tags_of)

    def tags_of(self, span_id: str) -> Tags:
        """Return the full name of a Dask span."""
        span = self.lifecycle.open.get(span_id)
        return span.identity.tags if span is not None else self._extension.spans[span_id].name

    def _book_runs(self, group: Group, runs: int) -> None:
        tags = group.span.identity.tags
        self._count(semconv.TASK_FINISHED.name, tags, group.prefix, "memory", count=runs)

    def _levels(self) -> dict[tuple[Hashable, ...], float]:
        scheduler = self.scheduler
        name = semconv.CLUSTER_TASK_COUNT.name
        levels: dict[tuple[Hashable, ...], float] = {(name, state): 0 for state in _STATES}
        levels |= {
            (semconv.CLUSTER_WORKER_COUNT.name,): len(scheduler.workers),
            (semconv.CLUSTER_THREAD_COUNT.name,): scheduler.total_nthreads,
            (semconv.CLUSTER_SPILL_SIZE.name,): sum(
                ws.metrics.get("spilled_bytes", {}).get("disk", 0)
                for ws in scheduler.workers.values()
            ),
        }
        # Read from the prefixes, not summed from transitions: scattered data, Variables and
        # Queues make tasks without any hook being called.
        for prefix in scheduler.task_prefixes.values():
            states = prefix.states
            for state in _STATES:
                levels[name, state] += states[state]
        return levels


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


def _unfinished(group: TaskGroup) -> int:
    """Return how many tasks of a group have work left to do."""
    states = group.states
    return sum(states[state] for state in UNFINISHED)


def _has_ended(group: TaskGroup) -> bool:
    """Whether tasks of a group have ended, or are gone."""
    return any(count for state, count in group.states.items() if state not in UNFINISHED)


def _time_of(entry: tuple[float, int]) -> float:
    return entry[0]


def _ancestors(dask_span: Span) -> list[Span]:
    """Return the ancestors of a Dask span, root first."""
    ancestors = []
    parent = dask_span.parent
    while parent is not None:
        ancestors.append(parent)
        parent = parent.parent
    ancestors.reverse()
    return ancestors


def _collection_types(dask_span: Span) -> tuple[str, ...]:
    metadata = dask_span.metadata or {}
    types = (collection.get("type") for collection in metadata.get("collections", ()))
    # One entry per submission: the list grows for as long as the span is used.
    return tuple(dict.fromkeys(str(name) for name in types if name))


def _code(dask_span: Span) -> tuple[str, int, str | None] | None:
    """Return (file, line, function) of the innermost frame of the first submission."""
    for frames in dask_span._code:
        if frames:
            frame = frames[-1]
            function = _DEFINITION.match(frame.code)
            name = function.group(1) if function else None
            return str(frame.filename), int(frame.lineno_frame), name
    return None


def _pickled_class(pickled: object) -> str | None:
    """Return the class name of an exception that the scheduler pickled, without unpickling."""
    if not isinstance(pickled, bytes):
        return None
    strings: list[str] = []
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL":
            return str(argument).rpartition(" ")[2]
        if opcode.name == "STACK_GLOBAL":
            return strings[-1] if strings else None
        if isinstance(argument, str):
            strings.append(argument)
    return None

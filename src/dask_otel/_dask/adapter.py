"""The adapter of one scheduler: turns Dask's events into calls of the core.

It can be removed from the scheduler without a trace. Tasks, spans and workers have a module each;
this one assembles them, and gives the lifecycle its facts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from functools import wraps
from itertools import chain
from operator import itemgetter
from time import monotonic
from typing import Any, Final, cast

from distributed.core import Status
from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskGroup, WorkerState

from dask_otel import semconv
from dask_otel._dask import facts
from dask_otel._dask.boundary import ErrorBoundary
from dask_otel._dask.callers import TaskContexts
from dask_otel._dask.clients import ClientBlocks
from dask_otel._dask.events import ClusterEvents, Put
from dask_otel._dask.graphs import Graphs
from dask_otel._dask.heartbeats import Heartbeats
from dask_otel._dask.past import PASTS, Past
from dask_otel._dask.profiles import WorkerProfiles
from dask_otel._dask.runs import RunsUnderWay
from dask_otel._dask.spans import DaskSpans
from dask_otel._dask.stimuli import stimulus_time
from dask_otel._dask.tasks import TaskEvents
from dask_otel._dask.threads import ThreadTime
from dask_otel._dask.workers.samples import LoopHealth, WorkerSamples
from dask_otel._dask.wrapping import Wrappers
from dask_otel.core.life.blocks import TOPIC
from dask_otel.core.life.callers import Callers, Propagation
from dask_otel.core.life.clock_offsets import ClockOffsets
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import (
    NO_SUMS,
    Group,
    GroupFacts,
    Limits,
    OpenSpan,
    SpanFacts,
)
from dask_otel.core.life.summaries import SpanSummary, summarize
from dask_otel.core.metrics.batch import Batches, MetricBatch
from dask_otel.core.profiles import stacks
from dask_otel.core.profiles.store import Batch, CutOff
from dask_otel.core.records import FinishedSpan, Progress
from dask_otel.core.trace import Trace

#: Number of series in a part of a hand-over's step.
_STEP: Final = 100
#: States of a scheduler whose work is about to end with it.
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

#: The annotations that restrict tasks to some workers.
_RESTRICTING: Final = frozenset({"workers", "restrictions", "resources"})

#: The hooks of Dask's plugin in the adapter, which a plugin has as attributes: a method that passes
#: `transition` on would take 10,000 more instructions for the end of a task, with its ten names.
HOOKS: Final = (
    "transition",
    "update_graph",
    "restart",
    "log_event",
    "add_worker",
    "remove_worker",
    "remove_client",
)


class UnsupportedScheduler(RuntimeError):
    """The scheduler lacks a feature that the bridge needs."""


def _guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a Dask hook that never raises."""

    @wraps(hook)
    def guarded(self: SchedulerAdapter, *args: Any, **kwargs: Any) -> None:
        with self.boundary.guarding(hook.__name__):
            hook(self, *args, **kwargs)

    return guarded


class SchedulerAdapter:
    """Feeds the core from one scheduler. All methods belong to its event loop.

    `boundary` catches our errors, because Dask does not guard its extensions' methods.

    Raises
    ------
    UnsupportedScheduler
        If the scheduler has no spans extension.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        limits: Limits,
        boundary: ErrorBoundary,
        *,
        max_workers: int,
        propagation: Propagation,
        baggage: Collection[str],
        events: bool,
        topics: Collection[str],
        level: int | None,
        put: Put,
        profiled: Callable[[Batch | CutOff], bool] | None = None,
    ) -> None:
        if "spans" not in scheduler.extensions:
            raise UnsupportedScheduler(
                "this scheduler runs without Dask's 'spans' extension, so there are no spans "
                "to export; start it with its default extensions"
            )
        self.scheduler = scheduler
        self.boundary = boundary
        #: State of the last bridge on this scheduler.
        self._past = past = PASTS.get(scheduler)
        self.batches = Batches()
        self.lifecycle = Lifecycle(limits, self, None if past is None else past.generations)
        self.blocks = ClientBlocks(scheduler, self.lifecycle, limits)
        self.loops = LoopHealth(scheduler)
        self._workers = WorkerSamples(scheduler, max_workers)
        self.clocks = clocks = ClockOffsets(stimulus_time)
        self.events = ClusterEvents(scheduler, self.lifecycle, clocks, put, events, topics, level)
        #: Samples of workers; None if there are none.
        self._profiles = profiled and WorkerProfiles(scheduler, self.lifecycle, profiled)
        self.callers = Callers(
            propagation,
            lambda kind: self.batches.open.add(semconv.OTEL_CALLERS.name, kind),
            baggage,
        )
        self.contexts = TaskContexts(self.callers)
        self._limits = limits
        self.spans = DaskSpans(scheduler, self.lifecycle, self.contexts, self.batches, boundary)
        under_way = RunsUnderWay(self.lifecycle)
        self.time = ThreadTime(scheduler, clocks, under_way.ready)
        self.task_events = TaskEvents(
            self.lifecycle, self.time, clocks, self.spans, under_way, limits.tasks
        )
        #: See ``SchedulerPlugin.transition``.
        self.transition = self.task_events.transition
        self.heartbeats = Heartbeats(
            scheduler, self.lifecycle, self.time, clocks, self.loops, self.spans, under_way
        )
        self.wrappers = Wrappers(boundary)
        #: Whether the scheduler continues without the bridge; set by `close`.
        self.removed = False

    # ------------------------------------------------------------------ attach, detach

    def attach(self) -> None:
        """Begin to observe: adopt the present work, then wrap Dask's methods."""
        if self._limits.graph:
            self.record_graphs(True)
        for ws in self.scheduler.workers.values():
            self._worker_added(ws)
        self.spans.attach(self._past)
        self.task_events.attach()
        for part in (self.time, self.spans, self.heartbeats, self.task_events):
            part.wrap(self.wrappers)
        with self.boundary.guarding("events"):
            self.events.attach(time())

    def decide_with(self, sampled: Callable[[Trace], bool]) -> None:
        """Set the sampler, and annotate waiting tasks again if its decisions differ."""
        self.contexts.decide_with(sampled)
        traces = [span.identity.trace_id for span in self.lifecycle.open.values()]
        if any(sampled(trace) != trace.sampled_by_default for trace in traces):
            self.spans.annotate_all()

    def record_graphs(self, on: bool) -> None:
        """Begin to record the graph logs of the roots that begin from now on, or cease to."""
        self.spans.graphs = graphs = Graphs(self.scheduler, self.spans.groups) if on else None
        self.lifecycle.computing.keep = None if graphs is None else graphs.ended

    def close(self, now: float) -> None:
        """Export the open spans: the scheduler closes, or the bridge is being removed."""
        self.removed = self.scheduler.status not in _ENDING
        # After an error, the spans are exported all the same.
        with self.boundary.guarding("close"):
            self.task_events.close(now)
        with self.boundary.guarding("events"):
            self.events.close(now, self.removed)
            if self._profiles is not None:
                self._profiles.close()
        self.lifecycle.close(now, "unknown" if self.removed else "error")

    @property
    def awaiting(self) -> bool:
        """Whether workers will still send something about work that has ended."""
        return bool(self.lifecycle.settling) or (
            # Those of a scheduler that closes do not know yet.
            self._profiles is not None
            and self.scheduler.status not in _ENDING
            and bool(self._profiles.silent)
        )

    def detach(self, exported: bool = True) -> None:
        """Restore Dask's methods, and release its objects.

        `exported`, whether anything was exported, is for the next bridge.
        """
        # Dask may keep a closed scheduler for ever, which gets no other bridge.
        if exported and self.removed and self.wrappers.attached:
            seen = len(self.spans.extension.spans)
            PASTS[self.scheduler] = Past(self.lifecycle.generations, seen)
        self.wrappers.remove()
        self.spans.release()
        self.task_events.all_gone()

    # ---------------------------------------------------------------- the Dask plugin's

    @_guarded
    def update_graph(
        self, scheduler: Scheduler, *, priority: Any, annotations: Any, **kwargs: Any
    ) -> None:
        """See ``SchedulerPlugin.update_graph``: Dask has just made the priorities for plugins."""
        if (graphs := self.spans.graphs) is not None:
            latest, self.spans.latest = self.spans.latest, ([], set())
            graphs.submitted(priority, *latest, not _RESTRICTING.isdisjoint(annotations))

    @_guarded
    def restart(self, scheduler: Scheduler) -> None:
        """See ``SchedulerPlugin.restart``: every task is gone."""
        self.spans.drifted = True
        self.task_events.all_gone()
        self.lifecycle.all_forgotten(time())
        self.spans.drifted = False
        self.events.restarted(time())

    @_guarded
    def log_event(self, topic: str, message: Any) -> None:
        """See ``SchedulerPlugin.log_event``, for facts without a hook of their own."""
        if topic == "stealing":
            self.task_events.stolen(message)
        elif (ws := self.scheduler.workers.get(topic)) is not None:
            self.time.worker_status(ws)
        elif topic == TOPIC:
            if wrong := self.blocks.handle_message(message, time()):
                self.batches.open.add(semconv.OTEL_SANITIZED.name, "message", value=wrong)
        elif topic == stacks.TOPIC and self._profiles is not None:
            self._profiles.read(message)
        elif (
            topic == "scheduler"
            and type(message) is dict
            and (message.get("action"), message.get("status")) == ("update-graph", "error")
        ):
            # A graph that failed to become tasks has no span and no transition.
            self.batches.open.add(semconv.OTEL_DROPPED.name, "traces", "graph_failed")
        with self.boundary.guarding("events"):
            self.events.log_event(topic, message, time())

    @_guarded
    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """See ``SchedulerPlugin.remove_client``."""
        self.blocks.client_gone(client, time())

    @_guarded
    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """See ``SchedulerPlugin.add_worker``."""
        ws = self.scheduler.workers[worker]
        self._worker_added(ws)
        if self.spans.graphs is not None:
            self.spans.graphs.worker_added(ws, time())
        self.heartbeats.worker_deltas(ws.metrics.get("digests_total_since_heartbeat", {}))
        self.events.worker_added(ws, time())

    def _worker_added(self, ws: WorkerState) -> None:
        offset = self.clocks.of(ws.address)
        self.time.accounting.worker_added(ws.address, ws.nthreads, monotonic(), offset)
        self.time.worker_status(ws)
        # For a registration, Dask does not call the handler that we wrap.
        self.heartbeats.report(ws)

    @_guarded
    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """See ``SchedulerPlugin.remove_worker``."""
        for part in (
            self.lifecycle.reports,
            self.task_events.under_way,
            self.clocks,
            self.loops,
            self.events.lines,
            self._profiles,
            self.spans.graphs,
        ):
            if part is not None:
                part.worker_removed(worker)
        # After its tasks were released.
        self.time.accounting.worker_removed(worker, monotonic())

    # ------------------------------------------------------------------- the bridge's tick

    def tick(self, now: float, most: int | None = None) -> None:
        """Decide which spans have ended, up to a limit; call it between two callbacks of the loop.

        Only then are Dask's counts consistent; ours are repaired from them after an error.
        """
        self.spans.submission_over()
        if self.blocks.leaving:
            with self.boundary.guarding("blocks"):
                self.blocks.tick(now)
        if self.spans.drifted:
            with self.boundary.guarding("repair"):
                unfinished = self.spans.unfinished_by_span(now, self.task_events.resting())
                self.lifecycle.repair(unfinished, now)
                self.task_events.repair()
                self.spans.drifted = False
        if (memory := self.lifecycle.memory) is not None:
            memory.read()
        self.lifecycle.tick(now, most)
        self.loops.tick()
        if self.events.waiting:
            with self.boundary.guarding("events"):
                self.events.tick(now)

    @property
    def idle(self) -> bool:
        """Whether no span is open, and nothing waits for a tick."""
        return not (self.lifecycle.open or self.blocks.leaving or self.events.waiting)

    def take_progress(self) -> Sequence[Progress]:
        """Return the signs of life since the last call."""
        signs, self.lifecycle.progress = self.lifecycle.progress, []
        return signs

    def take_finished(self) -> Sequence[FinishedSpan]:
        """Return the spans that ended since the last call."""
        finished, self.lifecycle.finished = self.lifecycle.finished, []
        return finished

    def transitions(self) -> int:
        """Return the number of transitions since the scheduler's start."""
        return int(self.scheduler.transition_counter)

    # ------------------------------------------------------------ `Cluster`, for the lifecycle

    def threads(self, start: float, stop: float) -> tuple[float, int]:
        """Return the integral of the cluster's thread count over the interval, and the last one."""
        history = self.scheduler.total_nthreads_history
        index = bisect_right(history, stop, key=itemgetter(0)) - 1
        seconds = facts.thread_seconds(self.scheduler, start, stop)
        return seconds, int(history[max(0, index)][1])

    def group_facts(self, group: Group) -> GroupFacts:
        """Return the sums of Dask's TaskGroup; empty ones if they cannot be read."""
        with self.boundary.guarding("group_facts"):
            return facts.group_sums(cast("TaskGroup", group.source), group.before)
        return NO_SUMS

    def span_facts(self, span: OpenSpan) -> SpanFacts:
        """Return a span's idle time, callers, and facts from Dask, which may be invalid."""
        idle, capacity = self._span_totals(span)
        links, baggage = self.callers.links.get(span, ()), self.callers.baggage.get(span, {})
        graph = None if self.spans.graphs is None else self.spans.graphs.of(span)
        found = SpanFacts((), None, idle, capacity, links, baggage, graph)
        with self.boundary.guarding("span_facts"):
            dask_span = self.spans.extension.spans[span.identity.dask_id]
            types, code = facts.collection_types(dask_span), facts.code(dask_span)
            return found._replace(collections=types, code=code)
        return found

    def span_opened(self, span: OpenSpan) -> None:
        """Begin to account for its time; hold it open if a client is in its block."""
        # The unexported seconds belong to an earlier generation.
        span.owe_time(*self.time.accounting.pending(span.identity.dask_id))
        self.blocks.blocks.span_opened(span)

    def span_activity(self, span: OpenSpan) -> None:
        """Count the span as active, or as no longer active."""
        ident = span.identity
        if span.active:
            self.time.accounting.span_active(ident.root_id, ident.dask_id, monotonic())
        else:
            self.time.accounting.span_inactive(ident.dask_id, monotonic())
        self.batches.open.add(semconv.SPAN_ACTIVE.name, ident.tags, value=1 if span.active else -1)

    def summary(self, span_id: str) -> SpanSummary | None:
        """Return the summary of a span's own work, exported or not; None if it is unknown."""
        span = self.lifecycle.open.get(span_id)
        present = None
        if span is not None:
            elsewhere = self.lifecycle.computing.elsewhere(span)
            idle, capacity = self._span_totals(span)
            present = summarize(span, idle, capacity, elsewhere)
        return self.lifecycle.generations.summary(span_id, present)

    def _span_totals(self, span: OpenSpan) -> tuple[float, float] | tuple[None, None]:
        if not span.groups:
            # A span without own tasks has no idle time, rather than 0.
            return None, None
        idle, capacity = self.time.accounting.pending(span.identity.dask_id)
        return max(0.0, span.idle + idle), max(0.0, span.capacity + capacity)

    def span_exported(self, span: OpenSpan) -> None:
        """Release the span's block and TaskGroups."""
        self.blocks.blocks.span_exported(span)
        self.contexts.exported(span)
        if self.spans.graphs is not None:
            self.spans.graphs.exported(span)
        if self._profiles is not None:
            self._profiles.span_exported(span)
        for group in span.groups:
            self.spans.forget(group)
            self.task_events.flush(group)

    # -------------------------------------------------------------------------- metrics

    def swap(self, time_ns: int) -> MetricBatch:
        """Return the metrics since the last call, with the present levels."""
        for _ in self.prepare():
            pass
        return self.take_batch(time_ns)

    def prepare(self) -> Iterator[None]:
        """Add to the batch what takes many short steps, before `take_batch`."""
        # Users can put any value into workers' reports.
        with self.boundary.guarding("workers"):
            yield from self._workers.sample(self.batches, self.lifecycle.memory)
        yield
        with self.boundary.guarding("memory"):
            yield from self._memory_changes()
        yield from self.fold_time()

    def _memory_changes(self) -> Iterator[None]:
        """Add to the batch what the results in memory have changed by."""
        if (memory := self.lifecycle.memory) is None:
            return
        for number, (labels, size, spent) in enumerate(memory.series(), 1):
            if size:
                self.batches.open.add(semconv.SPAN_MEMORY_USAGE.name, *labels, value=size)
            if spent:
                self.batches.open.add(semconv.SPAN_MEMORY_TIME.name, *labels, value=spent)
            if not number % _STEP:
                yield

    def take_batch(self, time_ns: int) -> MetricBatch:
        """Complete the batch and return it; the next one begins."""
        batch = self.batches.open
        batch.levels.update(self._levels())
        self.loops.add_to(batch)
        self.task_events.add_to(batch)
        self.heartbeats.own_keys.clear()
        batch.time_ns = time_ns
        self.batches.open = MetricBatch()
        return batch

    def fold_time(self) -> Iterator[None]:
        """Add the elapsed time to the batch and the open spans, in short steps."""
        return self.time.fold(self.batches, self.lifecycle.open)

    def fold_time_now(self) -> None:
        """Add the time up to now to the batch and the open spans."""
        # The first time for the interval of an interrupted hand-over.
        for _ in chain(self.fold_time(), self.fold_time()):
            pass

    def _levels(self) -> dict[tuple[Hashable, ...], float]:
        scheduler = self.scheduler
        # From the prefixes, not from transitions: no hook reports the tasks of scattered data,
        # Variables and Queues.
        counts = [prefix.states for prefix in scheduler.task_prefixes.values()]
        return {
            (semconv.CLUSTER_WORKER_COUNT.name,): len(scheduler.workers),
            (semconv.CLUSTER_THREAD_COUNT.name,): scheduler.total_nthreads,
            **{
                (semconv.CLUSTER_TASK_COUNT.name, state): sum([one[state] for one in counts])
                for state in facts.STATES
            },
        }

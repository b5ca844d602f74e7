"""The adapter of one scheduler: turns Dask's events into calls of the core.

It can be taken off the scheduler without a trace. Tasks, spans and workers have a module each; here
they are assembled, and the lifecycle gets its facts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from distributed.core import Status
from distributed.metrics import time

from dask_otel import semconv
from dask_otel._dask import facts
from dask_otel._dask.boundary import Boundary
from dask_otel._dask.callers import TaskContexts
from dask_otel._dask.clients import ClientBlocks
from dask_otel._dask.heartbeats import Heartbeats
from dask_otel._dask.past import PASTS, Past
from dask_otel._dask.spans import DaskSpans
from dask_otel._dask.task_spans import TaskSpans
from dask_otel._dask.tasks import TaskEvents
from dask_otel._dask.threads import ThreadTime, stimulus_time
from dask_otel._dask.workers.samples import LoopHealth, WorkerSamples
from dask_otel.core.life.blocks import TOPIC
from dask_otel.core.life.callers import Callers, Propagation
from dask_otel.core.life.clock_offsets import ClockOffsets
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import Group, GroupFacts, Limits, OpenSpan, SpanFacts
from dask_otel.core.life.summaries import SpanSummary, Summaries, summarize
from dask_otel.core.metrics.batch import Batches, MetricBatch
from dask_otel.core.records import FinishedSpan, Progress, Tags
from dask_otel.core.trace import Trace

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler
    from distributed.spans import SpansSchedulerExtension

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


class UnsupportedScheduler(RuntimeError):
    """The scheduler lacks something that the bridge needs."""


class SchedulerAdapter:
    """Feeds the core from one scheduler.

    Parameters
    ----------
    scheduler
        A running scheduler.
    limits
        For the lifecycle.
    boundary
        Catches our errors: none may reach Dask, which does not guard its extensions' methods.
        An exception in ``heartbeat`` closes the worker, one in ``observe_tasks`` fails the user's
        graph.
    max_workers
        Workers with metrics of their own.
    propagation
        The policy for callers' contexts.
    baggage
        Keys of callers' baggage that become attributes.

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
        baggage: Collection[str] = (),
    ) -> None:
        extension = scheduler.extensions.get("spans")
        if extension is None:
            raise UnsupportedScheduler(
                "this scheduler runs without Dask's 'spans' extension, so there are no spans "
                "to export; start it with its default extensions"
            )
        self.scheduler = scheduler
        self._extension: SpansSchedulerExtension = extension
        self._boundary = boundary
        #: State of the last bridge on this scheduler.
        self._past = past = PASTS.get(scheduler)
        if past is None:
            self._summaries = Summaries(limits.remember)
        else:
            self._summaries = past.summaries
            self._summaries.resume(limits.remember)
        self.batches = Batches()
        self.lifecycle = Lifecycle(limits, self, None if past is None else past.generations)
        self.blocks = ClientBlocks(scheduler, self.lifecycle, limits)
        self.loops = LoopHealth(scheduler)
        self._workers = WorkerSamples(scheduler, max_workers)
        self.clocks = ClockOffsets(stimulus_time)
        self.callers = Callers(propagation, self._count_caller, baggage)
        self.contexts = contexts = TaskContexts(self.callers)
        self.spans = DaskSpans(
            scheduler,
            extension,
            self.lifecycle,
            self._summaries,
            contexts,
            self.batches,
            boundary,
        )
        self.time = ThreadTime(scheduler, boundary)
        self.tasks = TaskEvents(
            scheduler,
            self.lifecycle,
            self.time,
            self.clocks,
            self.spans,
            TaskSpans(scheduler, limits.tasks, self.clocks),
            contexts,
            self.batches,
            boundary,
        )
        self.heartbeats = Heartbeats(
            scheduler,
            extension,
            self.lifecycle,
            self.time,
            self.clocks,
            self.loops,
            self.batches,
            boundary,
        )
        self.attached = False
        #: Whether the scheduler goes on without the bridge; known after `close`.
        self.taken_off = False

    # ------------------------------------------------------------------ attach, detach

    def attach(self) -> None:
        """Begin to observe: add the present work, then wrap Dask's methods."""
        self.time.attach(self.tasks.executing)
        for address in self.scheduler.workers:
            self.heartbeats.first_report(address)
        self.tasks.attach()
        self.spans.attach(self._past)
        self.time.add_tasks()
        self.heartbeats.attach()
        self.attached = True

    def decide_with(self, sampled: Callable[[Trace], bool]) -> None:
        """Set the sampler, and annotate waiting tasks again if its decisions differ."""
        if self.contexts.decide_with(sampled):
            self.spans.annotate_all()

    def close(self, now: float) -> None:
        """Export the open spans: the scheduler closes, or the bridge is taken off."""
        self.tasks.close(now)
        self.taken_off = self.scheduler.status not in _ENDING
        self.lifecycle.close(now, "unknown" if self.taken_off else "error")

    def detach(self, exported: bool = True) -> None:
        """Restore Dask's methods, and release its objects.

        Parameters
        ----------
        exported
            Whether anything was exported, for the next bridge to know.
        """
        if exported and self.attached:
            PASTS[self.scheduler] = Past(
                self.lifecycle.generations, self._summaries, self.spans.count
            )
        self.attached = False
        self.time.detach()
        self.heartbeats.detach()
        self.spans.detach()
        self.tasks.all_gone()

    # ---------------------------------------------------------------- the Dask plugin's

    @property
    def transition(self) -> Callable[..., None]:
        """See ``SchedulerPlugin.transition``."""
        return self.tasks.transition

    def transitions(self) -> int:
        """Return the number of transitions since the scheduler's start."""
        return int(self.scheduler.transition_counter)

    def restart(self) -> None:
        """See ``SchedulerPlugin.restart``: every task is gone."""
        try:
            self.tasks.all_gone()
            self.lifecycle.all_forgotten(time())
        except Exception:
            self.tasks.drifted = True
            self._boundary.failed("restart")

    def log_event(self, topic: str, message: Any) -> None:
        """See ``SchedulerPlugin.log_event``: for facts that have no other hook."""
        try:
            if topic == "stealing":
                self.tasks.stolen(message)
            elif topic == "scheduler":
                self._graph_failed(message)
            elif topic == TOPIC and (wrong := self.blocks.handle_message(message, time())):
                self.batch.add(semconv.OTEL_SANITIZED.name, "message", value=wrong)
        except Exception:
            self._boundary.failed("log_event")

    def _graph_failed(self, message: Any) -> None:
        """Count a graph that could not be made into tasks: it has no span and no transition."""
        if type(message) is not dict or message.get("action") != "update-graph":
            return
        if message.get("status") == "error":
            self.batch.add(semconv.OTEL_DROPPED.name, "traces", "graph_failed")

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
            self.heartbeats.first_report(address)
        except Exception:
            self._boundary.failed("add_worker")

    def remove_worker(self, address: str) -> None:
        """See ``SchedulerPlugin.remove_worker``."""
        try:
            self.lifecycle.reports.left(address)
            self.tasks.under_way.worker_removed(address)
            self.clocks.left(address)
            self.loops.worker_removed(address)
            self.time.worker_removed(address)
        except Exception:
            self._boundary.failed("remove_worker")

    # ------------------------------------------------------------------- the bridge's tick

    def tick(self, now: float) -> None:
        """Decide which spans are over; call it between two callbacks of the loop.

        Only then are Dask's own counts consistent, from which ours are repaired after an error.
        """
        self.spans.submission_over()
        if self.blocks.leaving:
            try:
                self.blocks.tick(now)
            except Exception:
                self._boundary.failed("blocks")
        if self.tasks.drifted or self.spans.drifted:
            try:
                self.lifecycle.repair(self.spans.unfinished_by_span(now), now)
                self.tasks.repair()
                self.tasks.drifted = self.spans.drifted = False
            except Exception:
                self._boundary.failed("repair")
        self.lifecycle.tick(now)
        self.loops.tick()

    @property
    def has_updates(self) -> bool:
        """Whether there are spans or signs of life to take."""
        return bool(self.lifecycle.finished or self.lifecycle.progress)

    def take_progress(self) -> Sequence[Progress]:
        """Return the signs of life since the last call."""
        signs, self.lifecycle.progress = self.lifecycle.progress, []
        return signs

    def take_finished(self) -> Sequence[FinishedSpan]:
        """Return the spans that ended since the last call."""
        finished, self.lifecycle.finished = self.lifecycle.finished, []
        return finished

    @property
    def spent(self) -> float:
        """Seconds of the event loop that heartbeats and submissions took, up to now."""
        return self.spans.spent + self.heartbeats.wrappers.spent + self.time.wrappers.spent

    # ------------------------------------------------------------ `Cluster`, for the lifecycle

    def thread_seconds(self, start: float, stop: float) -> float:
        """Return the integral of ``total_nthreads`` over the interval."""
        return facts.thread_seconds(self.scheduler, start, stop)

    def threads_at(self, time: float) -> int:
        """Return ``total_nthreads`` at that time."""
        return facts.threads_at(self.scheduler, time)

    def group_facts(self, group: Group) -> GroupFacts:
        """Return the TaskGroup's sums; empty ones if they can't be read."""
        return self.spans.facts_of(group)

    def span_facts(self, span: OpenSpan) -> SpanFacts:
        """Return a span's idle time, callers, and facts from Dask, which may be garbage."""
        # The idle time of a span without own tasks is absent, not 0.
        idle, capacity = self.time.span_totals(span) if span.groups else (None, None)
        links, baggage = self.callers.links(span), self.callers.baggage(span)
        try:
            dask_span = self._extension.spans[span.identity.dask_id]
            types, code = facts.collection_types(dask_span), facts.code(dask_span)
            return SpanFacts(types, code, idle, capacity, links, baggage)
        except Exception:
            self._boundary.failed("span_facts")
            return SpanFacts(idle=idle, capacity=capacity, callers=links, baggage=baggage)

    def span_opened(self, span: OpenSpan) -> None:
        """Begin to account its time; hold it if a client is in its block."""
        self.time.span_opened(span)
        self.blocks.blocks.span_opened(span)

    def span_active(self, span: OpenSpan, now: float) -> None:
        """Count the span as active."""
        self.time.span_active(span)
        self.batch.add(semconv.SPAN_ACTIVE.name, span.identity.tags)

    def span_inactive(self, span: OpenSpan, now: float) -> None:
        """Count the span as no longer active."""
        self.time.span_inactive(span)
        self.batch.add(semconv.SPAN_ACTIVE.name, span.identity.tags, value=-1)

    def summary(self, span_id: str) -> SpanSummary | None:
        """Return the summary of a span's own work, exported or not; None if it is unknown."""
        span = self.lifecycle.open.get(span_id)
        return self._summaries.of(span_id, None if span is None else self._summarized(span))

    def _summarized(self, span: OpenSpan) -> SpanSummary:
        return summarize(span, *(self.time.span_totals(span) if span.groups else (None, None)))

    def span_exported(self, span: OpenSpan) -> None:
        """Keep the span's summary, and release its block and TaskGroups."""
        self.blocks.blocks.span_exported(span)
        self.contexts.exported(span)
        self._summaries.keep(span.identity.dask_id, self._summarized(span))
        for group in span.groups:
            self.spans.let_go(group)
            self.tasks.let_go(group)

    # -------------------------------------------------------------------------- metrics

    def _count_caller(self, kind: str) -> None:
        self.batch.add(semconv.OTEL_CALLERS.name, kind)

    @property
    def batch(self) -> MetricBatch:
        """The metrics since the last `swap`."""
        return self.batches.open

    def swap(self, time_ns: int) -> MetricBatch:
        """Return the metrics since the last call, with the present levels."""
        batch = self.batch
        self.time.export(batch, self.lifecycle.open, self.tags_of)
        batch.levels.update(self._levels())
        self.loops.export(batch)
        try:
            self._workers.sample(batch)
        except Exception:
            # Users can put anything into what workers report.
            self._boundary.failed("workers")
        self.tasks.book(batch)
        self.batches.swap(time_ns)
        self.heartbeats.batch_taken()
        return batch

    def prepare(self) -> Iterator[None]:
        """Prepare the next `swap` in short steps."""
        try:
            yield from self._workers.prepare()
        except Exception:
            # Users can put anything into what workers report.
            self._boundary.failed("workers")
        yield
        yield from self.time.prepare(self.lifecycle.open, self.tags_of)

    def fold_time(self) -> Iterator[None]:
        """Add the passed time to the batch without a `swap`, in short steps."""
        yield from self.time.prepare(self.lifecycle.open, self.tags_of)
        yield
        self._fold_time()

    def fold_time_now(self) -> None:
        """Add the passed time to the batch, and to the open spans."""
        if self.time.prepared:
            # The interval of an unfinished hand-over.
            self._fold_time()
        self._fold_time()

    def _fold_time(self) -> None:
        self.time.export(self.batch, self.lifecycle.open, self.tags_of)

    def tags_of(self, span_id: str) -> Tags:
        """Return the full name of a Dask span."""
        span = self.lifecycle.open.get(span_id)
        return span.identity.tags if span is not None else self._extension.spans[span_id].name

    def _levels(self) -> dict[tuple[Hashable, ...], float]:
        scheduler = self.scheduler
        name = semconv.CLUSTER_TASK_COUNT.name
        levels: dict[tuple[Hashable, ...], float] = {(name, state): 0 for state in facts.STATES}
        levels |= {
            (semconv.CLUSTER_WORKER_COUNT.name,): len(scheduler.workers),
            (semconv.CLUSTER_THREAD_COUNT.name,): scheduler.total_nthreads,
            (semconv.CLUSTER_SPILL_SIZE.name,): sum(map(facts.spilled, scheduler.workers.values())),
        }
        # From the prefixes, not from transitions: scattered data, Variables and Queues make tasks
        # without any hook.
        for prefix in scheduler.task_prefixes.values():
            states = prefix.states
            for state in facts.STATES:
                levels[name, state] += states[state]
        return levels

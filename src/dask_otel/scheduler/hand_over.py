"""Hands over the event loop's records to the pump: spans at once, metrics in steps."""

from __future__ import annotations

import asyncio
import math
import time as clocks
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Final

from distributed.metrics import time

from dask_otel import semconv
from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.boundary import ErrorBoundary
from dask_otel.core.life.callers import DEFAULT_SPAN
from dask_otel.core.metrics.batch import MetricBatch, Observation
from dask_otel.core.profiles.store import Batch, CutOff, Ended
from dask_otel.core.records import ClusterEvent, FinishedGraph, FinishedSpan, OpenNote, Progress
from dask_otel.pump.inbox import Inbox
from dask_otel.pump.pump import Pump
from dask_otel.scheduler.own_cost import OwnCost

#: Seconds after which a step of a hand-over ends with its present part, and a tick with its present
#: span; and seconds between two steps, for the event loop's other work.
LONGEST: Final = 0.0005
PAUSE: Final = 0.004

#: Most finished spans, and events, that wait for the exporters.
MAX_WAITING: Final = 10_000
MAX_EVENTS: Final = 2048


class HandOver:
    """Hands over spans, events and metrics of one scheduler, on its event loop.

    `boundary` catches errors; their counts are handed over, too. `exports_default` is whether to
    export the spans that Dask names ``default``.
    """

    def __init__(
        self,
        adapter: SchedulerAdapter,
        boundary: ErrorBoundary,
        cost: OwnCost,
        exports_default: bool,
    ) -> None:
        self._adapter = adapter
        self._boundary = boundary
        self._cost = cost
        self._exports_default = exports_default
        #: None until the exporters are ready.
        self._pump: Pump | None = None
        #: The pump of the recorder in memory, while there is one; see `recording`.
        self.recorded: Pump | None = None
        #: The next step of a hand-over of metrics.
        self._step: asyncio.Handle | None = None
        #: Finished spans and signs of life, waiting for the pump.
        self._waiting_spans: list[FinishedSpan | Progress] = []
        #: Events, waiting for the pump.
        self._waiting_events = Inbox(MAX_EVENTS)

    def begin(self, pump: Pump) -> None:
        """Begin to hand over to the pump: the exporters are ready."""
        self._pump = pump
        while isinstance(event := self._waiting_events.take(), ClusterEvent):
            pump.logs.offer(event)

    def stop(self) -> None:
        """Cancel a hand-over that is under way."""
        if self._step is not None:
            self._step.cancel()
            self._step = None

    # --------------------------------------------------------------------------- spans

    def notes(self) -> None:
        """Hand over the notes on open spans, which the spool keeps in case of a crash."""
        feeder = None if self._pump is None else self._pump.spooled
        # If it takes none now, make them later: one that was made and lost would not be made again.
        if feeder is not None and feeder.takes_notes:
            notes = self._adapter.lifecycle.notes
            with self._boundary.guarding("notes"):
                while notes.withdrawn:
                    feeder.note(notes.withdrawn.pop())
                for note in notes.take(time()):
                    if self._exports(note):
                        feeder.note(note)

    def spans(self) -> None:
        """Hand over the ended spans, and the signs of life of others."""
        lifecycle = self._adapter.lifecycle
        if not (lifecycle.finished or lifecycle.progress or self._waiting_spans):
            return
        updates: list[FinishedSpan | Progress] = [*self._adapter.take_progress()]
        for span in self._adapter.take_finished():
            self._count_span(span)
            updates.append(span)
        waiting = self._waiting_spans + [span for span in updates if self._exports(span)]
        if self._pump is None:
            # The exporters are not ready. Drop the oldest spans.
            excess = max(0, len(waiting) - MAX_WAITING)
            for lost in waiting[:excess]:
                self._adapter.batches.open.add(
                    semconv.OTEL_DROPPED.name, "traces", "not_ready", value=lost.weight
                )
            self._waiting_spans = waiting[excess:]
            return
        self._waiting_spans = []
        pumps = [self._pump] if self.recorded is None else [self._pump, self.recorded]
        if self._pump.profiles is not None:
            for one in waiting:
                if isinstance(one, FinishedSpan) and one.ran_on is not None:
                    ended = Ended(one.identity, one.start, one.stop, one.ran_on)
                    self._pump.profiles.offer(ended)
        for ready, pump in product(waiting, pumps):
            pump.spans.offer(ready)
            if isinstance(ready, FinishedSpan) and ready.graph is not None:
                pump.graphs.offer(FinishedGraph(ready, ready.graph))

    def record(self, snapshots: Iterable[Progress]) -> None:
        """Hand over snapshots of open spans to the recorder alone."""
        for one in filter(self._exports, snapshots):
            if self.recorded is not None:
                self.recorded.spans.offer(one)

    def event(self, event: ClusterEvent, counted: bool = True) -> bool:
        """Hand over an event of the cluster; False if there is no room.

        Until the exporters are ready, it waits. `counted` is whether it is lost without room.
        """
        if self._pump is not None:
            if self.recorded is not None:
                self.recorded.logs.offer(event, counted)
            return self._pump.logs.offer(event, counted)
        taken = self._waiting_events.offer(event)
        if counted and not taken:
            self._adapter.batches.open.add(
                semconv.OTEL_DROPPED.name, "logs", "not_ready", value=event.weight
            )
        return taken

    def profile(self, item: Batch | CutOff) -> bool:
        """Hand over what workers have sampled; False if it is lost: without exporters, or room."""
        profiles = None if self._pump is None else self._pump.profiles
        taken = profiles is not None and profiles.offer(item)
        if not taken and isinstance(item, Batch):
            reason = "not_ready" if profiles is None else "queue_full"
            lost = item.samples + item.left_out
            self._adapter.batches.open.add(
                semconv.OTEL_DROPPED.name, "profiles", reason, value=lost
            )
        return taken

    def notices(self) -> None:
        """Let the pump look after its open requests, and make events of its notices."""
        if self._pump is not None:
            self._pump.look()
        while self._pump is not None and self._pump.notices:
            self._adapter.events.emit(time(), *self._pump.notices.popleft())

    def _exports(self, span: FinishedSpan | Progress | OpenNote) -> bool:
        return self._exports_default or span.identity.tags != DEFAULT_SPAN

    def _count_span(self, span: FinishedSpan) -> None:
        """Add a span to the metrics, exported or not: one point in each histogram per Dask span."""
        ident, observe = span.identity, self._adapter.batches.open.observe
        ids = (ident.trace_id, ident.span_id)
        if span.path is not None and span.identity.dask_id == span.identity.root_id:
            for part, value in zip(semconv.PATH_PARTS, span.path.parts, strict=True):
                if value:
                    name = semconv.SPAN_PATH_TIME.name
                    observe(Observation(name, (ident.tags, part), value, ids))
        if ident.generation > 1 or (not span.complete and self._adapter.removed):
            # It was measured before, or continues for an unknown time.
            return
        seconds = {semconv.SPAN_DURATION.name: span.stop - span.start}
        if span.first_start is not None:
            seconds[semconv.SPAN_QUEUE_DURATION.name] = max(0.0, span.first_start - span.start)
        for name, value in seconds.items():
            observe(Observation(name, (ident.tags, span.result), value, ids))

    # ------------------------------------------------------------------------- metrics

    def begin_metrics(self) -> None:
        """Begin a hand-over in short steps: a single callback could take too long."""
        if self._step is None:
            self._step = asyncio.get_running_loop().call_soon(self._take_step, self.steps())

    async def flush(self) -> None:
        """Hand over what was measured so far."""
        self.begin_metrics()
        await waited(lambda: self._step is None)

    def steps(self) -> Iterator[None]:
        """Hand over the metrics; each item is a short part of a step."""
        assert self._pump is not None
        if self.recorded is None and not self._pump.accepts_metrics():
            # Every exporter hangs: everything accumulates here, and nothing is lost. Fold the time
            # into the batch: its keys are names, so it stays bounded; the account's are spans.
            # A recorder gets the batches at their time, and relieves the exporters.
            yield from self._adapter.fold_time()
            return
        yield from self._adapter.prepare()
        yield
        self._offer_metrics(self._adapter.take_batch, running=True)

    def _take_step(self, steps: Iterator[None]) -> None:
        self._step = None
        self._adapter.wrappers.run("metrics", self._next_step, steps)

    def _next_step(self, steps: Iterator[None]) -> None:
        until = clocks.perf_counter() + LONGEST
        for _ in steps:
            if clocks.perf_counter() >= until:
                self._step = asyncio.get_running_loop().call_later(PAUSE, self._take_step, steps)
                return

    def last_metrics(self) -> None:
        """Hand over the last metrics at once: the bridge closes."""
        # Of a client's request.
        self.stop()
        self._offer_metrics(self._adapter.swap, running=False)

    def _offer_metrics(self, take: Callable[[int], MetricBatch], running: bool) -> None:
        assert self._pump is not None
        self._count_own()
        self._adapter.batches.open.set_level(semconv.OTEL_RUNNING.name, value=int(running))
        batch = take(clocks.time_ns())
        self._pump.offer_metrics(batch, last=not running)
        if self.recorded is not None:
            self.recorded.offer_metrics(batch, last=not running)

    def _count_own(self) -> None:
        """Add the bridge's own counters to the batch."""
        # If the last batch was not handed over, it already has counts: add to them.
        add = self._adapter.batches.open.add
        for kind, count in self._boundary.take().items():
            add(semconv.OTEL_INTERNAL_ERRORS.name, kind, value=count)
        if unsettled := self._adapter.lifecycle.unsettled:
            add(semconv.OTEL_UNSETTLED.name, "timeout", value=unsettled)
            self._adapter.lifecycle.unsettled = 0
        add(semconv.OTEL_LOOP_TIME.name, value=self._cost.take())
        lines = self._adapter.events.lines
        if lines.left_out:
            add(semconv.OTEL_DROPPED.name, "logs", "over_limit", value=lines.left_out)
            lines.left_out = 0


async def waited(done: Callable[[], bool], until: float = math.inf) -> bool:
    """Wait on the event loop; return whether it is done by then."""
    while not done() and clocks.monotonic() < until:
        await asyncio.sleep(PAUSE)
    return done()

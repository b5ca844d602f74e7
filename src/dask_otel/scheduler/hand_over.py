"""The hand-over of what the event loop has put together: spans at once, metrics in steps."""

from __future__ import annotations

import asyncio
import time as clocks
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from distributed.metrics import time

from dask_otel import semconv
from dask_otel.core.life.callers import DEFAULT_SPAN
from dask_otel.core.metrics.batch import Observation
from dask_otel.core.records import FinishedSpan, OpenNote, Progress

if TYPE_CHECKING:
    from dask_otel._dask.adapter import SchedulerAdapter
    from dask_otel._dask.boundary import ErrorBoundary
    from dask_otel.pump.pump import Pump
    from dask_otel.scheduler.own_cost import OwnCost

#: Seconds between two steps of a hand-over: the event loop has other things to do.
PAUSE: Final = 0.004

#: Finished spans that may wait while the exporters are being made.
MAX_WAITING: Final = 10_000


class HandOver:
    """Hands over spans and metrics of one scheduler.

    Parameters
    ----------
    adapter
        Where they are put together.
    boundary
        Takes errors; their counts are handed over, too.
    cost
        What the bridge costs the event loop.
    exports_default
        Whether the spans that Dask names ``default`` are exported.

    Notes
    -----
    All methods belong to the scheduler's event loop.
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
        #: None while the exporters are being made.
        self._pump: Pump | None = None
        #: The next step of a hand-over of metrics.
        self._step: asyncio.Handle | None = None
        #: Finished spans and signs of life that wait for the pump.
        self._waiting: list[FinishedSpan | Progress] = []
        self._unsettled = 0
        self._dropped = 0

    def begin(self, pump: Pump) -> None:
        """The exporters have been made: from now on there is somebody to hand over to."""
        self._pump = pump

    def stop(self) -> None:
        """Take no more steps of a hand-over that is under way."""
        if self._step is not None:
            self._step.cancel()

    # --------------------------------------------------------------------------- spans

    def notes(self) -> None:
        """Hand over what is to be known of open spans, should the scheduler be lost."""
        notes = self._adapter.lifecycle.notes
        if notes is None or self._pump is None:
            return
        if self._pump.journal is None:
            # There is no spool, nor will there be one: they are of no use.
            self._adapter.lifecycle.notes = None
            return
        if not (self._pump.takes_notes and self._pump.has_room_for_notes):
            # They are made later: one that was made and got lost would not come again.
            return
        with self._boundary.guarding("notes"):
            for note in notes.take(time()):
                if self._exports(note):
                    self._pump.offer_note(note)

    def spans(self) -> None:
        """Hand over the spans that have ended, and the signs of life of others."""
        updates: list[FinishedSpan | Progress] = [*self._adapter.take_progress()]
        for span in self._adapter.take_finished():
            self._measured(span)
            updates.append(span)
        waiting = self._waiting + [span for span in updates if self._exports(span)]
        if self._pump is None:
            # The exporters are being made. The oldest spans are dropped.
            excess = max(0, len(waiting) - MAX_WAITING)
            self._dropped += sum(span.weight for span in waiting[:excess])
            self._waiting = waiting[excess:]
            return
        self._waiting = []
        for ready in waiting:
            self._pump.offer_span(ready)

    def _exports(self, span: FinishedSpan | Progress | OpenNote) -> bool:
        return self._exports_default or span.identity.tags != DEFAULT_SPAN

    def _measured(self, span: FinishedSpan) -> None:
        """Add a span to the histograms, exported or not: one point of each per Dask span."""
        ident = span.identity
        if ident.generation > 1 or (not span.complete and self._adapter.taken_off):
            # It was measured before; or it goes on for an unknown time.
            return
        seconds = {semconv.SPAN_DURATION.name: span.stop - span.start}
        if span.first_start is not None:
            seconds[semconv.SPAN_QUEUE_DURATION.name] = max(0.0, span.first_start - span.start)
        labels, ids = (ident.tags, span.result), (ident.trace_id, ident.span_id)
        for name, value in seconds.items():
            self._adapter.batch.observe(Observation(name, labels, value, ids))

    # ------------------------------------------------------------------------- metrics

    def begin_metrics(self) -> None:
        """Hand over in short steps: with much to hand over, one callback would take too long."""
        if self._step is None:
            self._step = asyncio.get_running_loop().call_soon(self._take_step, self.steps())

    def steps(self) -> Iterator[None]:
        """Hand over the metrics: a short step for each item."""
        assert self._pump is not None
        if not self._pump.accepts_metrics():
            # Every exporter hangs: everything goes on adding up here, and nothing is lost. The
            # time is added to the batch, where it is kept by names: there is no end of spans.
            yield from self._adapter.fold_time()
            return
        yield from self._adapter.prepare()
        yield
        self.metrics()

    def _take_step(self, steps: Iterator[None]) -> None:
        with self._cost.timed():
            self._step = None
            try:
                next(steps)
            except StopIteration:
                pass
            except Exception:
                self._boundary.failed("metrics")
            else:
                self._step = asyncio.get_running_loop().call_later(PAUSE, self._take_step, steps)

    def metrics(self, running: bool = True) -> None:
        """Hand over the metrics at once."""
        assert self._pump is not None
        self._count_own()
        self._adapter.batch.set_level(semconv.OTEL_RUNNING.name, value=int(running))
        self._pump.offer_metrics(self._adapter.swap(clocks.time_ns()))

    def _count_own(self) -> None:
        """Add the bridge's own counters to the batch."""
        # Where the batch could not be handed over before, there is something in it already.
        add = self._adapter.batch.add
        for kind, count in self._boundary.take().items():
            add(semconv.OTEL_INTERNAL_ERRORS.name, kind, value=count)
        unsettled = self._adapter.lifecycle.unsettled
        if unsettled > self._unsettled:
            add(semconv.OTEL_UNSETTLED.name, "timeout", value=unsettled - self._unsettled)
            self._unsettled = unsettled
        add(semconv.OTEL_LOOP_TIME.name, value=self._cost.take())
        if self._dropped:
            add(semconv.OTEL_DROPPED.name, "traces", "not_ready", value=self._dropped)
            self._dropped = 0

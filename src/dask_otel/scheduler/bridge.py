"""The bridge of one scheduler: Dask's facts to the core, the core's records to the pump.

Everything here runs on the scheduler's event loop, in small steps: hooks of Dask, a tick ten
times a second that decides which spans are over, and a hand-over of the metrics at the
export interval. Making exporters, text and protobuf is the pump's, in its own thread.
"""

from __future__ import annotations

import asyncio
import logging
import time as clocks
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from distributed.metrics import time

from dask_otel import semconv
from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.http import MetricRoutes, Page
from dask_otel._dask.questions import SettledSpans
from dask_otel.core.life.callers import DEFAULT_SPAN
from dask_otel.core.life.open_span import Limits
from dask_otel.core.metrics.batch import Observation
from dask_otel.core.records import FinishedSpan, Progress
from dask_otel.core.trace import Trace
from dask_otel.pump.pump import Pump
from dask_otel.scheduler.own_cost import TransitionCost
from dask_otel.scheduler.wiring import make_pump
from dask_otel.settings.keys import ConfigurationError, Settings

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger("dask_otel")

#: Seconds between two looks at the spans that are about to end.
TICK: Final = 0.1

#: Seconds between two steps of a hand-over: the event loop has other things to do.
PAUSE: Final = 0.004

#: At close, the longest wait for heartbeats that still owe metrics of finished work.
LAST_WORDS: Final = 1.0


#: Finished spans that may wait while the exporters are being made.
MAX_WAITING: Final = 10_000

Made = TypeVar("Made")


class Carrier(Protocol):
    """The plugin that carries a bridge."""

    transition: Callable[..., None]

    def carry(self, bridge: Bridge) -> None:
        """Take up the bridge: from now on Dask's calls go to it."""

    def mute(self) -> None:
        """Pass no more transitions on."""

    def drop(self) -> None:
        """Let go of the bridge, and leave the scheduler."""

    @property
    def installed(self) -> bool:
        """Whether Dask calls this plugin."""


class ErrorBoundary:
    """Where the bridge's own errors end: counted by kind, logged once a kind, swallowed."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._logged: set[str] = set()

    def failed(self, kind: str) -> None:
        """Take the exception that is being handled."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning(
                "dask-otel: an error in its %s hook was swallowed, and later ones like it will be "
                "without a word; Dask is not affected, telemetry may be incomplete. Please report "
                "it, with this traceback, to the project's issue tracker.",
                kind,
                exc_info=True,
            )

    def take(self) -> dict[str, int]:
        """Return the errors by kind since the last call."""
        counts, self._counts = self._counts, {}
        return counts


class Bridge:
    """Observes one scheduler and exports what it sees.

    Parameters
    ----------
    scheduler
        A running scheduler.
    settings
        Parsed configuration.

    Raises
    ------
    UnsupportedScheduler
        If the scheduler has no spans extension.

    Notes
    -----
    All methods belong to the scheduler's event loop.
    """

    def __init__(self, scheduler: Scheduler, settings: Settings) -> None:
        self.settings = settings
        self.boundary = ErrorBoundary()
        metrics = settings.metrics
        self.adapter = SchedulerAdapter(
            scheduler,
            _limits(settings),
            self.boundary,
            # A worker has two series in a metric; when one leaves, its series stay for an export.
            max_workers=min(metrics.max_workers, metrics.max_series // 4),
            propagation=settings.propagation,
        )
        #: For those who ask for the metrics of a span.
        self.settled = SettledSpans(self.adapter)
        self._scheduler = scheduler
        self._plugin: Carrier | None = None
        self._pump: Pump | None = None
        self._interval = 0.0
        self._routes: MetricRoutes | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        #: The next step of a hand-over.
        self._step: asyncio.Handle | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._transitions: TransitionCost | None = None
        #: Seconds of the event loop: those of the timers since the last hand-over, and what
        #: the adapter had spent then.
        self._spent = 0.0
        self._adapter_spent = 0.0
        self._unsettled = 0
        self._dropped = 0

    # -------------------------------------------------------------------- start and close

    def start(self, plugin: Carrier) -> None:
        """Begin to observe at once, and to export as soon as the exporters are made.

        Parameters
        ----------
        plugin
            The plugin that carries this bridge: Dask calls its hooks.
        """
        self._plugin = plugin
        self.adapter.attach()
        plugin.carry(self)
        self._transitions = TransitionCost(
            plugin, self.adapter.transition, self.adapter.transitions
        )
        self._every("tick", TICK, self._tick)
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        """Make the exporters in a thread: imports are heavy, resource detectors may block."""
        scheduler = self._scheduler
        try:
            made = await in_thread(
                partial(
                    make_pump,
                    self.settings,
                    instance_id=scheduler.id,
                    started_ns=clocks.time_ns(),
                ),
                name="dask-otel-setup",
            )
            if made is not None:
                made.pump.start()
        except ConfigurationError as error:
            logger.error("dask-otel does not run on this scheduler: %s", error)
            self._abandon()
            return
        except Exception:
            logger.exception("dask-otel could not make its exporters; the scheduler runs on")
            self._abandon()
            return
        if made is None:
            logger.info("dask-otel is switched off (OTEL_SDK_DISABLED)")
            self._abandon()
            return
        if self._plugin is None:
            # The bridge was closed, and did not wait for them: they are released at once.
            made.pump.request_close(0.0)
            return
        self._pump, self._interval = made.pump, made.metric_interval
        if made.decides is not None:
            self.adapter.callers.decide_with(partial(self._decides, made.decides))
        if self._closing is not None:
            # It waits for them, and hands over for the last time.
            return
        self._every("metrics", self._interval, self._hand_over_metrics)
        if made.page is not None:
            self._show(made.page)
        logger.info("dask-otel exports this scheduler's spans and metrics: %s", made.summary)

    def _show(self, page: Page) -> None:
        """Put the page on the scheduler's HTTP server; without it the bridge goes on."""
        try:
            routes = MetricRoutes(self._scheduler, page, self.boundary)
            path = routes.add()
        except LookupError as error:
            logger.error("dask-otel can't show its metrics (otel.metrics.prometheus): %s", error)
        except Exception:
            self.boundary.failed("metrics page")
        else:
            self._routes = routes
            # A scraper may come at once.
            self._hand_over_metrics()
            logger.info("dask-otel shows its metrics on the scheduler's HTTP server, %s", path)

    @property
    def leaving(self) -> bool:
        """Whether it has begun to let go of the scheduler."""
        return self._closing is not None

    @property
    def gone(self) -> bool:
        """Whether it has let go of the scheduler, or was never put on."""
        return self._plugin is None

    @property
    def exporting(self) -> bool:
        """Whether the exporters have been made."""
        return self._pump is not None

    async def close(self) -> None:
        """Export what is left within ``otel.close-timeout``, and let go of the scheduler."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        deadline = clocks.monotonic() + self.settings.close_timeout
        try:
            await self._last_words(deadline)
            self._stop_timers()
            # What is cut off has not settled: nobody is to be told that it has.
            self.settled.close()
            # Spans that are cut off have their share of idle time up to now.
            self._guarded(self._fold_time)
            self._guarded(lambda: self.adapter.close(time()))
            # What comes from here on is a next bridge's, if there is one.
            self._guarded(self._look_away)
            if self._connecting is not None:
                await asyncio.wait([self._connecting], timeout=deadline - clocks.monotonic())
            if self._pump is not None:
                self._guarded(self._offer_spans)
                self._guarded(partial(self._offer_metrics, running=False))
                await self._pump_closed(self._pump, deadline)
            elif self._connecting is not None and not self._connecting.done():
                logger.warning(
                    "dask-otel was closed before its exporters were made, within %g s "
                    "(otel.close-timeout): everything that it has seen is lost",
                    self.settings.close_timeout,
                )
        except Exception:
            self.boundary.failed("close")
        finally:
            self._let_go()

    def _guarded(self, step: Callable[[], None]) -> None:
        """Take a step of the close; whatever it does, the pump's threads are to be closed."""
        try:
            step()
        except Exception:
            self.boundary.failed("close")

    async def _last_words(self, deadline: float) -> None:
        """Give heartbeats a moment that still owe metrics of work that is done."""
        until = min(deadline, clocks.monotonic() + LAST_WORDS)
        while self.adapter.lifecycle.settling and clocks.monotonic() < until:
            await asyncio.sleep(TICK)

    @staticmethod
    async def _pump_closed(pump: Pump, deadline: float) -> None:
        pump.request_close(max(0.0, deadline - clocks.monotonic()))
        while not pump.closed and clocks.monotonic() < deadline:
            await asyncio.sleep(0.01)
        pump.release()

    def _abandon(self) -> None:
        """Take ourselves off: there is nowhere to export to."""
        self._stop_timers()
        self._look_away(exported=False)
        self._let_go()

    def _look_away(self, exported: bool = True) -> None:
        """Observe the scheduler no longer."""
        if self._transitions is not None:
            self._transitions.disarm()
        if self._plugin is not None:
            self._plugin.mute()
        self.adapter.detach(exported)

    def _let_go(self) -> None:
        self._stop_timers()
        if self._routes is not None:
            self._routes.remove()
        self.settled.close()
        self._look_away()
        if self._plugin is not None:
            self._plugin.drop()
            self._plugin = None

    # ---------------------------------------------------------------------------- timers

    def _every(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            # Armed again first: whatever the call does, the timer goes on.
            self._timers[name] = loop.call_later(seconds, run)
            began = clocks.perf_counter()
            try:
                call()
            except Exception:
                self.boundary.failed(name)
            self._spent += clocks.perf_counter() - began

        self._timers[name] = loop.call_later(seconds, run)

    def _stop_timers(self) -> None:
        if self._step is not None:
            self._step.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _tick(self) -> None:
        adapter = self.adapter
        if self._plugin is not None and not self._plugin.installed and self._closing is None:
            # Somebody removed the plugin (`Client.unregister_scheduler_plugin`), which Dask
            # does without a word to it.
            self._closing = asyncio.ensure_future(self._close())
            return
        adapter.submission_over()
        adapter.lifecycle.tick(time())
        self.settled.moved()
        if adapter.lifecycle.finished or adapter.lifecycle.progress:
            self._offer_spans()
        adapter.loops.tick()
        if self._transitions is not None:
            self._transitions.arm()

    def _offer_spans(self) -> None:
        lifecycle, pump = self.adapter.lifecycle, self._pump
        if pump is None:
            self._hold_back()
            return
        signs, lifecycle.progress = lifecycle.progress, []
        for sign in signs:
            if self._exports(sign):
                pump.offer_span(sign)
        finished, lifecycle.finished = lifecycle.finished, []
        for span in finished:
            self._measured(span)
            if self._exports(span):
                pump.offer_span(span)

    def _measured(self, span: FinishedSpan) -> None:
        """Put a span into the histograms: it is measured whether it is exported or not."""
        if not span.complete and self.adapter.taken_off:
            # It goes on, nobody knows for how long.
            return
        if span.identity.generation == 1:
            for observation in _observations(span):
                self.adapter.batch.observe(observation)

    def _exports(self, span: FinishedSpan | Progress) -> bool:
        return span.identity.tags != DEFAULT_SPAN or self.settings.spans.default == "export"

    def _decides(self, decides: Callable[[Trace], bool], trace: Trace) -> bool:
        """Ask the sampler, which may be a user's; one that raises does not sample."""
        try:
            return decides(trace)
        except Exception:
            self.boundary.failed("sampler")
            return False

    def _hold_back(self) -> None:
        """Bound what waits for exporters that are still being made."""
        for waiting in (self.adapter.lifecycle.finished, self.adapter.lifecycle.progress):
            for span in waiting[: max(0, len(waiting) - MAX_WAITING)]:
                if self._exports(span):
                    self._dropped += span.weight
                if isinstance(span, FinishedSpan):
                    self._measured(span)
            del waiting[: max(0, len(waiting) - MAX_WAITING)]

    def _fold_time(self) -> None:
        adapter = self.adapter
        if adapter.time.prepared:
            # A hand-over was under way: its interval has ended.
            adapter.time.export(adapter.batch, adapter.lifecycle.open, adapter.tags_of)
        adapter.time.export(adapter.batch, adapter.lifecycle.open, adapter.tags_of)

    def _hand_over_metrics(self) -> None:
        """Hand over in short steps: with much to hand over, one callback would take too long."""
        if self._step is None:
            steps = self._hand_over()
            self._step = asyncio.get_running_loop().call_soon(self._take_step, steps)

    def _hand_over(self) -> Iterator[None]:
        assert self._pump is not None
        if not self._pump.accepts_metrics():
            # Every exporter hangs: everything goes on adding up here, and nothing is lost. The
            # time is added to the batch, where it is kept by names: there is no end of spans.
            yield from self.adapter.fold_time()
            return
        yield from self.adapter.prepare()
        yield
        self._offer_metrics(running=True)

    def _take_step(self, steps: Iterator[None]) -> None:
        began = clocks.perf_counter()
        self._step = None
        try:
            next(steps)
        except StopIteration:
            pass
        except Exception:
            self.boundary.failed("metrics")
        else:
            self._step = asyncio.get_running_loop().call_later(PAUSE, self._take_step, steps)
        self._spent += clocks.perf_counter() - began

    def _offer_metrics(self, running: bool) -> None:
        assert self._pump is not None
        self._count_own()
        self.adapter.batch.set_level(semconv.OTEL_RUNNING.name, value=1 if running else 0)
        self._pump.offer_metrics(self.adapter.swap(clocks.time_ns()))

    def _count_own(self) -> None:
        """Add the bridge's own counters to the batch."""
        # Where the batch could not be handed over before, there is something in it already.
        add = self.adapter.batch.add
        for kind, count in self.boundary.take().items():
            add(semconv.OTEL_INTERNAL_ERRORS.name, kind, value=count)
        unsettled = self.adapter.lifecycle.unsettled
        if unsettled > self._unsettled:
            add(semconv.OTEL_UNSETTLED.name, "timeout", value=unsettled - self._unsettled)
            self._unsettled = unsettled
        add(semconv.OTEL_LOOP_TIME.name, value=self._loop_time())
        if self._dropped:
            add(semconv.OTEL_DROPPED.name, "traces", "not_ready", value=self._dropped)
            self._dropped = 0

    def _loop_time(self) -> float:
        """Return the seconds of the event loop that we took since the last call."""
        total = self.adapter.spent + self.adapter.time.spent
        seconds, self._spent = self._spent + total - self._adapter_spent, 0.0
        self._adapter_spent = total
        if self._transitions is not None:
            seconds += self._transitions.take()
        return seconds


def _limits(settings: Settings) -> Limits:
    spans = settings.spans
    return Limits(
        linger=spans.linger,
        settle_timeout=spans.settle_timeout,
        max_groups=spans.max_groups,
        trace_gap=spans.trace_gap,
        max_per_trace=spans.max_per_trace,
        max_exceptions=spans.max_exceptions,
        remember=spans.remember,
        progress_after=spans.progress_after,
        progress_interval=spans.progress_interval,
        groups=spans.detail == "group",
    )


def _observations(span: FinishedSpan) -> list[Observation]:
    """Return the points of the span histograms: one of each per Dask span."""
    ident = span.identity
    labels = (ident.tags, span.result)
    ids = (ident.trace_id, ident.span_id)
    observations = [Observation(semconv.SPAN_DURATION.name, labels, span.stop - span.start, ids)]
    if span.first_start is not None:
        queued = max(0.0, span.first_start - span.start)
        observations.append(Observation(semconv.SPAN_QUEUE_DURATION.name, labels, queued, ids))
    return observations


async def in_thread(make: Callable[[], Made], name: str) -> Made:
    """Await a call in a daemon thread of its own.

    Not in the loop's executor: a call that never returns must not hold up the process at its
    end.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Made] = loop.create_future()

    def deliver(result: Made | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("Made", result))

    def run() -> None:
        result, error = None, None
        try:
            result = make()
        except Exception as caught:
            error = caught
        with suppress(RuntimeError):  # the loop has closed meanwhile
            loop.call_soon_threadsafe(deliver, result, error)

    Thread(target=run, name=name, daemon=True).start()
    return await future

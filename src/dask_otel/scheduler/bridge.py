"""The bridge of one scheduler: Dask's facts to the core, the core's records to the pump.

Everything here runs on the scheduler's event loop, in small steps: hooks of Dask, a tick ten
times a second that decides which spans are over, and a hand-over of the metrics at the
export interval (`hand_over`). Making exporters, text and protobuf is the pump's, in its own
thread.
"""

from __future__ import annotations

import asyncio
import logging
import time as clocks
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from distributed.core import Status
from distributed.metrics import time

from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.http import MetricRoutes
from dask_otel._dask.settled import SettledSpans
from dask_otel._dask.workers.delivery import Delivery
from dask_otel.core.life.open_span import Limits, TaskLimits
from dask_otel.pump.journal import MOMENT
from dask_otel.pump.pump import Pump
from dask_otel.scheduler.boundary import ErrorBoundary
from dask_otel.scheduler.hand_over import HandOver
from dask_otel.scheduler.in_thread import in_thread
from dask_otel.scheduler.own_cost import LoopTime
from dask_otel.scheduler.wiring import make_pump
from dask_otel.scheduler.workers import NAME, pickled
from dask_otel.settings.keys import ConfigurationError, Settings

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from dask_otel._prometheus.page import MetricPage

logger = logging.getLogger("distributed.dask_otel")

#: Seconds between two looks at the spans that are about to end.
TICK: Final = 0.1

#: At close, the longest wait for heartbeats that still owe metrics of finished work.
LAST_WORDS: Final = 1.0


class Host(Protocol):
    """The plugin that has a bridge."""

    transition: Callable[..., None]

    @property
    def installed(self) -> bool:
        """Whether Dask calls this plugin."""

    def bridge_gone(self) -> None:
        """The bridge has let go of the scheduler: it is to be forgotten."""


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
            baggage=settings.spans.baggage,
        )
        #: For those who ask for the metrics of a span.
        self.settled = SettledSpans(self.adapter)
        self._scheduler = scheduler
        self._host: Host | None = None
        self._pump: Pump | None = None
        #: Returns the bridge's own counts; see `WiredPump`.
        self._counts: Callable[[], dict[tuple[str, ...], float]] = dict
        self._cost = LoopTime(self.adapter)
        self.hand_over = HandOver(
            self.adapter, self.boundary, self._cost, settings.spans.default == "export"
        )
        self._routes: MetricRoutes | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._delivery: Delivery | None = None
        self._taking_back: asyncio.Task[None] | None = None

    # -------------------------------------------------------------------- start and close

    def start(self, host: Host) -> None:
        """Begin to observe at once, and to export as soon as the exporters are made.

        Parameters
        ----------
        host
            The plugin whose bridge this is. Its attribute ``transition`` is the bridge's from here
            on: Dask calls it six times a task, without a method of the plugin's in between.
        """
        self.adapter.attach()
        self._host = host
        self._cost.watch(host)
        self._every("tick", TICK, self._tick)
        if self.settings.workers.context:
            self._bring_to_workers()
        self._connecting = asyncio.ensure_future(self._connect())

    def _bring_to_workers(self) -> None:
        """Bring the worker's part to all workers; without it the bridge goes on."""
        try:
            settings = self.settings
            ratio = settings.spans.tasks.chosen
            plugin = pickled({"inject": settings.logs.inject, "ratio": ratio, "decided": True})
            delivery = Delivery(self._scheduler, NAME, plugin, self.boundary)
            delivery.begin()
        except Exception:
            self.boundary.failed("worker context")
        else:
            self._delivery = delivery

    def _take_back_from_workers(self) -> None:
        delivery, self._delivery = self._delivery, None
        if delivery is None:
            return
        if self._scheduler.status in (Status.closing, Status.closed):
            delivery.drop()
        else:
            self._taking_back = asyncio.ensure_future(delivery.end())

    async def _connect(self) -> None:
        """Make the exporters in a thread: imports are heavy, resource detectors may block."""
        scheduler = self._scheduler
        try:
            wired = await in_thread(
                partial(
                    make_pump,
                    self.settings,
                    instance_id=scheduler.id,
                    started_ns=clocks.time_ns(),
                ),
                name="dask-otel-setup",
            )
            if wired is not None:
                wired.pump.start()
        except ConfigurationError as error:
            logger.error(
                "dask-otel does not run on this scheduler, which is not affected: %s", error
            )
            self._abandon()
            return
        except Exception:
            logger.exception("dask-otel could not make its exporters; the scheduler runs on")
            self._abandon()
            return
        if wired is None:
            logger.info("dask-otel is switched off (OTEL_SDK_DISABLED)")
            self._abandon()
            return
        if self._host is None:
            # The bridge was closed, and did not wait for them: they are released at once.
            wired.pump.request_close(0.0)
            return
        self._pump = wired.pump
        self._counts = wired.counts
        if wired.decides is not None:
            self._guarded(partial(self.adapter.decide_with, wired.decides), "sampler")
        self.hand_over.begin(wired.pump)
        if wired.hint:
            # Also where it closes already: a short script has it from here alone.
            logger.warning("%s", wired.hint)
        if self._closing is not None:
            # It waits for them, and hands over for the last time.
            return
        self._every("metrics", wired.metric_interval, self.hand_over.begin_metrics)
        if wired.page is not None:
            self._show(wired.page)
        if not wired.hint:
            logger.info("dask-otel exports this scheduler's spans and metrics: %s", wired.summary)

    def _show(self, page: MetricPage) -> None:
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
            self.hand_over.begin_metrics()
            logger.info("dask-otel shows its metrics on the scheduler's HTTP server, %s", path)

    @property
    def leaving(self) -> bool:
        """Whether it has begun to let go of the scheduler."""
        return self._closing is not None

    @property
    def gone(self) -> bool:
        """Whether it has let go of the scheduler, or was never put on."""
        return self._host is None

    def condition(self) -> dict[str, Any]:
        """Return how the export does, as plain data; see `Pump.condition`."""
        if self._pump is None:
            return {"exporting": False}
        counts = [[*series, value] for series, value in self._counts().items()]
        return {"exporting": True, "counts": counts, **self._pump.condition()}

    async def close(self) -> None:
        """Export what is left within ``otel.close-timeout``, and let go of the scheduler."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        deadline = clocks.monotonic() + self.settings.close_timeout
        self._guarded(self._take_back_from_workers)
        try:
            await self._last_words(deadline)
            self._stop_timers()
            # What is cut off has not settled: nobody is to be told that it has.
            self.settled.close()
            # Spans that are cut off have their share of idle time up to now.
            self._guarded(self.adapter.fold_time_now)
            self._guarded(lambda: self.adapter.close(time()))
            # What comes from here on is a next bridge's, if there is one.
            self._guarded(self._detach)
            if self._connecting is not None:
                await asyncio.wait([self._connecting], timeout=deadline - clocks.monotonic())
            if self._pump is not None:
                self._guarded(self.hand_over.spans)
                self._guarded(partial(self.hand_over.metrics, running=False))
                await self._pump_closed(self._pump, deadline)
            elif self._connecting is not None and not self._connecting.done():
                logger.warning(
                    "dask-otel was closed before its exporters were made, within %g s "
                    "(otel.close-timeout): everything that it has seen is lost",
                    self.settings.close_timeout,
                )
            if self._taking_back is not None:
                left = max(0.0, deadline - clocks.monotonic())
                await asyncio.wait([self._taking_back], timeout=left)
        except Exception:
            self.boundary.failed("close")
        finally:
            self._let_go()

    def _guarded(self, step: Callable[[], None], kind: str = "close") -> None:
        """Take a step of the start or the close; whatever it does, the next ones follow."""
        try:
            step()
        except Exception:
            self.boundary.failed(kind)

    async def _last_words(self, deadline: float) -> None:
        """Give heartbeats a moment that still owe metrics of work that is done."""
        until = min(deadline, clocks.monotonic() + LAST_WORDS)
        # Whoever owed them may have sent them, or have gone, since the last tick.
        self._guarded(self._tick)
        while self.adapter.lifecycle.settling and clocks.monotonic() < until:
            await asyncio.sleep(TICK)

    @staticmethod
    async def _pump_closed(pump: Pump, deadline: float) -> None:
        pump.request_close(max(0.0, deadline - clocks.monotonic()))
        while not pump.closed and clocks.monotonic() < deadline:
            await asyncio.sleep(0.01)
        # What is kept on the disk needs no endpoint, but a moment, also if there was no time left.
        until = clocks.monotonic() + MOMENT
        while not pump.written and clocks.monotonic() < until:
            await asyncio.sleep(0.01)
        pump.release()

    def _abandon(self) -> None:
        """Take ourselves off: there is nowhere to export to."""
        self._stop_timers()
        self._detach(exported=False)
        self._let_go()

    def _detach(self, exported: bool = True) -> None:
        """Observe the scheduler no longer."""
        self._cost.unwatch()
        self.adapter.detach(exported)

    def _let_go(self) -> None:
        self._stop_timers()
        self._guarded(self._take_back_from_workers)
        if self._routes is not None:
            self._routes.remove()
        self.settled.close()
        self._detach()
        if self._host is not None:
            host, self._host = self._host, None
            host.bridge_gone()

    # ---------------------------------------------------------------------------- timers

    def _every(self, name: str, seconds: float, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            # Armed again first: whatever the call does, the timer goes on.
            self._timers[name] = loop.call_later(seconds, run)
            with self._cost.timed():
                try:
                    call()
                except Exception:
                    self.boundary.failed(name)

        self._timers[name] = loop.call_later(seconds, run)

    def _stop_timers(self) -> None:
        self.hand_over.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _tick(self) -> None:
        if self._host is not None and not self._host.installed and self._closing is None:
            # Somebody removed the plugin (`Client.unregister_scheduler_plugin`), which Dask
            # does without a word to it.
            self._closing = asyncio.ensure_future(self._close())
            return
        self.adapter.tick(time())
        self.settled.notify()
        self.hand_over.spans()
        self.hand_over.notes()
        self._cost.sample()


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
        tasks=TaskLimits(
            # They are their groups'.
            slowest=spans.tasks.slowest if spans.detail == "group" else 0,
            ratio=spans.tasks.ratio,
            most=spans.tasks.max,
        ),
        notes=settings.spool.path is not None,
    )

"""The bridge of one scheduler: passes Dask's facts to the core, and the core's records to the pump.

Everything here runs on the scheduler's event loop, in small steps: Dask's hooks, a tick that
decides which spans have ended (four times a second; twice where none is open), and a hand-over of
the metrics at the export interval (`hand_over`). The pump makes text and protobuf in its own
threads.
"""

from __future__ import annotations

import asyncio
import time as clocks
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time
from distributed.scheduler import Scheduler

from dask_otel._dask.adapter import HOOKS, SchedulerAdapter
from dask_otel._dask.boundary import ErrorBoundary
from dask_otel._dask.holding import held
from dask_otel._dask.http import Routes
from dask_otel._dask.present import Present
from dask_otel._dask.settled import SettledSpans
from dask_otel._dask.workers.delivery import Delivery
from dask_otel._log import logger
from dask_otel.core.life.open_span import Limits, TaskLimits
from dask_otel.pump.pump import Pump
from dask_otel.pump.spooled import MOMENT
from dask_otel.pump.thread import apart
from dask_otel.scheduler.hand_over import LONGEST, HandOver, waited
from dask_otel.scheduler.live_page import PageHandler, Pages
from dask_otel.scheduler.own_cost import OwnCost
from dask_otel.scheduler.recording import Recording
from dask_otel.scheduler.wiring import WiredPump, disown, make_pump
from dask_otel.scheduler.workers import NAME, pickled
from dask_otel.settings.keys import ConfigurationError, Settings
from dask_otel.settings.reading import differences, read_settings, valid_values

#: Seconds between two checks for ended spans, and where no span is open.
TICK: Final = 0.25
IDLE_TICK: Final = 0.5
#: Seconds to the next tick if more spans have ended than in `LONGEST`: so thousands can end in a
#: second, and the event loop never waits for long.
AGAIN: Final = 0.0005

#: At close, the longest wait for heartbeats with metrics of finished work.
LAST_WORDS: Final = 1.0


class Bridge:
    """Observes one scheduler and exports its spans and metrics, all on its event loop.

    `overrides` is the part of the configuration from `dask_otel.register`. A temporary bridge
    sends nothing, and is there while a client records.

    Raises
    ------
    UnsupportedScheduler
        If the scheduler has no spans extension.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        settings: Settings,
        overrides: Mapping[str, Any] | None = None,
        is_temporary: bool = False,
    ) -> None:
        self.settings = settings
        self.overrides = overrides or {}
        self.boundary = ErrorBoundary()
        metrics = settings.metrics
        self.adapter = SchedulerAdapter(
            scheduler,
            limits_of(settings),
            self.boundary,
            # A worker has two series in a metric, and a departed worker's stay for one export.
            max_workers=min(metrics.max_workers, metrics.max_series // 4),
            propagation=settings.propagation,
            baggage=settings.spans.baggage,
            events=settings.logs.events,
            topics=settings.logs.topics,
            level=settings.logs.least,
            put=lambda event, counted: self.hand_over.event(event, counted),
            profiled=None
            if settings.sampled is None
            else lambda item: self.hand_over.profile(item),
        )
        #: Answers clients' requests.
        self.settled = SettledSpans(self.adapter)
        self._scheduler = scheduler
        #: None before the start, and after the release of the scheduler.
        self._plugin: SchedulerPlugin | None = None
        #: The exporters; None until they are ready.
        self.wired: WiredPump | None = None
        self._cost = OwnCost(self.adapter)
        self.hand_over = HandOver(
            self.adapter, self.boundary, self._cost, settings.spans.default == "export"
        )
        self._routes = Routes(scheduler, self.boundary)
        self.recording = Recording(
            self.adapter, self.settled, self.hand_over, settings, is_temporary
        )
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        sent = {
            "inject": settings.logs.inject,
            "ratio": settings.spans.tasks.chosen,
            "decided": True,
            "level": settings.logs.least,
            "profiles": settings.sampled,
        }
        self._delivery = Delivery(scheduler, NAME, pickled(sent), self.boundary)

    # -------------------------------------------------------------------- start and close

    def start(self, plugin: SchedulerPlugin) -> None:
        """Begin to observe now, and to export when the exporters are ready.

        From here on the plugin's hooks are the adapter's methods, so that Dask, which looks up
        `transition` six times a task, calls the adapter directly.
        """
        self.adapter.attach()
        self._plugin = plugin
        vars(plugin).update({name: getattr(self.adapter, name) for name in HOOKS})
        self._every("tick", self._pause, self._tick)
        if self.settings.workers.context:
            # After an error, the bridge continues without it.
            with self.boundary.guarding("worker context"):
                self._delivery.begin()
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        """Make the exporters in a thread: imports are slow, and resource detectors may block."""
        make = partial(
            make_pump,
            self.settings,
            instance_id=self._scheduler.id,
            started_ns=clocks.time_ns(),
        )
        try:
            wired = await asyncio.wrap_future(apart(make, "dask-otel-setup"))
            if wired is not None:
                wired.pump.start()
        except ConfigurationError as error:
            logger.error(
                "dask-otel does not run on this scheduler, which is not affected: %s", error
            )
        except Exception:
            logger.exception(
                "dask-otel could not make its exporters; the scheduler continues without it"
            )
        else:
            if wired is not None:
                self._connected(wired)
                return
            logger.info("dask-otel is switched off (OTEL_SDK_DISABLED)")
        # There is no destination.
        self._detach(exported=False)
        self._release()
        await self._delivery.end()

    def _connected(self, wired: WiredPump) -> None:
        if self._plugin is None:
            # The bridge was closed before the exporters were ready.
            wired.pump.request_close(0.0)
            disown(self._scheduler.id)
            return
        self.wired = wired
        if wired.decides is not None:
            with self.boundary.guarding("sampler"):
                self.adapter.decide_with(wired.decides)
        with self.boundary.guarding("recording"):
            self.recording.make = wired.recording
            self.recording.begin()
        self.hand_over.begin(wired.pump)
        if self.recording.is_temporary:
            return
        if wired.hint:
            # Even while it closes: a short script gets this hint only here.
            logger.warning("%s", wired.hint)
        if self._closing is not None:
            # `close` waits for the exporters, and makes the last hand-over.
            return
        self._every("metrics", lambda: wired.metric_interval, self.hand_over.begin_metrics)
        routes = self._routes
        if wired.page is not None:
            add = partial(routes.add_metrics, wired.page)
            if self._show("its metrics", "otel.metrics.prometheus", add):
                # The first scrape may come at once.
                self.hand_over.begin_metrics()
        recorder = self.recording.recorder
        if recorder is not None and self.settings.report.record == "always":
            pages = Pages(self.adapter, self.settled, recorder)
            add = partial(routes.add_page, PageHandler, pages=pages)
            self._show("open spans and the reports of runs", "otel.report.record", add)
        if not wired.hint:
            logger.info("dask-otel exports this scheduler's %s", wired.summary)

    def _show(self, what: str, key: str, add: Callable[[], str]) -> bool:
        """Add a page to the scheduler's HTTP server; return whether it is there."""
        # After an error, the bridge continues without it.
        with self.boundary.guarding("page"):
            try:
                logger.info("dask-otel shows %s at %s", what, add())
                return True
            except LookupError as error:
                logger.error("dask-otel can't show %s (%s): %s", what, key, error)
        return False

    @property
    def leaving(self) -> bool:
        """Whether the bridge releases the scheduler, now or at the next tick."""
        # Dask removes a plugin without notice.
        return self._closing is not None or self._installed is None

    @property
    def gone(self) -> bool:
        """Whether the bridge has released the scheduler, or was never started."""
        return self._plugin is None

    def condition(self) -> dict[str, Any]:
        """Return the state of the export as plain data; see `Pump.condition`."""
        if self.wired is None:
            return {"exporting": False}
        counts = [[*series, value] for series, value in self.wired.counts().items()]
        return {"exporting": True, "counts": counts, **self.wired.pump.condition()}

    def unused(self, overrides: Mapping[str, Any] | None) -> tuple[str, ...]:
        """Return the full keys of another configuration that differ from the bridge's.

        What only this bridge's registration has set is not the other one's.
        """
        mine = valid_values(self.overrides).keys() - valid_values(overrides)
        found = differences(self.settings, read_settings(overrides))
        return tuple(key for key in found if key not in mine)

    def why(self, asked: Sequence[Hashable]) -> list[dict[str, Any]]:
        """Return why a task or a span is not done yet; see `Present.reasons`."""
        return Present(self.adapter).reasons(asked)

    async def held(self, asked: str | None) -> dict[str, Any] | None:
        """Return the results in memory and their keepers; see `dask_otel._dask.holding.held`."""
        return await held(self.adapter, asked)

    async def record(self, name: str, client: str) -> int | None:
        """Record for a client, until it calls `forget` with that name, or is gone.

        Return the number of the last row before that; None if nothing can be recorded.
        """
        self.recording.holders[name] = client
        return await self.recording.cut() if await self.connected() else None

    async def connected(self) -> bool:
        """Wait until the exporters are made; return whether the bridge runs with them."""
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        return self.wired is not None and not self.gone

    async def forget(self, name: str) -> None:
        """Stop to record for a client."""
        self.recording.drop(name)
        if self.recording.is_over:
            await self.close()

    async def close(self) -> None:
        """Export the rest within ``otel.close-timeout``, and release the scheduler."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        deadline = clocks.monotonic() + self.settings.close_timeout
        # After a failed step, the next ones still run.
        guarded = partial(self.boundary.guarding, "close")
        withdrawal = asyncio.ensure_future(self._delivery.end())
        try:
            with guarded():
                await self._last_words(deadline)
                self._stop_timers()
                # Interrupted spans have not settled: refuse clients' requests first.
                self.settled.close()
                # Interrupted spans get their share of idle time up to now. Events after the last
                # step belong to the next bridge, if any.
                ends = partial(self.adapter.close, time())
                for step in (self.adapter.fold_time_now, ends, self._detach):
                    with guarded():
                        step()
                if self._connecting is not None:
                    await asyncio.wait([self._connecting], timeout=deadline - clocks.monotonic())
                if self.wired is not None:
                    over = self.hand_over
                    for step in (over.spans, over.notices, over.last_metrics):
                        with guarded():
                            step()
                    self.recording.close()
                    await self._pump_closed(self.wired.pump, deadline)
                elif self._connecting is not None and not self._connecting.done():
                    logger.warning(
                        "dask-otel was closed before its exporters were made, within %g s "
                        "(otel.close-timeout): all telemetry is lost",
                        self.settings.close_timeout,
                    )
                await asyncio.wait([withdrawal], timeout=max(0.0, deadline - clocks.monotonic()))
        finally:
            self._release()

    async def _last_words(self, deadline: float) -> None:
        """Wait a moment for metrics of finished work, and for the last samples of workers."""
        until = min(deadline, clocks.monotonic() + LAST_WORDS)
        # They may have arrived, or their workers may have left, since the last tick.
        with self.boundary.guarding("close"):
            self._tick(most=None)
        await waited(lambda: not self.adapter.awaiting, until)

    @staticmethod
    async def _pump_closed(pump: Pump, deadline: float) -> None:
        pump.request_close(max(0.0, deadline - clocks.monotonic()))
        await waited(lambda: pump.closed, deadline)
        # Spooling to disk needs no endpoint; allow it a moment even if no time is left.
        await waited(lambda: pump.spans.written, clocks.monotonic() + MOMENT)
        pump.release()

    def _detach(self, exported: bool = True) -> None:
        """Stop observing the scheduler."""
        if self._plugin is not None:
            for name in HOOKS:
                vars(self._plugin).pop(name, None)
        # What a temporary one has in memory goes with it: the next one has all of it again.
        self.adapter.detach(exported and not self.recording.is_temporary)

    def _release(self) -> None:
        """Release the scheduler."""
        disown(self._scheduler.id)
        self._stop_timers()
        self._routes.remove()
        self.settled.close()
        self._detach()
        installed, self._plugin = self._installed, None
        if installed:
            self._scheduler.remove_plugin(installed.name)

    @property
    def _installed(self) -> SchedulerPlugin | None:
        """The plugin, if it is still installed."""
        plugin = self._plugin
        present = plugin is not None and self._scheduler.plugins.get(plugin.name) is plugin
        return plugin if present else None

    # ---------------------------------------------------------------------------- timers

    def _every(self, name: str, pause: Callable[[], float], call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            # It raises nothing. The pause depends on what it leaves to do.
            self.adapter.wrappers.run(name, call)
            self._timers[name] = loop.call_later(pause(), run)

        self._timers[name] = loop.call_later(pause(), run)

    def _stop_timers(self) -> None:
        self.hand_over.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _pause(self) -> float:
        if self.adapter.lifecycle.behind:
            return AGAIN
        return IDLE_TICK if self.adapter.idle else TICK

    def _tick(self, most: int | None = 1) -> None:
        unplugged = self._plugin is not None and self._installed is None
        if self._closing is None and (unplugged or self.recording.is_over):
            # `Client.unregister_scheduler_plugin` removed it; Dask does not notify the plugin.
            self._closing = asyncio.ensure_future(self._close())
            return
        until = clocks.monotonic() + LONGEST
        self.adapter.tick(time(), most)
        while self.adapter.lifecycle.behind and clocks.monotonic() < until:
            self.adapter.tick(time(), most)
        self.settled.notify()
        self.recording.tick()
        self.hand_over.spans()
        self.hand_over.notes()
        self.hand_over.notices()
        if self._plugin is not None:
            self._cost.sample(self._plugin)


def limits_of(settings: Settings) -> Limits:
    """Return the core's limits by these settings."""
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
            # Task spans belong to group spans.
            slowest=spans.tasks.slowest if spans.detail == "group" else 0,
            ratio=spans.tasks.ratio,
            most=spans.tasks.max,
        ),
        path=spans.path,
        memory=spans.memory,
        graph=settings.graphs == "always",
    )

"""Keeps a scheduler's telemetry in memory while clients ask for it, or always."""

from __future__ import annotations

import asyncio
import time as clocks
from collections.abc import Callable

from distributed.metrics import time

from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.settled import SettledSpans
from dask_otel._log import logger
from dask_otel.pump.pump import Pump
from dask_otel.pump.recorder import Recorder
from dask_otel.scheduler.hand_over import HandOver, waited
from dask_otel.scheduler.wiring import RECORDED, WRITTEN_WITHIN
from dask_otel.settings.keys import Settings


class Recording:
    """The rows of one scheduler in memory, and who asked for them. On its event loop.

    Parameters
    ----------
    adapter, settled, hand_over
        Parts of the bridge.
    settings
        When to record, and how much.
    is_temporary
        Whether the bridge is there for the recording alone.
    """

    def __init__(
        self,
        adapter: SchedulerAdapter,
        settled: SettledSpans,
        hand_over: HandOver,
        settings: Settings,
        is_temporary: bool,
    ) -> None:
        self._adapter, self._settled, self._hand_over = adapter, settled, hand_over
        self._settings = settings.report
        #: Whether graph logs are recorded for the memory alone.
        self._graphs = settings.graphs == "asked"
        self.is_temporary = is_temporary
        #: The rows; None while nothing is recorded.
        self.recorder: Recorder | None = None
        #: Makes a pump; None until the exporters are ready.
        self.make: Callable[[Recorder], Pump] | None = None
        #: The clients that asked for it, by the names of their requests.
        self.holders: dict[str, str] = {}
        self._cutting = asyncio.Lock()
        self._batch_at = 0.0

    @property
    def is_over(self) -> bool:
        """Whether nobody needs the bridge any more."""
        return self.is_temporary and not self.holders

    def begin(self) -> None:
        """Record from now on, if that is wanted."""
        if self.make is None or not (self.holders or self._settings.record == "always"):
            return
        if self.recorder is None:
            self.recorder = Recorder(self._settings.memory)
            if self._graphs:
                self._adapter.record_graphs(True)
            logger.info("dask-otel keeps this scheduler's telemetry in memory, for reports")
        pump = self.make(self.recorder)
        # Before it gets anything, which would wait for ever if the machine has no more threads.
        pump.start()
        self._hand_over.recorded = pump

    def stop(self) -> Pump | None:
        """Let the pump write what it has, and return it."""
        pump, self._hand_over.recorded = self._hand_over.recorded, None
        if pump is not None:
            pump.request_close(WRITTEN_WITHIN)
        return pump

    def drop(self, name: str) -> None:
        """Forget a request; stop after the last one."""
        self.holders.pop(name, None)
        if not self.holders and self._settings.record != "always":
            self.stop()
            self.recorder = None
            if self._graphs:
                self._adapter.record_graphs(False)

    def tick(self) -> None:
        """Forget the clients that are gone, and hand over metrics if it is time."""
        for name, client in [*self.holders.items()]:
            if client not in self._settled.clients:
                self.drop(name)
        if self._hand_over.recorded is not None and clocks.monotonic() - self._batch_at >= RECORDED:
            self._batch_at = clocks.monotonic()
            self._hand_over.begin_metrics()

    def close(self) -> None:
        """Stop for good: the bridge closes."""
        self.make = None
        self.stop()

    async def cut(self) -> int | None:
        """Wait until everything so far is in the rows; return the number of the last one.

        What comes later has a new pump, so that no row has values of both times. None if the bridge
        closes, or if everybody who asked is gone.

        Raises
        ------
        TimeoutError
            If a thread of the pump hangs: a report of the rows would lack what it has.
        """
        async with self._cutting:
            if self._hand_over.recorded is None:
                # Also while the other exporters hang, earlier metrics are handed over now.
                self.begin()
            if (pump := self._hand_over.recorded) is None:
                return None
            await self._hand_over.flush()
            if self.stop() is None:
                # It was stopped without what was to be handed over.
                return None
            self.begin()
            until = clocks.monotonic() + WRITTEN_WITHIN
            if not await waited(lambda: pump.closed, until):
                raise TimeoutError(
                    f"its telemetry is not in memory after {WRITTEN_WITHIN:g} s, perhaps "
                    "because the operator's function (otel.redact) does not return"
                )
            return None if self.recorder is None else self.recorder.number

    async def settle(self, span_id: str, timeout: float, submitted: bool) -> int | None:
        """Wait until the rows have everything of a span that its client has left; see `cut`.

        After `timeout` seconds, it is shown as still open, as are the spans of others. See
        `SettledSpans.answer`. Of a block with thousands of spans, each is a step of its own.
        """
        # A client without futures has submitted work, too, if it has given them up.
        await self._settled.wait(
            span_id, timeout, submitted or self._adapter.blocks.blocks.awaits(span_id)
        )
        lifecycle = self._adapter.lifecycle
        lifecycle.end(self._settled.tree(span_id), time())
        while lifecycle.behind:
            lifecycle.tick(time(), 1)
            self._hand_over.spans()
            await asyncio.sleep(0)
        self._hand_over.record(self._settled.snapshots(span_id, time()))
        return await self.cut()

"""Sends a worker plugin from the scheduler to the workers, and removes it."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from distributed.core import Status
from distributed.scheduler import Scheduler

from dask_otel._dask.boundary import ErrorBoundary

#: Seconds before the first retry of an unreachable worker; doubled each time.
PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0

#: The longest wait for the workers' answers at the removal of the plugin.
FAREWELL: Final = 1.0

#: Seconds between two checks for a heartbeat.
LOOK: Final = 0.05


#: The last delivery of each scheduler.
_LAST: Final[WeakKeyDictionary[Scheduler, ref[Delivery]]] = WeakKeyDictionary()


class Delivery:
    """A plugin for all present and future workers.

    `plugin` is its pickle; a worker that cannot read it dies at its start. All methods belong to
    the scheduler's event loop. A hanging worker delays only its own delivery.
    """

    def __init__(
        self, scheduler: Scheduler, name: str, plugin: bytes, boundary: ErrorBoundary
    ) -> None:
        self._scheduler = scheduler
        self._boundary = boundary
        self._name = name
        self._plugin = plugin
        self._withdrawn = asyncio.Event()
        #: The last delivery or removal by address.
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def begin(self) -> None:
        """Register the plugin for future workers, and begin to send it to the present ones."""
        _LAST[self._scheduler] = ref(self)
        # Not `register_worker_plugin`, which stops at the first worker that fails.
        self._scheduler.worker_plugins[self._name] = self._plugin
        for address in list(self._scheduler.workers):
            self._under_way[address] = asyncio.ensure_future(self._bring(address))

    async def end(self) -> None:
        """Remove the plugin from the scheduler, and from the workers unless they close as well."""
        if self._withdrawn.is_set():
            return
        self._withdrawn.set()
        scheduler = self._scheduler
        if scheduler.worker_plugins.get(self._name) is not self._plugin:
            # Other code has already removed it, from the workers, too.
            return
        del scheduler.worker_plugins[self._name]
        if scheduler.status in (Status.closing, Status.closed):
            # The workers close, too.
            for task in self._under_way.values():
                task.cancel()
            return
        # A delivery under way also removes it again.
        bringing = {address for address, task in self._under_way.items() if not task.done()}
        for address in scheduler.workers.keys() - bringing:
            self._under_way[address] = asyncio.ensure_future(self._take_back(address))
        if self._under_way:
            # A hanging worker removes it when it continues.
            await asyncio.wait(self._under_way.values(), timeout=FAREWELL)

    async def _bring(self, address: str) -> None:
        pause = PAUSE
        while not await self._sent(address, op="plugin-add", plugin=self._plugin):
            if address not in self._scheduler.workers:
                return
            try:
                await asyncio.wait_for(self._withdrawn.wait(), pause)
            except asyncio.TimeoutError:
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                return
        if self._withdrawn.is_set():
            await self._take_back(address)

    async def _take_back(self, address: str) -> None:
        await self._next_heartbeat(address)
        known = self._name in self._scheduler.worker_plugins
        if address in self._scheduler.workers and not known and _LAST[self._scheduler]() is self:
            # Otherwise, it has left, or another bridge has a plugin with this name, or removes it.
            await self._sent(address, op="plugin-remove")

    async def _next_heartbeat(self, address: str) -> None:
        """Wait until a worker has reported again, or has left.

        A worker that is registering has not yet added the plugins from the answer, and would log a
        traceback at their removal. It sends heartbeats only after adding them.
        """
        workers = self._scheduler.workers
        before = workers[address].last_seen if address in workers else None
        while address in workers and workers[address].last_seen == before:
            await asyncio.sleep(LOOK)

    async def _sent(self, address: str, **message: Any) -> bool:
        """Send a message; return whether the worker has answered."""
        try:
            answers = await self._scheduler.broadcast(
                msg={**message, "name": self._name}, workers=[address], on_error="return"
            )
            answer = answers[address]
            if isinstance(answer, Exception):
                raise answer
            if answer.get("status") != "OK":
                raise RuntimeError(f"{address} answered {answer}")
        except Exception as error:
            if address in self._scheduler.workers:
                self._boundary.failed("worker context")
            return not isinstance(error, OSError)
        return True

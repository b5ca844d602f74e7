"""A worker plugin on its way from the scheduler to the workers, and back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from dask_otel._dask.boundary import Boundary

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: Seconds before a worker that could not be reached is tried again; twice as long each time.
PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0

#: The longest wait for the workers' answers when the plugin is taken back.
FAREWELL: Final = 1.0

#: Seconds between two looks for a heartbeat.
LOOK: Final = 0.05


class Delivery:
    """A plugin for all workers, present and to come.

    Parameters
    ----------
    scheduler
        A running scheduler.
    name
        The plugin's name on the workers.
    plugin
        Its pickle. A worker that can't read it dies at its start.
    boundary
        Where errors end.

    Notes
    -----
    All methods belong to the scheduler's event loop. Nothing waits for a worker: one that stands
    still holds up its own delivery alone.
    """

    def __init__(self, scheduler: Scheduler, name: str, plugin: bytes, boundary: Boundary) -> None:
        self._scheduler = scheduler
        self._boundary = boundary
        self._name = name
        self._plugin = plugin
        self._withdrawn = asyncio.Event()
        #: By address: those who have not answered.
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def begin(self) -> None:
        """Give it to all workers that come, and begin to send it to those that are there."""
        # Not `register_worker_plugin`: it gives up with the first worker that fails.
        self._scheduler.worker_plugins[self._name] = self._plugin
        for address in list(self._scheduler.workers):
            self._start(address, self._bring(address))

    async def end(self) -> None:
        """Take it back from all workers, and leave the scheduler as it was."""
        if self._withdrawn.is_set():
            return
        self._withdrawn.set()
        scheduler = self._scheduler
        if scheduler.worker_plugins.get(self._name) is not self._plugin:
            # Somebody took it off already, from the workers, too.
            return
        del scheduler.worker_plugins[self._name]
        # A task that brings it also takes it back, unless it is done and only not forgotten yet.
        bringing = {address for address, task in self._under_way.items() if not task.done()}
        for address in scheduler.workers.keys() - bringing:
            self._start(address, self._take_back(address))
        if self._under_way:
            # Those that stand still do it when they go on.
            await asyncio.wait(self._under_way.values(), timeout=FAREWELL)

    def drop(self) -> None:
        """Let go at once, at the end of the scheduler: its workers end with it."""
        self._withdrawn.set()
        self._scheduler.worker_plugins.pop(self._name, None)
        for task in self._under_way.values():
            task.cancel()

    def _start(self, address: str, coroutine: Any) -> None:
        task = self._under_way[address] = asyncio.ensure_future(coroutine)

        def forget(done: asyncio.Task[None]) -> None:
            # Another one may be under way by now.
            if self._under_way.get(address) is done:
                del self._under_way[address]

        task.add_done_callback(forget)

    async def _bring(self, address: str) -> None:
        pause = PAUSE
        while not self._withdrawn.is_set():
            if await self._sent(address, op="plugin-add", plugin=self._plugin):
                break
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
        if self._name not in self._scheduler.worker_plugins:
            # Else another bridge has begun, which has the same name for it.
            await self._sent(address, op="plugin-remove")

    async def _next_heartbeat(self, address: str) -> None:
        """Wait until a worker has reported once more, or has left.

        One that is registering has not put on yet what came with the answer, and says so with a
        traceback when that is taken from it. It begins to report when it has.
        """
        workers = self._scheduler.workers
        before = workers[address].last_seen if address in workers else None
        while address in workers and workers[address].last_seen == before:
            await asyncio.sleep(LOOK)

    async def _sent(self, address: str, **message: Any) -> bool:
        """Return whether the worker has answered."""
        try:
            answers = await self._scheduler.broadcast(
                msg={**message, "name": self._name}, workers=[address], on_error="return"
            )
            answer = answers[address]
            if isinstance(answer, Exception):
                if address in self._scheduler.workers:
                    raise answer
                return False
            if answer.get("status") != "OK":
                raise RuntimeError(f"{address} answered {answer}")
        except Exception as error:
            self._boundary.failed("worker context")
            return not isinstance(error, OSError)
        return True

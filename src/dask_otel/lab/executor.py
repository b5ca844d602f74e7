"""Runs tasks on simulated threads, and writes down when each of them ran."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
from collections import UserDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from distributed import Worker
from distributed.spill import SpillBuffer
from distributed.threadpoolexecutor import thread_state

from dask_otel.lab.clock import Machine, present
from dask_otel.lab.threads import Pool

#: Bytes of a worker's process beside its results.
PROCESS: Final = 2**27


@dataclass(eq=False)
class Run:
    """One run of a task, which holds one of its worker's threads; by the simulation's clock."""

    worker: str
    key: Hashable
    start: float
    #: When its code began on a thread.
    began: float = inf
    #: When its code ended, and when its worker's event loop came to know it. Infinite while it
    #: goes on.
    done: float = inf
    stop: float = inf
    #: When it left its thread to others.
    seceded: float = inf


class Disk(UserDict[Hashable, bytearray]):
    """What a worker has written to its disk, in no time."""

    def __setitem__(self, key: Hashable, pieces: Any) -> None:
        super().__setitem__(key, bytearray().join(pieces))


def spilling(room: int) -> SpillBuffer:
    """Return a worker's memory for so many bytes of results; those beyond are on its disk."""
    # Dask's own, but for the files.
    with tempfile.TemporaryDirectory() as unused:
        buffer = SpillBuffer(unused, room)
    buffer.slow.data.d = Disk()
    return buffer


#: The run that the present code belongs to.
RUN: ContextVar[Run | None] = ContextVar("RUN", default=None)


class LabThreadPoolExecutor(Executor):
    """A pool of simulated threads. Dask knows pools of threads by the name of their class."""

    #: See `Loop.run_in_executor`.
    simulated = True

    def __init__(self, pool: Pool, threads: int) -> None:
        self._pool, self._free = pool, threads
        self._work: deque[tuple[Machine, Callable[[], None]]] = deque()
        # What Dask's `secede` and `rejoin` look for.
        self._threads = self
        self._rejoin_list: list[tuple[Any, threading.Event]] = []
        self._rejoin_lock = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ``Executor.submit``."""
        future: Future[Any] = Future()
        run = RUN.get()
        if run is not None and run.began < inf:
            # It is submitted by that run, to get its thread back.
            run = None

        def work() -> None:
            thread_state.executor, thread_state.proceed = self, True
            if run is not None:
                run.began = self._pool.loop.now
            if future.set_running_or_notify_cancel():
                try:
                    result = fn(*args, **kwargs)
                except Exception as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
            if run is not None:
                run.done = self._pool.loop.now
            if thread_state.proceed:
                self._free += 1
            self._adjust_thread_count()

        self._work.append((present(), work))
        self._adjust_thread_count()
        return future

    def remove(self, thread: threading.Thread) -> None:
        """Let a thread leave the pool: `secede` takes it for a set of threads."""
        self._free += 1
        run = RUN.get()
        if run is not None:
            run.seceded = min(run.seceded, self._pool.loop.now)

    def _adjust_thread_count(self) -> None:
        while self._free and (self._rejoin_list or self._work):
            self._free -= 1
            if self._rejoin_list:
                self._rejoin_list.pop(0)[1].set()
            else:
                self._pool.start(*self._work.popleft())

    def shutdown(self, wait: bool = True, **kwargs: Any) -> None:
        """See ``Executor.shutdown``: what runs, runs on."""
        self._work.clear()


class LabWorker(Worker):  # type: ignore[misc]
    """Dask's worker, with its runs written down.

    `delay` returns the seconds that a task has a thread before it begins, by its key.
    """

    def __init__(
        self,
        address: str,
        pool: Pool,
        runs: list[Run],
        nthreads: int,
        delay: Callable[[Hashable], float] = lambda _: 0.0,
        **kw: Any,
    ) -> None:
        own = {"default": LabThreadPoolExecutor(pool, nthreads)}
        super().__init__(address, nthreads=nthreads, executor=own, needs_workdir=False, **kw)
        self.executors["actor"] = LabThreadPoolExecutor(pool, 1)
        self._clock = pool.loop
        self._runs = runs
        self._delay = delay

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Nobody asks it for pages."""

    def _setup_logging(self, *loggers: logging.Logger) -> None:
        """See ``LabScheduler``."""

    async def get_metrics(self) -> dict[str, Any]:
        """See ``Worker``. Dask decides by the memory of a process, which is no real one here."""
        found: dict[str, Any] = await super().get_metrics()
        managed = found["managed_bytes"] - found["spilled_bytes"]["memory"]
        return found | {"memory": PROCESS + managed}

    async def execute(self, key: Hashable, *, stimulus_id: str) -> Any:
        """See ``BaseWorker.execute``."""
        run = Run(str(self.address), key, self._clock.time())
        self._runs.append(run)
        RUN.set(run)
        # Not in Dask's hands yet, which takes the rest for the time of the task.
        if seconds := self._delay(key):
            await asyncio.sleep(seconds)
        try:
            return await super().execute(key, stimulus_id=stimulus_id)
        finally:
            run.stop = self._clock.now
            if run.began == inf:
                # A coroutine, which has no thread.
                run.began, run.done = run.start, run.stop

"""Threads that never hold up the end of the process: the pump's, and those for others' code."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Final, TypeVar

from dask_otel import semconv
from dask_otel._log import logger
from dask_otel.pump.tally import Tally

#: Seconds to rest after an unexpected error.
_AFTER_ERROR: Final = 1.0
#: Seconds for a call of others' code without which the bridge can't run: it may import much.
PATIENCE: Final = 30.0

Made = TypeVar("Made")


def apart(make: Callable[[], Made], name: str) -> Future[Made]:
    """Start a call in a daemon thread of its own; return its future.

    Not in an executor: Python waits for the threads of executors when the process ends, and a call
    may never return.
    """
    future: Future[Made] = Future()
    # From here on, cancelling a task that waits for it does not cancel the call.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(make())
        except BaseException as caught:
            # SystemExit would end the waiting thread; a future does not accept StopIteration.
            plain = isinstance(caught, Exception) and not isinstance(caught, StopIteration)
            future.set_exception(caught if plain else RuntimeError(repr(caught)))

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def promptly(make: Callable[[], Made]) -> Made:
    """Return the result of others' code, which may hang: it gets `PATIENCE` seconds.

    Raises
    ------
    TimeoutError
        If it has not returned by then.
    """
    future = apart(make, "dask-otel-foreign")
    if not wait([future], PATIENCE).done:
        raise TimeoutError(f"it did not return within {PATIENCE:g} s")
    return future.result()


class PumpThread(ABC):
    """A thread that works until its close is requested, then finishes, and releases what it has.

    Parameters
    ----------
    name
        The thread's name.
    kind
        Its name in the log, and the label of its unexpected errors.
    tally
        Counts these errors.
    wake
        Wakes the thread.
    """

    def __init__(self, name: str, kind: str, tally: Tally, wake: threading.Event) -> None:
        self.wake = wake
        #: Set when everything is exported, stored or counted, and when the thread ends.
        self.settled = threading.Event()
        self.closed = threading.Event()
        #: On the monotonic clock; None until closing.
        self.deadline: float | None = None
        self._kind = kind
        self._tally = tally
        self._logged: set[str] = set()
        # A daemon: if it hangs in an exporter or on a disk, the process must still end.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self, deadline: float) -> None:
        """Ask it to finish before the deadline; returns at once."""
        self.deadline = deadline
        self.wake.set()

    @abstractmethod
    def work(self) -> float:
        """Do the due work; return the seconds until there may be more."""

    @abstractmethod
    def finish(self) -> float | None:
        """Do the remaining work before the deadline."""

    @abstractmethod
    def release(self) -> float | None:
        """Release its resources, after the end of the work."""

    @abstractmethod
    def abandon(self) -> None:
        """Give up the rest. Called by another thread if this one hangs."""

    def _run(self) -> None:
        try:
            while self.deadline is None:
                self.wake.wait(self._guarded(self.work))
                self.wake.clear()
            self._guarded(self.finish)
            self.settled.set()
            self._guarded(self.release)
        finally:
            self.settled.set()
            self.closed.set()

    def _guarded(self, call: Callable[[], float | None]) -> float:
        try:
            return call() or 0.0
        except BaseException as error:
            self._swallow(error)
            return _AFTER_ERROR

    def _swallow(self, error: BaseException) -> None:
        """Count an unexpected error, and log the first one of its type; never raises."""
        # If memory has run out, this can fail too, and the thread must survive.
        with suppress(Exception):
            self._tally.add(semconv.OTEL_INTERNAL_ERRORS.name, self._kind)
            name = type(error).__name__
            if name not in self._logged:
                self._logged.add(name)
                logger.warning("dask-otel caught an error in its %s", self._kind, exc_info=error)

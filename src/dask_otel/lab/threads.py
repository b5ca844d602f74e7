"""Threads in simulated time.

They are real threads of Python, but only one runs at a moment: the loop hands over to a thread, and
goes on when it sleeps, waits or ends. So tasks may do what they like: sleep, secede, submit tasks
and wait for them. Waiting works for all that builds on ``threading.Condition``: events, queues,
``concurrent.futures``. A lock that another thread holds while it sleeps is a deadlock.
"""

from __future__ import annotations

import threading
import time
from _thread import LockType, allocate_lock
from collections.abc import Callable
from contextvars import Context
from typing import Any

from dask_otel.lab.clock import Loop, Machine

_local = threading.local()


def here() -> Thread | None:
    """Return the simulated thread that runs this code; None for a loop or a real one."""
    return getattr(_local, "thread", None)


class Killed(BaseException):
    """Its machine is gone; ends the thread's code at the end of a simulation."""


class Thread:
    """Runs one function; use `start`."""

    def __init__(self, pool: Pool, machine: Machine, call: Callable[[], Any]) -> None:
        self.machine = machine
        self.loop = machine.loop
        #: Seconds of the CPU that it used.
        self.cpu = 0.0
        self.ended = False
        self._pool = pool
        self._call = call
        self._killed = False
        self._go, self.back = allocate_lock(), allocate_lock()
        self._go.acquire()
        self.back.acquire()

    def resume(self) -> None:
        """Hand over to the thread until it sleeps, waits or ends. Belongs to the loop."""
        machine = self.machine
        if self.ended or not (machine.alive or self._killed):
            return
        if machine.stopped > self.loop.now + 1e-9:
            self.loop.call_at(machine.stopped, self.resume, context=Context())
            return
        self._go.release()
        self.back.acquire()

    def kill(self) -> None:
        """End its code wherever it is. Belongs to the loop."""
        while not self.ended:
            self._killed = True
            self.machine.stopped = 0.0
            self.resume()

    def sleep(self, seconds: float) -> None:
        """Let others run for so long. Belongs to the thread, like the following ones."""
        self.loop.call_later(max(0.0, seconds), self.resume, context=Context())
        self._hand_back()

    def wait(self, seconds: float | None) -> None:
        """Let others run until one of them calls `wake`, or for so long."""
        timer = None if seconds is None else self.loop.call_later(
            seconds, self.wake, context=Context()
        )  # fmt: skip
        self._pool.waiting[self] = False
        self._hand_back()
        if timer is not None:
            timer.cancel()

    def wake(self) -> None:
        """Let the thread go on as soon as nothing more is to be done at this moment."""
        if self in self._pool.waiting:
            self._pool.waiting[self] = self._pool.woken = True

    def _hand_back(self) -> None:
        self.back.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def run(self) -> None:
        """Run its function on the present real thread."""
        _local.thread = self
        self._go.acquire()
        try:
            if not self._killed:
                self.machine.run(self._call)
        except Killed:
            pass
        finally:
            _local.thread = None
            self.ended = True
            self._pool.ended(self)


class Pool:
    """The threads of one simulation."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        #: Threads that wait for something, and whether that is over; and whether it is for one.
        self.waiting: dict[Thread, bool] = {}
        self.woken = False
        self._live: dict[Thread, None] = {}
        #: Real threads without work, and what they are to run.
        self._free: list[tuple[LockType, list[Thread]]] = []
        self._real: list[threading.Thread] = []
        loop.looks.append(self._look)

    def start(self, machine: Machine, call: Callable[[], Any]) -> Thread:
        """Start a thread on a machine: it begins at once, when the loop comes to it."""
        thread = Thread(self, machine, call)
        self._live[thread] = None
        if self._free:
            lock, box = self._free.pop()
            box.append(thread)
            lock.release()
        else:
            box = [thread]
            real = threading.Thread(target=self._work, args=(box,), name="lab", daemon=True)
            self._real.append(real)
            # It waits in real time until the thread is there.
            starter, _local.thread = here(), None
            real.start()
            _local.thread = starter
        # After what the present callback has slept.
        self.loop.call_at(self.loop.time(), thread.resume, context=Context())
        return thread

    def close(self) -> None:
        """End all threads."""
        self.loop.looks.remove(self._look)
        while self._live:
            next(iter(self._live)).kill()
        for lock, _ in self._free:
            lock.release()
        for real in self._real:
            real.join()

    def ended(self, thread: Thread) -> None:
        """Forget a thread that has ended."""
        del self._live[thread]

    def _work(self, box: list[Thread]) -> None:
        lock = allocate_lock()
        lock.acquire()
        while box:
            thread = box.pop()
            thread.run()
            self._free.append((lock, box))
            thread.back.release()
            lock.acquire()

    def _look(self) -> bool:
        """Resume those whose wait is over; return whether there was one."""
        if not self.woken:
            return False
        self.woken = False
        over = [one for one, is_over in self.waiting.items() if is_over and one.machine.alive]
        for one in over:
            del self.waiting[one]
            one.resume()
        return bool(over)


def burn(seconds: float) -> None:
    """Compute for so many seconds: like sleep, and on the clock of the CPU, too."""
    thread = here()
    time.sleep(seconds)
    if thread is not None:
        thread.cpu += seconds * thread.machine.slowness

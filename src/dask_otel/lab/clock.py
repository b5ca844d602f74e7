"""Machines with clocks of their own, and the event loop whose clock jumps.

A machine is what a process and its computer are in reality: a scheduler, a worker, a client. The
context variable `MACHINE` says on which machine code runs; asyncio hands it on to all callbacks and
tasks that the code begins, so a server that is started on a machine stays there. `time.time` and
the other clocks of Python show the time of that machine, and the real time elsewhere.

When no callback is ready, the loop sets its clock to the time of the next timer. Timers of one
moment run in the order in which they were set.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: The wall clock at the start of a simulation: early in 1970, when its floats have steps of 0.5 ns.
EPOCH: Final = 2.0**21


class Stuck(RuntimeError):
    """Nothing can happen any more, or too much time has passed."""


@dataclass(eq=False)
class Machine:
    """A process on a computer of its own."""

    name: str
    loop: Loop
    #: Seconds by which its wall clock is ahead of the simulation's; may be set at any time.
    shift: float = 0.0
    #: Its tasks take so many times as long.
    slowness: float = 1.0
    #: A killed machine does nothing any more.
    alive: bool = True
    #: Until when its event loop is blocked, and until when its threads are stopped too.
    blocked: float = 0.0
    stopped: float = 0.0
    #: What its event loop will do then.
    waiting: deque[asyncio.Handle] = field(default_factory=deque)

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function on this machine; what it begins stays here."""
        context = copy_context()
        context.run(MACHINE.set, self)
        return context.run(function, *args, **kwargs)

    def block(self, seconds: float) -> None:
        """Block its event loop, as code does that holds it; its threads go on."""
        self._block_until(max(self.blocked, self.loop.now + seconds))

    def stop(self, seconds: float) -> None:
        """Stop the whole process for a while, as SIGSTOP does; a swapping computer, too."""
        self.stopped = max(self.stopped, self.loop.now + seconds)
        self._block_until(max(self.blocked, self.stopped))

    def _block_until(self, time: float) -> None:
        self.blocked = time
        self.loop.call_at(time, self._go_on, time, context=Context())

    def _go_on(self, time: float) -> None:
        # Timers come up to a nanosecond early.
        if time >= self.blocked:
            self.blocked = 0.0
            self.loop._ready.extend(self.waiting)  # type: ignore[attr-defined]
            self.waiting = deque()


#: The machine on which the present code runs.
MACHINE: ContextVar[Machine | None] = ContextVar("MACHINE", default=None)


def present() -> Machine:
    """Return the machine of code that only runs on one."""
    machine = MACHINE.get()
    assert machine is not None
    return machine


class _Handle(asyncio.Handle):
    """A callback, which runs where it was made, if that machine is at work."""

    __slots__ = ()
    _cancelled: bool
    _context: Context
    _loop: Loop

    def _run(self) -> None:
        machine, loop = self._context.get(MACHINE), self._loop
        if self._cancelled:
            return
        if machine is None:
            super()._run()
        elif machine.alive:
            if machine.blocked > loop.now:
                machine.waiting.append(self)
                return
            super()._run()
            if loop.ahead:
                seconds, loop.ahead = loop.ahead, 0.0
                machine.block(seconds)


class _Timer(_Handle, asyncio.TimerHandle):
    """A callback that runs at a time."""

    __slots__ = ()


class Loop(asyncio.BaseEventLoop):
    """An event loop in simulated time. Without file descriptors, threads or signals.

    Parameters
    ----------
    seed
        Of all random numbers and ids on its machines.
    longest
        Simulated seconds after which the simulation is given up.
    """

    def __init__(self, seed: int = 0, longest: float = 100_000.0) -> None:
        super().__init__()
        #: Seconds since the start. A small number, so that sums of durations stay exact.
        self.now = 0.0
        #: Seconds that the present callback has slept: it blocks its event loop for so long.
        self.ahead = 0.0
        self.longest = longest
        self.random = random.Random(seed)
        #: Called whenever no more is to be done at a moment; return whether they did something.
        self.looks: list[Callable[[], bool]] = []
        #: Timers; those of one moment in the order in which they were set.
        self._scheduled: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()
        self._cancelled = 0

    def time(self) -> float:
        """Return the seconds since the start."""
        return self.now + self.ahead

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """See ``asyncio.loop.call_soon``: as often as all else together, so without its checks."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    # It never waits, so that it need not be woken.
    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See ``asyncio.loop.call_at``."""
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, (when, next(self._numbers), timer))
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function on a simulated thread; functions for a real thread run at once."""
        if getattr(executor, "simulated", False):
            assert executor is not None
            return asyncio.wrap_future(executor.submit(func, *args), loop=self)
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    # What is another one in BaseEventLoop, and what that asks of its children.

    def _run_once(self) -> None:
        """Run what is ready; if that is nothing, let the time pass until the next timer."""
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        timers = self._scheduled
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        is_due = ready or self._stopping or (timers and timers[0][0] <= self.now)  # type: ignore[attr-defined]
        if not (is_due or sum([look() for look in self.looks])):
            if not timers:
                raise Stuck("nothing is left to happen, and somebody waits")
            if self.now > self.longest:
                raise Stuck(f"{self.longest:g} simulated seconds have passed")
            self.now = timers[0][0]
        # Below the steps of the wall clock: who waits for it in such a step must see it go on.
        while timers and timers[0][0] < self.now + 1e-10:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            ready.popleft()._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Drop cancelled timers when they may be most: a wait that ends early leaves one."""
        self._cancelled += 1
        if self._cancelled > max(100, len(self._scheduled) / 2):
            self._cancelled = 0
            self._scheduled[:] = [one for one in self._scheduled if not one[2]._cancelled]
            heapq.heapify(self._scheduled)

"""Python's clocks, `sleep`, ids and waiting, for code on simulated machines."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from typing import Any, TypeVar

from dask_otel.lab.clock import EPOCH, MACHINE, Machine
from dask_otel.lab.threads import Thread, here

T = TypeVar("T")


def install() -> None:
    """Replace Python's clocks, `sleep`, ids and waiting by ones that know the machines.

    Elsewhere they do what they did. `distributed` binds them by name, so it must not be imported
    yet. A second call does nothing.
    """
    if hasattr(time.sleep, "__wrapped__"):
        return
    if "distributed" in sys.modules:
        raise ImportError("call lab.install() before `distributed` is imported")
    for name, clock in {
        "time": _wall,
        "monotonic": _steady,
        "perf_counter": _steady,
        "thread_time": _used,
        "process_time": _used,
    }.items():
        _patch(time, name, clock)
        _patch(time, f"{name}_ns", _nanoseconds(clock))
    for name in ("uuid1", "uuid4"):
        _patch(uuid, name, _drawn)
    time.sleep = _sleep(time.sleep)  # type: ignore[assignment]
    threading.Condition.wait = _wait(threading.Condition.wait)  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = _submit(ThreadPoolExecutor.submit)  # type: ignore[method-assign]


def _patch(module: Any, name: str, simulated: Callable[[Machine], object]) -> None:
    real, known = getattr(module, name), MACHINE.get

    @wraps(real)
    def function(*args: Any, **kwargs: Any) -> object:
        machine = known()
        return real(*args, **kwargs) if machine is None else simulated(machine)

    setattr(module, name, function)


def _wall(machine: Machine) -> float:
    return EPOCH + machine.loop.time() + machine.shift


def _steady(machine: Machine) -> float:
    return machine.loop.time()


def _nanoseconds(clock: Callable[[Machine], float]) -> Callable[[Machine], int]:
    return lambda machine: round(clock(machine) * 1e9)


def _used(_: Machine) -> float:
    thread = here()
    return 0.0 if thread is None else thread.cpu


def _drawn(machine: Machine) -> uuid.UUID:
    return uuid.UUID(int=machine.loop.random.getrandbits(128), version=4)


def _sleep(real: Callable[..., None]) -> Callable[[float], None]:
    @wraps(real)
    def sleep(seconds: float, /) -> None:
        machine, thread = MACHINE.get(), here()
        if machine is None:
            real(seconds)
        elif thread is None:
            # It blocks the event loop.
            machine.loop.ahead += seconds
        else:
            thread.sleep(seconds * machine.slowness)

    return sleep


def _wait(real: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(real)
    def wait(self: Any, timeout: float | None = None) -> bool:
        thread = here()
        if thread is None or MACHINE.get() is None:
            return real(self, timeout)
        waiter = _Waiter(thread)
        self._waiters.append(waiter)
        state = self._release_save()
        try:
            thread.wait(timeout)
        finally:
            self._acquire_restore(state)
        if not waiter.released:
            self._waiters.remove(waiter)
        return waiter.released

    return wait


class _Waiter:
    """What a condition knows of a simulated thread that waits: it is released like a lock."""

    def __init__(self, thread: Thread) -> None:
        self.released = False
        self._thread = thread

    def release(self) -> None:
        self.released = True
        self._thread.wake()


def _submit(real: Callable[..., Future[T]]) -> Callable[..., Future[T]]:
    @wraps(real)
    def submit(self: Any, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if here() is None:
            return real(self, fn, *args, **kwargs)
        # At once: a real thread takes real time, and waits for locks that a simulated one holds.
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    return submit

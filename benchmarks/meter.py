"""What runs in the scheduler's process to measure the bridge there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_spent = [0, 0]  # ns, calls
_threads_before: set[str] = set()


def _metered(call: Callable[..., Any]) -> Callable[..., Any]:
    clock = time.thread_time_ns

    def metered(*args: Any, **kwargs: Any) -> Any:
        began = clock()
        try:
            return call(*args, **kwargs)
        finally:
            _spent[0] += clock() - began
            _spent[1] += 1

    return metered


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def overhead() -> float:
    """Return the nanoseconds that metering one call adds to what it measures."""
    metered = _metered(_nothing)
    best = float("inf")
    for _ in range(20):
        _spent[:] = [0, 0]
        for _ in range(5000):
            metered("key", "waiting", "processing", stimulus_id="x")
        best = min(best, _spent[0] / _spent[1])
    _spent[:] = [0, 0]
    return best


def meter_entries() -> None:
    """Meter every way by which Dask or the loop enters the bridge, from now on."""
    from dask_otel._dask import SchedulerAdapter
    from dask_otel._dask_time import ThreadTime
    from dask_otel.bridge import Bridge
    from dask_otel.scheduler import OtelSchedulerPlugin

    for owner, names in (
        (SchedulerAdapter, ("transition", "_heartbeat", "_observed", "_collisions")),
        (ThreadTime, ("_cut", "_reported")),
        (Bridge, ("_tick", "_hand_over_metrics")),
        (OtelSchedulerPlugin, ("log_event",)),
    ):
        for name in names:
            if name in vars(owner):
                setattr(owner, name, _metered(getattr(owner, name)))


def install(dask_scheduler: Any, overrides: dict[str, Any] | None = None) -> None:
    """Put the bridge on the scheduler."""
    from dask_otel.scheduler import install as put

    _threads_before.update(os.listdir("/proc/self/task"))
    put(dask_scheduler, overrides)


async def uninstall(dask_scheduler: Any) -> None:
    """Take it off, and export what is left."""
    from dask_otel.scheduler import uninstall as take_off

    await take_off(dask_scheduler)


def naive_on(dask_scheduler: Any) -> None:
    """Put the naive peer on the scheduler."""
    from benchmarks import naive

    naive.install(dask_scheduler)


def naive_off(dask_scheduler: Any) -> None:
    """Take it off."""
    from benchmarks import naive

    naive.uninstall(dask_scheduler)


def connected(dask_scheduler: Any) -> bool:
    """Whether the bridge has its exporters."""
    from dask_otel.scheduler import plugin_of

    plugin = plugin_of(dask_scheduler)
    return plugin is not None and plugin.bridge is not None and plugin.bridge._pump is not None


def idle(dask_scheduler: Any) -> bool:
    """Whether all tasks are forgotten."""
    return not dask_scheduler.tasks


def cpu() -> float:
    """Return the process's CPU seconds, all threads."""
    return time.process_time()


def reading() -> dict[str, float]:
    """Return CPU seconds: of the process, metered calls, and threads that came with the bridge."""
    threads = 0
    for thread in set(os.listdir("/proc/self/task")) - _threads_before:
        try:
            threads += int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
        except OSError:
            continue
    return {"cpu": cpu(), "loop": _spent[0] / 1e9, "calls": _spent[1], "threads": threads / 1e9}

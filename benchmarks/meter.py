"""Functions that run in the scheduler's process, to measure the bridge there."""

from __future__ import annotations

import time
from typing import Any


def install(dask_scheduler: Any, overrides: dict[str, Any] | None = None) -> None:
    """Put the bridge on the scheduler."""
    from dask_otel.scheduler.plugin import install as put

    put(dask_scheduler, overrides)


async def uninstall(dask_scheduler: Any) -> None:
    """Take it off, and export the rest."""
    from dask_otel._wire import uninstall as take_off

    await take_off(dask_scheduler)


def _pump(dask_scheduler: Any) -> Any:
    from dask_otel.scheduler.plugin import plugin_of

    plugin = plugin_of(dask_scheduler)
    return plugin and plugin.bridge and plugin.bridge.wired and plugin.bridge.wired.pump


def connected(dask_scheduler: Any) -> bool:
    """Whether the bridge has its exporters."""
    return _pump(dask_scheduler) is not None


def exported(dask_scheduler: Any) -> bool:
    """Whether the bridge, if there is one, has nothing left to export."""
    pump = _pump(dask_scheduler)
    if pump is None:
        return True
    adapter = dask_scheduler.plugins["dask-otel"].bridge.adapter
    return not adapter.lifecycle.open and not any(lane.size for lane in pump._spans)


def idle(dask_scheduler: Any) -> bool:
    """Whether all tasks are forgotten."""
    return not dask_scheduler.tasks


def busy(dask_scheduler: Any) -> bool:
    """Whether a worker has a task."""
    return any(ws.processing for ws in dask_scheduler.workers.values())


def cpu() -> float:
    """Return the process's CPU seconds, all threads."""
    return time.process_time()

"""What runs in the scheduler's process to measure the bridge there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_log: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
_tasks: dict[Any, _Task] = {}
_threads_before: set[str] = set()


def _recorded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        _log.append((name, args, kwargs))
        return call(self, *args, **kwargs)

    return recorded


def record_entries() -> None:
    """Write down every call that enters the bridge, from now on."""
    from dask_otel._dask import SchedulerAdapter
    from dask_otel._dask_time import ThreadTime
    from dask_otel.bridge import Bridge

    for owner, names in (
        (SchedulerAdapter, ("transition", "_heartbeat", "log_event")),
        (ThreadTime, ("_cut",)),
        (Bridge, ("_tick", "_hand_over_metrics")),
    ):
        for name in names:
            setattr(owner, name, _recorded(name, getattr(owner, name)))


class _Task:
    """A task as it was while it was in processing."""

    has_lost_dependencies = False
    exception_blame = None
    exception_text = None
    who_wants = waiters = True

    def __init__(self, group: Any, processing_on: Any) -> None:
        self.group = group
        self.processing_on = processing_on


class _Scheduler:
    """The scheduler, with the tasks of the recording."""

    def __init__(self, scheduler: Any, tasks: dict[Any, _Task]) -> None:
        self._scheduler = scheduler
        self.tasks = tasks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


def keep_tasks(dask_scheduler: Any) -> None:
    """Keep what a replay needs of the tasks, while the scheduler still knows them."""
    _tasks.clear()
    for name, args, kwargs in _log:
        if name == "transition" and args[2] == "memory":
            group = dask_scheduler.tasks[args[0]].group
            _tasks[args[0]] = _Task(group, dask_scheduler.workers[kwargs["worker"]])


def replay(dask_scheduler: Any, times: int = 5) -> dict[str, float]:
    """Replay the recording into fresh adapters; return its CPU seconds, the best of some times."""
    from dask_otel._dask import SchedulerAdapter
    from dask_otel.bridge import ErrorBoundary
    from dask_otel.core.spans import Limits

    calls = [call for call in _log if call[0] != "log_event"]
    workers = dask_scheduler.workers
    best: dict[str, float] = {"seconds": float("inf")}
    for _ in range(times):
        boundary = ErrorBoundary()
        adapter = SchedulerAdapter(_Scheduler(dask_scheduler, _tasks), Limits(), boundary)
        for ws in workers.values():
            adapter.time.worker_added(ws)
            adapter._first_report(ws.address)
        seconds = _run(calls, adapter) - _run(calls, None)
        errors = boundary.take()
        if errors:
            raise RuntimeError(f"the replay failed: {errors}")
        if seconds < best["seconds"]:
            best = {"seconds": seconds, "calls": len(calls), "tasks": len(_tasks)}
    _log.clear()
    return best


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _run(calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]], adapter: Any) -> float:
    """Make all calls; without an adapter, to a function that does nothing."""
    table: dict[str, Callable[..., Any]] = dict.fromkeys(
        ("transition", "_heartbeat", "_cut", "_tick", "_hand_over_metrics"), _nothing
    )
    if adapter is not None:
        table = {
            "transition": adapter.transition,
            "_heartbeat": adapter._heartbeat,
            "_cut": adapter.time._cut,
            "_tick": lambda: adapter.lifecycle.tick(time.time()),
            "_hand_over_metrics": lambda: adapter.swap(time.time_ns()),
        }
    began = time.thread_time()
    for name, args, kwargs in calls:
        table[name](*args, **kwargs)
    return time.thread_time() - began


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
    """Return CPU seconds: of the process, and of threads that came with the bridge."""
    threads = 0
    for thread in set(os.listdir("/proc/self/task")) - _threads_before:
        try:
            threads += int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
        except OSError:
            continue
    return {"cpu": cpu(), "threads": threads / 1e9}

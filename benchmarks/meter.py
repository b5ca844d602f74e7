"""Functions that run in the scheduler's process, to measure the bridge there."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_recorder: Any = None
_threads_before: set[str] = set()


def record(dask_scheduler: Any) -> None:
    """Record every call of the bridge from now on."""
    from benchmarks.recording import Recorder

    global _recorder
    _recorder = Recorder(dask_scheduler)
    _recorder.tick_for_ever()


def begin_recording() -> None:
    """Discard the calls so far."""
    _recorder.clear()


def replay(
    dask_scheduler: Any, overrides: dict[str, Any] | None = None, times: int = 5
) -> dict[str, float]:
    """Replay the recording into fresh bridges; return its CPU seconds, the best of some times."""
    from benchmarks.recording import Replay

    _recorder.finish()
    took: list[float] = []
    for _ in range(times):
        took.append(0.0)
        for bridged, sign in ((True, 1), (False, -1)):
            run = Replay(dask_scheduler, _recorder, bridged, overrides)
            began = time.thread_time()
            run.run()
            took[-1] += sign * (time.thread_time() - began)
            run.check()
    best = {"seconds": min(took), "calls": len(_recorder.calls)}
    _recorder.clear()
    return best


def install(dask_scheduler: Any, overrides: dict[str, Any] | None = None) -> None:
    """Put the bridge on the scheduler."""
    from dask_otel.scheduler.plugin import install as put

    _threads_before.update(os.listdir("/proc/self/task"))
    put(dask_scheduler, overrides)


async def uninstall(dask_scheduler: Any) -> None:
    """Take it off, and export the rest."""
    from dask_otel._wire import uninstall as take_off

    await take_off(dask_scheduler)


async def tracing_on(dask_worker: Any) -> None:
    """Put the worker plugin of dask-opentelemetry on a worker, or put it back."""
    kept = vars(dask_worker).get("benchmark_tracing")
    if kept is not None:
        dask_worker.plugins["benchmark-tracing"] = kept
        return
    from dask_opentelemetry import TaskTracingPlugin

    dask_worker.benchmark_tracing = plugin = TaskTracingPlugin()
    answer = await dask_worker.plugin_add(plugin=plugin, name="benchmark-tracing")
    if answer["status"] != "OK":
        raise RuntimeError(answer["exception_text"])


def tracing_off(dask_worker: Any) -> None:
    """Take it off; its provider stays, with nothing to do."""
    dask_worker.plugins.pop("benchmark-tracing", None)


def _pump(dask_scheduler: Any) -> Any:
    from dask_otel.scheduler.plugin import plugin_of

    plugin = plugin_of(dask_scheduler)
    return plugin and plugin.bridge and plugin.bridge._pump


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


def cpu() -> float:
    """Return the process's CPU seconds, all threads."""
    return time.process_time()


def reading() -> dict[str, float]:
    """Return CPU seconds: of the process, and of threads that came with the bridge."""
    threads = 0
    for thread in set(os.listdir("/proc/self/task")) - _threads_before:
        with suppress(OSError):
            threads += int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
    return {"cpu": cpu(), "threads": threads / 1e9}

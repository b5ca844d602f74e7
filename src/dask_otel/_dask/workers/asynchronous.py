"""Asynchronous tasks, which run on a worker's event loop: where in their code they are."""

from __future__ import annotations

from collections.abc import Iterable
from traceback import walk_stack
from typing import Any, Final

from distributed import worker as dask_worker
from distributed.worker import Worker

from dask_otel.core.profiles.frames import innermost

#: Dask's function that awaits a task; None if it is renamed.
_BASE: Final = getattr(getattr(dask_worker, "_run_task_async", None), "__code__", None)


def add_asynchronous(
    worker: Worker, keys: Iterable[Any], running: dict[Any, Any], frames: dict[Any, Any]
) -> None:
    """Add the asynchronous ones of these tasks, as if each had a thread, which has a name.

    Called in any thread; `running` has the keys of all threads' tasks, `frames` their frames.
    """
    names = {f"execute({key!r})": key for key in keys}
    on_loop = [frame for frame, _ in walk_stack(frames.get(worker.thread_id))]
    for one in worker._async_instructions.copy():
        if (name := one.get_name()) in names:
            running[name], frames[name] = names[name], innermost(one.get_coro(), on_loop, _BASE)

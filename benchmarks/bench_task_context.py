"""CPU of trace context on a worker: a task, and what Dask's plugins cost it."""

from __future__ import annotations

import asyncio
import gc
import pickle
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

from distributed.worker_state_machine import WorkerState

from benchmarks.results import least
from dask_otel._dask.workers.execution import within_contexts
from dask_otel.core.context import DECISION_KEY, Traceparent, format_traceparent
from dask_otel.worker.plugin import TaskContext, TaskContextPlugin

TASKS = 4000
REPEAT = 200
#: Transitions of one task on a worker; Dask calls every plugin at each.
TRANSITIONS = 6

ANNOTATIONS = {"span": {"name": ("etl", "load"), "ids": ("3f0c6d5e-root", "9a4b1c2d-own")}}
DECIDED = {**ANNOTATIONS, DECISION_KEY: format_traceparent(Traceparent(7, 8, 1))}


class Worker:
    """A worker that does nothing."""

    def __init__(self, annotations: dict[str, Any]) -> None:
        # Each task has texts of its own, as they come over the network.
        each = pickle.dumps(annotations)
        tasks = {
            f"k-{i}": SimpleNamespace(key=f"k-{i}", annotations=pickle.loads(each), span_id="own")
            for i in range(TASKS)
        }
        self.state = SimpleNamespace(tasks=tasks)
        self.handlers = {"actor_execute": self.execute}
        self.executors = {"actor": SimpleNamespace(submit=None)}
        self.executors["actor"].submit = lambda call: call

    def hook(self, context: TaskContext) -> None:
        """Add the hooks of trace context."""
        worker: Any = self
        within_contexts(worker, context.enter, context.leave, context.carried)

    async def execute(self, key: str, *, stimulus_id: str) -> str:
        return key


async def run_all(worker: Any) -> float:
    """Run all tasks; return microseconds of CPU a task."""
    execute = worker.execute
    keys = list(worker.state.tasks)
    start = time.process_time()
    for key in keys:
        await execute(key, stimulus_id="s")
    return (time.process_time() - start) / len(keys) * 1e6


def task(annotations: dict[str, Any]) -> float:
    """Microseconds of CPU that the hooks add to a task; the least of many runs."""
    bare, hooked = [], []
    for _ in range(REPEAT):
        worker = Worker(annotations)
        gc.collect()
        gc.disable()
        bare.append(asyncio.run(run_all(worker)))
        worker.hook(TaskContext())
        hooked.append(asyncio.run(run_all(worker)))
        gc.enable()
    return min(hooked) - min(bare)


def transitions() -> float:
    """Microseconds of CPU a task in which Dask calls a plugin that has nothing to do."""

    def cost(plugins: dict[str, Any]) -> float:
        notify = partial(WorkerState._notify_plugins, SimpleNamespace(plugins=plugins))
        return least(lambda: notify("transition", "key", "waiting", "ready"), TASKS, REPEAT)

    return TRANSITIONS * (cost({"context": TaskContextPlugin()}) - cost({}))

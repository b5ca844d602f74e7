"""Row 9: trace context and task spans, part by part: scheduler, worker, client.

Parts cost tenths of microseconds a task, which no A/B on a shared machine shows. So instructions
are counted, as in row 1, with all parts and with one of them switched off or on; and the hooks of
worker and client are timed alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Final

from benchmarks import bench_submission, bench_task_context
from benchmarks.instructions import TASKS, count, counted, run_tasks, write_sum
from benchmarks.recording import Recorder, Replay
from benchmarks.results import Row, verdict
from benchmarks.simulated import SimulatedCluster
from dask_otel._dask.workers.execution import Execution
from dask_otel.core.context import CARRIER_KEY, Caller, Traceparent, make_carrier
from dask_otel.worker.logs import injection
from dask_otel.worker.plugin import TaskContext

#: Microseconds a task on a worker.
LIMIT: Final = 1.5

#: What is measured on the scheduler: whether the work has a caller, and the bridge's configuration.
PARTS: Final[dict[str, tuple[bool, dict[str, Any]]]] = {
    "no caller, no task spans": (False, {"spans": {"tasks": {"max": 0}}}),
    "a caller, adopted": (True, {"spans": {"tasks": {"max": 0}}}),
    "a caller, propagation off": (True, {"propagation": "off", "spans": {"tasks": {"max": 0}}}),
    "failed and slowest task": (False, {}),
    "1 % of the tasks, too": (False, {"spans": {"tasks": {"ratio": 0.01}}}),
}
#: And on a worker: what the scheduler decided of its tasks, and how the hooks are set.
WORKER: Final[dict[str, dict[str, Any]]] = {
    "context": {},
    "context, and fields of log records": {"inject": True},
    "context, and 1 % of the tasks chosen": {"ratio": 0.01},
}


def _replay(cluster: SimulatedCluster, recorder: Recorder, settings: dict[str, Any] | None) -> None:
    # Collections of garbage are counted as they come, without what was there before.
    gc.collect()
    gc.freeze()
    run = Replay(cluster.scheduler, recorder, settings is not None, settings)
    count(run.run)
    write_sum()
    run.check()


def _carry(recorder: Recorder, carrier: dict[str, str] | None) -> None:
    """Let the recorded tasks come with a caller's context, or without one."""
    submitted = [
        task for call in recorder.calls if call.kind == "submission" for task in call.args[0]
    ]
    for task in [*recorder.tasks.values(), *submitted]:
        task.annotations.pop(CARRIER_KEY, None)
        if carrier is not None:
            task.annotations[CARRIER_KEY] = carrier


async def _scheduler(tasks: int) -> None:
    """Count a bare replay, and one with each part, after a first one of each that warms up."""
    cluster = SimulatedCluster(2)
    await cluster.start()
    cluster.scheduler.WORKER_SATURATION = 1.1
    recorder = Recorder(cluster.scheduler)
    run_tasks(cluster, tasks)
    recorder.finish()
    caller = make_carrier(Caller(Traceparent(7, 8, 1)))
    for _ in range(2):
        _replay(cluster, recorder, None)
        for with_caller, settings in PARTS.values():
            _carry(recorder, caller if with_caller else None)
            _replay(cluster, recorder, settings)
    await cluster.close()


def _worker() -> None:
    """Count tasks on a bare worker, and on one with each kind of hooks."""
    cases: list[dict[str, Any] | None] = [None, *WORKER.values()]
    for settings in [*cases, *cases]:
        worker: Any = bench_task_context.Worker(bench_task_context.DECIDED)
        inject = False
        if settings is not None:
            context = TaskContext()
            context.contexts.ratio = settings.get("ratio", 0.0)
            inject = settings.get("inject", False)
            Execution(worker, context).attach()
        if inject:
            injection.add()
        gc.collect()
        run: Callable[[], object] = lambda worker=worker: asyncio.run(  # noqa: E731
            bench_task_context._run_all(worker)
        )
        count(run)
        write_sum()
        if inject:
            injection.remove()


def measure(tasks: int = TASKS) -> dict[str, dict[str, float]]:
    """Return instructions per task that each part adds, on the scheduler and on a worker.

    Raises
    ------
    RuntimeError
        If there is no valgrind on this machine, or it could not run the program.
    """
    told, sums = counted("benchmarks.context", tasks)
    on_scheduler, on_worker = 1 + len(PARTS), 1 + len(WORKER)
    if len(sums) != 2 * (on_scheduler + on_worker) or not all(sums):
        raise RuntimeError(f"callgrind wrote {len(sums)} sums")
    bare, *parts = sums[on_scheduler : 2 * on_scheduler]
    alone, *hooked = sums[-on_worker:]
    return {
        "scheduler": {k: (v - bare) / tasks for k, v in zip(PARTS, parts, strict=True)},
        "worker": {k: (v - alone) / told["tasks"] for k, v in zip(WORKER, hooked, strict=True)},
    }


def _counted_rows(quick: bool) -> list[Row]:
    try:
        found = measure(TASKS // 4 if quick else TASKS)
    except RuntimeError as error:
        return [Row("9", "instructions per task", "", str(error).splitlines()[-1], "skipped")]
    rows = []
    for where, parts in found.items():
        first = next(iter(parts.values()))
        shown = [
            f"{name} {number:,.0f}" + ("" if number == first else f" ({number - first:+,.0f})")
            for name, number in parts.items()
        ]
        what = f"instructions per task on the {where}, by part"
        rows.append(Row("9", what, "", "; ".join(shown), "info", parts))
    return rows


def run(quick: bool) -> list[Row]:
    """Count what can be counted, and time the hooks alone."""
    hook = bench_task_context.task(bench_task_context.DECIDED)
    hashed = bench_task_context.task(bench_task_context.ANNOTATIONS)
    dask = bench_task_context.transitions()
    inside, outside = bench_task_context.records()
    worker = {"hook": hook, "hashed": hashed, "transitions": dask}
    submissions = bench_submission.measure()
    return [
        *_counted_rows(quick),
        Row(
            "9",
            "worker: CPU that trace context adds to a task",
            f"≤ {LIMIT} µs",
            f"{hook + dask:.2f} µs ({hook:.2f} hooks, {dask:.2f} Dask's word to a plugin); "
            f"{hashed:.2f} hooks with ids hashed there",
            verdict(hook + dask <= LIMIT),
            worker,
        ),
        Row(
            "9",
            "worker: CPU of otel.logs.inject for a log record",
            "",
            f"{inside:.1f} µs in a task, {outside:.1f} µs outside",
            "info",
            {"inside": inside, "outside": outside},
        ),
        Row(
            "9",
            "client: CPU that the caller's context adds to a submission",
            "",
            ", ".join(f"{name} {figure:.1f} µs" for name, figure in submissions.items()),
            "info",
            submissions,
        ),
    ]


if __name__ == "__main__":
    asyncio.run(_scheduler(int(sys.argv[1])))
    _worker()
    print(json.dumps({"tasks": bench_task_context.TASKS}))
    sys.stdout.flush()
    # Nobody waits for workers that have never been there.
    os._exit(0)

"""Row 9: trace context and task spans, part by part: scheduler, worker, client.

Parts cost tenths of microseconds a task, which no A/B on a shared machine shows. So instructions
are counted, as in row 1, with all parts and with one of them switched off or on; and the hooks of
worker and client are timed alone.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from benchmarks import bench_submission, bench_task_context
from benchmarks.instructions import TASKS, count, count_work, counted, run_tasks, write_sum
from benchmarks.results import Row, verdict
from dask_otel.core.context import CARRIER_KEY, Caller, Traceparent, make_carrier
from dask_otel.worker.logs import injection
from dask_otel.worker.plugin import TaskContext

#: Microseconds a task on a worker, and a submission with a caller.
LIMIT: Final = 1.2
SUBMISSION: Final = 3.0

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


def _all(tasks: int) -> None:
    asyncio.run(_scheduler(tasks))
    _worker()


async def _scheduler(tasks: int) -> None:
    """Count tasks without the bridge, and with each part, after a first round that warms up."""
    caller = make_carrier(Caller(Traceparent(7, 8, 1)))
    for with_caller, settings in 2 * [(False, None), *PARTS.values()]:
        given = {CARRIER_KEY: caller} if with_caller else None
        await count_work(settings, lambda cluster, _, given=given: run_tasks(cluster, tasks, given))


def _worker() -> None:
    """Count tasks on a bare worker, and on one with each kind of hooks."""
    cases: list[dict[str, Any] | None] = [None, *WORKER.values()]
    for settings in [*cases, *cases]:
        worker = bench_task_context.Worker(bench_task_context.DECIDED)
        with ExitStack() as stack:
            if settings is not None:
                context = TaskContext()
                context.ratio = settings.get("ratio", 0.0)
                worker.hook(context)
            if settings and settings.get("inject"):
                injection.add()
                stack.callback(injection.remove)
            gc.collect()
            count(partial(asyncio.run, bench_task_context.run_all(worker)))
            write_sum()


def measure(tasks: int = TASKS) -> dict[str, dict[str, float]]:
    """Return instructions per task that each part adds, on the scheduler and on a worker.

    Raises
    ------
    RuntimeError
        If there is no valgrind on this machine, or it could not run the program.
    """
    _, sums = counted(_all, tasks)
    on_scheduler, on_worker = 1 + len(PARTS), 1 + len(WORKER)
    if len(sums) != 2 * (on_scheduler + on_worker) or not all(sums):
        raise RuntimeError(f"callgrind wrote {len(sums)} sums")
    bare, *parts = sums[on_scheduler : 2 * on_scheduler]
    alone, *hooked = sums[-on_worker:]
    return {
        "scheduler": {k: (v - bare) / tasks for k, v in zip(PARTS, parts, strict=True)},
        "worker": {
            k: (v - alone) / bench_task_context.TASKS for k, v in zip(WORKER, hooked, strict=True)
        },
    }


def run_counted(quick: bool) -> list[Row]:
    """Count the instructions of each part."""
    rows = []
    for where, parts in measure(TASKS // 4 if quick else TASKS).items():
        first = next(iter(parts.values()))
        figures = [
            f"{name} {number:,.0f}" + ("" if number == first else f" ({number - first:+,.0f})")
            for name, number in parts.items()
        ]
        what = f"instructions per task on the {where}, by part"
        rows.append(Row("9", what, "", "; ".join(figures), "info", parts))
    return rows


def run(quick: bool) -> list[Row]:
    """Time the hooks of worker and client alone."""
    hook = bench_task_context.task(bench_task_context.DECIDED)
    hashed = bench_task_context.task(bench_task_context.ANNOTATIONS)
    dask = bench_task_context.transitions()
    inside, outside = bench_task_context.records()
    worker = {"hook": hook, "hashed": hashed, "transitions": dask}
    submissions = bench_submission.measure()
    return [
        Row(
            "9",
            "worker: CPU that trace context adds to a task",
            f"≤ {LIMIT} µs",
            f"{hook + dask:.2f} µs ({hook:.2f} hooks, {dask:.2f} Dask's calls of a plugin); "
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
            f"≤ {SUBMISSION} µs with a span",
            ", ".join(f"{name} {figure:.1f} µs" for name, figure in submissions.items()),
            verdict(submissions["a span"] <= SUBMISSION),
            submissions,
        ),
    ]

"""Row 9: trace context and task spans, part by part: scheduler, worker, client.

Parts cost tenths of microseconds a task, which no A/B on a shared machine shows. So instructions
are counted on the scheduler, as in row 1, with all parts and with one of them switched off or on;
and the hooks of worker and client are timed alone.
"""

from __future__ import annotations

from typing import Any, Final

from benchmarks import bench_submission, bench_task_context
from benchmarks.instructions import TASKS, count_work, counted, run_tasks
from benchmarks.results import Row, verdict
from dask_otel.core.context import CARRIER_KEY, Caller, Traceparent, make_carrier

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


async def _scheduler(tasks: int) -> None:
    """Count tasks without the bridge, and with each part, after a first round that warms up."""
    caller = make_carrier(Caller(Traceparent(7, 8, 1)))
    for with_caller, settings in 2 * [(False, None), *PARTS.values()]:
        given = {CARRIER_KEY: caller} if with_caller else None
        await count_work(settings, lambda cluster, _, given=given: run_tasks(cluster, tasks, given))


def run_counted(quick: bool) -> list[Row]:
    """Count the instructions per task that each part adds on the scheduler.

    Raises
    ------
    RuntimeError
        If there is no valgrind on this machine, or it could not run the program.
    """
    tasks = TASKS // 4 if quick else TASKS
    _, sums = counted(_scheduler, tasks)
    if len(sums) != 2 * (1 + len(PARTS)) or not all(sums):
        raise RuntimeError(f"callgrind wrote {len(sums)} sums")
    bare, *with_parts = sums[1 + len(PARTS) :]
    parts = {name: (one - bare) / tasks for name, one in zip(PARTS, with_parts, strict=True)}
    first, *_ = parts.values()
    figures = [
        f"{name} {number:,.0f}" + ("" if number == first else f" ({number - first:+,.0f})")
        for name, number in parts.items()
    ]
    what = "instructions per task on the scheduler, by part"
    return [Row("9", what, "", "; ".join(figures), "info", parts)]


def run(quick: bool) -> list[Row]:
    """Time the hooks of worker and client alone."""
    hook = bench_task_context.task(bench_task_context.DECIDED)
    hashed = bench_task_context.task(bench_task_context.ANNOTATIONS)
    dask = bench_task_context.transitions()
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
            "client: CPU that the caller's context adds to a submission",
            f"≤ {SUBMISSION} µs with a span",
            ", ".join(f"{name} {figure:.1f} µs" for name, figure in submissions.items()),
            verdict(submissions["a span"] <= SUBMISSION),
            submissions,
        ),
    ]

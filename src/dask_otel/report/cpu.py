"""CPU contention: why the scheduler's event loop was late, and why tasks waited off the CPU."""

from __future__ import annotations

from typing import Final

from dask_otel import semconv
from dask_otel.report.findings import workers
from dask_otel.report.telemetry.model import Session
from dask_otel.report.telemetry.series import at

#: Approximate seconds that Dask's scheduler needs for a task, in about six transitions.
_TASK: Final = 0.001
_TRANSITIONS: Final = 6
#: Fewest samples of workers with two or more running tasks for a judgement.
_FEWEST: Final = 3
#: Range of the cores that a process uses while its threads share the GIL.
_ONE_CORE: Final = (0.7, 1.3)
#: The smallest share of time without a CPU that matters for the scheduler.
_STARVED: Final = 0.1

_NO_CPU: Final = "other processes, more threads than cores, or a CPU limit"


def why_blocked(session: Session, tasks: float, late: float) -> str:
    """Return why the scheduler's event loop was late, and what to do."""
    seconds = session.metrics.seconds
    used = session.metrics.total(semconv.EVENT_LOOP_CPU_TIME.name)
    starved = session.metrics.total(semconv.EVENT_LOOP_STARVED_TIME.name)
    load = f"About {_TRANSITIONS * tasks / seconds:,.0f} transitions a second"
    if used is not None:
        load += f", and {used / seconds:.0%} of a CPU"
    reasons = (
        (
            (starved or 0.0) >= late / 2,
            f": its thread was ready to run and had no CPU for {(starved or 0.0) / seconds:.0%} of"
            f" the time ({_NO_CPU}). Give the scheduler a core of its own.",
        ),
        (_TASK * tasks >= late / 2, ": submit fewer and longer tasks."),
        (
            used is None,
            " do not explain it. The cause is large graphs, plugins, or a process without a CPU"
            f" ({_NO_CPU}); this telemetry does not show which one.",
        ),
        (
            (used or 0.0) >= late / 2,
            ": not tasks, but large graphs, objects in them, or plugins keep it busy.",
        ),
        (True, ": it waited, for the GIL of its process, or for I/O of a plugin."),
    )
    return load + next(reason for holds, reason in reasons if holds)


def why_waiting(session: Session) -> str:
    """Return why tasks held threads without using the CPU, if it is known."""
    starved = session.metrics.total(semconv.EVENT_LOOP_STARVED_TIME.name) or 0.0
    no_cpu = f", or for a CPU ({_NO_CPU})" if starved > _STARVED * session.metrics.seconds else ""
    threads = [worker.threads for worker in workers(session) if worker.threads]
    if threads and max(threads) == 1:
        return f"Likely I/O, sleep or a GPU{no_cpu}; not the GIL: each process has one thread."
    samples = _samples(session)
    if len(samples) < _FEWEST:
        return f"Likely I/O, sleep, a GPU or the GIL{no_cpu}; there are too few samples to tell."
    cores, running = (sum(values) / len(samples) for values in zip(*samples, strict=True))
    used = f"A worker's process used {cores:.1f} cores while it ran {running:.1f} tasks"
    if _ONE_CORE[0] <= cores <= _ONE_CORE[1]:
        return f"{used}: the GIL is likely{no_cpu}. One thread per process helps then."
    return f"{used}: they waited for I/O, sleep or a GPU{no_cpu}, and hardly for the GIL."


def _samples(session: Session) -> list[tuple[float, float]]:
    """Return (cores used, tasks running) of worker processes with two or more running tasks."""
    tasks = {
        series.labels.get(semconv.WORKER_NAME): series.history()
        for series in session.metrics.of(semconv.WORKER_TASK_COUNT.name)
        if series.labels.get(semconv.TASK_STATE) == "executing"
    }
    threads = {worker.name: worker.threads or 0.0 for worker in workers(session)}
    return [
        (share * threads[name], running)
        for series in session.metrics.of(semconv.WORKER_CPU_UTILIZATION.name)
        if (name := series.labels.get(semconv.WORKER_NAME, "")) in threads
        for time_ns, share in series.history()
        if (running := at(tasks.get(name, []), time_ns)) >= 2
    ]

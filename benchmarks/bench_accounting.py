"""CPU of the idle accounting per task: assigned, done, and its share of a heartbeat."""

from __future__ import annotations

import time

from dask_otel.core.idle.accounting import Accounting


def run(workers: int, threads: int, queued: int, tasks: int, per_beat: int) -> float:
    """Microseconds of CPU a task.

    Parameters
    ----------
    queued
        Tasks that each worker has beyond its threads; negative leaves threads free.
    per_beat
        Tasks that a worker ends between two heartbeats.
    """
    accounting = Accounting(0.0)
    names = [f"tcp://10.0.0.{i}:{40000 + i}" for i in range(workers)]
    for name in names:
        accounting.worker_added(name, threads, 0.0, 0.001)
    accounting.span_active("root", "span", 0.0)
    keys = [f"inc-{i:032x}" for i in range(tasks)]
    depth = workers * max(1, threads + queued)
    step, length = 1e-4, 1e-4 * workers * threads
    now = 0.0
    start = time.process_time()
    for i, key in enumerate(keys):
        now += step
        accounting.task_assigned(names[i % workers], key, "span", now)
        if i >= depth:
            j = i - depth
            worker = names[j % workers]
            accounting.task_done(worker, keys[j], length, now)
            if j % (workers * per_beat) < workers:
                executing = {
                    keys[j + (n + 1) * workers]: n * step
                    for n in range(threads)
                    if j + (n + 1) * workers <= i
                }
                accounting.heartbeat(worker, executing, {"span": per_beat * length}, now, 0.001)
        if i % 50_000 == 0:
            accounting.begin_export(now)
            accounting.settle()
    return (time.process_time() - start) / tasks * 1e6


if __name__ == "__main__":
    for label, arguments in {
        "saturated, 10 workers x 4 threads": (10, 4, 4, 300_000, 200),
        "free threads, 10 x 4": (10, 4, -1, 300_000, 200),
        "few tasks a heartbeat, 10 x 4": (10, 4, 4, 300_000, 10),
        "100 workers x 8, queue of 20": (100, 8, 20, 300_000, 100),
    }.items():
        best = min(run(*arguments) for _ in range(3))
        print(f"{label:40s} {best:5.2f} us a task")

"""Planted causes that need real processes: the GIL, CPUs, imports, pickling, disks, deaths."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, span, wait

import dask_otel
from tests.environment import OFF, inherited
from tests.planted import jobs, slow_to_import
from tests.planted.case import Case, Cases
from tests.planted.means import Slow, tasks

SEEN = Cases()

MB = 10**6
CPUS = os.cpu_count() or 2

#: A run has a moment to end: the last heartbeats come in.
END = 1.2


def plant(*kinds: str, **more: Any) -> Any:
    """Plant a case with real processes; see `Cases.plant`."""
    return SEEN.plant(*kinds, real=True, **more)


def run(case: Case, folder: Path) -> None:
    """Run a case in a process of its own, and write its telemetry into a folder."""
    # Not by `-m`, which would let workers import the module when they start.
    program = "import sys; from tests.planted import processes; processes.main(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, case.name, str(folder)],
        env=inherited(**OFF, DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED="False"),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)


def main(name: str, folder: str) -> None:
    """Run a case here."""
    from tests.planted import recording

    case = {**recording.CASES, **recording.UNSEEN}[name]
    warnings.simplefilter("ignore")
    config = {"distributed.worker.multiprocessing-method": "forkserver", **case.config}
    limit = config.pop("memory_limit", 0)
    with (
        dask.config.set(config),
        LocalCluster(
            n_workers=case.workers, threads_per_worker=case.threads, processes=True,
            memory_limit=limit, dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        client.wait_for_workers(case.workers)
        dask_otel.register(client, {"files": {"path": folder}})
        case.run(client, cluster)
        time.sleep(END)


# ---------------------------------------------------------------------------- GIL and CPUs


@plant("gil", "worker_loop", workers=1, threads=4, never=("uneven", "restricted"))
def gil_in_c(client: Any, cluster: Any) -> None:
    """Calls in C that hold the GIL for a quarter of a second, on four threads of one process."""
    began = time.thread_time()
    jobs.summed(3 * MB)
    numbers = int(3 * MB * 0.25 / (time.thread_time() - began))
    with span("train"):
        wait(tasks(client, "fit", [numbers] * 16, function=jobs.summed))


# --------------------------------------------------------------------------------- imports


@plant("starting", "worker_loop", never=("uneven", "restricted"), span="nightly")
def real_import_in_second_step(client: Any, cluster: Any) -> Any:
    """The first task of a second step imports for 2 s on each worker."""
    first = tasks(client, "load", [0.02] * 8, function=jobs.busy)
    return tasks(client, "fit", [0.02] * 8, first, function=slow_to_import.fit)


@plant("long_task", "starting", "off_cpu", never=("uneven", "restricted"))
def real_import_inside_task(client: Any, cluster: Any) -> None:
    """The first tasks on each worker import for 2 s while they run."""

    def fit(seconds: float) -> float:
        from tests.planted import slow_to_import as library

        return float(library.fit(seconds))

    with span("train"):
        wait(tasks(client, "fit", [0.02] * 16, function=fit))


# -------------------------------------------------------------------------------- pickling


@plant("pickle", threads=1, never=("threads", "uneven", "client"))
def slow_reduce(client: Any, cluster: Any) -> None:
    """Results take half a second to pickle, each; another worker needs all of them."""
    here, there = client.nthreads()
    with span("total"):
        parts = tasks(client, "part", range(4), function=jobs.slow_to_pickle, workers=[here])
        wait(client.submit(jobs.length, *parts, workers=[there]))


@plant("pickle", threads=1, never=("threads", "uneven", "client"))
def many_small_objects(client: Any, cluster: Any) -> None:
    """Results are 10,000 small objects each; another worker needs all of them."""
    here, there = client.nthreads()
    with span("total"):
        parts = tasks(client, "part", range(6), function=jobs.points, workers=[here])
        wait(client.submit(jobs.length, *parts, workers=[there]))


@plant("graph", "starting", never=("threads", "uneven", "long_task"))
def closure_of_40_mb(client: Any, cluster: Any) -> None:
    """The function of 4 tasks has 40 MB in its closure."""
    data = os.urandom(40 * MB)
    with dask_otel.span("train"):
        wait(tasks(client, "fit", range(4), function=lambda number: len(data)))


# ---------------------------------------------------------------------------- memory, disk

SPILL = {
    "distributed.worker.memory.target": 0.05,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "memory_limit": "1GB",
}


@plant("spill", config=SPILL, threads=1, never=("threads", "uneven", "client"), span="nightly")
def spilling(client: Any, cluster: Any) -> Any:
    """Results of 0.3 GB are written to disk, and read again by the next step."""
    loaded = tasks(client, "load", [30 * MB] * 10, function=jobs.random_bytes)
    wait(loaded)
    return tasks(client, "count", loaded, function=jobs.length)


@plant("memory", "lost", config={"memory_limit": "500MB"}, workers=1, never=("threads", "uneven"))
def out_of_memory(client: Any, cluster: Any) -> None:
    """A task takes too much memory, and the nanny kills its worker with all its results."""
    with tempfile.TemporaryDirectory() as folder, span("train"):
        parts = tasks(client, "part", [2.0] * 2, function=jobs.busy)
        wait(client.submit(jobs.hungry, folder, *parts))


@plant("lost", workers=1, never=("threads", "uneven", "memory"))
def exit_in_a_task(client: Any, cluster: Any) -> None:
    """A task ends the process of its worker, with all its results."""
    with tempfile.TemporaryDirectory() as folder, span("train"):
        parts = tasks(client, "part", [2.0] * 2, function=jobs.busy)
        wait(client.submit(jobs.exits, folder, *parts))


@plant("lost", workers=1, never=("threads", "uneven", "memory"))
def exit_after_two_steps(client: Any, cluster: Any) -> None:
    """A task of the third step ends the process of its worker."""
    with tempfile.TemporaryDirectory() as folder, span("nightly"):
        loaded = tasks(client, "load", [1.5] * 2, function=jobs.busy)
        fitted = tasks(client, "fit", [1.5] * 2, loaded, function=jobs.busy)
        wait(client.submit(jobs.exits, folder, *fitted))


# ------------------------------------------------------------------------- scheduler, shuffle


@plant("scheduler", never=("threads", "uneven", "long_task"), span="train")
def real_slow_scheduler_plugin(client: Any, cluster: Any) -> Any:
    """A plugin blocks the scheduler's event loop for 10 ms at each transition."""
    client.register_plugin(Slow(0.01))
    return tasks(client, "fit", [0.01] * 40, function=jobs.busy)


@plant("tiny", "scheduler", "graph", never=("uneven", "long_task", "gil", "cpus"))
def tiny_partitions(client: Any, cluster: Any) -> None:
    """An array of 400 small chunks is added up."""
    import dask.array as da

    client.run(__import__, "dask.array")
    with span("count"):
        da.ones((400, 10), chunks=(1, 10)).map_blocks(lambda x: x + 1).sum().compute()


@plant("shuffle", never=("repeated", "lost"))
def real_p2p_shuffle(client: Any, cluster: Any) -> None:
    """A table of two million rows is shuffled; it takes no time to make."""
    import dask.dataframe as dd

    for library in ("dask.dataframe", "distributed.shuffle", "pyarrow", "tests.planted.jobs"):
        client.run(__import__, library)
    with dask_otel.span("join"):
        frame = dd.from_map(jobs.table, range(10)).shuffle("id").persist()
        wait(frame)


#: Those whose program is one call.
ROWS: dict[str, Case] = {
    # GIL and CPUs:
    # Loops in Python on two threads of each of two processes.
    "gil-in-python": Case(
        lambda client, cluster: tasks(client, "fit", [0.25] * 16, function=jobs.looped),
        ("gil", "cpus"),
        never=("uneven", "restricted", "starting"),
        span="train",
        real=True,
    ),
    # Loops in Python on four threads of one process.
    "gil-with-one-worker": Case(
        lambda client, cluster: tasks(client, "fit", [0.25] * 16, function=jobs.looped),
        ("gil",),
        workers=1,
        threads=4,
        never=("uneven", "restricted"),
        span="train",
        real=True,
    ),
    # Four times as many workers, of one thread each, as there are CPUs.
    "four-workers-for-each-cpu": Case(
        lambda client, cluster: tasks(client, "fit", [0.25] * 8 * CPUS, function=jobs.hashed),
        ("cpus",),
        workers=4 * CPUS,
        threads=1,
        never=("gil", "uneven", "restricted"),
        span="train",
        real=True,
    ),
    # ----------------------------------------------------- imports
    # Unpickling the first task imports a library for 2 s; 8 tasks.
    "real-import-8-tasks": Case(
        lambda client, cluster: tasks(client, "fit", [0.02] * 8, function=slow_to_import.fit),
        ("starting", "worker_loop"),
        never=("threads", "uneven", "restricted"),
        span="train",
        real=True,
    ),
    # The same with 40 tasks.
    "real-import-40-tasks": Case(
        lambda client, cluster: tasks(client, "fit", [0.01] * 40, function=slow_to_import.fit),
        ("starting", "worker_loop"),
        never=("uneven", "restricted"),
        span="train",
        real=True,
    ),
    # ---------------------------------------------------- pickling
    # Each of 4 tasks has an argument of 30 MB.
    "arguments-of-30-mb": Case(
        lambda client, cluster: [
            client.submit(jobs.length, os.urandom(30 * MB), pure=False) for _ in range(4)
        ],
        (
            "graph",
            "starting",
            "scheduler",
        ),
        never=("threads", "uneven", "long_task"),
        block="train",
        real=True,
    ),
    # ------------------------------------------------ memory, disk
    # Tasks wait on all threads for 12 s, and need none of the memory.
    "workers-too-large": Case(
        lambda client, cluster: tasks(client, "fetch", [1.0] * 12 * 2 * 2, function=time.sleep),
        ("off_cpu",),
        also=("sizing",),
        config={"memory_limit": "4GB"},
        never=("memory", "uneven"),
        span="crawl",
        real=True,
    ),
    # ----------------------------------------------------- off CPU
    # Tasks wait for a disk.
    "fsync-in-tasks": Case(
        lambda client, cluster: tasks(client, "write", [0.5] * 16, function=jobs.synced),
        ("off_cpu",),
        never=("gil", "cpus", "uneven"),
        span="save",
        real=True,
    ),
    # ------------------------------------------ scheduler, shuffle
    # 1,000 tasks that do nothing.
    "empty-tasks": Case(
        lambda client, cluster: tasks(client, "count", [()] * 1000, function=jobs.length),
        ("tiny", "scheduler"),
        never=("uneven", "long_task", "gil", "cpus"),
        span="count",
        real=True,
    ),
}
SEEN.add(ROWS)

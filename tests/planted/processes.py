"""Planted causes that need real processes: the GIL, CPUs, imports, pickling, disks, deaths."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, SchedulerPlugin, span, wait

import dask_otel
from tests.environment import OFF, inherited
from tests.planted import jobs, slow_to_import
from tests.planted.case import Case, Cases

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
        case.program(client, cluster)
        time.sleep(END)


# ---------------------------------------------------------------------------- what tasks do


def many(client: Any, name: str, function: Any, arguments: Any, *each: Any, **more: Any) -> Any:
    """Submit tasks of that name, one for each argument."""
    group = f"{name}-{uuid.uuid4().hex}"
    keys = [(group, number) for number in range(len(arguments))]
    return client.map(function, arguments, *each, key=keys, **more)


# ---------------------------------------------------------------------------- GIL and CPUs


@plant("gil", "cpus", never=("uneven", "restricted", "starting"))
def gil_in_python(client: Any, cluster: Any) -> None:
    """Loops in Python on two threads of each of two processes."""
    with span("train"):
        wait(many(client, "fit", jobs.looped, [0.25] * 16))


@plant("gil", workers=1, threads=4, never=("uneven", "restricted"))
def gil_with_one_worker(client: Any, cluster: Any) -> None:
    """Loops in Python on four threads of one process."""
    with span("train"):
        wait(many(client, "fit", jobs.looped, [0.25] * 16))


@plant("gil", "worker_loop", workers=1, threads=4, never=("uneven", "restricted"))
def gil_in_c(client: Any, cluster: Any) -> None:
    """Calls in C that hold the GIL for a quarter of a second, on four threads of one process."""
    began = time.thread_time()
    jobs.summed(3 * MB)
    numbers = int(3 * MB * 0.25 / (time.thread_time() - began))
    with span("train"):
        wait(many(client, "fit", jobs.summed, [numbers] * 16))


@plant("cpus", workers=4 * CPUS, threads=1, never=("gil", "uneven", "restricted"))
def four_workers_for_each_cpu(client: Any, cluster: Any) -> None:
    """Four times as many workers, of one thread each, as there are CPUs."""
    with span("train"):
        wait(many(client, "fit", jobs.hashed, [0.25] * 8 * CPUS))


# --------------------------------------------------------------------------------- imports


@plant("starting", "worker_loop", never=("threads", "uneven", "restricted"))
def real_import_8_tasks(client: Any, cluster: Any) -> None:
    """Unpickling the first task imports a library for 2 s; 8 tasks."""
    with span("train"):
        wait(many(client, "fit", slow_to_import.fit, [0.02] * 8))


@plant("starting", "worker_loop", never=("uneven", "restricted"))
def real_import_40_tasks(client: Any, cluster: Any) -> None:
    """The same with 40 tasks."""
    with span("train"):
        wait(many(client, "fit", slow_to_import.fit, [0.01] * 40))


@plant("starting", "worker_loop", never=("uneven", "restricted"))
def real_import_in_second_step(client: Any, cluster: Any) -> None:
    """The first task of a second step imports for 2 s on each worker."""
    with span("nightly"):
        first = many(client, "load", jobs.busy, [0.02] * 8)
        wait(many(client, "fit", slow_to_import.fit, [0.02] * 8, first))


@plant("long_task", "starting", "off_cpu", never=("uneven", "restricted"))
def real_import_inside_task(client: Any, cluster: Any) -> None:
    """The first tasks on each worker import for 2 s while they run."""

    def fit(seconds: float) -> float:
        from tests.planted import slow_to_import as library

        return float(library.fit(seconds))

    with span("train"):
        wait(many(client, "fit", fit, [0.02] * 16))


# -------------------------------------------------------------------------------- pickling


@plant("pickle", threads=1, never=("threads", "uneven", "client"))
def slow_reduce(client: Any, cluster: Any) -> None:
    """Results take half a second to pickle, each; another worker needs all of them."""
    here, there = client.nthreads()
    with span("total"):
        parts = many(client, "part", jobs.slow_to_pickle, range(10), workers=[here])
        wait(client.submit(jobs.length, *parts, workers=[there]))


@plant("pickle", threads=1, never=("threads", "uneven", "client"))
def many_small_objects(client: Any, cluster: Any) -> None:
    """Results are 10,000 small objects each; another worker needs all of them."""
    here, there = client.nthreads()
    with span("total"):
        parts = many(client, "part", jobs.points, range(6), workers=[here])
        wait(client.submit(jobs.length, *parts, workers=[there]))


@plant("graph", "starting", never=("threads", "uneven", "long_task"))
def closure_of_40_mb(client: Any, cluster: Any) -> None:
    """The function of 4 tasks has 40 MB in its closure."""
    data = os.urandom(40 * MB)
    with dask_otel.span("train"):
        wait(many(client, "fit", lambda number: len(data), range(4)))


@plant("graph", "starting", "scheduler", never=("threads", "uneven", "long_task"))
def arguments_of_30_mb(client: Any, cluster: Any) -> None:
    """Each of 4 tasks has an argument of 30 MB."""
    with dask_otel.span("train"):
        wait([client.submit(jobs.length, os.urandom(30 * MB), pure=False) for _ in range(4)])


# ---------------------------------------------------------------------------- memory, disk

SPILL = {
    "distributed.worker.memory.target": 0.05,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "memory_limit": "1GB",
}


@plant("spill", config=SPILL, threads=1, never=("threads", "uneven", "client"))
def spilling(client: Any, cluster: Any) -> None:
    """Results of 0.3 GB are written to disk, and read again by the next step."""
    with span("nightly"):
        loaded = many(client, "load", jobs.random_bytes, [30 * MB] * 10)
        wait(loaded)
        wait(many(client, "count", jobs.length, loaded))


@plant("off_cpu", also=("sizing",), config={"memory_limit": "4GB"}, never=("memory", "uneven"))
def workers_too_large(client: Any, cluster: Any) -> None:
    """Tasks wait on all threads for 12 s, and need none of the memory."""
    with span("crawl"):
        wait(many(client, "fetch", time.sleep, [1.0] * 12 * 2 * 2))


@plant("memory", "lost", config={"memory_limit": "500MB"}, workers=1, never=("threads", "uneven"))
def out_of_memory(client: Any, cluster: Any) -> None:
    """A task takes too much memory, and the nanny kills its worker with all its results."""
    with tempfile.TemporaryDirectory() as folder, span("train"):
        parts = many(client, "part", jobs.busy, [2.0] * 2)
        wait(client.submit(jobs.hungry, folder, *parts))


@plant("lost", workers=1, never=("threads", "uneven", "memory"))
def exit_in_a_task(client: Any, cluster: Any) -> None:
    """A task ends the process of its worker, with all its results."""
    with tempfile.TemporaryDirectory() as folder, span("train"):
        parts = many(client, "part", jobs.busy, [2.0] * 2)
        wait(client.submit(jobs.exits, folder, *parts))


@plant("lost", workers=1, never=("threads", "uneven", "memory"))
def exit_after_two_steps(client: Any, cluster: Any) -> None:
    """A task of the third step ends the process of its worker."""
    with tempfile.TemporaryDirectory() as folder, span("nightly"):
        loaded = many(client, "load", jobs.busy, [1.5] * 2)
        fitted = many(client, "fit", jobs.busy, [1.5] * 2, loaded)
        wait(client.submit(jobs.exits, folder, *fitted))


# --------------------------------------------------------------------------------- off CPU


@plant("off_cpu", never=("gil", "cpus", "uneven"))
def fsync_in_tasks(client: Any, cluster: Any) -> None:
    """Tasks wait for a disk."""
    with span("save"):
        wait(many(client, "write", jobs.synced, [0.5] * 16))


class Server(BaseHTTPRequestHandler):
    """Takes half a second for an answer."""

    def do_GET(self) -> None:
        """See `BaseHTTPRequestHandler`."""
        time.sleep(0.5)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"done")

    def log_message(self, *args: Any) -> None:
        """Write no log."""


@contextmanager
def served() -> Iterator[str]:
    """Serve slow answers at the address that it yields."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@plant("off_cpu", never=("gil", "cpus", "uneven"))
def http_in_tasks(client: Any, cluster: Any) -> None:
    """Tasks wait for a server."""
    with served() as url, span("crawl"):
        wait(many(client, "fetch", jobs.asked, [url] * 24))


# ------------------------------------------------------------------------- scheduler, shuffle


class Slow(SchedulerPlugin):
    """Blocks the scheduler's event loop."""

    name = "slow"

    def transition(self, *args: Any, **kwargs: Any) -> None:
        """See `SchedulerPlugin`."""
        time.sleep(0.01)


@plant("scheduler", never=("threads", "uneven", "long_task"))
def real_slow_scheduler_plugin(client: Any, cluster: Any) -> None:
    """A plugin blocks the scheduler's event loop for 10 ms at each transition."""
    client.register_plugin(Slow())
    with span("train"):
        wait(many(client, "fit", jobs.busy, [0.01] * 40))


@plant("tiny", "scheduler", never=("uneven", "long_task", "gil", "cpus"))
def empty_tasks(client: Any, cluster: Any) -> None:
    """1,000 tasks that do nothing."""
    with span("count"):
        wait(many(client, "count", jobs.length, [()] * 1000))


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

"""Cases to judge the judgement by: who tunes it looks at neither these programs nor their runs.

They have other shapes, durations and mixtures than those in `simulated` and `processes`. A case
that somebody has tuned for belongs there, and a new one here.
"""

from __future__ import annotations

import os
import time
from typing import Any

import distributed
from distributed import Reschedule, span, wait, worker_client

import dask_otel
from tests.planted import jobs, processes, slow_to_import
from tests.planted.case import Case, Cases
from tests.planted.means import (
    MB,
    Slow,
    at,
    bandwidth,
    come,
    compute,
    fed,
    first,
    imports,
    load,
    pause,
    rounds,
    sleep,
    slow,
    steps,
    task,
    tasks,
    together,
    user,
)

UNSEEN = Cases()
plant = UNSEEN.plant


@plant(
    "starting",
    "worker_loop",
    workers=4,
    never=("uneven", "restricted", "chain"),
    most=6.0,
    span="nightly",
    latency=imports(6.0, "fit"),
)
def import_in_a_nested_step(client: Any, cluster: Any) -> None:
    """The second of three nested steps imports for 6 s on each of four workers."""
    before: list[Any] = []
    for step in ("load", "fit", "save"):
        with span(step):
            before = tasks(client, step, [0.3] * 8, *([before] if before else []))
            wait(before)


async def hog(seconds: float) -> None:
    """Block the worker's event loop: a coroutine that sleeps as a function does."""
    time.sleep(seconds)


@plant(
    "worker_loop",
    workers=8,
    threads=1,
    never=("threads", "uneven", "client"),
    most=7.0,
    span="report",
)
def coroutine_that_blocks(client: Any, cluster: Any) -> Any:
    """A coroutine blocks the event loop of the worker that has the data."""
    loaded = tasks(client, "load", [MB] * 2, function=load, workers=["w3"])
    wait(loaded)
    hogs = task(client, "hog", 7.0, function=hog, workers=["w3"])
    time.sleep(0.1)
    wait(task(client, "join", 0.3, *loaded, workers=["w5"]))
    return hogs


@plant("restricted", never=("threads", "starting", "chain"), most=9.8)
def one_gpu(client: Any, cluster: Any) -> None:
    """One worker of three has a GPU; the second step needs it."""
    cluster.add_worker("gpu", 4, resources={"GPU": 1})
    with span("predict"):
        loaded = tasks(client, "load", [0.2] * 12)
        wait(tasks(client, "infer", [0.8] * 12, loaded, resources={"GPU": 1}))


@plant("restricted", workers=8, threads=1, never=("threads", "starting"), most=5.4)
def pinned_beside_a_healthy_root(client: Any, cluster: Any) -> None:
    """The first root is healthy; the tasks of the second must run on two of eight workers."""
    with span("first"):
        wait(tasks(client, "load", [1.0] * 8))
    with span("second"), span("write"):
        wait(tasks(client, "write", [0.6] * 24, workers=["w2", "w5"]))


@plant(
    "transfer",
    workers=4,
    never=("threads", "client", "restricted"),
    span="join/exchange",
    latency=bandwidth(30 * MB),
)
def all_to_all(client: Any, cluster: Any) -> Any:
    """Each of eight tasks needs a part from each of eight others, at 30 MB/s."""
    parts = tasks(client, "split", [80 * MB] * 8, function=load)
    wait(parts)
    return [task(client, "merge", 0.1, *parts) for _ in range(8)]


@plant("paused", workers=4, threads=1, never=("long_task", "chain"), span="nightly")
def paused_in_second_step(client: Any, cluster: Any) -> Any:
    """All workers but one are paused for 10 s when the second step begins."""
    loaded = tasks(client, "load", [0.5] * 8)
    wait(loaded)
    pause(10.0, "w0", "w1", "w2")(cluster)
    return tasks(client, "fit", [0.5] * 16, loaded * 2)


def twice(seconds: float) -> float:
    """Fail in the first two runs."""
    compute(seconds)
    key = distributed.get_worker().get_current_task()
    if first((key, 1)) or first((key, 2)):
        raise TimeoutError("no answer")
    return seconds


def raises(seconds: float, *after: Any) -> None:
    """Fail at the end."""
    compute(seconds)
    raise KeyError("price")


@plant("failed", workers=1, threads=8, span="nightly")
def failed_at_the_end(client: Any, cluster: Any) -> None:
    """The last of three nested steps fails after the others have worked."""
    with span("load"):
        loaded = tasks(client, "load", [1.0] * 8)
    with span("save"):
        wait(task(client, "save", 0.5, *loaded, function=raises))


@plant("threads", workers=4, never=("lost", "repeated", "failed", "uneven"))
def scaled_down_in_order(client: Any, cluster: Any) -> None:
    """Three of four workers are retired after a second; much work is left for one."""
    with span("score"):
        futures = tasks(client, "score", [0.4] * 48)
        time.sleep(1.0)
        client.retire_workers(names=["w0", "w1", "w2"])
        wait(futures)
    for name in ("w0", "w1", "w2"):
        cluster.workers.pop(name)


@plant("no_workers", never=("lost", "threads", "client"), most=12.0, span="nightly")
def no_workers_in_between(client: Any, cluster: Any) -> Any:
    """All workers leave in order before the second step; another comes after 12 s."""
    kept = client.scatter(b"x" * 100)
    wait(tasks(client, "load", [0.5] * 4))
    del kept
    cluster.leave("w0")
    cluster.leave("w1")
    at(cluster, 12.0, come("w2", threads=8))
    return tasks(client, "fit", [0.5] * 8)


def mostly_waits(seconds: float) -> None:
    compute(0.1 * seconds)
    sleep(0.9 * seconds)


def inner_rounds(seconds: list[float]) -> None:
    with worker_client() as inner:
        for one in seconds:
            wait(tasks(inner, "trial", [one] * 7))


@plant(
    "scheduler",
    workers=8,
    threads=1,
    never=("threads", "uneven", "long_task", "gil"),
    span="etl/clean",
)
def plugin_on_eight_workers(client: Any, cluster: Any) -> Any:
    """A plugin takes 10 ms of the scheduler's event loop for each of 120 tasks, six times."""
    client.register_plugin(Slow(0.01))
    return tasks(client, "clean", [0.08] * 120)


@plant("tiny", "scheduler", workers=4, never=("threads", "uneven", "long_task"), span="count")
def tiny_tasks_in_two_steps(client: Any, cluster: Any) -> Any:
    """Two steps of 150 tasks of 1 ms; Dask takes 12 ms for each."""
    client.register_plugin(Slow(0.003))
    loaded = tasks(client, "load", [0.001] * 150)
    return tasks(client, "count", [0.001] * 150, loaded)


@plant(
    "transfer",
    also=("long_task",),
    workers=4,
    never=("threads", "uneven"),
    span="join",
    latency=bandwidth(20 * MB),
)
def transfer_and_skew(client: Any, cluster: Any) -> Any:
    """One task fetches for 6 s, and another of a later step takes 3 s instead of 0.1 s."""
    parts = tasks(client, "part", [60 * MB] * 8, function=load)
    total = task(client, "total", 0.1, *parts)
    return tasks(client, "write", [3.0] + [0.1] * 7, [total] * 8)


@plant("healthy", workers=8, threads=1, never=("threads", "uneven", "starting", "long_task"))
def two_healthy_roots(client: Any, cluster: Any) -> None:
    """Two roots, one after another, with as many equal tasks as threads."""
    for name in ("first", "second"):
        with span(name), span("fit"):
            wait(tasks(client, f"fit-{name}", [3.0] * 8))


@plant("healthy", "threads", workers=1, threads=8, never=("lost", "uneven", "starting", "gil"))
def healthy_and_closed_at_once(client: Any, cluster: Any) -> None:
    """Equal tasks keep eight threads busy; the worker closes in order as soon as they end."""
    with span("train"):
        wait(tasks(client, "fit", [1.0] * 32))
    cluster.leave("w0")


@plant("short", "healthy", workers=4)
def two_short_roots(client: Any, cluster: Any) -> None:
    """Two runs of 10 ms."""
    for name in ("first", "second"):
        with span(name):
            wait(tasks(client, f"look-{name}", [0.01] * 2))


def rescheduled(seconds: float) -> float:
    """Ask for another worker at the end of the first run."""
    compute(seconds)
    if first(distributed.get_worker().get_current_task()):
        raise Reschedule
    return seconds


# ----------------------------------------------------------------- in place of those tuned for


@plant("lost", workers=4, threads=1, never=("client", "restricted", "failed"), span="model")
def killed_with_one_long_result(client: Any, cluster: Any) -> Any:
    """The worker that has the only long result dies before it is used."""
    base = task(client, "base", 5.0, workers=["w2"], allow_other_workers=True)
    wait(base)
    scores = tasks(client, "score", [1.0] * 8, [base] * 8)
    time.sleep(0.2)
    cluster.kill("w2")
    return scores


@plant("long_task", workers=4, never=("threads", "uneven", "client"), span="etl")
def skew_in_the_middle(client: Any, cluster: Any) -> Any:
    """Three steps in one graph; one task of the second is 20 times as long."""
    loaded = tasks(client, "load", [0.4] * 8)
    cleaned = tasks(client, "clean", [0.3] * 7 + [6.0], loaded)
    return task(client, "total", 0.2, *cleaned)


# ------------------------------------------------------------------------- real processes


@plant("pickle", real=True, never=("threads", "uneven", "client"), span="total")
def slow_reduce_of_arguments(client: Any, cluster: Any) -> Any:
    """Each of four tasks on one worker needs eight results of the other, slow to pickle."""
    address, other = client.nthreads()
    parts = tasks(client, "part", range(8), function=jobs.slow_to_pickle, workers=[address])
    wait(parts)
    return client.submit(jobs.length, *parts, workers=[other])


@plant(
    "spill", real=True, config=processes.SPILL, workers=1, never=("uneven", "client"), span="etl"
)
def spilling_on_one_worker(client: Any, cluster: Any) -> Any:
    """Results of 0.3 GB do not fit into the memory of one worker."""
    loaded = tasks(client, "load", [30 * MB] * 10, function=jobs.random_bytes)
    return client.submit(jobs.length, *loaded)


@plant("graph", "starting", real=True, workers=1, threads=2, never=("threads", "uneven"))
def table_in_a_closure(client: Any, cluster: Any) -> None:
    """The function of four tasks has 25 MB in its closure."""
    table = os.urandom(25 * MB)
    with dask_otel.span("look"):
        wait(tasks(client, "find", range(4), function=lambda number: table[number]))


#: Those whose program is one call.
ROWS: dict[str, Case] = {
    # 72 tasks of 0.2 to 0.6 s on the eight threads of one worker, in a nested span.
    "mixed-tasks-on-one-worker": Case(
        lambda client, cluster: tasks(client, "clean", [0.2, 0.3, 0.4, 0.5, 0.6, 0.4] * 12),
        ("threads",),
        workers=1,
        threads=8,
        never=("uneven", "starting", "restricted", "gil"),
        span="etl/clean",
    ),
    # Ten tasks of 3 s on eight threads.
    "two-more-tasks-than-threads": Case(
        lambda client, cluster: tasks(client, "score", [3.0] * 10),
        ("threads",),
        workers=8,
        threads=1,
        never=("uneven", "starting", "client"),
        span="score",
    ),
    # One of eight workers takes twelve times as long.
    "slow-one-of-eight": Case(
        lambda client, cluster: tasks(client, "clean", [0.5] * 40),
        ("slow_worker",),
        workers=8,
        threads=1,
        never=("restricted", "starting"),
        span="etl/clean",
        events={0.0: slow(12.0, "w6")},
    ),
    # Each of eight tasks fails twice after 2 s.
    "two-retries-each": Case(
        lambda client, cluster: tasks(client, "fetch", [2.0] * 8, function=twice, retries=5),
        ("repeated",),
        workers=8,
        threads=1,
        never=("uneven", "lost", "threads"),
        most=4.0,
        span="etl/fetch",
    ),
    # Twelve iterations of two small steps; each needs the last one.
    "iterations-without-a-client": Case(
        lambda client, cluster: steps(client, ("gradient", "update") * 12, [0.25]),
        ("chain",),
        workers=1,
        threads=8,
        never=("threads", "uneven", "client", "long_task"),
        span="solve",
    ),
    # The short tasks of one team wait for the 120 tasks of another, in nested spans.
    "dashboard-behind-nightly": Case(
        lambda client, cluster: together(
            user(cluster, "nightly/fit", [0.6] * 120), user(cluster, "dashboard", [0.05] * 24, 0.5)
        ),
        ("held",),
        workers=4,
        names=("nightly",),
        never=("uneven", "restricted", "starting"),
    ),
    # 96 tasks compute for a tenth of their time.
    "mostly-waiting": Case(
        lambda client, cluster: tasks(client, "fetch", [0.5] * 96, function=mostly_waits),
        ("off_cpu",),
        workers=1,
        threads=8,
        never=("gil", "cpus", "uneven", "starting"),
        span="etl/fetch",
    ),
    # A task submits six rounds of seven tasks, and waits for each round.
    "rounds-of-inner-tasks": Case(
        lambda client, cluster: task(client, "optimise", [1.0] * 6, function=inner_rounds).result(),
        ("inner",),
        workers=8,
        threads=1,
        never=("client", "long_task", "threads"),
        span="search/rounds",
    ),
    # The client looks at the results of each of eight steps for a second.
    "a-step-at-a-time": Case(
        lambda client, cluster: rounds(client, ["query"] * 8, [0.3] * 8, 1.0),
        ("client",),
        workers=4,
        never=("threads", "uneven", "chain"),
        span="explore",
    ),
    # The client keeps two tasks on the way, and takes 0.4 s before it submits the next.
    "too-few-at-a-time": Case(
        lambda client, cluster: fed(client, "page", 0.1, 2, 22, 0.4),
        ("client",),
        workers=1,
        threads=8,
        never=("threads", "uneven"),
        block="crawl",
    ),
    # An import of 2 s, then 12 s of tasks that wait for something.
    "import-and-waiting": Case(
        lambda client, cluster: tasks(client, "fetch", [1.5] * 64, function=sleep),
        ("off_cpu",),
        also=("starting", "worker_loop"),
        workers=4,
        never=("uneven", "restricted"),
        span="crawl",
        latency=imports(2.0, "fetch"),
    ),
    # Each of eight tasks of 2 s is rescheduled at its end.
    "tasks-that-ask-for-another-worker": Case(
        lambda client, cluster: tasks(client, "fit", [2.0] * 8, function=rescheduled),
        ("repeated",),
        workers=4,
        never=("lost", "failed", "threads"),
        span="fit",
    ),
    # --------------------------------- in place of those tuned for
    # 16 tasks need a licence; each worker has one, and two threads.
    "one-licence-a-worker": Case(
        lambda client, cluster: tasks(client, "solve", [1.0] * 16, resources={"licence": 1}),
        ("restricted",),
        workers=4,
        config={"distributed.worker.resources": {"licence": 1}},
        span="solve",
    ),
    # The client works for 0.5 s with each result before it submits the next task.
    "slow-reader-of-results": Case(
        lambda client, cluster: rounds(client, ["try"] * 12, [0.1], 0.5),
        ("client",),
        workers=8,
        threads=1,
        never=("threads", "uneven", "chain"),
        span="search",
    ),
    # A user's sweep needs more threads; another one's short tasks have their turn after 1 s.
    "report-beside-sweep": Case(
        lambda client, cluster: together(
            user(cluster, "sweep", [1.0] * 40), user(cluster, "report", [0.2] * 4, 1.2)
        ),
        ("threads",),
        names=("sweep",),
        never=("uneven", "restricted", "starting"),
    ),
    # ---------------------------------------------- real processes
    # Loops in Python on eight threads of one process, in a nested span.
    "gil-with-eight-threads": Case(
        lambda client, cluster: tasks(client, "clean", [0.15] * 24, function=jobs.looped),
        ("gil",),
        real=True,
        workers=1,
        threads=8,
        never=("uneven", "restricted"),
        span="etl/clean",
    ),
    # Unpickling imports for 2 s on each of four workers.
    "real-import-on-four-workers": Case(
        lambda client, cluster: tasks(client, "fit", [0.02] * 4, function=slow_to_import.fit),
        ("starting", "worker_loop"),
        real=True,
        workers=4,
        threads=1,
        never=("uneven", "threads"),
        span="etl/fit",
    ),
    # Tasks wait for other programs.
    "pipe-in-tasks": Case(
        lambda client, cluster: tasks(
            client, "convert", range(12), function=lambda _: os.system("sleep 0.7")
        ),
        ("off_cpu",),
        real=True,
        workers=4,
        threads=1,
        never=("gil", "cpus", "uneven"),
        span="convert",
    ),
}
UNSEEN.add(ROWS)

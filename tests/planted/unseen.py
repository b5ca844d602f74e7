"""Cases to judge the judgement by: who tunes it looks at neither these programs nor their runs.

They have other shapes, durations and mixtures than those in `simulated` and `processes`. A case
that somebody has tuned for belongs there, and a new one here.
"""

from __future__ import annotations

import os
import time
from typing import Any

import distributed
from distributed import Reschedule, as_completed, span, wait, worker_client

import dask_otel
from tests.planted import jobs, processes, slow_to_import
from tests.planted.case import Cases
from tests.planted.means import (
    MB,
    at,
    bandwidth,
    become,
    compute,
    first,
    imports,
    load,
    sleep,
    task,
    tasks,
)
from tests.planted.simulated import Slow

UNSEEN = Cases()
plant = UNSEEN.plant


@plant("threads", workers=1, threads=8, never=("uneven", "starting", "restricted", "gil"))
def mixed_tasks_on_one_worker(client: Any, cluster: Any) -> None:
    """72 tasks of 0.2 to 0.6 s on the eight threads of one worker, in a nested span."""
    with span("etl"), span("clean"):
        wait(tasks(client, "clean", [0.2, 0.3, 0.4, 0.5, 0.6, 0.4] * 12))


@plant("threads", workers=8, threads=1, never=("uneven", "starting", "client"))
def two_more_tasks_than_threads(client: Any, cluster: Any) -> None:
    """Ten tasks of 3 s on eight threads."""
    with span("score"):
        wait(tasks(client, "score", [3.0] * 10))


@plant("starting", "worker_loop", workers=4, never=("uneven", "restricted", "chain"), most=6.0)
def import_in_a_nested_step(client: Any, cluster: Any) -> None:
    """The second of three nested steps imports for 6 s on each of four workers."""
    cluster.latency = imports(6.0, "fit")
    with span("nightly"):
        before: list[Any] = []
        for step in ("load", "fit", "save"):
            with span(step):
                before = tasks(client, step, [0.3] * 8, *([before] if before else []))
                wait(before)


async def hog(seconds: float) -> None:
    """Block the worker's event loop: a coroutine that sleeps as a function does."""
    time.sleep(seconds)


@plant("worker_loop", workers=8, threads=1, never=("threads", "uneven", "client"), most=7.0)
def coroutine_that_blocks(client: Any, cluster: Any) -> None:
    """A coroutine blocks the event loop of the worker that has the data."""
    with span("report"):
        loaded = tasks(client, "load", [MB] * 2, function=load, workers=["w3"])
        wait(loaded)
        hogs = task(client, "hog", 7.0, function=hog, workers=["w3"])
        time.sleep(0.1)
        wait(task(client, "join", 0.3, *loaded, workers=["w5"]))
        wait(hogs)


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


@plant("slow_worker", workers=8, threads=1, never=("restricted", "starting"))
def slow_one_of_eight(client: Any, cluster: Any) -> None:
    """One of eight workers takes twelve times as long."""
    cluster.machines["w6"].slowness = 12.0
    with span("etl"), span("clean"):
        wait(tasks(client, "clean", [0.5] * 40))


@plant("transfer", workers=4, never=("threads", "client", "restricted"))
def all_to_all(client: Any, cluster: Any) -> None:
    """Each of eight tasks needs a part from each of eight others, at 30 MB/s."""
    cluster.latency = bandwidth(30 * MB)
    with span("join"), span("exchange"):
        parts = tasks(client, "split", [80 * MB] * 8, function=load)
        wait(parts)
        wait([task(client, "merge", 0.1, *parts) for _ in range(8)])


@plant("paused", workers=4, threads=1, never=("long_task", "chain"))
def paused_in_second_step(client: Any, cluster: Any) -> None:
    """All workers but one are paused for 10 s when the second step begins."""
    with span("nightly"):
        loaded = tasks(client, "load", [0.5] * 8)
        wait(loaded)
        for name in ("w0", "w1", "w2"):
            cluster.do(name, become, cluster.workers[name], "paused")
        fitted = tasks(client, "fit", [0.5] * 16, loaded * 2)
        time.sleep(10.0)
        for name in ("w0", "w1", "w2"):
            cluster.do(name, become, cluster.workers[name], "running")
        wait(fitted)


def twice(seconds: float) -> float:
    """Fail in the first two runs."""
    compute(seconds)
    key = distributed.get_worker().get_current_task()
    if first((key, 1)) or first((key, 2)):
        raise TimeoutError("no answer")
    return seconds


@plant("repeated", workers=8, threads=1, never=("uneven", "lost", "threads"), most=4.0)
def two_retries_each(client: Any, cluster: Any) -> None:
    """Each of eight tasks fails twice after 2 s."""
    with span("etl"), span("fetch"):
        wait(tasks(client, "fetch", [2.0] * 8, function=twice, retries=5))


def raises(seconds: float, *after: Any) -> None:
    """Fail at the end."""
    compute(seconds)
    raise KeyError("price")


@plant("failed", workers=1, threads=8)
def failed_at_the_end(client: Any, cluster: Any) -> None:
    """The last of three nested steps fails after the others have worked."""
    with span("nightly"):
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


@plant("no_workers", never=("lost", "threads", "client"), most=12.0)
def no_workers_in_between(client: Any, cluster: Any) -> None:
    """All workers leave in order before the second step; another comes after 12 s."""
    with span("nightly"):
        kept = client.scatter(b"x" * 100)
        wait(tasks(client, "load", [0.5] * 4))
        del kept
        cluster.leave("w0")
        cluster.leave("w1")
        at(cluster, 12.0, lambda: cluster.add_worker("w2", 8))
        wait(tasks(client, "fit", [0.5] * 8))


@plant("chain", workers=1, threads=8, never=("threads", "uneven", "client", "long_task"))
def iterations_without_a_client(client: Any, cluster: Any) -> None:
    """Twelve iterations of two small steps; each needs the last one."""
    with span("solve"):
        before: list[Any] = []
        for _ in range(12):
            ahead = tasks(client, "gradient", [0.3], *[[one] for one in before])
            before = tasks(client, "update", [0.2], ahead)
        wait(before)


@plant("held", workers=4, names=("nightly",), never=("uneven", "restricted", "starting"))
def dashboard_behind_nightly(client: Any, cluster: Any) -> None:
    """The short tasks of one team wait for the 120 tasks of another, in nested spans."""

    def nightly(own: Any) -> None:
        with span("nightly"), span("fit"):
            wait(tasks(own, "fit", [0.6] * 120))

    def dashboard(own: Any) -> None:
        time.sleep(0.5)
        with span("dashboard"):
            wait(tasks(own, "query", [0.05] * 24))

    users = [cluster.user("nightly", nightly), cluster.user("dashboard", dashboard)]
    for one in users:
        one.result()


def mostly_waits(seconds: float) -> None:
    compute(0.1 * seconds)
    sleep(0.9 * seconds)


@plant("off_cpu", workers=1, threads=8, never=("gil", "cpus", "uneven", "starting"))
def mostly_waiting(client: Any, cluster: Any) -> None:
    """96 tasks compute for a tenth of their time."""
    with span("etl"), span("fetch"):
        wait(tasks(client, "fetch", [0.5] * 96, function=mostly_waits))


def rounds(seconds: list[float]) -> None:
    with worker_client() as inner:
        for one in seconds:
            wait(tasks(inner, "trial", [one] * 7))


@plant("inner", workers=8, threads=1, never=("client", "long_task", "threads"))
def rounds_of_inner_tasks(client: Any, cluster: Any) -> None:
    """A task submits six rounds of seven tasks, and waits for each round."""
    with span("search"), span("rounds"):
        task(client, "optimise", [1.0] * 6, function=rounds).result()


@plant("client", workers=4, never=("threads", "uneven", "chain"))
def a_step_at_a_time(client: Any, cluster: Any) -> None:
    """The client looks at the results of each of eight steps for a second."""
    with span("explore"):
        for _ in range(8):
            client.gather(tasks(client, "query", [0.3] * 8))
            time.sleep(1.0)


@plant("client", workers=1, threads=8, never=("threads", "uneven"))
def too_few_at_a_time(client: Any, cluster: Any) -> None:
    """The client keeps two tasks on the way, and takes 0.4 s before it submits the next."""
    with dask_otel.span("crawl"):
        futures = as_completed(tasks(client, "page", [0.1] * 2))
        for number, _ in enumerate(futures):
            time.sleep(0.4)
            if number < 20:
                futures.add(task(client, "next", 0.1))


@plant("scheduler", workers=8, threads=1, never=("threads", "uneven", "long_task", "gil"))
def plugin_on_eight_workers(client: Any, cluster: Any) -> None:
    """A plugin takes 10 ms of the scheduler's event loop for each of 120 tasks, six times."""
    client.register_plugin(Slow(0.01))
    with span("etl"), span("clean"):
        wait(tasks(client, "clean", [0.08] * 120))


@plant("tiny", "scheduler", workers=4, never=("threads", "uneven", "long_task"))
def tiny_tasks_in_two_steps(client: Any, cluster: Any) -> None:
    """Two steps of 150 tasks of 1 ms; Dask takes 12 ms for each."""
    client.register_plugin(Slow(0.003))
    with span("count"):
        loaded = tasks(client, "load", [0.001] * 150)
        wait(tasks(client, "count", [0.001] * 150, loaded))


@plant("off_cpu", also=("starting", "worker_loop"), workers=4, never=("uneven", "restricted"))
def import_and_waiting(client: Any, cluster: Any) -> None:
    """An import of 2 s, then 12 s of tasks that wait for something."""
    cluster.latency = imports(2.0, "fetch")
    with span("crawl"):
        wait(tasks(client, "fetch", [1.5] * 64, function=sleep))


@plant("transfer", also=("long_task",), workers=4, never=("threads", "uneven"))
def transfer_and_skew(client: Any, cluster: Any) -> None:
    """One task fetches for 6 s, and another of a later step takes 3 s instead of 0.1 s."""
    cluster.latency = bandwidth(20 * MB)
    with span("join"):
        parts = tasks(client, "part", [60 * MB] * 8, function=load)
        total = task(client, "total", 0.1, *parts)
        wait(tasks(client, "write", [3.0] + [0.1] * 7, [total] * 8))


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


@plant("repeated", workers=4, never=("lost", "failed", "threads"))
def tasks_that_ask_for_another_worker(client: Any, cluster: Any) -> None:
    """Each of eight tasks of 2 s is rescheduled at its end."""
    with span("fit"):
        wait(tasks(client, "fit", [2.0] * 8, function=rescheduled))


# ----------------------------------------------------------------- in place of those tuned for


@plant("restricted", workers=4, config={"distributed.worker.resources": {"licence": 1}})
def one_licence_a_worker(client: Any, cluster: Any) -> None:
    """16 tasks need a licence; each worker has one, and two threads."""
    with span("solve"):
        wait(tasks(client, "solve", [1.0] * 16, resources={"licence": 1}))


@plant("lost", workers=4, threads=1, never=("client", "restricted", "failed"))
def killed_with_one_long_result(client: Any, cluster: Any) -> None:
    """The worker that has the only long result dies before it is used."""
    with span("model"):
        base = task(client, "base", 5.0, workers=["w2"], allow_other_workers=True)
        wait(base)
        scores = tasks(client, "score", [1.0] * 8, [base] * 8)
        time.sleep(0.2)
        cluster.kill("w2")
        wait(scores)


@plant("long_task", workers=4, never=("threads", "uneven", "client"))
def skew_in_the_middle(client: Any, cluster: Any) -> None:
    """Three steps in one graph; one task of the second is 20 times as long."""
    with span("etl"):
        loaded = tasks(client, "load", [0.4] * 8)
        cleaned = tasks(client, "clean", [0.3] * 7 + [6.0], loaded)
        total = task(client, "total", 0.2, *cleaned)
        wait(total)


@plant("client", workers=8, threads=1, never=("threads", "uneven", "chain"))
def slow_reader_of_results(client: Any, cluster: Any) -> None:
    """The client works for 0.5 s with each result before it submits the next task."""
    with span("search"):
        for _ in range(12):
            task(client, "try", 0.1).result()
            time.sleep(0.5)


@plant("threads", names=("sweep",), never=("uneven", "restricted", "starting"))
def report_beside_sweep(client: Any, cluster: Any) -> None:
    """A user's sweep needs more threads; another one's short tasks have their turn after 1 s."""

    def sweep(other: Any) -> None:
        with span("sweep"):
            wait(tasks(other, "trial", [1.0] * 40))

    user = cluster.user("carol", sweep)
    time.sleep(1.2)
    with span("report"):
        wait(tasks(client, "plot", [0.2] * 4))
    user.result()


# ------------------------------------------------------------------------- real processes

many = processes.many


@plant("gil", real=True, workers=1, threads=8, never=("uneven", "restricted"))
def gil_with_eight_threads(client: Any, cluster: Any) -> None:
    """Loops in Python on eight threads of one process, in a nested span."""
    with span("etl"), span("clean"):
        wait(many(client, "clean", jobs.looped, [0.15] * 24))


@plant("starting", "worker_loop", real=True, workers=4, threads=1, never=("uneven", "threads"))
def real_import_on_four_workers(client: Any, cluster: Any) -> None:
    """Unpickling imports for 2 s on each of four workers."""
    with span("etl"), span("fit"):
        wait(many(client, "fit", slow_to_import.fit, [0.02] * 4))


@plant("pickle", real=True, never=("threads", "uneven", "client"))
def slow_reduce_of_arguments(client: Any, cluster: Any) -> None:
    """Each of four tasks on one worker needs eight results of the other, slow to pickle."""
    with span("total"):
        address, other = client.nthreads()
        parts = many(client, "part", jobs.slow_to_pickle, range(8), workers=[address])
        wait(parts)
        wait(client.submit(jobs.length, *parts, workers=[other]))


@plant("spill", real=True, config=processes.SPILL, workers=1, never=("uneven", "client"))
def spilling_on_one_worker(client: Any, cluster: Any) -> None:
    """Results of 0.3 GB do not fit into the memory of one worker."""
    with span("etl"):
        loaded = many(client, "load", jobs.random_bytes, [30 * MB] * 10)
        wait(client.submit(jobs.length, *loaded))


@plant("off_cpu", real=True, workers=4, threads=1, never=("gil", "cpus", "uneven"))
def pipe_in_tasks(client: Any, cluster: Any) -> None:
    """Tasks wait for other programs."""
    with span("convert"):
        wait(many(client, "convert", lambda _: os.system("sleep 0.7"), range(12)))


@plant("graph", "starting", real=True, workers=1, threads=2, never=("threads", "uneven"))
def table_in_a_closure(client: Any, cluster: Any) -> None:
    """The function of four tasks has 25 MB in its closure."""
    table = os.urandom(25 * MB)
    with dask_otel.span("look"):
        wait(many(client, "find", lambda number: table[number], range(4)))

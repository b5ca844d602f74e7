"""Planted causes in simulated time. Each is the program of a user."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
from distributed import span, wait, worker_client
from distributed.shuffle import ShuffleWorkerPlugin

import dask_otel
from tests.planted.case import Case, Cases
from tests.planted.means import (
    MB,
    Slow,
    bandwidth,
    block,
    come,
    compute,
    fed,
    first,
    imports,
    kill,
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

SEEN = Cases()
plant = SEEN.plant

INF = {"distributed.scheduler.worker-saturation": "inf"}
TOKEN = {"distributed.worker.resources": {"token": 1}}
NO_STEALING = {"distributed.scheduler.work-stealing": False}


# -------------------------------------------------------------------- starting, worker_loop


@plant(
    "starting",
    "worker_loop",
    never=("uneven", "restricted"),
    most=3.0,
    span="nightly",
    latency=imports(3.0, "fit"),
)
def import_in_second_step(client: Any, cluster: Any) -> Any:
    """The first task of the second step imports for 3 s on each worker."""
    loaded = tasks(client, "load", [0.2] * 8)
    wait(loaded)
    return tasks(client, "fit", [0.1] * 8, loaded)


@plant(
    "starting",
    "worker_loop",
    workers=4,
    never=("uneven",),
    least=3.7,
    most=4.0,
    latency=imports(4.0, "step2"),
)
def import_in_the_third_root(client: Any, cluster: Any) -> None:
    """The third of four roots imports for 4 s on each worker, just after the one before."""
    for number in range(4):
        with span(f"root{number}"):
            wait(tasks(client, f"step{number}", [0.3] * 16))


@plant(
    "starting",
    workers=1,
    threads=4,
    also=("worker_loop",),
    never=("uneven",),
    most=1.7,
    span="train",
    latency=imports(1.7, "fit"),
)
def import_while_others_end(client: Any, cluster: Any) -> Any:
    """The only worker imports for 1.7 s, and does not notice that tasks of the step before end."""
    loaded = tasks(client, "load", [0.2] * 24)
    wait(tasks(client, "fit", [0.2] * 8, loaded[:8]))
    return loaded


# It takes 2.6 or 4.6 s, as the worker that steals a task may have to import, too.
@plant(
    "starting",
    "worker_loop",
    threads=1,
    never=("uneven", "long_task"),
    least=1.9,
    most=4.0,
    span="train",
    latency=imports(2.0, "fit"),
)
def import_where_the_data_lie(client: Any, cluster: Any) -> Any:
    """Both tasks of the second step are sent to the worker with their data, and it imports."""
    loaded = task(client, "load", 0.2)
    return tasks(client, "fit", [0.2] * 2, [loaded] * 2)


@plant(
    "starting",
    "worker_loop",
    workers=3,
    threads=4,
    also=("uneven",),
    most=4.0,
    span="train",
    latency=imports(2.0, "fit"),
)
def import_where_the_data_lie_after_much_work(client: Any, cluster: Any) -> Any:
    """All tasks of the last step are sent to the worker with their data, and it imports for 2 s."""
    wait(tasks(client, "load", [0.2] * 24))
    cleaned = tasks(client, "clean", [0.8] * 12)
    return [*cleaned, *tasks(client, "fit", [0.1] * 24, [cleaned[0]] * 24)]


def importing(seconds: float) -> float:
    compute(4.0 if first(distributed.get_worker().address) else 0.0)
    return compute(seconds)


@plant("worker_loop", never=("threads", "uneven"), most=5.0, span="report")
def data_on_blocked_worker(client: Any, cluster: Any) -> Any:
    """Data lie on a worker whose event loop is blocked for 5 s."""
    loaded = tasks(client, "load", [MB] * 4, function=load, workers=["w0"])
    wait(loaded)
    cluster.machines["w0"].block(5.0)
    return task(client, "join", 0.2, *loaded, workers=["w1"])


def far(sender: Any, receiver: Any, message: Any) -> float:
    """Let each message to and from a worker take a quarter of a second."""
    return 0.25 if {sender.name, receiver.name} & {"w0", "w1"} else 0.0


def far_worker(sender: Any, receiver: Any, message: Any) -> float:
    """Let each message to and from one worker take half a second."""
    return 0.5 if "w1" in (sender.name, receiver.name) else 0.0


# Without that it takes 6.0 s.
@plant(
    "messages",
    also=("threads",),
    never=("starting", "uneven", "worker_loop", "client"),
    least=5.0,
    most=5.5,
    span="train",
    latency=far_worker,
)
def steps_on_a_far_worker(client: Any, cluster: Any) -> None:
    """Eight tasks in each of six steps; messages of one of two workers take half a second each."""
    before: list[Any] = []
    for step in range(6):
        before = tasks(client, f"step{step}", [0.5] * 8, *([before] if before else []))
        wait(before)


# -------------------------------------------------------------------- uneven, restricted


# It takes 2.6 s, and 2.0 s if any number of them runs at a time.
@plant(
    "restricted",
    workers=3,
    also=("threads",),
    never=("uneven", "starting"),
    least=0.55,
    most=0.65,
    span="score",
    config={"distributed.worker.resources": {"memory": 5}},
)
def a_resource_beside_a_busy_step(client: Any, cluster: Any) -> Any:
    """Each worker has memory for one large task at a time; small ones keep threads busy."""
    loaded = tasks(client, "load", [0.2] * 24)
    return loaded + tasks(client, "score", [0.6] * 12, loaded[:12], resources={"memory": 4})


# It takes 6.0 s, and 4.0 s if any number of them runs at a time.
@plant("restricted", config=TOKEN, never=("starting",), also=("threads",), most=2.0, span="score")
def a_resource_after_two_steps(client: Any, cluster: Any) -> Any:
    """Two steps have a task more than threads; each worker runs one task of the third at a time."""
    for name in ("load", "clean"):
        wait(tasks(client, name, [0.5] * 5))
    return tasks(client, "score", [0.5] * 16, resources={"token": 1})


# It takes 6.0 s, and 1.0 s without the task.
@plant("restricted", never=("threads", "uneven"), least=5.0, most=5.0, span="score")
def a_resource_of_nobody_after_a_step(client: Any, cluster: Any) -> None:
    """A task waits for a resource that no worker has, until its client cancels it."""
    wait(tasks(client, "load", [0.5] * 6))
    future = task(client, "score", 0.5, resources={"token": 1})
    time.sleep(5.0)
    future.cancel()
    time.sleep(0.1)


# It takes 10.5 s until its telemetry ends, and 4.0 s if the tasks may use all threads.
@plant("restricted", workers=4, never=("threads", "uneven"), least=6.5, most=8.0, span="train")
def pinned_in_a_run_that_goes_on(client: Any, cluster: Any) -> None:
    """Tasks may use one of four workers only; a third of them are left when the scheduler ends."""
    cluster.kept = tasks(client, "fit", [1.0] * 30, workers=["w1"])
    time.sleep(8.0)


# It takes 6.0 s, and 5.0 s if the tasks may use all threads.
@plant("restricted", never=("threads", "uneven"), least=0.98, most=1.0, span="train")
def pinned_beside_a_long_task(client: Any, cluster: Any) -> Any:
    """Tasks may use one of two workers only, and a long one runs on the other."""
    long = task(client, "load", 5.0, workers=["w1"])
    return [long, *tasks(client, "fit", [0.5] * 24, workers=["w0"])]


# It takes 4.8 s, 4.0 s with older releases, and 0.6 s on workers of usual speed.
@plant(
    "slow_worker",
    never=("restricted", "starting"),
    least=3.4,
    most=4.2,
    span="train",
    events={0.0: slow(8.0, "w0")},
)
def one_task_on_a_slow_worker(client: Any, cluster: Any) -> Any:
    """Two tasks of 8 run on a worker that takes eight times as long, and so does the next step."""
    loaded = tasks(client, "load", [0.1] * 8)
    return task(client, "fit", 0.4, *loaded, workers=["w0"], allow_other_workers=True)


# ---------------------------------------------------------------------------------- data


@plant(
    "transfer", never=("threads", "client", "long_task"), span="join", latency=bandwidth(50 * MB)
)
def slow_network(client: Any, cluster: Any) -> Any:
    """Each worker fetches 200 MB at 50 MB/s; computing takes 0.1 s."""
    left = tasks(client, "left", [50 * MB] * 4, function=load, workers=["w0"])
    right = tasks(client, "right", [50 * MB] * 4, function=load, workers=["w1"])
    wait([*left, *right])
    return tasks(client, "merge", [0.1] * 4, left, right[::-1])


@plant("transfer", never=("threads", "client"), span="total", latency=bandwidth(40 * MB))
def sum_of_large_parts(client: Any, cluster: Any) -> Any:
    """One task at the end needs all parts; half of them are on the other worker."""
    parts = tasks(client, "part", [30 * MB] * 16, function=load)
    return task(client, "total", 0.1, *parts)


@plant("transfer", workers=4, never=("threads", "starting"), most=3.0, latency=bandwidth(20 * MB))
def a_transfer_booked_on_another_task(client: Any, cluster: Any) -> None:
    """Two tasks on one of four workers wait for the same data; Dask books it on one of them."""
    with span("score"):
        model = task(client, "model", 60 * MB, function=load, workers=["w0"])
        wait(model)
        wait(tasks(client, "score", [0.2, 0.5], [model] * 2, workers=["w1"]))


@plant(
    "transfer",
    workers=8,
    threads=1,
    never=("threads", "worker_loop", "starting"),
    most=1.5,
    span="total",
    latency=bandwidth(20 * MB),
)
def a_transfer_among_eight(client: Any, cluster: Any) -> Any:
    """One task needs the parts of all eight workers, whose event loops are as late as usual."""
    parts = tasks(client, "part", [15 * MB] * 8, function=load)
    return task(client, "total", 0.1, *parts)


# By the worker that gets which block, which the order of a set decides, it takes 1.6 or 2.0 s, and
# 0.4 s without transfers.
@plant(
    "transfer",
    never=("threads", "starting", "worker_loop"),
    least=1.1,
    most=1.6,
    latency=bandwidth(20 * MB),
)
def rechunk_on_a_slow_network(client: Any, cluster: Any) -> None:
    """Rows become columns at 20 MB/s; the splits are tasks that Dask books no transfer on."""

    def slow(block: Any) -> Any:
        compute(0.2)
        return block

    rows = da.ones((4000, 4000), chunks=(1000, 4000)).map_blocks(slow, meta=np.empty((0, 0)))
    columns = rows.rechunk((4000, 1000), method="tasks")
    with span("transpose"):
        wait(client.persist(columns.map_blocks(slow, meta=np.empty((0, 0)))))


@plant("transfer", never=("threads", "starting"), latency=bandwidth(MB / 10))
def groups_on_a_slow_network(client: Any, cluster: Any) -> None:
    """A shuffle of tasks at 0.1 MB/s: those that hold all threads have not begun."""
    frame = dask.datasets.timeseries(
        "2000-01-01", "2000-01-09", freq="10s", partition_freq="1D", dtypes={"id": int, "x": float}
    )
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        wait(client.persist(frame.shuffle("id")))


# --------------------------------------------------------------------------------- deaths


@plant(
    "long_task",
    threads=1,
    never=("paused", "starting", "uneven"),
    least=1.0,
    most=1.0,
    span="train",
)
def paused_beside_a_long_task(client: Any, cluster: Any) -> Any:
    """One of two workers is paused for 2 s, while the only task left runs on the other one."""
    wait(tasks(client, "load", [0.1] * 12))
    last = task(client, "fit", 2.0, workers=["w0"])
    time.sleep(0.1)
    cluster.pause("w1", 9.0)
    return last


def flaky(seconds: float) -> float:
    """Fail at the end of the first run."""
    compute(seconds)
    if first(distributed.get_worker().get_current_task()):
        raise OSError("connection reset")
    return seconds


# It takes 4.1 s, and 1.6 s without the import.
@plant(
    "starting",
    workers=3,
    never=("uneven",),
    least=2.4,
    most=2.5,
    span="crawl",
    latency=imports(2.5, "fetch"),
)
def import_before_tasks_that_fail(client: Any, cluster: Any) -> Any:
    """Each worker imports for 2.5 s; a third of the tasks fail once."""
    flawed = tasks(client, "fetch", [0.4] * 4, function=flaky, retries=3)
    return flawed + tasks(client, "fetch", [0.4] * 8)


@plant("failed", span="nightly")
def a_run_that_failed(client: Any, cluster: Any) -> Any:
    """One of 8 tasks fails, and with it the sum that needs it."""
    parts = tasks(client, "part", [0.5, 0.5, -1.0, 0.5, 0.5, 0.5, 0.5, 0.5], function=checked)
    return task(client, "total", 0.1, *parts)


def checked(seconds: float) -> float:
    if seconds < 0:
        raise ValueError("a negative price")
    return compute(seconds)


@plant("healthy", never=("threads", "lost", "failed", "uneven"), span="train")
def cancelled(client: Any, cluster: Any) -> None:
    """The client cancels 40 tasks after 2 s, while most of them wait for a thread."""
    futures = tasks(client, "fit", [0.5] * 40)
    time.sleep(2.0)
    client.cancel(futures)
    time.sleep(0.1)


# It takes 13 to 14.4 s, by where Dask computes again, and 7 s if no worker dies.
@plant("lost", never=("client", "uneven"), most=7.4, span="train", events={5.9: kill("w1")})
def worker_killed(client: Any, cluster: Any) -> Any:
    """One of two workers is killed after 5.9 of 7 s; its results are computed again."""
    # No two end at once: then chance decides which worker gets the next one.
    parts = tasks(client, "part", [1.45 + 0.007 * one for one in range(16)])
    return [*parts, task(client, "total", 1.0, *parts)]


@plant(
    "lost",
    workers=4,
    never=("uneven",),
    least=59.9,
    most=60.1,
    span="train",
    events={10.0: kill("w1")},
)
def killed_early_under_long_tasks(client: Any, cluster: Any) -> Any:
    """A worker is killed after 10 of 60 s; its tasks wait for threads, and begin again."""
    return tasks(client, "fit", [60.0] * 8)


@plant("threads", never=("lost", "repeated", "failed"))
def worker_retired_in_order(client: Any, cluster: Any) -> None:
    """One of two workers is retired early; its results are copied first, and no task is lost."""
    with span("train"):
        futures = tasks(client, "fit", [0.5] * 32)
        time.sleep(2.2)
        client.retire_workers(names=["w1"])
        wait(futures)
        time.sleep(0.1)
    cluster.workers.pop("w1")


@plant("healthy", "threads", never=("lost", "repeated", "failed", "no_workers"))
def workers_closed_in_order(client: Any, cluster: Any) -> None:
    """Both workers close when the work is done, while the client still has its results."""
    with span("train"):
        futures = tasks(client, "fit", [2.0] * 8)
        wait(futures)
    time.sleep(0.5)
    cluster.leave("w0")
    cluster.leave("w1")
    time.sleep(1.0)


# ----------------------------------------------------------------------------- no workers


@plant("no_workers", workers=0, never=("threads", "restricted", "client"))
def adaptive_from_zero(client: Any, cluster: Any) -> None:
    """An adaptive cluster without workers asks for some only after 8 s."""
    cluster.adapt(0, 4, interval=8.0)
    with span("train"):
        wait(tasks(client, "fit", [0.5] * 8))


# ----------------------------------------------------------------------- shape of the work


@plant("long_task", never=("threads", "starting", "client"), span="nightly")
def tail_of_a_barrier(client: Any, cluster: Any) -> Any:
    """Each of three steps waits for one straggler of 8 tasks."""
    before: list[Any] = []
    for step in ("load", "clean", "fit"):
        tail = tasks(client, step, [2.0] + [0.1] * 7, *[[one] * 8 for one in before])
        before = [task(client, f"{step}-all", 0.01, *tail)]
    return before


# ---------------------------------------------------------------------------------- others


@plant("held", names=("adhoc",), never=("uneven", "restricted", "starting"))
def lower_priority(client: Any, cluster: Any) -> None:
    """Short tasks of low priority wait for 60 of high priority, which came after them."""

    low = user(cluster, "nightly", [0.1] * 12, priority=-10)
    together(low, user(cluster, "adhoc", [0.4] * 60, 0.05, priority=10))


# It takes 1.2 s, and 0.2 s on threads of its own.
@plant("held", names=("audit",), never=("uneven", "starting"), least=0.98, most=1.0)
def behind_what_was_fired_and_forgotten(client: Any, cluster: Any) -> None:
    """A report waits until tasks have ended for whose results nobody waits."""
    with span("audit"):
        distributed.fire_and_forget(tasks(client, "log", [1.0] * 16))
    with span("report"):
        wait(tasks(client, "report", [0.2] * 4))


# It takes 5.0 s, as it does if the client submits all tasks at once.
@plant("healthy", "threads", never=("client", "chain"), block="train")
def submitted_while_all_threads_compute(client: Any, cluster: Any) -> Any:
    """The client submits the next tasks just before all threads have ended those before."""
    first = tasks(client, "load", [2.0] * 8)
    time.sleep(3.9)
    return [*first, *tasks(client, "fit", [1.0] * 4)]


@plant("held", names=("report",), never=("threads", "healthy"), least=8.0, most=10.6)
def behind_tasks_that_have_not_ended(client: Any, cluster: Any) -> None:
    """A report waits until its user goes, as long tasks of another user hold all threads."""
    other = user(cluster, "sweep", [40.0] * 4)
    time.sleep(0.5)
    with span("report"):
        mine = tasks(client, "report", [1.0] * 8)
        time.sleep(8.0)
    client.cancel(mine)
    together(other)


# It takes 5.9 s, and 3.2 s without the restart.
@plant("repeated", never=("lost", "threads"), least=2.6, most=2.9, block="train")
def restarted_by_its_client(client: Any, cluster: Any) -> Any:
    """The client restarts the cluster while tasks run, and submits them again."""
    cluster.kept = tasks(client, "fit", [3.0] * 4)
    time.sleep(2.7)
    cluster.restart()
    return tasks(client, "fit", [3.0] * 4)


# --------------------------------------------------------------------------------- off CPU


def locked(seconds: float) -> float:
    with distributed.Lock("database"):
        return compute(seconds)


@plant("off_cpu", also=("long_task",), names=("fetch",), never=("gil",), most=8.0, span="train")
def fetch_then_fit(client: Any, cluster: Any) -> Any:
    """64 tasks wait for something for 0.5 s each; then one computes for 5 s."""
    fetched = tasks(client, "fetch", [0.5] * 64, function=sleep)
    return task(client, "fit", 5.0, *fetched)


def awaits(number: int) -> None:
    distributed.Event("ready").wait()


def announces(seconds: float) -> None:
    compute(seconds)
    distributed.Event("ready").set()


# How much shorter it would be without the waits is not known: three sleeps look the same.
@plant("off_cpu", names=("prepare",), never=("healthy", "threads"), most=0.0, span="train")
def three_tasks_wait_for_the_fourth(client: Any, cluster: Any) -> Any:
    """Three of four threads have tasks that wait for an event; the task of the fourth sets it."""
    waiting = tasks(client, "prepare", range(3), function=awaits)
    return [*waiting, task(client, "load", 6.0, function=announces)]


# Without the tasks of the other root, it takes 1.5 s instead of 6.3 s.
@plant("off_cpu", also=("held",), names=("hold",), never=("threads", "healthy"), workers=2)
def tasks_of_another_root_wait_on_three_threads(client: Any, cluster: Any) -> None:
    """They hold the threads until their client has the results of the others, on the fourth."""
    with span("prepare"):
        waiting = tasks(client, "hold", range(3), function=awaits)
    time.sleep(0.2)
    with span("fit"):
        wait(tasks(client, "fit", [0.5] * 12))
    distributed.Event("ready", client=client).set()
    wait(waiting)


# Older releases give one worker more of the eight than others.
@plant(
    "off_cpu", names=("query",), never=("gil", "cpus", "threads"), least=5.0, most=5.3, span="train"
)
def one_slow_query(client: Any, cluster: Any) -> Any:
    """A task waits for 5 s for a database; then eight compute for 0.5 s each."""
    rows = task(client, "query", 5.0, function=sleep)
    return tasks(client, "fit", [0.5] * 8, [rows] * 8)


def two_steps(client: Any, second: str, function: Callable[..., Any]) -> Any:
    """40 tasks wait for 0.1 s each; the next step of each, in a span of its own, takes 0.3 s."""
    with span("fetch"):
        fetched = tasks(client, "fetch", [0.1] * 40, function=sleep)
    with span(second):
        return tasks(client, second, [0.3] * 40, fetched, function=function)


@plant("off_cpu", names=("query",), never=("cpus", "gil"), least=2.8, span="train")
def steps_that_wait(client: Any, cluster: Any) -> Any:
    """The threads that the first step waits for are held by the second one, which waits longer."""
    return two_steps(client, "query", sleep)


@plant("threads", never=("cpus", "gil"), most=2.1, span="train")
def steps_of_which_one_waits(client: Any, cluster: Any) -> Any:
    """The threads that the first step waits for are held by the second one, which computes."""
    return two_steps(client, "parse", compute)


# ---------------------------------------------------------------------------------- client


def one_by_one(seconds: list[float]) -> None:
    with worker_client() as inner:
        for one in seconds:
            inner.submit(compute, one, pure=False).result()


def all_at_once(seconds: list[float]) -> None:
    with worker_client() as inner:
        wait(tasks(inner, "trial", seconds))


@plant("client", never=("threads", "uneven"), most=5.1, block="train")
def graph_building(client: Any, cluster: Any) -> Any:
    """The client builds a graph for 5 s between two steps."""
    wait(tasks(client, "load", [0.5] * 4))
    time.sleep(5.0)
    return tasks(client, "fit", [0.5] * 4)


@plant("client", never=("threads", "uneven", "no_workers"), block="train")
def graph_building_first(client: Any, cluster: Any) -> Any:
    """The client builds a graph for 8 s before the first task; a span does not include that."""
    time.sleep(8.0)
    return tasks(client, "fit", [0.5] * 4)


@plant("client", "healthy", never=("threads", "uneven", "no_workers"), span="train")
def graph_building_outside(client: Any, cluster: Any) -> Any:
    """As long as the tasks take, with `distributed.span`, which includes less of the client."""
    time.sleep(5.0)
    return tasks(client, "fit", [2.0] * 4)


@plant(
    "client",
    "transfer",
    never=("threads", "uneven", "no_workers"),
    most=15.0,
    block="train",
    latency=bandwidth(20 * MB),
)
def scatter(client: Any, cluster: Any) -> Any:
    """The client scatters 150 MB at 20 MB/s before its tasks."""
    data = client.scatter(bytes(150 * MB), hash=False)
    return tasks(client, "fit", [0.3] * 4, [data] * 4)


# ------------------------------------------------------------------------------- scheduler


@plant("scheduler", never=("threads", "uneven", "long_task"), span="train")
def slow_scheduler_plugin(client: Any, cluster: Any) -> Any:
    """A plugin blocks the scheduler's event loop for 20 ms at each transition."""
    client.register_plugin(Slow(0.02))
    return tasks(client, "fit", [0.05] * 60)


@plant("tiny", "scheduler", never=("threads", "uneven", "long_task"), span="count")
def tiny_tasks(client: Any, cluster: Any) -> Any:
    """250 tasks of 0.1 ms each; Dask takes 8 ms for each."""
    client.register_plugin(Slow(0.002))
    return tasks(client, "count", [0.0001] * 250)


# ---------------------------------------------------------------------------------- shuffle


@plant("shuffle", never=("repeated", "lost"))
def p2p_shuffle(client: Any, cluster: Any) -> None:
    """A shuffle of little data whose stages take 6 s; it reschedules tasks by design."""
    stages = {"add_partition": 2.0, "barrier": 1.0, "get_output_partition": 3.0}
    frame = dask.datasets.timeseries("2000-01-01", "2000-01-03", freq="1h", partition_freq="1D")
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in stages.items():
            patch.setattr(ShuffleWorkerPlugin, name, slower(name, seconds))
        wait(client.persist(frame.shuffle("id")))


def slower(name: str, seconds: float) -> Any:
    real = getattr(ShuffleWorkerPlugin, name)

    def method(*args: Any, **more: Any) -> Any:
        # It reschedules a task that is on the wrong worker.
        result = real(*args, **more)
        compute(seconds)
        return result

    return method


# ------------------------------------------------------ first judged wrong, as cases of `unseen`


@plant(
    "uneven",
    workers=4,
    config={**INF, **NO_STEALING},
    never=("starting", "client", "chain"),
    span="clean",
)
def all_on_one_of_four(client: Any, cluster: Any) -> Any:
    """Tasks go where their data lie, all on one of four workers, and nobody may steal them."""
    loaded = tasks(client, "load", [60 * MB] * 16, function=load, workers=["w0"])
    wait(loaded)
    return tasks(client, "clean", [1.0] * 16, loaded)


@plant("long_task", workers=8, threads=1, names=("second",), never=("threads", "starting"))
def skew_in_the_second_root(client: Any, cluster: Any) -> None:
    """The first root is even, and one task of the second takes 30 times as long."""
    with span("first"):
        wait(tasks(client, "load", [0.8] * 8))
    with span("second"):
        wait(tasks(client, "merge", [0.2] * 12 + [6.0]))


@plant("long_task", names=("load",), never=("client", "uneven"), least=2.6, most=2.65)
def skew_before_another_root(client: Any, cluster: Any) -> None:
    """The tasks of one root wait for the longest of another; in four pieces it saves 2.6 s."""
    with span("load"):
        loaded = tasks(client, "load", [0.5] * 7 + [4.0])
    with span("fit"):
        wait(tasks(client, "fit", [0.5] * 8, [loaded] * 8))


# It takes 10 s. In many pieces, the long tasks take no more than the threads that were idle: 7.0 s.
@plant("long_task", workers=4, names=("load", "fit"), never=("uneven",), least=6.9, most=7.1)
def one_long_task_in_each_of_two_steps(client: Any, cluster: Any) -> None:
    """One of 24 tasks takes 5 s in each of two steps, which are spans."""
    for name in ("load", "fit"):
        with span("countries", name):
            wait(tasks(client, name, [5.0] + [0.3] * 23))


@plant("healthy", never=("threads", "lost", "failed", "uneven"))
def interrupted(client: Any, cluster: Any) -> None:
    """The user interrupts the program after 2.5 s; no task ends after the first two rounds."""
    try:
        with dask_otel.span("train"):
            futures = tasks(client, "fit", [1.0] * 40)
            time.sleep(2.5)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        del futures


@plant(
    "client",
    also=("long_task",),
    never=("threads", "uneven", "starting", "chain"),
    most=4.05,
    block="tune",
)
def think_then_skew(client: Any, cluster: Any) -> Any:
    """The client thinks for a second after each of four rounds; then one task takes 2 s."""
    rounds(client, [f"try{number}" for number in range(4)], [0.25] * 4, 1.0)
    return tasks(client, "final", [2.0] + [0.1] * 3)


@plant("client", never=("threads", "uneven", "chain", "healthy"), least=3.95, most=4.05)
def think_between_roots(client: Any, cluster: Any) -> None:
    """The client thinks for a second between five roots, each with as many tasks as threads."""
    for number in range(5):
        with span(f"query{number}"):
            client.gather(tasks(client, f"query{number}", [0.5] * 4))
        time.sleep(1.0)


@plant("restricted", never=("uneven", "client"), least=5.0, most=5.0, span="train")
def a_resource_of_no_worker(client: Any, cluster: Any) -> None:
    """A task waits for 5 s for a resource that no worker has; then the user cancels it."""
    future = task(client, "fit", 0.5, resources={"GPU": 1})
    time.sleep(5.0)
    future.cancel()


@plant("restricted", never=("uneven", "starting"), least=5.0, most=5.0, span="train")
def a_worker_that_never_comes(client: Any, cluster: Any) -> Any:
    """After others, a task waits for 5 s for a worker of that name; then the user cancels it."""
    wait(tasks(client, "load", [0.5] * 6))
    future = task(client, "fit", 0.5, workers=["large"])
    time.sleep(5.0)
    future.cancel()


# The oldest releases lose 2.6 s.
@plant("worker_loop", also=("threads",), never=("restricted", "starting", "uneven"),
       least=2.3, most=3.4)  # fmt: skip
def coroutines_that_block_in_each_round(client: Any, cluster: Any) -> None:
    """In each of five rounds, a coroutine blocks the event loop of one of two workers for 0.8 s."""
    hogs = []
    with span("feed"):
        for number in range(5):
            at_one = {"workers": [f"w{number % 2}"]}
            hogs.append(task(client, "poll", 0.8, function=blocking, **at_one))
            wait(tasks(client, f"calc{number}", [0.3] * 8))
        wait(hogs)


async def blocking(seconds: float) -> None:
    time.sleep(seconds)


@plant("healthy", workers=4, never=("starting", "threads", "uneven"), span="search")
def losers_cancelled(client: Any, cluster: Any) -> None:
    """Four times, the first of 16 results is enough, and the client cancels the other tasks."""
    for number in range(4):
        tried = tasks(client, f"try{number}", [0.5 + 0.1 * one for one in range(16)])
        wait(tried[0])
        client.cancel(tried)
        time.sleep(0.01)


# --------------------------------------------------------- spans that wait at the same time


def branches(client: Any, names: Sequence[str], count: int, seconds: float) -> list[Any]:
    """Submit so many tasks in each span, and wait for none."""
    found: list[Any] = []
    for name in names:
        with span(name):
            found += tasks(client, name, [seconds] * count)
    return found


def broken(seconds: float) -> float:
    """Fail at the end, on one of the workers; five times there, if it comes to no other one."""
    compute(seconds)
    worker = distributed.get_worker()
    key = worker.get_current_task()
    if worker.name == "w1" and any(first((key, run)) for run in range(5)):
        raise OSError("no space left on device")
    return seconds


@plant(
    "lost",
    workers=3,
    also=("chain",),
    never=("client", "uneven"),
    least=3.45,
    most=3.5,
    span="etl",
    events={3.5: kill("w1")},
)
def killed_with_half_a_chain(client: Any, cluster: Any) -> Any:
    """A worker is killed after 3.5 s with the results of three of six tasks, one after another."""
    ends = []
    for name in "abc":
        with span(name):
            before = task(client, name, 1.0)
            for _ in range(5):
                before = task(client, name, 1.0, before)
            ends.append(before)
    return ends


@plant("held", also=("threads",), names=("tiny waited",), least=5.4, most=5.7)
def short_tasks_behind_two_roots(client: Any, cluster: Any) -> None:
    """Two roots hold threads from each other, and from four short tasks: these waited, not all."""

    large = [user(cluster, name, [2.0] * 6) for name in ("p", "q")]
    together(*large, user(cluster, "tiny", [0.1] * 4, 0.4))


# It takes 5.7 s, and 3.8 s if no worker dies.
@plant("lost", workers=4, names=("load",), never=("uneven",), least=1.8, most=2.3)
def killed_with_results_of_another_root(client: Any, cluster: Any) -> None:
    """The worker that dies has tasks of one root, and the only results of another one."""
    with span("load"):
        loaded = tasks(client, "load", [1.5] * 16)
        wait(loaded)
    with span("fit"):
        fitted = tasks(client, "fit", [0.4] * 16, loaded)
        time.sleep(0.2)
        cluster.kill("w3")
        wait(fitted)


# It takes 11.1 s, 10.6 s if no worker dies, and 6 s on twice the threads.
@plant("threads", workers=4, never=("uneven",), most=5.0, span="etl")
def killed_with_short_results_after_long_tasks(client: Any, cluster: Any) -> Any:
    """A worker is killed with 20 results of 0.1 s each, after 16 tasks of 4 s without results."""
    loaded = tasks(client, "load", [0.1] * 80)
    wait(loaded)
    wait(tasks(client, "fit", [4.0] * 16))
    time.sleep(0.2)
    cluster.kill("w3")
    time.sleep(0.2)
    return tasks(client, "join", [0.1] * 80, loaded)


# It takes 4.3 to 4.6 s, 3.9 s with the oldest releases, and 2.6 s if no worker dies. The report
# takes each run that is repeated for a mean one, and can be wrong by 0.15 s.
@plant("lost", workers=4, never=("uneven", "no_workers"), without=(2.45, 2.75), span="etl")
def killed_with_half_of_all_results(client: Any, cluster: Any) -> Any:
    """Two of four workers are killed between two steps, and as many come in the same moment."""
    loaded = tasks(client, "load", [1.0] * 16)
    wait(loaded)
    for number in range(2):
        cluster.kill(f"w{number}")
        cluster.add_worker(f"w{number + 4}")
    return tasks(client, "fit", [0.3] * 16, loaded)


@plant("repeated", workers=4, never=("failed", "lost"), least=1.0, most=1.0, span="download")
def retried_by_the_client(client: Any, cluster: Any) -> Any:
    """Each of eight tasks fails; the client retries them all, and they succeed."""
    futures = tasks(client, "fetch", [1.0] * 8, function=flaky)
    wait(futures)
    for one in futures:
        one.retry()
    return futures


@plant("failed", names=("1 task",), never=("lost",), span="download")
def failed_again_after_a_retry(client: Any, cluster: Any) -> Any:
    """A task fails, and fails again when the client retries it."""
    future = task(client, "fetch", -1.0, function=checked)
    wait([future, *tasks(client, "part", [0.5] * 4)])
    future.retry()
    return future


def nested(levels: int) -> None:
    if levels:
        with worker_client() as inner:
            wait(tasks(inner, f"level{levels}", [levels - 1] * 6, function=nested))
    else:
        time.sleep(1.0)


@plant("scheduler", never=("client",), least=4.85, most=5.0)
def blocked_before_the_first_span(client: Any, cluster: Any) -> None:
    """The scheduler's event loop is blocked for 5 s when the client submits."""
    cluster.machines["scheduler"].block(5.0)
    with span("train"):
        wait(tasks(client, "fit", [0.5] * 8))


# It takes 8.5 s, and 6 s without the pause.
@plant(
    "paused",
    workers=4,
    threads=1,
    least=2.4,
    most=2.5,
    span="train",
    events={0.5: pause(6.0, "w1")},
)
def paused_with_a_task_behind_another(client: Any, cluster: Any) -> Any:
    """A worker is paused for 6 s in its first of two tasks, and the others go on."""
    return tasks(client, "fit", [2.0] * 12)


@plant("paused", workers=4, names=("1 worker was paused: w1",), least=5.0, most=5.1, span="train")
def paused_beside_a_short_pause(client: Any, cluster: Any) -> Any:
    """A worker that must run the last tasks is paused for 6 s, and another one for 0.4 s."""
    loaded = tasks(client, "load", [1.0] * 2, workers=["w0"])
    time.sleep(0.1)
    cluster.pause("w3", 0.4)
    cluster.pause("w1", 6.0)
    wait(loaded)
    return tasks(client, "fit", [0.5] * 4, workers=["w1"])


@plant(
    "worker_loop", never=("gil", "off_cpu"), names=("Coroutines of poll",), most=3.0, span="feed"
)
def a_coroutine_that_blocks_beside_tasks_of_another_worker(client: Any, cluster: Any) -> Any:
    """The last task is a coroutine that blocks an event loop; others compute on another worker."""
    hog = task(client, "poll", 3.0, function=blocking, workers=["w0"])
    time.sleep(0.1)
    return [hog, *tasks(client, "fit", [0.5] * 8, workers=["w1"])]


@plant(
    "scheduler",
    never=("healthy", "starting"),
    workers=4,
    least=3.7,
    most=4.0,
    events={0.3: block("scheduler", 4.0)},
)
def a_root_that_waits_for_the_news_of_another_one(client: Any, cluster: Any) -> Any:
    """Blocked for 4 s, the scheduler hears late that the first root has ended."""
    with span("load"):
        loaded = tasks(client, "load", [0.5] * 8)
    with span("fit"):
        return tasks(client, "fit", [0.5] * 16, loaded * 2)


#: Cases whose program is one call: what it loses its time for, and how the report judges it.
ROWS: dict[str, Case] = {
    # ----------------------------------------------------- threads
    # 40 equal tasks on 4 threads; they wait on the scheduler.
    "too-few-threads-queued": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 40),
        ("threads",),
        never=("uneven", "starting", "restricted"),
        most=3.0,
        span="train",
    ),
    # 40 equal tasks on 4 threads; most wait on workers, which are all busy.
    "too-few-threads-on-workers": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 40),
        ("threads",),
        config={"distributed.scheduler.worker-saturation": 5.0},
        never=("uneven", "starting", "restricted"),
        span="train",
    ),
    # 40 equal tasks on 4 threads; Dask sends all at once.
    "too-few-threads-no-queue": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 40),
        ("threads",),
        config=INF,
        never=("uneven", "starting", "restricted"),
        most=3.0,
        span="train",
    ),
    # 48 equal tasks on 8 threads, of which Dask uses half.
    "half-of-the-threads": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 48),
        ("queued",),
        threads=4,
        config={"distributed.scheduler.worker-saturation": 0.5},
        never=("threads", "uneven", "restricted"),
        least=3.0,
        most=3.0,
        span="train",
    ),
    # Five tasks on four threads: a fifth thread halves the time.
    "last-wave": Case(
        lambda client, cluster: tasks(client, "fit", [2.0] * 5),
        ("threads",),
        never=("uneven", "starting", "client"),
        most=2.0,
        span="train",
    ),
    # Six rounds of five tasks on four threads: a fifth thread halves the time of each.
    "last-wave-in-each-round": Case(
        lambda client, cluster: rounds(client, ["fit"] * 6, [0.4] * 5),
        ("threads",),
        never=("uneven", "starting", "chain"),
        least=2.4,
        most=2.4,
        span="train",
    ),
    # The client keeps 16 of 80 tasks on four threads, and submits the next without delay.
    "sixteen-at-a-time": Case(
        lambda client, cluster: fed(client, "trial", 0.25, 16, 80),
        ("threads",),
        never=("uneven", "client", "chain"),
        least=2.5,
        most=2.5,
        span="search",
    ),
    # 32 tasks, each 0.1 s longer than the one before.
    "the-shortest-first": Case(
        lambda client, cluster: tasks(client, "fit", [0.1 * number for number in range(1, 33)]),
        ("threads",),
        never=("uneven", "client", "chain"),
        least=6.4,
        most=6.4,
        span="fit",
    ),
    # --------------------------------------- starting, worker_loop
    # 40 tasks of 0.5 s beside one of 4 s, which begins first: threads save no more than the rest.
    "too-few-threads-beside-a-long-task": Case(
        lambda client, cluster: tasks(client, "fit", [4.0] + [0.5] * 40),
        ("threads",),
        never=("uneven", "starting"),
        without=(4.0, 4.0),
        span="train",
    ),
    # Unpickling the first task imports for 2 s on each worker; 8 tasks.
    "import-8-tasks": Case(
        lambda client, cluster: tasks(client, "fit", [0.1] * 8),
        ("starting", "worker_loop"),
        never=("threads", "uneven", "restricted"),
        most=2.0,
        span="train",
        latency=imports(2.0, "fit"),
    ),
    # Unpickling the first task imports for 2 s on each worker; 80 tasks.
    "import-80-tasks": Case(
        lambda client, cluster: tasks(client, "fit", [0.05] * 80),
        ("starting", "worker_loop"),
        never=("uneven", "restricted"),
        most=2.0,
        span="train",
        latency=imports(2.0, "fit"),
    ),
    # Unpickling the last step imports for 3.5 s, for 0.3 s of which the step before it computes.
    "import-in-the-last-step": Case(
        lambda client, cluster: tasks(
            client, "infer", [0.2] * 16, tasks(client, "prepare", [0.3] * 16)
        ),
        ("starting", "worker_loop"),
        workers=4,
        never=("uneven", "restricted"),
        least=3.15,
        most=3.2,
        span="score",
        latency=imports(3.5, "infer"),
    ),
    # The first of two rounds of tasks waits for imports of 0.8 s: half of all that passes.
    "import-before-two-rounds": Case(
        lambda client, cluster: tasks(client, "fit", [0.4] * 8),
        ("starting",),
        also=("threads",),
        never=("uneven", "restricted"),
        least=0.8,
        most=0.8,
        span="train",
        latency=imports(0.8, "fit"),
    ),
    # Four of eight threads run tasks of 2 s, which would take 1 s as 16; imports take longer.
    "import-before-half-a-round": Case(
        lambda client, cluster: tasks(client, "fit", [2.0] * 4),
        ("starting",),
        also=("long_task",),
        threads=4,
        never=("uneven", "threads"),
        most=1.3,
        span="train",
        latency=imports(1.3, "fit"),
    ),
    # The first task on each worker imports for 4 s while it runs; two of 16 are long.
    "import-inside-task": Case(
        lambda client, cluster: tasks(client, "fit", [0.1] * 16, function=importing, batch_size=1),
        ("long_task", "starting"),
        never=("uneven", "restricted"),
        span="train",
    ),
    # Ten tasks, one after another; messages to workers take long, and no loop is blocked.
    "chain-on-far-workers": Case(
        lambda client, cluster: steps(client, ["step"] * 10, [0.3]),
        ("messages",),
        also=("chain",),
        never=("worker_loop", "threads", "client"),
        least=4.4,
        most=4.75,
        span="solve",
        latency=far,
    ),
    # ------------------------------------------ uneven, restricted
    # All tasks are sent to the only worker; three that come later may not steal them.
    "no-stealing": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 40),
        ("uneven",),
        config={**INF, **NO_STEALING},
        workers=1,
        never=("gil", "cpus", "starting"),
        span="train",
        events={0.3: come("w1", "w2", "w3")},
    ),
    # All tasks must run on one of two workers.
    "pinned": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 20, workers=["w0"]),
        ("restricted",),
        never=("threads", "starting"),
        most=2.5,
        span="train",
    ),
    # Each worker has one token for its two threads, and each task takes one.
    "one-unit-of-a-resource": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 20, resources={"token": 1}),
        ("restricted",),
        config=TOKEN,
        never=("threads", "starting"),
        span="train",
    ),
    # One of three workers takes eight times as long for its share of 12 tasks.
    "few-tasks-on-a-slow-worker": Case(
        lambda client, cluster: tasks(
            client, "load", [0.7 + 0.01 * number for number in range(12)]
        ),
        ("slow_worker",),
        workers=3,
        threads=4,
        never=("restricted", "long_task"),
        least=4.0,
        most=5.8,
        span="train",
        events={0.0: slow(8.0, "w0")},
    ),
    # One of eight workers takes eight times as long; it has one task of each of five steps.
    "the-same-worker-is-last-in-each-step": Case(
        lambda client, cluster: steps(
            client, ("read", "parse", "clean", "join", "save"), [0.5] * 8
        ),
        ("slow_worker", "long_task"),
        workers=8,
        threads=1,
        names=("worker w0",),
        span="etl",
        events={0.0: slow(8.0, "w0")},
    ),
    # Two of five workers take four times as long. It takes 6.4 s (5.0 s with the oldest releases),
    # and 3.2 s if none does.
    "two-slow-workers-of-five": Case(
        lambda client, cluster: tasks(client, "fit", [0.4] * 40),
        ("slow_worker",),
        workers=5,
        threads=1,
        names=("w0", "w1"),
        never=("uneven", "long_task"),
        without=(3.15, 3.25),
        span="train",
        events={0.0: slow(4.0, "w0", "w1")},
    ),
    # One of two workers takes three times as long for the last 12 of 120 tasks.
    "a-worker-becomes-slow-late": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 120),
        ("threads",),
        also=("slow_worker",),
        never=("restricted", "starting"),
        span="train",
        events={9.0: slow(3.0, "w1")},
    ),
    # One of two workers takes three times as long after two seconds.
    # 4.5 s on the newest releases, 3.2 s on the oldest.
    "a-worker-becomes-slow": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 64),
        ("slow_worker",),
        also=("threads",),
        never=("restricted", "starting"),
        least=3.0,
        most=4.6,
        span="train",
        events={2.0: slow(3.0, "w1")},
    ),
    # One of two workers takes ten times as long for the same tasks.
    "slow-worker": Case(
        lambda client, cluster: tasks(client, "fit", [0.4] * 24),
        ("slow_worker",),
        never=("restricted", "starting"),
        span="train",
        events={0.0: slow(10.0, "w1")},
    ),
    # ------------------------------------------------------ deaths
    # Three of four workers are paused for 8 s, as for lack of memory.
    "paused-workers": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 40),
        ("paused",),
        workers=4,
        never=("starting", "long_task"),
        events={0.1: pause(8.0, "w1", "w2", "w3")},
    ),
    # Three of four workers are paused while the only task waits for imports of the other one.
    "paused-beside-an-import": Case(
        lambda client, cluster: task(client, "fit", 0.1, workers=["w0"]),
        ("starting",),
        workers=4,
        never=("paused", "long_task", "uneven"),
        least=1.99,
        most=2.0,
        span="train",
        latency=imports(2.0, "fit"),
        events={0.1: pause(9.0, "w1", "w2", "w3")},
    ),
    # Each of four tasks fails after 3 s and is retried.
    "flaky-tasks": Case(
        lambda client, cluster: tasks(client, "fetch", [3.0] * 4, function=flaky, retries=2),
        ("repeated",),
        never=("uneven", "lost"),
        most=3.0,
        span="download",
    ),
    # Each of 9 tasks runs twice, and takes a thread from others both times.
    "each-task-fails-once": Case(
        lambda client, cluster: tasks(client, "fetch", [0.8] * 9, function=flaky, retries=2),
        ("repeated",),
        workers=3,
        threads=1,
        never=("uneven", "lost"),
        least=2.4,
        most=2.4,
        span="download",
    ),
    # Each of 6 tasks runs twice, on two threads that come after 5 s.
    "each-task-fails-once-on-a-late-worker": Case(
        lambda client, cluster: tasks(client, "fetch", [0.8] * 6, function=flaky, retries=2),
        ("repeated",),
        also=("no_workers",),
        workers=0,
        never=("uneven", "lost"),
        least=2.4,
        most=2.4,
        span="download",
        events={5.0: come("w0")},
    ),
    # -------------------------------------------------- no workers
    # Two workers come 10 s after the work.
    # After ten seconds, the last task begins later than it would among workers that were there.
    "late-workers": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 8),
        ("no_workers",),
        workers=0,
        never=("threads", "restricted", "client"),
        most=10.5,
        span="train",
        events={10.0: come("w0", "w1")},
    ),
    # ------------------------------------------- shape of the work
    # One of 12 partitions has forty times the work.
    "skew": Case(
        lambda client, cluster: tasks(client, "merge", [4.0] + [0.1] * 11),
        ("long_task",),
        never=("threads", "starting", "client"),
        span="join",
    ),
    # Ten tasks; each needs the one before.
    "chain": Case(
        lambda client, cluster: steps(client, ["step"] * 10, [0.5]),
        ("chain",),
        never=("threads", "uneven", "client"),
        most=5.0,
        span="simulate",
    ),
    # The client waits for each of 25 results of 0.1 s, and needs 20 ms to submit the next task.
    "a-result-at-a-time": Case(
        lambda client, cluster: rounds(client, ["try"] * 25, [0.1], 0.02),
        ("chain",),
        also=("client",),
        names=("25 tasks",),
        never=("threads",),
        most=1.9,
        least=1.8,
        span="tune",
    ),
    # The same with 80 tasks and without a pause; the longest 32 are known.
    "eighty-results-at-a-time": Case(
        lambda client, cluster: rounds(client, ["try"] * 80, [0.1]),
        ("chain",),
        names=("more than 32 tasks",),
        never=("threads",),
        most=6.0,
        least=6.0,
        span="tune",
    ),
    # Two tasks of 5 s on 8 threads.
    "too-few-partitions": Case(
        lambda client, cluster: tasks(client, "fit", [5.0, 5.0]),
        ("long_task", "chain"),
        workers=4,
        never=("threads", "uneven", "client"),
        span="train",
    ),
    # ------------------------------------------------------ others
    # The tasks of one user hold all threads; the short ones of another wait.
    "starved-by-another-user": Case(
        lambda client, cluster: together(
            user(cluster, "train", [0.5] * 34), user(cluster, "join", [0.1] * 12, 0.2)
        ),
        ("held",),
        names=("join", "train"),
        never=("uneven", "restricted", "starting"),
        most=4.1,
    ),
    # Each of two users has 40 tasks; on twice the threads, both have them 2.5 s sooner.
    "two-users-at-once": Case(
        lambda client, cluster: together(
            *(user(cluster, name, [0.25] * 40) for name in ("alice", "bob"))
        ),
        ("threads",),
        also=("held",),
        never=("uneven", "restricted"),
        least=2.4,
        most=2.55,
    ),
    # ----------------------------------------------------- off CPU
    # Tasks wait for something for 0.5 s each, and use no CPU.
    "sleeping-tasks": Case(
        lambda client, cluster: tasks(client, "fetch", [0.5] * 32, function=sleep),
        ("off_cpu",),
        never=("gil", "cpus", "uneven"),
        span="crawl",
    ),
    # One waits for 6 s, beside tasks that need all threads for more than a second.
    "one-wait-beside-a-busy-step": Case(
        lambda client, cluster: [
            task(client, "wait", 6.0, function=sleep),
            *tasks(client, "fit", [0.3] * 30),
        ],
        ("off_cpu",),
        workers=4,
        never=("uneven", "gil", "cpus"),
        least=4.7,
        most=4.88,
        span="crawl",
    ),
    # All tasks take one lock, so that one of four works.
    "one-lock": Case(
        lambda client, cluster: tasks(client, "save", [0.3] * 24, function=locked),
        ("off_cpu",),
        never=("uneven", "gil", "cpus"),
        span="write",
    ),
    # ------------------------------------------------------ client
    # A task submits ten tasks and waits for each before the next.
    "worker-client-in-a-row": Case(
        lambda client, cluster: task(client, "optimise", [0.5] * 10, function=one_by_one).result(),
        ("inner", "chain"),
        never=("threads",),
        most=3.8,
        span="search",
    ),
    # A task submits 40 tasks at once to 4 threads, and waits for them.
    "worker-client-at-once": Case(
        lambda client, cluster: task(client, "optimise", [0.5] * 40, function=all_at_once).result(),
        ("threads",),
        never=("long_task", "client", "inner"),
        most=2.8,
        least=2.5,
        span="search",
    ),
    # The client keeps three of 40 tasks on four threads, and submits the next without delay.
    "three-at-a-time": Case(
        lambda client, cluster: fed(client, "trial", 0.5, 3, 40),
        ("chain",),
        never=("threads", "uneven", "client"),
        most=2.0,
        least=2.0,
        span="search",
    ),
    # The client keeps four tasks on four threads, but needs 0.3 s to submit the next of 0.4 s.
    "four-at-a-time": Case(
        lambda client, cluster: fed(client, "try", 0.4, 4, 40, 0.3),
        ("client",),
        never=("threads", "chain", "long_task"),
        span="search",
    ),
    # 60 times: submit, wait for the result, look at it for 50 ms.
    "many-results": Case(
        lambda client, cluster: rounds(client, ["query"] * 60, [0.02], 0.05),
        ("client",),
        never=("threads", "chain", "tiny"),
        block="explore",
    ),
    # The client takes 0.2 s for each of 40 results before it submits the next task.
    "as-completed-loop": Case(
        lambda client, cluster: fed(client, "trial", 0.1, 4, 40, 0.2),
        ("client",),
        never=("threads", "uneven", "starting"),
        block="search",
    ),
    # The client fetches 400 MB at 50 MB/s.
    "gather-of-large-results": Case(
        lambda client, cluster: client.gather(tasks(client, "part", [50 * MB] * 8, function=load)),
        ("client",),
        never=("threads", "uneven"),
        most=12.0,
        block="export",
        latency=bandwidth(50 * MB),
    ),
    # -------------------------------------------------- two causes
    # Tasks that wait for something must all run on one of two workers.
    "pinned-and-sleeping": Case(
        lambda client, cluster: tasks(client, "fetch", [0.5] * 24, function=sleep, workers=["w0"]),
        ("restricted",),
        also=("off_cpu",),
        never=("threads",),
        span="crawl",
    ),
    # Workers come after 8 s; then one of 8 tasks takes 4 s.
    "late-workers-and-skew": Case(
        lambda client, cluster: tasks(client, "merge", [4.0] + [0.1] * 7),
        ("no_workers",),
        also=("long_task",),
        workers=0,
        never=("uneven", "client"),
        span="join",
        events={8.0: come("w0", "w1")},
    ),
    # ----------------------------------------------------- healthy
    # Three steps with as many equal tasks as threads, each after one of the step before.
    "healthy-steps": Case(
        lambda client, cluster: steps(client, ("load", "clean", "fit"), [1.5] * 4),
        ("healthy",),
        never=("threads", "uneven", "starting", "long_task", "chain"),
        span="nightly",
    ),
    # 60 equal tasks keep four threads busy to the end.
    "healthy-and-full": Case(
        lambda client, cluster: tasks(client, "fit", [0.4] * 60),
        ("healthy", "threads"),
        never=("uneven", "starting", "long_task", "restricted", "gil", "cpus"),
        span="train",
    ),
    # A run of 40 ms.
    "too-short": Case(
        lambda client, cluster: tasks(client, "look", [0.02] * 4),
        ("short", "healthy"),
        span="look",
    ),
    # -------------------- first judged wrong, as cases of `unseen`
    # Two of four workers are killed with the results of long tasks.
    # It takes 17.5 to 19.5 s, by where Dask computes again, and 8.5 s if no worker dies.
    "two-of-four-killed": Case(
        lambda client, cluster: task(client, "total", 0.5, *tasks(client, "part", [4.0] * 16)),
        ("lost",),
        workers=4,
        never=("client", "uneven", "restricted"),
        without=(8.06, 8.5),
        span="etl/fit",
        events={7.5: kill("w1", "w2")},
    ),
    # Workers come after 5 s; then ten tasks run one after another for 12 s.
    "late-workers-and-chain": Case(
        lambda client, cluster: steps(client, [f"stage{number}" for number in range(10)], [1.2]),
        ("chain",),
        also=("no_workers",),
        workers=0,
        never=("uneven", "client", "threads"),
        most=10.5,
        span="simulate",
        events={5.0: come("w0", "w1", "w2", "w3")},
    ),
    # Three steps of as many tasks as threads, and each imports for 1 s on each worker.
    "imports-in-each-step": Case(
        lambda client, cluster: steps(client, ("step0", "step1", "step2"), [0.4] * 8),
        ("starting", "worker_loop"),
        workers=4,
        never=("threads", "uneven", "chain"),
        most=3.01,
        span="nightly",
        latency=imports(1.0, "step0", "step1", "step2"),
    ),
    # One of four workers takes eight times as long: it has its first two tasks to the end.
    # Among four equal workers, it takes 2.5 s, as the last wave is not full.
    "others-end-before-a-slow-worker": Case(
        lambda client, cluster: tasks(client, "clean", [0.5] * 32),
        ("slow_worker",),
        workers=4,
        never=("restricted", "long_task"),
        without=(2.0, 2.5),
        span="clean",
        events={0.0: slow(8.0, "w2")},
    ),
    # The client thinks for 0.2 s after each round of three tasks, on four threads.
    "think-after-three": Case(
        lambda client, cluster: rounds(client, ["step"] * 5, [0.5] * 3, 0.2),
        ("client",),
        never=("threads",),
        least=0.95,
        most=1.05,
        block="tune",
    ),
    # Both workers are paused for 2 s, twice.
    "all-paused-at-times": Case(
        lambda client, cluster: tasks(client, "merge", [0.4] * 40),
        ("paused",),
        never=("starting", "uneven"),
        least=3.39,
        most=3.8,
        span="join",
        events={1.0: pause(2.0, "w0", "w1"), 3.0: pause(2.0, "w0", "w1")},
    ),
    # The last of 13 tasks of each batch takes 1.8 s; the client looks at it for 0.8 s.
    # In six pieces, each of the long ones saves 1.2 s.
    "a-straggler-in-each-batch": Case(
        lambda client, cluster: rounds(
            client, [f"score{number}" for number in range(5)], [0.3] * 12 + [1.8], 0.8
        ),
        ("long_task",),
        also=("client",),
        workers=4,
        never=("chain", "uneven"),
        least=6.0,
        most=7.2,
        block="score",
    ),
    # The only worker is killed with all results; another one comes 6 s later.
    "the-only-worker-killed": Case(
        lambda client, cluster: tasks(client, "score", [0.5] * 24),
        ("lost",),
        workers=1,
        threads=4,
        never=("no_workers", "client"),
        least=7.5,
        most=7.7,
        span="score",
        events={1.7: kill("w0"), 7.7: come("w1", threads=4)},
    ),
    # The only worker comes after 5 s, and is killed 1.7 s later; another one comes after 4 s.
    "a-late-worker-killed": Case(
        lambda client, cluster: tasks(client, "score", [0.5] * 32),
        ("lost",),
        also=("no_workers",),
        workers=0,
        never=("client", "uneven"),
        least=5.7,
        most=6.7,
        span="score",
        events={5.0: come("w0", threads=4), 6.7: kill("w0"), 10.7: come("w1", threads=4)},
    ),
    # ---------------------------- spans that wait at the same time
    # Two users wait for the same workers, which come after 4 s.
    "two-users-without-workers": Case(
        lambda client, cluster: together(
            *(user(cluster, name, [0.5] * 16) for name in ("train", "join"))
        ),
        ("no_workers",),
        workers=0,
        also=("threads",),
        never=("client",),
        least=3.9,
        most=4.1,
        events={4.0: come("w0", "w1")},
    ),
    # The spans of both have the same name.
    "two-users-of-one-name-without-workers": Case(
        lambda client, cluster: together(*(user(cluster, "train", [0.5] * 16) for _ in range(2))),
        ("no_workers",),
        workers=0,
        also=("threads",),
        never=("client",),
        least=3.9,
        most=4.1,
        events={4.0: come("w0", "w1")},
    ),
    # Four branches of one graph wait for the same workers, which come after 3 s.
    "branches-without-workers": Case(
        lambda client, cluster: task(client, "total", 0.2, *branches(client, "abcd", 8, 0.4)),
        ("no_workers",),
        workers=0,
        never=("client", "starting"),
        least=2.9,
        most=3.2,
        span="etl",
        events={3.0: come("w0", "w1")},
    ),
    # All workers are paused for 5 s while two branches need them.
    "branches-while-workers-are-paused": Case(
        lambda client, cluster: branches(client, "ab", 16, 0.5),
        ("paused",),
        workers=4,
        never=("starting", "uneven"),
        least=4.65,
        most=4.65,
        span="etl",
        events={1.2: pause(5.0, "w0", "w1", "w2", "w3")},
    ),
    # Four branches share four threads; the first task of each begins after those before it.
    "branches-behind-one-another": Case(
        lambda client, cluster: branches(client, "abcd", 16, 0.3),
        ("threads",),
        never=("starting", "client"),
        least=2.4,
        most=2.7,
        span="etl",
    ),
    # Blocked for 2.5 s, the scheduler sends no second step; the first one works for 0.3 s of that.
    "blocked-scheduler-before-the-last-step": Case(
        lambda client, cluster: tasks(client, "fit", [0.3] * 12, tasks(client, "load", [0.3] * 12)),
        ("scheduler",),
        workers=3,
        never=("starting", "worker_loop", "uneven"),
        least=1.9,
        most=1.94,
        span="train",
        events={0.35: block("scheduler", 2.5)},
    ),
    # Workers have all tasks, and end them while the scheduler's event loop is blocked for 3 s.
    "branches-end-while-the-scheduler-is-blocked": Case(
        lambda client, cluster: branches(client, "ab", 8, 0.5),
        ("threads",),
        never=("scheduler", "starting"),
        least=1.0,
        most=1.0,
        span="etl",
        events={0.7: block("scheduler", 3.0)},
    ),
    # The second of two branches imports for 2.5 s on each worker.
    "import-in-the-second-branch": Case(
        lambda client, cluster: branches(client, "ab", 16, 0.4),
        ("starting",),
        workers=4,
        never=("uneven",),
        least=2.45,
        most=2.55,
        span="etl",
        latency=imports(2.5, "b"),
    ),
    # Each of three users has 20 tasks; on twice the threads, all have them 3.2 s sooner.
    "three-users-at-once": Case(
        lambda client, cluster: together(
            *(user(cluster, name, [0.4] * 20) for name in ("alice", "bob", "carol"))
        ),
        ("threads",),
        also=("held",),
        never=("uneven", "starting"),
        least=2.9,
        most=3.2,
    ),
    # The same, with spans of the same name.
    "three-users-of-one-name-at-once": Case(
        lambda client, cluster: together(*(user(cluster, "train", [0.4] * 20) for _ in range(3))),
        ("threads",),
        never=("held", "uneven", "starting"),
        least=2.9,
        most=3.2,
    ),
    # 32 tasks need one of two units of a resource each; without it, eight run at a time.
    "two-at-a-time-of-eight": Case(
        lambda client, cluster: tasks(client, "read", [0.3] * 32, resources={"disk": 1}),
        ("restricted",),
        workers=1,
        threads=8,
        never=("threads",),
        least=3.6,
        most=3.6,
        config={"distributed.worker.resources": {"disk": 2}},
        span="read",
    ),
    # All tasks fail on one of four workers until they come to another one.
    # By chance, one task fails several times: it takes 4.0 to 5.6 s, and 3.2 s without failures.
    "one-bad-worker": Case(
        lambda client, cluster: tasks(client, "fit", [0.8] * 24, function=broken, retries=20),
        ("repeated",),
        workers=4,
        never=("uneven", "lost"),
        without=(2.4, 3.2),
        span="train",
    ),
    # Each of three steps waits for something as long as the others.
    "three-steps-that-wait": Case(
        lambda client, cluster: steps(client, ("ask", "get", "put"), [0.5] * 16, function=sleep),
        ("off_cpu",),
        names=("ask, get, put",),
        never=("gil", "cpus"),
        least=6.0,
        most=7.0,
        span="crawl",
    ),
    # Tasks submit tasks that submit tasks; all threads have one of the last ones, which sleep.
    "a-tree-of-tasks-that-sleep": Case(
        lambda client, cluster: task(client, "site", 2, function=nested).result(),
        ("off_cpu",),
        never=("healthy", "threads"),
        least=9.0,
        most=9.0,
        span="crawl",
    ),
    # All tasks must run on one of two workers, whose event loop is blocked for 5 s.
    "pinned-to-a-worker-whose-loop-is-blocked": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 16, workers=["w0"]),
        ("worker_loop",),
        also=("restricted",),
        least=4.65,
        most=4.75,
        span="train",
        events={1.2: block("w0", 5.0)},
    ),
    # An event loop is blocked before its worker's first heartbeat, while its first tasks run.
    "blocked-just-after-the-first-tasks-began": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 8, workers=["w0"]),
        ("worker_loop",),
        also=("restricted",),
        never=("starting",),
        least=4.6,
        most=4.8,
        span="train",
        events={0.2: block("w0", 5.0)},
    ),
    # The event loop of one of two workers is blocked for 4 s while its last tasks run.
    # Some samples of the loop miss a part.
    "blocked-before-the-last-tasks": Case(
        lambda client, cluster: tasks(client, "fit", [0.5] * 16),
        ("worker_loop",),
        never=("uneven", "starting"),
        least=3.3,
        most=4.0,
        span="train",
        events={1.8: block("w1", 4.0)},
    ),
}
SEEN.add(ROWS)

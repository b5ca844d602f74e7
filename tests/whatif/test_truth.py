"""Random histories of real functions on threads, recorded by the laboratory, and replayed.

The record comes from the threads' real runs and from what a plugin saw of Dask's scheduler; it has
nothing in common with the code of the bridge.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_otel.lab.cluster import Cluster, simulate
from dask_otel.whatif.engine import replayed
from dask_otel.whatif.experiments import Experiment, with_workers
from dask_otel.whatif.graph import Graph
from dask_otel.whatif.plan import plan
from tests.whatif.graphs import graph, random_graphs

#: Seconds: the margin of a history that is the same.
EXACT = 1e-3

AS_IT_WAS = Experiment("as it was")


class Record(SchedulerPlugin):  # type: ignore[misc]
    """What the scheduler did; by the simulation's clock."""

    name = "record"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.submissions: list[float] = []
        self.tasks: dict[Any, dict[str, Any]] = {}

    def update_graph(self, scheduler: Any, *, tasks: Any, **kwargs: Any) -> None:
        self.submissions.append(self.cluster.loop.now)
        for key in tasks:
            state = scheduler.tasks[key]
            if key in self.tasks:
                continue
            self.tasks[key] = {
                "before": [one.key for one in state.dependencies], "priority": state.priority,
                "submission": len(self.submissions) - 1,
            }  # fmt: skip

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "processing":
            # Of those in the same moment, the first one stays the first.
            self.tasks[key] = {**self.tasks.pop(key), "sent": self.cluster.loop.now}
        if finish == "memory":
            self.tasks[key]["nbytes"] = kwargs["nbytes"]

    def graph(self, workers: list[int]) -> Graph:
        """Return the graph of all runs."""
        began = self.submissions[0]
        order = [*self.tasks]
        runs = sorted(self.cluster.runs, key=lambda run: order.index(run.key))
        numbers = {run.key: number for number, run in enumerate(runs)}
        prefixes = sorted({key[0].split("-")[0] for key in numbers})
        rows, groups = [], dict[str, int]()
        for run in runs:
            task = self.tasks[run.key]
            rows.append({
                **task, "before": [numbers[key] for key in task["before"]],
                "prefix": prefixes.index(run.key[0].split("-")[0]),
                "group": groups.setdefault(run.key[0], len(groups)), "sent": task["sent"] - began,
                "start": run.began - began, "seconds": run.done - run.began,
                "worker": int(run.worker.removeprefix("lab://w")),
            })  # fmt: skip
        return graph(
            *rows, workers=workers, prefixes=prefixes,
            submissions=[one - began for one in self.submissions],
        )  # fmt: skip


def history(seed: int, workers: list[int]) -> Graph:
    """Run a random history on these workers, and return its record."""
    made: list[Record] = []

    async def prepare(cluster: Cluster) -> None:
        made.append(Record(cluster))
        cluster.scheduler.add_plugin(made[0])
        for number, threads in enumerate(workers):
            await cluster.start_worker(f"w{number}", threads)

    def program(cluster: Cluster) -> None:
        time.sleep(1.0)
        random_graphs(cluster.client, seed)

    ticks = {"distributed.admin.tick.interval": "500ms"}
    simulate(program, workers=0, prepare=prepare, seed=seed, config=ticks)
    return made[0].graph(workers)


def replay(recorded: Graph, change: Experiment = AS_IT_WAS) -> float:
    return replayed(plan(recorded, change)).seconds


# In the last one, Dask's sets decide which of two tasks is sent first.
@pytest.mark.parametrize("seed", [*range(8), 55])
def test_the_replay_on_one_worker_is_exact(seed: int) -> None:
    recorded = history(seed, [1 + seed % 4])
    assert replay(recorded) == pytest.approx(recorded.stop, abs=EXACT)


@pytest.mark.parametrize("seed", range(1, 15, 3))
def test_the_replay_of_one_worker_with_other_threads_is_exact(seed: int) -> None:
    threads = [1 + seed // 4]
    found = replay(history(seed, [1 + seed % 4]), with_workers(threads))
    assert found == pytest.approx(history(seed, threads).stop, abs=EXACT)

"""Graphs that are written by hand, or recorded."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed import Client, wait

import dask_otel
from dask_otel.whatif.graph import Graph, read_graphs
from tests.simulated.bridged import AS_USERS, Bridged
from tests.simulated.tasks import nap

#: Of a run, unless it says otherwise.
RUN: dict[str, Any] = {
    "prefix": 0, "group": 0, "before": [], "submission": 0, "start": 0.0, "seconds": 1.0,
    "fetched": None, "transfer": 0.0, "disk": 0.0, "nbytes": 28, "worker": 0, "outcome": "m",
    "restriction": -1, "seceded": None,
}  # fmt: skip


def graph(*runs: dict[str, Any], workers: Any = (1, 1), **line: Any) -> Graph:
    """Return the graph of some runs: what each has besides `RUN`, by default a task of its own."""
    rows = [
        {"task": task, "priority": [0, 0, task], "sent": run.get("start", 0.0), **RUN, **run}
        for task, run in enumerate(runs)
    ]
    stop = max((row["start"] or 0.0) + (row["seconds"] or 0.0) for row in rows)
    made = [
        {"name": f"w{number}", "came": None, "went": None,
         **(one if isinstance(one, dict) else {"threads": one})}
        for number, one in enumerate(workers)
    ]  # fmt: skip
    return Graph.of(
        {
            "version": 1, "trace_id": "a" * 32, "span_id": "b" * 16, "name": "work",
            "start": 0.0, "stop": stop, "complete": True, "prefixes": ["inc"], "workers": made,
            "submissions": [0.0], "restrictions": [],
            "runs": {name: [row[name] for row in rows] for name in rows[0]},
            **line,
        }
    )  # fmt: skip


def recorded(
    folder: Path,
    work: Callable[[Bridged], object],
    *threads: int,
    before: Callable[[Bridged], object] = bool,
    **config: object,
) -> Graph:
    """Let a user work on workers with so many threads; return what the bridge recorded.

    What happened `before` that is no part of it.
    """
    b = Bridged(
        otel={"environment": AS_USERS},
        begins=False,
        unreconciled="its bridge ends before",
        workers=0,
        config=config,
    )

    def program() -> None:
        dask_otel.register(b.client, {"files": {"path": str(folder)}})
        for number, one in enumerate(threads):
            # No two of them send their heartbeats in one moment, or when workers steal.
            time.sleep(0.0731)
            b.cluster.add_worker(f"w{5 * number % 37}", one, resources={"slot": 1})
        before(b)
        with dask_otel.span("work"):
            work(b)
        b.exported()
        dask_otel.unregister(b.client)

    b.run(program)
    (found,) = [one for one in read_graphs(folder) if one.name == "work"]
    return found


def random_graphs(client: Client, seed: int, order: int = 0) -> None:
    """Submit random graphs that continue one another, and wait for all of them.

    Each order has other keys, so Dask's sets have another order, and other moments of stealing.
    """
    time.sleep((2 * order + 1) / 6)
    rng = random.Random(seed)
    known: list[Any] = []
    futures: list[Any] = []
    for number in range(rng.randint(1, 4)):
        specs: dict[Any, Any] = {}
        for task in range(rng.randint(1, 25)):
            wanted = [*known, *specs]
            before = rng.sample(wanted, min(len(wanted), max(0, rng.randint(-1, 2))))
            needs = [one if one in specs else futures[known.index(one)] for one in before]
            key = f"{rng.choice('abc')}-{number}", f"{task}.{order}"
            specs[key] = (nap, rng.uniform(0.1, 3.0), *needs)
        # Like most users, it keeps what nothing else in the submission needs.
        needed = {one for _, _, *needs in specs.values() for one in needs if type(one) is tuple}
        kept = [key for key in specs if key not in needed]
        futures += client.get(specs, kept, sync=False)
        known += kept
        if rng.random() < 0.7:
            wait(futures)
        # No program submits twice in one moment.
        time.sleep(rng.choice([0.01, 0.5, 2.0]))
    wait(futures)

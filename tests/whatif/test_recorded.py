"""Runs of simulated clusters as the bridge records them, replayed as other clusters that really ran."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import secede, span, wait

import dask_otel
from dask_otel.whatif.engine import replayed
from dask_otel.whatif.experiments import with_workers
from dask_otel.whatif.graph import Graph, read_graphs
from dask_otel.whatif.plan import plan
from tests.simulated.bridged import Bridged
from tests.simulated.tasks import nap

#: Seconds: Dask sends messages in batches of 2 ms, and a run has some of them in a row.
MARGIN = 0.02


def recorded(folder: Path, threads: int, work: Callable[[Any], object]) -> Graph:
    """Let a user work on one worker with so many threads; return what the bridge recorded."""
    b = Bridged(begins=False, unreconciled="its bridge ends before", workers=0)

    def program() -> None:
        dask_otel.register(b.client, {"files": {"path": str(folder)}})
        b.cluster.add_worker("w0", threads, resources={"slot": 1})
        with span("work"):
            work(b.client)
        b.exported()
        dask_otel.unregister(b.client)

    b.run(program)
    (graph,) = read_graphs(folder, "work")
    return graph


def flaky(path: Path, seconds: float) -> None:
    time.sleep(seconds)
    if not path.exists():
        path.touch()
        raise OSError("again")


def leave(seconds: float) -> None:
    time.sleep(seconds / 2)
    secede()
    time.sleep(seconds / 2)


def rounds(client: Any) -> None:
    """A client that thinks after each round, in nested spans."""
    rng = random.Random(1)
    for name in "abc":
        with span(name):
            wait(client.map(nap, [rng.uniform(0.5, 3.0) for _ in range(8)], key=[f"{name}-{i}" for i in range(8)]))
        time.sleep(0.7)


def limited(client: Any) -> None:
    """Tasks that need a resource, beside others."""
    wait(client.map(nap, [1.0] * 5, resources={"slot": 1}, pure=False) + client.map(nap, [0.9] * 9, pure=False))


def failing(client: Any) -> None:
    """Tasks that fail once."""
    folder = Path(str(random.random()))


@pytest.mark.parametrize("work", [rounds, limited])
@pytest.mark.parametrize("threads", [1, 3, 8])
def test_a_recorded_run(tmp_path: Path, work: Callable[[Any], object], threads: int) -> None:
    graph = recorded(tmp_path / "one", 2, work)
    other = recorded(tmp_path / "other", threads, work)
    found = replayed(plan(graph, with_workers([threads])), "x").seconds
    print(found, other.stop - other.start, graph.stop-graph.start)
    assert found == pytest.approx(other.stop - other.start, abs=MARGIN)

"""The process of a replay: ``python -m dask_otel.whatif.child``, started by `running`.

It reads a graph and experiments as JSON, and writes a line of JSON for each part of its progress
and for each result. It ends with the process that reads them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from typing import Any

from dask_otel import lab
from dask_otel.whatif.experiments import Experiment
from dask_otel.whatif.graph import Graph
from dask_otel.whatif.plan import plan


def main() -> None:
    """Replay what standard input asks for."""
    graph, changes, orders = json.load(sys.stdin)
    for one in changes:
        one["cluster"] = one["cluster"] and Graph(**one["cluster"])
    # Not the preloads and the plugins of a real cluster.
    import dask

    dask.config.refresh(paths=[], env={})
    lab.install()
    logging.disable()
    answer(Graph(**graph), [Experiment(**one) for one in changes], orders, _say)


def answer(
    graph: Graph,
    changes: Sequence[Experiment],
    orders: Sequence[int],
    say: Callable[[dict[str, Any]], object],
) -> None:
    """Replay a graph with each change, and say how far it is, and the results.

    Parameters
    ----------
    graph, changes
        The run as recorded, and what is changed; the first is the run as it was.
    orders
        With how many orders of what Dask leaves to chance each change is tried.
    say
        Called with each part of the progress.
    """
    # Only here: it imports distributed.
    from dask_otel.whatif.engine import replayed

    done, total = 0, sum(orders) * len({*graph.runs["task"]})

    def tick() -> None:
        nonlocal done
        # A task that is split has more ends.
        done = min(done + 1, total)
        if done % 100 == 0:
            say({"done": done, "total": total})

    for number, (change, several) in enumerate(zip(changes, orders, strict=True), 1):
        # A single worker gets all tasks, in their order.
        there = change.workers or (change.cluster or graph).workers
        try:
            tried = [
                replayed(plan(graph, change, order), tick)
                for order in range(several if len(there) > 1 else 1)
            ]
        except lab.Stuck as error:
            found: dict[str, Any] = {"stuck": f"{change.name}: no answer, because {error}."}
        else:
            # Only the first one has the recorded orders.
            first, tried = tried[0].seconds, sorted(tried, key=attrgetter("seconds"))
            middle, spread = tried[len(tried) // 2], tried[-1].seconds - tried[0].seconds
            # A curve over threads is made of changes of the workers alone.
            threads = middle.threads if change.workers or number == 1 else None
            one = replace(middle, name=change.name, spread=spread, threads=threads)
            found = {"result": asdict(one), "first": first}
        done = total * sum(orders[:number]) // sum(orders)
        say({"done": done, "total": total, **found})


def _say(said: dict[str, Any]) -> None:
    try:
        print(json.dumps(said), flush=True)
    except BrokenPipeError:
        # The process that asked is gone.
        os._exit(1)


if __name__ == "__main__":
    main()

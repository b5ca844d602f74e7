"""The process of a replay: ``python -m dask_otel.whatif.child``, started by `running`.

It reads a graph and experiments as a line of JSON, and writes a line of JSON for each part of its
progress and for each result. It ends with the process that started it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from operator import attrgetter
from threading import Thread
from typing import Any

from dask_otel import lab
from dask_otel.whatif.experiments import Experiment
from dask_otel.whatif.graph import Graph
from dask_otel.whatif.plan import plan
from dask_otel.whatif.result import Replayed


def main() -> None:
    """Replay what standard input asks for."""
    asked = json.loads(sys.stdin.readline())
    Thread(target=_follow, daemon=True).start()
    # Not the preloads and the plugins of a real cluster.
    import dask

    dask.config.refresh(paths=[], env={})
    lab.install()
    logging.disable()
    answer(asked, lambda said: print(json.dumps(said), flush=True))


def answer(asked: Any, say: Callable[[dict[str, Any]], object]) -> None:
    """Replay a graph with each change, and say how far it is, and the results.

    Parameters
    ----------
    asked
        The graph, the changes and the number of orders, as plain data.
    say
        Called with each part of the progress.
    """
    # Only here: it imports distributed.
    from dask_otel.whatif.engine import replayed

    graph, orders = Graph(**asked["graph"]), asked["orders"]
    for one in asked["changes"]:
        one["cluster"] = one["cluster"] and Graph(**one["cluster"])
    changes = [Experiment(**one) for one in asked["changes"]]
    done, tasks = 0, orders * len({*graph.runs["task"]})

    def tick() -> None:
        nonlocal done
        done += 1
        if done % 100 == 0:
            progress()

    def progress(**what: Any) -> None:
        total = tasks * len(changes)
        say({"done": min(done, total), "total": total, **what})

    for number, change in enumerate(changes, 1):
        tried, stuck = list[Replayed](), ""
        for order in range(orders):
            planned = plan(graph, change, order)
            try:
                tried.append(replayed(planned, tick))
            except lab.Stuck as error:
                stuck = str(error)
            if stuck or len(planned.workers) == 1:
                # One worker gets all tasks, in their order.
                break
        done = number * tasks
        if stuck:
            progress(stuck=f"{change.name}: no answer, because {stuck}.")
            continue
        tried.sort(key=attrgetter("seconds"))
        spread = (tried[-1].seconds - tried[0].seconds) / 2
        found = replace(tried[len(tried) // 2], name=change.name, spread=spread)
        # A curve over threads is made of changes of the workers alone.
        if change.workers is None and number > 1:
            found = replace(found, threads=None)
        progress(result=asdict(found))


def _follow() -> None:
    """End with the process that has the other end of the pipe."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()

"""The process of a replay: ``python -m dask_otel.whatif.child``, started by `running`.

It reads a graph and experiments as JSON, and writes a line of JSON for each part of its progress
and for each result.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from typing import Any

from dask_otel import lab
from dask_otel.whatif.experiments import Experiment
from dask_otel.whatif.graph import Graph
from dask_otel.whatif.plan import plan


def main() -> None:
    """Replay what standard input asks for."""
    asked = json.load(sys.stdin)
    graph = Graph(**asked["graph"])
    changes = [Experiment(**{**one, "without": {*one["without"]}}) for one in asked["changes"]]
    # Not the preloads and the plugins of a real cluster.
    import dask

    dask.config.refresh(paths=[], env={})
    lab.install()
    # Only now: it imports distributed.
    from dask_otel.whatif.engine import replayed

    logging.disable()
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if done % 100 == 0:
            _say(done=done)

    for change in changes:
        try:
            found = replayed(plan(graph, change), change.name, tick)
        except lab.Stuck:
            sys.exit(f"{change.name}: it does not end, since no worker has what a task needs.")
        # A curve over threads is made of changes of the workers alone.
        is_point = change.workers is not None or change is changes[0]
        threads = found.threads if is_point else None
        _say(done=done, result={**asdict(found), "threads": threads})


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Run the workflow of ``dask-otel demo`` on a cluster, again and again.

Environment: ``SCHEDULER`` (address), ``DATA`` (a folder that the workers see, too), ``PAUSE``
(seconds between two runs, 30), ``RUNS`` (0, the default, for no end). Every fifth run fails, so
that there is something to find.
"""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from pathlib import Path

from distributed import Client, span

from dask_otel.cli.showcase import workflow

FAILS_EVERY = 5


def run_once(client: Client, data: Path, broken: bool) -> str:
    """Run the workflow and return what became of it."""
    try:
        with span(workflow.ROOT):
            error = workflow.run(client, data, workflow.QUICK, lambda _: nullcontext())
    except workflow.BadData as failure:
        if not broken:
            raise
        return f"failed as it should: {failure}"
    return f"error of the model: {error:.3f}"


def main() -> None:
    data = Path(os.environ["DATA"])
    for name, broken in (("good", False), ("broken", True)):
        if not (data / name).exists():
            workflow.generate(data / name, workflow.QUICK, broken=broken)
    runs, pause = int(os.environ.get("RUNS", "0")), float(os.environ.get("PAUSE", "30"))
    number = 0
    while not runs or number < runs:
        number += 1
        broken = number % FAILS_EVERY == 0
        with Client(os.environ["SCHEDULER"]) as client:
            client.wait_for_workers(1)
            # Scheduler and workers unpickle the workflow's functions by the module's name.
            client.upload_file(workflow.__file__)
            result = run_once(client, data / ("broken" if broken else "good"), broken)
        print(f"run {number}: {result}", flush=True)
        if number != runs:
            time.sleep(pause)


if __name__ == "__main__":
    main()

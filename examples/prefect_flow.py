"""A Prefect flow whose tasks run on Dask: ``python prefect_flow.py FOLDER``.

Needs ``pip install dask-otel prefect prefect-dask``. The scheduler of the temporary cluster runs in
the flow's process. For a cluster that runs already, give ``DaskTaskRunner(address=…)`` and load the
bridge where its scheduler starts.
"""

from __future__ import annotations

import sys

import dask
from distributed import span
from prefect import flow, task
from prefect_dask import DaskTaskRunner


@task
def double(number: int) -> int:
    """Stand in for a step."""
    return 2 * number


@flow(task_runner=DaskTaskRunner(cluster_kwargs={"n_workers": 2, "threads_per_worker": 2}))
def nightly(count: int) -> int:
    """Submit a step for each number, and add up the results."""
    with span("nightly"):
        doubled = double.map(range(count))
    return sum(doubled.result())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python prefect_flow.py FOLDER")
    # Before the flow makes its cluster, whose scheduler reads both as it starts.
    dask.config.set(
        {"distributed.scheduler.preload": ["dask_otel"], "otel.files.path": sys.argv[1]}
    )
    print(nightly(10))

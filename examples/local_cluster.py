"""A LocalCluster whose telemetry goes into a folder: ``python local_cluster.py FOLDER``.

Needs ``pip install dask-otel``. Afterwards, ``dask-otel report FOLDER --open`` shows the run.
"""

from __future__ import annotations

import sys

import dask
from distributed import Client, LocalCluster

import dask_otel


def load(number: int) -> int:
    """Stand in for the reading of a file."""
    return sum(range(number * 100_000))


def main(folder: str) -> None:
    """Run two steps, and print what they took."""
    # Before the cluster is made: its scheduler reads both as it starts.
    dask.config.set({"distributed.scheduler.preload": ["dask_otel"], "otel.files.path": folder})
    with LocalCluster(n_workers=2, threads_per_worker=2) as cluster, Client(cluster) as client:
        with dask_otel.span("example", attributes={"customer": "acme"}) as span:
            with dask_otel.span("load"):
                parts = client.map(load, range(8))
            with dask_otel.span("add up"):
                print("sum:", client.submit(sum, parts).result())
        numbers = dask_otel.span_metrics(client, span)
        print("tasks:", numbers.counts["tasks"])
        print(f"{numbers.duration:.2f} s, cut by what it waited for:")
        for part, seconds in numbers.path.items():
            if seconds:
                print(f"  {part:11} {seconds:.2f} s")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python local_cluster.py FOLDER")
    main(sys.argv[1])

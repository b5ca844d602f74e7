"""A batch system without a Collector: SLURM by dask-jobqueue, and what happened in files.

Run it where jobs are submitted: ``python slurm_cluster.py FOLDER``. The scheduler is in this
process, so dask-otel is needed here alone; jobs need nothing of it. PBSCluster, LSFCluster and the
others are used in the same way. ``dask-otel report FOLDER`` shows what was written.
"""

import sys

import dask
from dask_jobqueue import SLURMCluster
from distributed import Client, span


def main(folder: str) -> None:
    """Compute something, and leave traces and metrics in the folder."""
    dask.config.set(
        {
            # Before the cluster is made: the scheduler reads both as it starts.
            "distributed.scheduler.preload": ["dask_otel"],
            "otel.files.path": folder,
            "otel.cluster-name": "slurm",
        }
    )
    # Queue, account and interface of your site can be here, or in ~/.config/dask/jobqueue.yaml.
    with (
        SLURMCluster(cores=2, processes=1, memory="2GiB", walltime="00:30:00") as cluster,
        Client(cluster) as client,
    ):
        cluster.scale(jobs=1)
        # What waits for jobs to start is `dask.span.queue.time`, and no idle time.
        with span("nightly"):
            print(client.submit(sum, [1, 2, 3]).result())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python slurm_cluster.py FOLDER")
    main(sys.argv[1])

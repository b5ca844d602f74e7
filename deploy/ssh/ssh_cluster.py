"""A cluster on machines that one can log in to: ``python ssh_cluster.py HEAD NODE NODE…``.

The first host runs the scheduler and needs dask-otel. SSHCluster hands Dask's configuration over,
but no environment variables: `otel.environment` carries them. Other users of the hosts can read it
in the list of processes, so a password (OTEL_EXPORTER_OTLP_HEADERS) belongs into a file on the
first host, such as /etc/dask/otel.yaml.
"""

import os
import sys

import dask
from distributed import Client, SSHCluster, span

ENDPOINT = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")


def main(hosts: list[str]) -> None:
    """Compute something on the hosts."""
    dask.config.set(
        {
            "distributed.scheduler.preload": ["dask_otel"],
            "otel.cluster-name": "ssh",
            "otel.environment": {
                "OTEL_EXPORTER_OTLP_ENDPOINT": ENDPOINT,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            },
        }
    )
    # At its end the cluster asks the scheduler to close, which exports what is left.
    with (
        SSHCluster(hosts, worker_options={"nthreads": 2}) as cluster,
        Client(cluster) as client,
        span("nightly"),
    ):
        print(client.submit(sum, [1, 2, 3]).result())


if __name__ == "__main__":
    main(sys.argv[1:])

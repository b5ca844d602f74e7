"""A cluster by Coiled. Package sync brings dask-otel along, if it is installed here.

A name of its own for each cluster comes from Coiled. What leaves the cloud account should go to an
endpoint with TLS; keep the key in a variable, not in this file.
"""

import os

import coiled
from distributed import span


def main() -> None:
    """Compute something in the cloud."""
    with (
        coiled.Cluster(
            n_workers=2,
            environ={
                "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": '["dask_otel"]',
                "OTEL_EXPORTER_OTLP_ENDPOINT": "https://otlp.example.com",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_HEADERS": os.environ["OTEL_EXPORTER_OTLP_HEADERS"],
            },
        ) as cluster,
        cluster.get_client() as client,
        span("nightly"),
    ):
        print(client.submit(sum, [1, 2, 3]).result())


if __name__ == "__main__":
    main()

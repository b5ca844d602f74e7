"""Endpoints that hang or are not there: a scheduler's process does not notice."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.cluster.processes import ran
from tests.receiver import refusing, silent_server

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("forked"),
    pytest.mark.unreconciled("nobody receives anything"),
]

#: Runs a workload, and closes the scheduler.
PROGRAM = """
    import logging, time
    import dask
    from distributed import Client, LocalCluster, span

    if __name__ == "__main__":
        logging.basicConfig(format="LOG %(name)s %(levelname)s %(message)s")
        dask.config.set({
            "distributed.scheduler.preload": ["dask_otel.preload"],
            "otel.close-timeout": "1s",
            "otel.spans.linger": 0,
        })
        cluster = LocalCluster(n_workers=1, processes=False, dashboard_address=None)
        client = Client(cluster)
        with span("work"):
            client.submit(sum, [1, 2]).result()
        while cluster.scheduler.plugins["dask-otel"].bridge.wired is None:
            time.sleep(0.05)
        assert client.submit(sum, [2, 3]).result() == 5
        client.close()
        cluster.close()
        print("CLOSED")
"""


def test_endpoints_that_hang_or_are_not_there_delay_nothing(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    with silent_server() as silent, refusing() as nobody:
        said = ran(
            program,
            folder=tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=silent,
            OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
            OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=nobody,
            OTEL_EXPORTER_OTLP_METRICS_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_LOGS_PROTOCOL="http/protobuf",
            OTEL_METRIC_EXPORT_INTERVAL="500",
            OTEL_BSP_SCHEDULE_DELAY="100",
            # Longer than the process may take.
            OTEL_EXPORTER_OTLP_TIMEOUT="200",
        )
    # Neither the close nor the interpreter has waited for the exporters.
    assert "CLOSED" in said
    # In Dask's own format.
    line = r"^[\d-]+ [\d:,]+ - distributed\.dask_otel - (\w+) - (.*)$"
    logged = re.findall(line, said, re.MULTILINE)
    warned = [text for level, text in logged if level == "WARNING"]
    for place in (f"{silent} (OTLP over gRPC)", f"{nobody} (OTLP over HTTP)"):
        assert sum(place in text for text in warned) == 1, warned
    assert "ERROR" not in dict(logged)
    # No traceback of ours; Dask's own come if a heartbeat meets a scheduler that has closed.
    assert "/dask_otel/" not in said
    # Exporters' own messages are held back.
    assert "LOG opentelemetry" not in said

"""Endpoints that hang or are not there, and wrong variables: the scheduler does not notice."""

from __future__ import annotations

import re
import textwrap
import time
from pathlib import Path

import pytest

from tests.environment import run
from tests.receiver import refusing, silent_server

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("nobody receives anything"),
]

#: Seconds after which an exporter gives up. No machine is as slow in what does not wait for it.
HANGS = 100

#: Runs a workload, closes the scheduler and says how long that took, and when it ended.
PROGRAM = """
    import logging, sys, time
    import dask
    from distributed import Client, LocalCluster, span

    if __name__ == "__main__":
        logging.basicConfig(format="LOG %(name)s %(levelname)s %(message)s")
        dask.config.set({
            "distributed.scheduler.preload": ["dask_otel.preload"],
            "otel.close-timeout": "1s",
            "otel.spans.linger": 0,
        })
        began = time.monotonic()
        cluster = LocalCluster(n_workers=1, processes=False, dashboard_address=None)
        client = Client(cluster)
        print("STARTED", time.monotonic() - began, flush=True)
        scheduler = cluster.scheduler
        with span("work"):
            client.submit(sum, [1, 2]).result()
        def made():
            plugin = scheduler.plugins.get("dask-otel")
            if sys.argv[1] == "gone":
                return plugin is None
            return plugin.bridge.wired is not None

        limit = time.monotonic() + 60
        while not made():
            assert time.monotonic() < limit
            time.sleep(0.05)
        print("PLUGINS", sorted(scheduler.plugins), flush=True)
        extension = scheduler.extensions["spans"]
        wrapped = any(hasattr(v, "__wrapped__") for v in vars(extension).values())
        print("WRAPPED", wrapped, flush=True)
        assert client.submit(sum, [2, 3]).result() == 5
        client.close()
        began = time.monotonic()
        cluster.close()
        print("CLOSED", time.monotonic() - began, flush=True)
        print("ENDING", time.time(), flush=True)
"""


class Run:
    def __init__(self, folder: Path, until: str, **variables: str) -> None:
        program = folder / "program.py"
        program.write_text(textwrap.dedent(PROGRAM))
        done = run(str(program), until, **variables)
        self.ended = time.time()
        self.output, self.errors = done.stdout, done.stderr

    def seconds(self, word: str) -> float:
        found = re.search(rf"{word} ([\d.]+)", self.output)
        assert found, self.output + self.errors
        return float(found.group(1))

    def logged(self, level: str) -> list[str]:
        # In Dask's own format.
        line = rf"^[\d-]+ [\d:,]+ - distributed\.dask_otel - {level} - (.*)$"
        return re.findall(line, self.errors, re.MULTILINE)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("endpoint", [silent_server, refusing])
def test_an_endpoint_that_hangs_or_is_not_there_delays_nothing(
    tmp_path: Path, protocol: str, endpoint: type[object]
) -> None:
    with endpoint() as address:  # type: ignore[attr-defined]
        run = Run(
            tmp_path,
            until="made",
            OTEL_EXPORTER_OTLP_ENDPOINT=address,
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
            OTEL_METRIC_EXPORT_INTERVAL="500",
            OTEL_BSP_SCHEDULE_DELAY="100",
            # Who waits for the exporters waits for as long.
            OTEL_EXPORTER_OTLP_TIMEOUT=str(HANGS),
        )
    assert run.seconds("STARTED") < HANGS / 2
    assert run.seconds("CLOSED") < HANGS / 2
    assert run.ended - run.seconds("ENDING") < HANGS / 2, "the interpreter waits for no thread"
    assert len(run.logged("WARNING")) == 1, run.errors
    assert run.logged("ERROR") == []
    assert "Traceback" not in run.errors
    # Exporters' own messages are held back.
    assert "LOG opentelemetry" not in run.errors
    assert "dask-otel" in run.output, "the plugin stays"
    assert "WRAPPED True" in run.output


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many", "a whole number, 1 or more"),
        # Other values, without a scheduler: tests/otlp/test_configuration.py.
        ("DASK_OTEL__SPANS__SETTLE_TIMEOUT", "soon", "otel.spans.settle-timeout"),
    ],
)
def test_a_wrong_variable_is_one_error_and_the_scheduler_runs_on(
    tmp_path: Path, variable: str, value: str, allowed: str
) -> None:
    run = Run(tmp_path, until="gone", **{variable: value})
    assert len(run.logged("ERROR")) == 1
    text = run.errors
    named = (variable,) if variable.startswith("OTEL_") else ()
    assert [part for part in (*named, repr(value), allowed) if part not in text] == []
    assert "Traceback" not in text
    assert "dask-otel" not in run.output, "the plugin is gone"
    assert "WRAPPED False" in run.output
    assert run.logged("WARNING") == []

"""The set-up of the exporters runs code of others, which may wait for ever."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

from tests import environment
from tests.environment import set_variables
from tests.foreign import WAITING, install
from tests.receiver import receiver
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("about what starts and ends, not about numbers"),
]

#: A resource detector that waits for a file.
DETECTOR = f"""{WAITING}
class Detector:
    detect = wait
"""


#: A cluster in the script's own process; its workers begin while the detector waits.
SCRIPT = """
import json, os, sys, time
from pathlib import Path
import dask
from distributed import Client, LocalCluster

def variables():
    return {key: value for key, value in os.environ.items() if key.startswith("OTEL_")}

if __name__ == "__main__":
    folder, endpoint = Path(sys.argv[1]), sys.argv[2]
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-key=geheim",
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "waits",
        "OTEL_BSP_SCHEDULE_DELAY": "0",
    }
    settings = {
        "otel.environment": environment, "otel.spans.linger": 0, "otel.close-timeout": "60s",
    }
    dask.config.set({**settings, "distributed.scheduler.preload": ["dask_otel.preload"]})
    with LocalCluster(n_workers=0, dashboard_address=None, worker_dashboard_address=None) as own:
        while not (folder / "entered").exists():
            time.sleep(0.01)
        own.scale(1)
        with Client(own) as client:
            client.wait_for_workers(1)
            seen = client.run(variables)
            client.submit(int, 7, pure=False).result()
    print(json.dumps([variables(), *seen.values()]))
"""


def test_a_detector_that_never_answers_costs_its_attributes_alone(tmp_path: Path) -> None:
    """Workers that begin meanwhile get none of the bridge's variables; and the script ends."""
    install(tmp_path, "waiting", DETECTOR, {"resource_detector": "waits = waiting:Detector"})
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with receiver("grpc") as received:
        arguments = (str(script), str(tmp_path), received.endpoint)
        done = environment.run(
            *arguments,
            PYTHONPATH=str(tmp_path),
            # As by default: its one worker shares no import.
            DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD="spawn",
        )
        assert received.spans, done.stderr
        assert (received.spans[0].resource["service.name"], received.requests[0][2]["x-key"]) == (
            "dask-scheduler",
            "geheim",
        )
    assert json.loads(done.stdout) == [{}, {}]
    (said,) = [line for line in done.stderr.splitlines() if "resource detectors" in line]
    assert "waits" in said
    assert "geheim" not in (tmp_path / "entered").read_text()


def test_two_bridges_of_a_process_write_no_series_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though an operator gives the process one id; and who comes when the first has gone has it."""
    settings = {
        "distributed.scheduler.preload": ["dask_otel.preload"],
        "otel.spans.linger": 0,
        "otel.close-timeout": "60s",
    }
    options = {
        "n_workers": 1, "processes": False, "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": False},
    }  # fmt: skip
    with receiver() as received, dask.config.set(settings):
        given = {"OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=pod"}
        set_variables(monkeypatch, {**received.environ, **given})

        def begin(stack: ExitStack, tasks: int) -> str:
            cluster = stack.enter_context(LocalCluster(**options))
            bridge = cluster.scheduler.plugins["dask-otel"].bridge
            eventually(lambda: bridge.wired is not None)
            client = stack.enter_context(Client(cluster, set_as_default=False))
            client.gather(client.map(str, range(tasks), pure=False))
            return f"pod/{cluster.scheduler.id}"

        with ExitStack() as clusters:
            begin(clusters, 7)
            second = begin(clusters, 11)
        with ExitStack() as clusters:
            begin(clusters, 1)
        tasks = {}
        for point in received.points:
            if point.metric == "dask.task.finished":
                of = point.resource["service.instance.id"], point.start_ns
                tasks[of] = max(point.value, tasks.get(of, 0))
    assert sorted((instance, runs) for (instance, _), runs in tasks.items()) == [
        ("pod", 1),
        ("pod", 7),
        (second, 11),
    ]
    (warning,) = [text for text in caplog.messages if "service.instance.id" in text]
    assert f"'pod', too, so this one exports as '{second}'" in warning

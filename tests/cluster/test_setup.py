"""The set-up of the exporters runs code of others, which may wait for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.conftest import Bridged, Start
from tests.cluster.processes import ran
from tests.foreign import WAITING, install
from tests.receiver import receiver

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
    sys.path.insert(0, str(folder))
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


@pytest.mark.xdist_group("forked")
def test_a_detector_that_never_answers_costs_its_attributes_alone(tmp_path: Path) -> None:
    """Workers that begin meanwhile get none of the bridge's variables; and the script ends."""
    install(tmp_path, "waiting", DETECTOR, {"resource_detector": "waits = waiting:Detector"})
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with receiver("grpc") as received:
        # As by default: its one worker shares no import.
        method = {"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "spawn"}
        written = ran(script, str(tmp_path), received.endpoint, folder=tmp_path, **method)
        assert received.spans, written
        assert (received.spans[0].resource["service.name"], received.requests[0][2]["x-key"]) == (
            "dask-scheduler",
            "geheim",
        )
    assert "[{}, {}]" in written.splitlines()
    (said,) = [line for line in written.splitlines() if "resource detectors" in line]
    assert "waits" in said
    assert "geheim" not in (tmp_path / "entered").read_text()


def test_two_bridges_of_a_process_write_no_series_together(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Though an operator gives the process one id; and who comes when the first has gone has it."""

    def ids(one: Bridged) -> set[str]:
        return {point.resource["service.instance.id"] for point in one.received.points}

    given = {"OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=pod"}
    with start(environ=given) as first, start(environ=given) as second:
        own = f"pod/{second.scheduler.id}"
    with start(environ=given) as third:
        pass
    assert [ids(one) for one in (first, second, third)] == [{"pod"}, {own}, {"pod"}]
    (warning,) = [text for text in caplog.messages if "service.instance.id" in text]
    assert f"'pod', too, so this one exports as '{own}'" in warning

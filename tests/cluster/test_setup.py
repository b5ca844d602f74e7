"""The set-up of the exporters runs code of others, which may wait for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from distributed import Client, span

from tests.cluster.processes import cluster
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


def install_detector(folder: Path) -> dict[str, str]:
    """Install the detector that waits; return the variables of a process that finds it."""
    install(folder, "waiting", DETECTOR, {"resource_detector": "waits = waiting:Detector"})
    return {"PYTHONPATH": str(folder), "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "waits"}


def test_a_detector_that_never_answers_costs_its_attributes_alone(tmp_path: Path) -> None:
    """Neither the start nor the end of the scheduler waits for it."""
    found = install_detector(tmp_path)
    with receiver() as received, cluster(tmp_path) as made:
        env = {**received.environ, **found, "DASK_OTEL__SPANS__LINGER": "0"}
        scheduler = made.start_scheduler("--preload", "dask_otel.preload", env=env)
        made.start_worker()
        with Client(made.address, set_as_default=False) as client:
            with span("work"):
                assert client.submit(int, 7, pure=False).result() == 7
            # A generous limit, as for the end: there is none of the test's own.
            resource = eventually(lambda: received.spans and received.spans[0], 120).resource
        assert resource["service.name"] == "dask-scheduler"
        assert scheduler.output.count("resource detectors") == 1
        assert "waits" in scheduler.output.partition("resource detectors")[2].splitlines()[0]
        assert scheduler.terminate(120) == 0, scheduler.output

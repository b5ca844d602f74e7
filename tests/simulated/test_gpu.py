"""GPUs: what Dask's own code reports of them is what is exported."""

from __future__ import annotations

from typing import Any

import pytest

from dask_otel.semconv import METRICS
from tests.simulated.bridged import Bridged
from tests.simulated.gpus import Device, Pool, gpus
from tests.simulated.test_metrics import last_points, next_export

NAMES = [name for name in METRICS if name.startswith(("hw.gpu.", "dask.worker.rmm."))]
NAMES += ["dask.worker.cudf.spilled"]
OF_PROCESS = {"dask.worker.rmm.usage": 300, "dask.worker.rmm.size": 700}
OF_PROCESS["dask.worker.cudf.spilled"] = 90 - 40
OF_DEVICE = {"hw.gpu.utilization": 0.37, "hw.gpu.memory.usage": 5, "hw.gpu.memory.limit": 80}


def levels(b: Bridged, worker: str) -> dict[str, Any]:
    """Return what the next export has of a worker."""
    next_export()
    found = {name: last_points(b.received, name) for name in NAMES}
    return {name: points[worker,] for name, points in found.items() if (worker,) in points}


@pytest.mark.options(workers=1)
def test_a_worker_with_a_gpu(b: Bridged) -> None:
    device = Device()
    next_export()
    # Without a GPU there is no series.
    assert not {*NAMES} & {point.metric for point in b.received.points}
    with gpus(device):
        b.cluster.add_worker("g0")
        assert levels(b, "g0") == OF_PROCESS | OF_DEVICE
        (ws,) = [one for one in b.scheduler.workers.values() if one.name == "g0"]
        # What Dask's dashboard shows.
        assert (ws.metrics["gpu_utilization"], ws.metrics["gpu_memory_used"]) == (37, 5)
        # Some devices, such as parts of one (MIG), do not support a figure.
        device.gpu, device.used = None, 6
        # Real workers do so twice a second.
        b.cluster.workers["g0"].monitor.update()
        expected = OF_PROCESS | OF_DEVICE | {"hw.gpu.memory.usage": 6}
        del expected["hw.gpu.utilization"]
        assert levels(b, "g0") == expected
        assert levels(b, "w0") == {}
        b.cluster.kill("g0")
        next_export()
        assert levels(b, "g0") == {}


@pytest.mark.options(workers=0, otel={"metrics": {"max-workers": 1}})
def test_of_workers_beyond_the_limit_only_what_is_theirs_is_added_up(b: Bridged) -> None:
    """Workers do not say which device they see: two of them may see the same."""
    with gpus(Device()):
        for name in ("a", "b", "c"):
            b.cluster.add_worker(name)
        assert levels(b, "a") == OF_PROCESS | OF_DEVICE
        assert levels(b, "_OTHER") == {name: 2 * value for name, value in OF_PROCESS.items()}


@pytest.mark.options(workers=0)
def test_memory_that_a_library_does_not_count_is_absent(b: Bridged) -> None:
    """Dask then reports 0, so that only what was not 0 before can be 0.

    So is less than nothing: data from another worker was in the host's memory, but cuDF has not
    moved it there.
    """
    with gpus(Device(), spilled=30):
        b.cluster.add_worker("less")
        found = levels(b, "less")
        assert found == {k: v for k, v in (OF_DEVICE | OF_PROCESS).items() if "cudf" not in k}
    pool = Pool(used=0)
    with gpus(Device(), pool, spilled=0):
        b.cluster.add_worker("g0")
        size = {"dask.worker.rmm.size": 700}
        assert levels(b, "g0") == OF_DEVICE | size
        for pool.used in (300, 0):
            expected = OF_DEVICE | size | {"dask.worker.rmm.usage": pool.used}
            assert levels(b, "g0") == expected

"""A real GPU: what is exported is what the driver's own command says, and memory of known sizes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from time import time_ns
from typing import Any

import pytest
from distributed import Client, wait

from dask_otel import semconv
from tests.cluster import tasks
from tests.cluster.processes import cluster
from tests.receiver import receiver
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not shutil.which("nvidia-smi"), reason="no GPU: nvidia-smi is not there"),
]

MIB = 2**20
HELD, POOL, USED = 3 * 2**30, 2**30, 256 * MIB


def of_driver(*figures: str) -> list[int]:
    """Return figures of the first GPU, in percent and MiB."""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(figures)}"]
    out = subprocess.check_output([*command, "--format=csv,noheader,nounits"], text=True)
    return [int(figure) for figure in out.split(",")]


def reserve(*, tracked: bool) -> None:
    """Give this worker's process a pool, as ``dask cuda worker`` does."""
    import rmm

    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), POOL)
    rmm.mr.set_current_device_resource(rmm.mr.TrackingResourceAdaptor(pool) if tracked else pool)


def hold(size: int) -> Any:
    """Hold memory of the GPU as a task's result."""
    import rmm

    return rmm.DeviceBuffer(size=size)


def copy(folder: str) -> None:
    """Keep the GPU busy until there is a file."""
    import rmm

    # An H200 copies less faster than Python asks for the next copy.
    data = rmm.DeviceBuffer(size=HELD)
    while not Path(folder, "enough").exists():
        for _ in range(100):
            data.copy()


def frame(size: int) -> Any:
    """Hold data of cuDF as a task's result."""
    import cudf
    import cupy

    return cudf.Series(cupy.arange(size // 8))


def total(data: Any) -> int:
    """Use data on the GPU."""
    return int(data.sum())


def spill() -> int:
    """Let cuDF move all that it can from the GPU, as when memory is short."""
    from cudf.core.buffer.spill_manager import get_global_manager

    return int(get_global_manager().spill_to_device_limit(0))


def test_two_workers_of_one_gpu(tmp_path: Path) -> None:
    pytest.importorskip("rmm", reason="no package rmm")
    with receiver() as received, cluster(tmp_path) as dask:
        environment = {**received.environ, "OTEL_METRIC_EXPORT_INTERVAL": "300"}
        dask.start_scheduler("--preload", "dask_otel.preload", env=environment)
        for name in ("a", "b"):
            dask.start_worker(name, nthreads=1)

        def levels(metric: semconv.Metric) -> list[Any]:
            """Return the last values of a and b."""
            found = received.last(metric.name)
            return [found.get(((semconv.WORKER_NAME, name),)) for name in ("a", "b")]

        def follows(metric: semconv.Metric, *expected: Any) -> None:
            eventually(lambda: levels(metric) == [*expected], what=f"{metric.name}: {expected}")

        def used() -> list[int]:
            """Return what is used as the driver says it, for each worker, in MiB."""
            return [sum(of_driver("memory.used", "memory.reserved"))] * 2

        with Client(dask.address) as client:
            client.wait_for_workers(2)
            address = {name: at for at, name in client.run(tasks.name_of).items()}
            limit = of_driver("memory.total")[0] * MIB
            follows(semconv.GPU_MEMORY_LIMIT, limit, limit)
            follows(semconv.GPU_UTILIZATION, 0, 0)

            def same() -> bool:
                known = levels(semconv.GPU_MEMORY_USAGE)
                # The driver's command prints whole MiB, of each of the two figures.
                return all(
                    value is not None and abs(value / MIB - said) <= 2
                    for value, said in zip(known, used(), strict=True)
                )

            # Plain allocations of CUDA: of the GPU, but of no pool.
            held = client.submit(hold, HELD, workers=["a"], key="held")
            wait(held)
            assert used()[0] * MIB >= HELD
            eventually(same, what="the driver's figure")
            assert levels(semconv.GPU_MEMORY_USAGE)[0] >= HELD
            assert levels(semconv.WORKER_RMM_USAGE) == [None, None]
            assert levels(semconv.WORKER_RMM_SIZE) == [None, None]
            # A pool that counts nothing, and one below an adaptor that does.
            client.run(reserve, tracked=False, workers=[address["a"]])
            client.run(reserve, tracked=True, workers=[address["b"]])
            pooled = [
                client.submit(hold, USED, workers=[name], key=f"used-{name}") for name in "ab"
            ]
            wait(pooled)
            follows(semconv.WORKER_RMM_SIZE, POOL, POOL)
            follows(semconv.WORKER_RMM_USAGE, None, USED)
            eventually(same, what="the driver's figure with pools")
            del pooled, held
            follows(semconv.WORKER_RMM_USAGE, None, 0)
            follows(semconv.WORKER_RMM_SIZE, POOL, POOL)
            busy = client.submit(copy, str(tmp_path), workers=["a"], key="busy")

            def working() -> bool:
                percent = of_driver("utilization.gpu")[0]
                exported = levels(semconv.GPU_UTILIZATION)
                assert percent > 90
                assert all(0.9 < share <= 1 for share in exported), exported
                return True

            eventually(working, what="a busy GPU")
            (tmp_path / "enough").touch()
            busy.result()
            follows(semconv.GPU_UTILIZATION, 0, 0)


def test_what_cudf_moves(tmp_path: Path) -> None:
    pytest.importorskip("cudf", reason="no package cudf")
    with receiver() as received, cluster(tmp_path) as dask:
        environment = {**received.environ, "OTEL_METRIC_EXPORT_INTERVAL": "300"}
        dask.start_scheduler("--preload", "dask_otel.preload", env=environment)
        moved = semconv.WORKER_CUDF_SPILLED.name
        environment = {"CUDF_SPILL": "on", "DASK_DISTRIBUTED__DIAGNOSTICS__CUDF": "true"}
        for name, statistics in (("a", "1"), ("b", "0"), ("c", "1")):
            environment["CUDF_SPILL_STATS"] = statistics
            dask.start_worker(name, nthreads=1, env=environment)

        def follows(*expected: int | None) -> None:
            """Wait for an export from now on with these values of a, b and c."""
            now = time_ns()

            def same() -> bool:
                points = [p for p in received.points if p.time_ns > now]
                found = {p.labels: p.value for p in points if p.metric == moved}
                levels = [found.get(((semconv.WORKER_NAME, name),)) for name in "abc"]
                assert levels == [*expected]
                return True

            eventually(same, what=f"moved: {expected}")

        with Client(dask.address) as client:
            client.wait_for_workers(3)
            address = {name: at for at, name in client.run(tasks.name_of).items()}

            def use(data: Any, name: str) -> None:
                expected = (USED // 8) * (USED // 8 - 1) // 2
                assert client.submit(total, data, workers=[name], pure=False).result() == expected

            def spills(*names: str) -> None:
                """Let workers spill, and see how much of the GPU is free again."""
                before = of_driver("memory.used")[0] * MIB
                spilled = client.run(spill, workers=[address[name] for name in names])
                assert list(spilled.values()) == [USED] * len(names)
                assert before - of_driver("memory.used")[0] * MIB == USED * len(names)

            data = {name: client.submit(frame, USED, workers=[name], key=name) for name in "ab"}
            wait(list(data.values()))
            for name in "ab":  # What only the first use loads is there before anything is compared.
                use(data[name], name)
            spills("a", "b")
            follows(USED, None, None)
            for name in "ab":
                use(data[name], name)
            follows(0, None, None)
            # Dropped data is not moved back: Dask's figure is what was moved, not what is there.
            spills("a", "b")
            follows(USED, None, None)
            del data["a"]
            data["a"] = client.submit(frame, USED, workers=["a"], key="next")
            use(data["a"], "a")
            spills("a")
            follows(2 * USED, None, None)
            # Over TCP, data arrives in the host's memory, so that it is only moved to the GPU.
            use(data["a"], "c")

            def known() -> Any:
                worker = client.scheduler_info()["workers"].get(address["c"])
                return worker and worker["metrics"]["cudf"]

            eventually(lambda: known() == {"cudf-spilled": -USED}, what="less than nothing")
            follows(2 * USED, None, None)

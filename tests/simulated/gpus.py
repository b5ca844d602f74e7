"""Workers with a GPU: Dask's own diagnostics, with stand-ins for the libraries of the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from distributed import worker
from distributed.diagnostics import cudf, nvml, rmm


class Device:
    """One device, and in place of ``pynvml``; busy is None if it does not support the figure."""

    NVMLError_LibraryNotFound = NVMLError_DriverNotLoaded = NVMLError_Unknown = OSError
    NVMLError_NotSupported = NotImplementedError

    def __init__(self, busy: int | None = 37, used: int = 5, total: int = 80) -> None:
        self.gpu, self.used, self.total = busy, used, total
        self.nvmlInit = self.nvmlDeviceGetCount = lambda: 1
        self.nvmlDeviceGetHandleByIndex = self.nvmlDeviceGetMemoryInfo = lambda _: self
        self.nvmlDeviceGetName = lambda _: "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetUtilizationRates(self, handle: Device) -> Device:
        """Return an object with ``gpu``, in percent."""
        if self.gpu is None:
            raise self.NVMLError_NotSupported
        return self


class Pool:
    """700 bytes of RMM's, which counts the used ones if something tracks them."""

    def __init__(self, used: int = 300) -> None:
        self.used = used

    def pool_size(self) -> int:
        """As in RMM."""
        return 700

    def get_allocated_bytes(self) -> int:
        """As in RMM."""
        return self.used


@contextmanager
def gpus(device: Device, pool: Pool | None = None, spilled: int = 90) -> Iterator[None]:
    """Let the workers that begin meanwhile find the libraries, and this device."""
    current = pool or Pool()
    resource = SimpleNamespace(PoolMemoryResource=Pool, get_current_device_resource=lambda: current)
    moved = {("gpu", "cpu"): (spilled, 1.0), ("cpu", "gpu"): (40, 1.0)} if spilled else {}
    manager = SimpleNamespace(statistics=SimpleNamespace(spill_totals=moved))
    # As distributed/worker.py does where the packages are there, but in the event loop's thread.
    metrics: dict[str, Any] = {"rmm": lambda _: rmm.real_time(), "cudf": lambda _: cudf.real_time()}
    with (
        patch.object(nvml, "pynvml", device),
        patch.object(nvml, "NVML_STATE", nvml.NVMLState.UNINITIALIZED),
        patch.object(nvml, "NVML_OWNER_PID", None),
        patch.object(rmm, "rmm", SimpleNamespace(mr=resource)),
        patch.object(cudf, "get_global_manager", lambda: manager),
        # What distributed adds when it finds a device goes, too.
        patch.dict(worker.DEFAULT_METRICS, metrics),
        patch.dict(worker.DEFAULT_STARTUP_INFORMATION),
    ):
        yield

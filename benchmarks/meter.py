"""Functions that run in the scheduler's process, to measure it there."""

from __future__ import annotations

from typing import Any


def busy(dask_scheduler: Any) -> bool:
    """Whether a worker has a task."""
    return any(ws.processing for ws in dask_scheduler.workers.values())

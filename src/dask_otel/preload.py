"""Dask preload: ``dask scheduler --preload dask_otel.preload``.

The same module may be named for every kind of Dask process
(``distributed.scheduler.preload``, ``distributed.worker.preload`` and so on): it does
nothing where there is nothing to do.
"""

from __future__ import annotations

from typing import Any

from distributed import Scheduler

from dask_otel.scheduler import install, uninstall


async def dask_setup(server: Any) -> None:
    """Put a bridge on the scheduler that loads this module."""
    if isinstance(server, Scheduler):
        install(server)


async def dask_teardown(server: Any) -> None:
    """Export what is left and take the bridge off the scheduler."""
    if isinstance(server, Scheduler):
        await uninstall(server)

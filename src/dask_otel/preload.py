"""Dask preload: ``dask scheduler --preload dask_otel.preload``.

The same module may be named for every kind of Dask process
(``distributed.scheduler.preload``, ``distributed.client.preload`` and so on): it does
nothing where there is nothing to do.
"""

from __future__ import annotations

from typing import Any

from distributed import Client, Scheduler

from dask_otel.client.blocks import help_distributed_span, leave_distributed_span
from dask_otel.scheduler.plugin import install, uninstall


async def dask_setup(server: Any) -> None:
    """Put a bridge on a scheduler; have a client tell of its blocks."""
    if isinstance(server, Scheduler):
        install(server)
    elif isinstance(server, Client):
        help_distributed_span()


async def dask_teardown(server: Any) -> None:
    """Export what is left and take the bridge off a scheduler; leave a client as it was."""
    if isinstance(server, Scheduler):
        await uninstall(server)
    elif isinstance(server, Client):
        leave_distributed_span()

"""Dask preload: ``dask scheduler --preload dask_otel.preload``.

The same module may be named for every kind of Dask process
(``distributed.scheduler.preload``, ``distributed.client.preload`` and so on): it does
nothing where there is nothing to do, and imports nothing of the other kinds.
"""

from __future__ import annotations

from typing import Any

from distributed import Client, Scheduler


async def dask_setup(server: Any) -> None:
    """Put a bridge on a scheduler; have a client tell of its blocks and pass contexts on."""
    if isinstance(server, Scheduler):
        from dask_otel.scheduler.plugin import install

        install(server)
    elif isinstance(server, Client):
        from dask_otel.client.instrumentation import INSTRUMENTATION

        INSTRUMENTATION.hold()


async def dask_teardown(server: Any) -> None:
    """Export what is left and take the bridge off a scheduler; leave a client as it was."""
    if isinstance(server, Scheduler):
        from dask_otel.scheduler.plugin import uninstall

        await uninstall(server)
    elif isinstance(server, Client):
        from dask_otel.client.instrumentation import INSTRUMENTATION

        INSTRUMENTATION.release()

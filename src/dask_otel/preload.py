"""Dask preload: ``dask scheduler --preload dask_otel``.

It works in every kind of Dask process (``distributed.scheduler.preload``,
``distributed.client.preload`` and so on): it imports only the parts for that kind, and does nothing
if there is nothing to do. ``dask_otel.preload``, this module, is the same preload; naming both is
harmless.
"""

from __future__ import annotations

from typing import Any, Final

from distributed import Client, Nanny, Scheduler, Worker

from dask_otel._log import logger

#: This module's importable name for a nanny's worker, under any name given to the nanny.
MODULE: Final = "dask_otel.preload"


async def dask_setup(server: Any) -> None:
    """Start a bridge on a scheduler, add contexts to a worker, or instrument a client."""
    # Each kind of process imports only its part: a worker neither the SDK nor the scheduler's side.
    if isinstance(server, Scheduler):
        from dask_otel.scheduler.plugin import install

        await install(server)
    elif isinstance(server, Client):
        from dask_otel.client.instrumentation import INSTRUMENTATION

        INSTRUMENTATION.settle(holders=1)
    elif isinstance(server, Worker):
        from dask_otel.worker.preloaded import add_plugin

        await add_plugin(server)
    elif isinstance(server, Nanny):
        from dask_otel.worker.preloaded import name_for_worker

        name_for_worker(server, MODULE)
        logger.info("dask-otel is loaded by this nanny's worker, too")


async def dask_teardown(server: Any) -> None:
    """Make a scheduler's last export and stop its bridge; restore other processes."""
    if isinstance(server, Scheduler):
        from dask_otel._wire import uninstall

        await uninstall(server)
    elif isinstance(server, Client):
        from dask_otel.client.instrumentation import INSTRUMENTATION

        INSTRUMENTATION.settle(holders=-1)
    elif isinstance(server, Worker):
        from dask_otel.worker.preloaded import remove_plugin

        await remove_plugin(server)

"""Dask preload: ``dask scheduler --preload dask_otel.preload``.

The same module may be named for every kind of Dask process
(``distributed.scheduler.preload``, ``distributed.client.preload`` and so on): it does
nothing where there is nothing to do.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from distributed import Client, Nanny, Scheduler, Worker

logger = logging.getLogger("dask_otel")

#: The name of this module, for a nanny's worker.
MODULE: Final = "dask_otel.preload"


async def dask_setup(server: Any) -> None:
    """Put a bridge on a scheduler, trace context on a worker; have a client tell of its blocks."""
    # Each kind of process imports what it needs: a worker neither the SDK nor the scheduler's side.
    if isinstance(server, Scheduler):
        from dask_otel.scheduler.plugin import install

        install(server)
    elif isinstance(server, Client):
        from dask_otel.client.blocks import help_distributed_span

        help_distributed_span()
    elif isinstance(server, Worker):
        await _put_on_worker(server)
    elif isinstance(server, Nanny):
        _name_for_worker(server)


async def dask_teardown(server: Any) -> None:
    """Export what is left and take the bridge off a scheduler; leave others as they were."""
    if isinstance(server, Scheduler):
        from dask_otel.scheduler.plugin import uninstall

        await uninstall(server)
    elif isinstance(server, Client):
        from dask_otel.client.blocks import leave_distributed_span

        leave_distributed_span()
    elif isinstance(server, Worker):
        from dask_otel.worker.plugin import PRELOADED

        if PRELOADED in server.plugins:
            await server.plugin_remove(PRELOADED)


async def _put_on_worker(worker: Worker) -> None:
    from dask_otel.settings.keys import ConfigurationError, Settings
    from dask_otel.worker.plugin import PRELOADED, TaskContextPlugin

    try:
        settings = Settings.from_config()
    except ConfigurationError as error:
        logger.error("dask-otel does nothing on this worker: %s", error)
        return
    if settings.enabled and settings.workers.context:
        await worker.plugin_add(TaskContextPlugin(settings.logs.inject), name=PRELOADED)


def _name_for_worker(nanny: Nanny) -> None:
    """Have the nanny's worker, which is another process, load this module, too."""
    preload = [nanny.preload] if isinstance(nanny.preload, str) else list(nanny.preload or ())
    if MODULE in preload:
        return
    argv = nanny.preload_argv
    if argv and not isinstance(argv[0], str):
        # One list for each preload.
        nanny.preload_argv = [*argv, []]
    nanny.preload = [*preload, MODULE]

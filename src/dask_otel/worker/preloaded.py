"""The worker plugin, added by the preload, with or without a bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dask_otel.worker.plugin import TaskContextPlugin

if TYPE_CHECKING:
    from distributed import Nanny, Worker

#: The plugin's name. The bridge's plugin has another, so that neither removes the other.
NAME: Final = "dask-otel-preload"


async def put_on(worker: Worker, inject: bool, ratio: float) -> None:
    """Add the plugin to a worker."""
    await worker.plugin_add(TaskContextPlugin(inject, ratio), name=NAME)


async def take_off(worker: Worker) -> None:
    """Remove the plugin, unless the closing worker has already removed it."""
    if NAME in worker.plugins:
        await worker.plugin_remove(NAME)


def name_for_worker(nanny: Nanny, module: str) -> None:
    """Make the nanny's worker, which is another process, load a preload too."""
    preload = [nanny.preload] if isinstance(nanny.preload, str) else list(nanny.preload or ())
    if module in preload or module.partition(".")[0] in preload:
        return
    argv = nanny.preload_argv
    if argv and not isinstance(argv[0], str):
        # One list of arguments for each preload.
        nanny.preload_argv = [*argv, []]
    nanny.preload = [*preload, module]

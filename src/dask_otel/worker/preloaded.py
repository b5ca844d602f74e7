"""The worker's part where the preload puts it on: explicitly, with or without a bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dask_otel.worker.plugin import TaskContextPlugin

if TYPE_CHECKING:
    from distributed import Nanny, Worker

#: The plugin's name. The bridge's has another one, so that neither takes the other off.
NAME: Final = "dask-otel-preload"


async def put_on(worker: Worker, inject: bool, ratio: float) -> None:
    """Put the plugin on a worker."""
    await worker.plugin_add(TaskContextPlugin(inject, ratio), name=NAME)


async def take_off(worker: Worker) -> None:
    """Take it off, where it still is: a worker that closes takes off its plugins itself."""
    if NAME in worker.plugins:
        await worker.plugin_remove(NAME)


def name_for_worker(nanny: Nanny, module: str) -> None:
    """Have the nanny's worker, which is another process, load a preload, too."""
    preload = [nanny.preload] if isinstance(nanny.preload, str) else list(nanny.preload or ())
    if module in preload or module.partition(".")[0] in preload:
        return
    argv = nanny.preload_argv
    if argv and not isinstance(argv[0], str):
        # One list for each preload.
        nanny.preload_argv = [*argv, []]
    nanny.preload = [*preload, module]

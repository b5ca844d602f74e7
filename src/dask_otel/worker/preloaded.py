"""The worker plugin, added by the preload, with or without a bridge."""

from __future__ import annotations

from typing import Final

from distributed import Nanny, Worker

from dask_otel._log import logger
from dask_otel.settings.keys import ConfigurationError
from dask_otel.settings.reading import read_settings
from dask_otel.worker.plugin import TaskContextPlugin

#: The plugin's name. The bridge's plugin has another, so that neither removes the other.
NAME: Final = "dask-otel-preload"


async def add_plugin(worker: Worker) -> None:
    """Add the plugin to a worker, if the configuration allows it."""
    try:
        settings = read_settings()
    except ConfigurationError as error:
        logger.error("dask-otel does nothing on this worker, which is not affected: %s", error)
        return
    if not (settings.enabled and settings.workers.context):
        off = "otel.workers.context" if settings.enabled else "otel.enabled"
        logger.info("dask-otel does nothing on this worker (%s: false)", off)
        return
    plugin = TaskContextPlugin(settings.logs.inject, settings.spans.tasks.chosen)
    await worker.plugin_add(plugin, name=NAME)
    logger.info(
        "dask-otel makes the Dask span of a task the current OpenTelemetry span of its code. "
        "Workers export nothing: the scheduler does, and needs the preload for it"
    )


async def remove_plugin(worker: Worker) -> None:
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

"""From the client: put the bridge on a running cluster, with no access to its command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client
    from distributed.scheduler import Scheduler


def register(client: Client, config: Mapping[str, Any] | None = None) -> Any:
    """Start a bridge on the scheduler of a running cluster.

    Calling it again is harmless: a scheduler has one bridge, and keeps the configuration
    with which that was started (its log says so if another one is asked for). Work that
    finished before is not exported; spans with unfinished work are, from here on.

    Parameters
    ----------
    client
        A connected client. ``dask-otel`` must be installed on the scheduler as well.
    config
        Configuration for this bridge, laid over the scheduler's ``otel`` section, such as
        ``{"spans": {"linger": "5s"}, "environment": {"OTEL_EXPORTER_OTLP_ENDPOINT": ...}}``.

    Returns
    -------
    status
        ``"started"``, ``"running"`` or ``"off"`` (the scheduler's log says why). With an
        asynchronous client, an awaitable of it.

    Raises
    ------
    ConfigurationError
        If the configuration is not valid, before anything is sent.
    """
    from dask_otel.settings import Settings

    Settings.from_config(config)
    return client.run_on_scheduler(_install, config=dict(config or {}))


def unregister(client: Client) -> Any:
    """Stop the bridge of a running cluster; what it has is exported first.

    Returns
    -------
    status
        ``"stopped"`` or ``"absent"``. With an asynchronous client, an awaitable of it.
    """
    return client.run_on_scheduler(_uninstall)


async def _install(config: Mapping[str, Any], dask_scheduler: Scheduler) -> str:
    # A coroutine function, for these run on the scheduler's event loop.
    from dask_otel.scheduler import install

    return install(dask_scheduler, config)


async def _uninstall(dask_scheduler: Scheduler) -> str:
    from dask_otel.scheduler import uninstall

    return await uninstall(dask_scheduler)

"""The plugin that carries a bridge on its scheduler, and the one way to put it there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, ref

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_otel._dask.adapter import UnsupportedScheduler
from dask_otel.scheduler.bridge import Bridge
from dask_otel.settings.keys import ConfigurationError
from dask_otel.settings.reading import read_settings

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger("distributed.dask_otel")

#: The plugin's name in ``Scheduler.plugins``.
NAME: Final = "dask-otel"

#: The last bridge that was put on a scheduler, carried by a plugin or not.
_BRIDGES: Final[WeakKeyDictionary[Scheduler, ref[Bridge]]] = WeakKeyDictionary()


class OtelSchedulerPlugin(SchedulerPlugin):
    """Exports a scheduler's spans and metrics over OTLP.

    The plugin itself has only its configuration, so that it can be pickled; the bridge is made on
    the scheduler. While it runs, the plugin's hooks are the bridge's: see `Bridge.start`.

    Parameters
    ----------
    overrides
        Configuration of this bridge, laid over Dask's ``otel`` section: a mapping as in a
        Dask config file, such as ``{"spans": {"linger": "5s"}}``.
    """

    name = NAME
    # A second registration from a client must not replace the plugin that has the bridge.
    idempotent = True

    def __init__(self, overrides: Mapping[str, Any] | None = None) -> None:
        self.overrides = dict(overrides or {})
        self._bridge: Bridge | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Like the names in `_wire`, this one stays where it is.
        return OtelSchedulerPlugin, (self.overrides,)

    @property
    def bridge(self) -> Bridge | None:
        """The bridge, until it has released the scheduler."""
        return None if self._bridge is None or self._bridge.gone else self._bridge

    async def start(self, scheduler: Scheduler) -> None:
        """Start the bridge, if none is running.

        Any problem is logged as one clear error, and the scheduler runs on without us.
        """
        await make_way(scheduler)
        running = plugin_of(scheduler)
        if running is not None and running is not self:
            # Under another name: a scheduler has one bridge.
            _warn_of_running(running, self.overrides)
        elif self.bridge is None:
            self.launch(scheduler)

    def launch(self, scheduler: Scheduler) -> None:
        """Start the bridge now."""
        try:
            settings = read_settings(self.overrides)
            if not settings.enabled:
                logger.info("dask-otel is switched off (otel.enabled: false)")
                return
            bridge = Bridge(scheduler, settings, self.overrides)
            bridge.start(self)
            self._bridge = bridge
            _BRIDGES[scheduler] = ref(bridge)
        except (ConfigurationError, UnsupportedScheduler) as error:
            logger.error(
                "dask-otel does not run on this scheduler, which is not affected: %s", error
            )
        except Exception:
            logger.exception(
                "dask-otel could not start on this scheduler, which runs on without it"
            )

    async def close(self) -> None:
        """Export the rest, within ``otel.close-timeout``, and release the scheduler."""
        if self.bridge is not None:
            await self.bridge.close()


async def make_way(scheduler: Scheduler) -> None:
    """Wait until a bridge that is about to release the scheduler has done so.

    Two at once would export the same spans, and book everything twice.
    """
    known = _BRIDGES.get(scheduler)
    bridge = None if known is None else known()
    if bridge is None or bridge.gone:
        return
    present = plugin_of(scheduler)
    if bridge.leaving or present is None or present.bridge is not bridge:
        # Where its plugin was removed without notice, it does not know yet.
        await bridge.close()


def plugin_of(scheduler: Scheduler) -> OtelSchedulerPlugin | None:
    """Return the plugin that has the scheduler's bridge; None without a bridge."""
    plugin = scheduler.plugins.get(NAME)
    if isinstance(plugin, OtelSchedulerPlugin) and plugin.bridge is not None:
        return plugin
    return None


def install(scheduler: Scheduler, overrides: Mapping[str, Any] | None = None) -> str:
    """Put a bridge on a scheduler. Harmless where there is one already.

    Parameters
    ----------
    scheduler
        A scheduler in this process; call it on its event loop.
    overrides
        Configuration of this bridge, laid over Dask's ``otel`` section.

    Returns
    -------
    status
        ``"started"``, ``"running"`` where a bridge was there, ``"off"`` where it is switched
        off or could not start (the scheduler's log says why).
    """
    running = plugin_of(scheduler)
    if running is not None:
        _warn_of_running(running, overrides)
        return "running"
    plugin = OtelSchedulerPlugin(overrides)
    plugin.launch(scheduler)
    if plugin.bridge is None:
        return "off"
    scheduler.add_plugin(plugin)
    return "started"


def _warn_of_running(running: OtelSchedulerPlugin, overrides: Mapping[str, Any] | None) -> None:
    assert running.bridge is not None
    try:
        changed = running.bridge.unused(overrides)
    except ConfigurationError as error:
        logger.error("dask-otel runs already; the new configuration was not used: %s", error)
        return
    if changed:
        logger.warning(
            "dask-otel runs on this scheduler already, and keeps its configuration; what this "
            "registration would have changed: %s. To change it, call dask_otel.unregister first.",
            ", ".join(changed),
        )

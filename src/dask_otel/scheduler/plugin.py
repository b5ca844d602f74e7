"""The scheduler plugin with the bridge, and the single way to install it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import Scheduler

from dask_otel._dask.adapter import UnsupportedScheduler
from dask_otel.scheduler.bridge import Bridge
from dask_otel.settings.keys import ConfigurationError
from dask_otel.settings.reading import read_settings

logger = logging.getLogger("distributed.dask_otel")

#: The plugin's name in ``Scheduler.plugins``.
NAME: Final = "dask-otel"

#: Of a bridge for a report alone: it sends nothing, and no worker has anything of it.
UNSENT: Final[Mapping[str, Any]] = {
    "provider": "own",
    "environment": {
        "OTEL_SDK_DISABLED": "false",
        **{f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")},
    },
    "files": {"path": None},
    "spool": {"path": None},
    "metrics": {"prometheus": False},
    "workers": {"context": False},
    "logs": {"level": "off"},
}

#: The last bridge on each scheduler, with or without a plugin.
_BRIDGES: Final[WeakKeyDictionary[Scheduler, ref[Bridge]]] = WeakKeyDictionary()


class OtelSchedulerPlugin(SchedulerPlugin):
    """Exports a scheduler's spans and metrics over OTLP.

    The plugin itself has only its configuration, so that it can be pickled; it makes the bridge on
    the scheduler. While the bridge runs, the plugin's hooks are the adapter's: see `Bridge.start`.

    Parameters
    ----------
    overrides
        Configuration of this bridge, which overrides Dask's ``otel`` section: a mapping as in a
        Dask config file, such as ``{"spans": {"linger": "5s"}}``.
    is_temporary
        Whether its bridge is there for a report alone.
    """

    name = NAME
    # A second registration by a client must not replace the plugin with the bridge.
    idempotent = True

    def __init__(
        self, overrides: Mapping[str, Any] | None = None, is_temporary: bool = False
    ) -> None:
        self.overrides, self._is_temporary = dict(overrides or {}), is_temporary
        self._bridge: Bridge | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Like the names in `_wire`, this one is never moved.
        return OtelSchedulerPlugin, (self.overrides,)

    @property
    def bridge(self) -> Bridge | None:
        """The bridge, until it has released the scheduler."""
        return None if self._bridge is None or self._bridge.gone else self._bridge

    async def start(self, scheduler: Scheduler) -> None:
        """Start the bridge, if none is running.

        Any problem is logged as one clear error, and the scheduler runs without a bridge.
        """
        await _make_way(scheduler)
        running = plugin_of(scheduler)
        if running is not None and running is not self:
            # Under another plugin name: a scheduler has only one bridge.
            _warn_of_running(running, self.overrides)
        elif self.bridge is None:
            self._launch(scheduler)

    def _launch(self, scheduler: Scheduler) -> None:
        try:
            settings = read_settings(self.overrides)
            if not settings.enabled:
                logger.info("dask-otel is switched off (otel.enabled: false)")
                return
            bridge = Bridge(scheduler, settings, self.overrides, self._is_temporary)
            bridge.start(self)
            self._bridge = bridge
            _BRIDGES[scheduler] = ref(bridge)
        except (ConfigurationError, UnsupportedScheduler) as error:
            logger.error(
                "dask-otel does not run on this scheduler, which is not affected: %s", error
            )
        except Exception:
            logger.exception(
                "dask-otel could not start on this scheduler, which continues without it"
            )

    async def close(self) -> None:
        """Export the rest, within ``otel.close-timeout``, and release the scheduler."""
        if self.bridge is not None:
            await self.bridge.close()


async def _make_way(scheduler: Scheduler) -> None:
    """Wait until a closing bridge has released the scheduler; close one for a report alone.

    Two bridges at once would export the same spans and count everything twice.
    """
    known = _BRIDGES.get(scheduler)
    bridge = None if known is None else known()
    if bridge is None or bridge.gone:
        return
    present = plugin_of(scheduler)
    if (
        bridge.leaving
        or bridge.recording.is_temporary
        or present is None
        or present.bridge is not bridge
    ):
        # If Dask removed its plugin without notice, the bridge does not know yet.
        await bridge.close()


def plugin_of(scheduler: Scheduler) -> OtelSchedulerPlugin | None:
    """Return the plugin of the scheduler's bridge; None without a bridge."""
    plugin = scheduler.plugins.get(NAME)
    runs = isinstance(plugin, OtelSchedulerPlugin) and plugin.bridge is not None
    return plugin if runs else None


async def recording_bridge(scheduler: Scheduler) -> Bridge | None:
    """Return the scheduler's bridge, or a new one for a report alone; None if it is off."""
    running = plugin_of(scheduler)
    if running is None or running.bridge is None or running.bridge.leaving:
        await install(scheduler, UNSENT, is_temporary=True)
        running = plugin_of(scheduler)
    return None if running is None else running.bridge


async def install(
    scheduler: Scheduler, overrides: Mapping[str, Any] | None = None, is_temporary: bool = False
) -> str:
    """Start a bridge on a scheduler; harmless if one is running.

    Parameters
    ----------
    scheduler
        A scheduler in this process; call it on its event loop.
    overrides
        Configuration of this bridge, which overrides Dask's ``otel`` section.
    is_temporary
        Whether it is there for a report alone.

    Returns
    -------
    status
        ``"started"``, ``"running"`` if there was a bridge, ``"off"`` if it is disabled or could
        not start (the scheduler's log has the reason).
    """
    plugin = OtelSchedulerPlugin(overrides, is_temporary)
    await plugin.start(scheduler)
    if plugin.bridge is None:
        return "off" if plugin_of(scheduler) is None else "running"
    scheduler.add_plugin(plugin)
    return "started"


def _warn_of_running(running: OtelSchedulerPlugin, overrides: Mapping[str, Any] | None) -> None:
    assert running.bridge is not None
    try:
        changed = running.bridge.unused(overrides)
    except ConfigurationError as error:
        logger.error("dask-otel already runs; the new configuration was not used: %s", error)
        return
    if changed:
        logger.warning(
            "dask-otel already runs on this scheduler, and keeps its configuration; this "
            "registration would have changed: %s. To change it, call dask_otel.unregister first.",
            ", ".join(changed),
        )

"""The scheduler plugin with the bridge, and the single way to install it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import Scheduler

from dask_otel._dask.adapter import UnsupportedScheduler
from dask_otel._log import logger
from dask_otel.scheduler.bridge import Bridge
from dask_otel.settings.keys import ConfigurationError
from dask_otel.settings.reading import read_settings

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

#: The last bridge on each scheduler.
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
        while (running := bridge_of(scheduler)) is not None and (
            # Others may have waited, too, and have begun one for a report alone.
            running.leaving or (running.recording.is_temporary and not self._is_temporary)
        ):
            # Two bridges at once would export the same spans and count everything twice.
            await running.close()
        if running is None:
            self._launch(scheduler)
        elif running is not self._bridge and not self._is_temporary:
            _warn_of_running(running, self.overrides)

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


def bridge_of(scheduler: Scheduler) -> Bridge | None:
    """Return the bridge that has not released the scheduler yet; None without one."""
    known = _BRIDGES.get(scheduler)
    bridge = None if known is None else known()
    return None if bridge is None or bridge.gone else bridge


async def recording_bridge(scheduler: Scheduler) -> Bridge | None:
    """Return the scheduler's bridge, or a new one for a report alone; None if it is off."""
    running = bridge_of(scheduler)
    if running is None or running.leaving:
        await install(scheduler, UNSENT, is_temporary=True)
        running = bridge_of(scheduler)
    return running


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
        return "off" if bridge_of(scheduler) is None else "running"
    scheduler.add_plugin(plugin)
    return "started"


def _warn_of_running(running: Bridge, overrides: Mapping[str, Any] | None) -> None:
    try:
        changed = running.unused(overrides)
    except ConfigurationError as error:
        logger.error("dask-otel already runs; the new configuration was not used: %s", error)
        return
    if changed:
        logger.warning(
            "dask-otel already runs on this scheduler, and keeps its configuration; this "
            "registration would have changed: %s. To change it, call dask_otel.unregister first.",
            ", ".join(changed),
        )

"""The plugin that carries a bridge on its scheduler, and the one way to put it there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, ref

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_otel._dask.adapter import UnsupportedScheduler
from dask_otel._wire import TraceContext, scheduler_plugin
from dask_otel.scheduler.bridge import Bridge
from dask_otel.settings.keys import ConfigurationError
from dask_otel.settings.reading import differences, read_settings

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger("distributed.dask_otel")

#: The plugin's name in ``Scheduler.plugins``.
NAME: Final = "dask-otel"

#: The last bridge that was put on a scheduler, carried by a plugin or not.
_BRIDGES: Final[WeakKeyDictionary[Scheduler, ref[Bridge]]] = WeakKeyDictionary()


class OtelSchedulerPlugin(SchedulerPlugin):
    """Exports a scheduler's spans and metrics over OTLP.

    The plugin itself holds no more than its configuration, so that it can be pickled; the
    bridge is made on the scheduler.

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
        self.bridge: Bridge | None = None
        self._scheduler: Scheduler | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # By a name that stays where it is: see `_wire`.
        return scheduler_plugin, (self.overrides,)

    async def start(self, scheduler: Scheduler) -> None:
        """Start the bridge, if it is not running already.

        Whatever is wrong is logged as one clear error, and the scheduler runs on without us.
        """
        await make_way(scheduler)
        running = plugin_of(scheduler)
        if running is not None and running is not self:
            # Under another name: a scheduler has one bridge.
            _warn_that_it_runs(scheduler, self.overrides)
        elif self.bridge is None:
            self._start(scheduler)

    def _start(self, scheduler: Scheduler) -> None:
        try:
            settings = read_settings(self.overrides)
            if not settings.enabled:
                logger.info("dask-otel is switched off (otel.enabled: false)")
                return
            self._scheduler = scheduler
            bridge = Bridge(scheduler, settings)
            bridge.start(self)
            self.bridge = bridge
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
        """Export what is left, within ``otel.close-timeout``, and let go of the scheduler."""
        if self.bridge is not None:
            await self.bridge.close()

    # ------------------------------------------------------------------------ the bridge's

    def bridge_gone(self) -> None:
        """The bridge has let go of the scheduler: forget it, and leave the scheduler."""
        self.bridge = None
        if self.installed:
            assert self._scheduler is not None
            self._scheduler.remove_plugin(NAME)

    @property
    def installed(self) -> bool:
        """Whether Dask calls this plugin."""
        return self._scheduler is not None and self._scheduler.plugins.get(NAME) is self

    def trace_context(self, span_id: str) -> TraceContext | None:
        """Return where a Dask span is found; None if there is no such span. For clients."""
        return None if self.bridge is None else self.bridge.settled.trace_context(span_id)

    # -------------------------------------------------------------------------- Dask's hooks

    def restart(self, scheduler: Scheduler) -> None:
        """See ``SchedulerPlugin.restart``."""
        if self.bridge is not None:
            self.bridge.adapter.restart()

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """See ``SchedulerPlugin.add_worker``."""
        if self.bridge is not None:
            self.bridge.adapter.add_worker(worker)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """See ``SchedulerPlugin.remove_worker``."""
        if self.bridge is not None:
            self.bridge.adapter.remove_worker(worker)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """See ``SchedulerPlugin.remove_client``."""
        if self.bridge is not None:
            self.bridge.adapter.remove_client(client)

    def log_event(self, topic: str, msg: Any) -> None:
        """See ``SchedulerPlugin.log_event``."""
        if self.bridge is not None:
            self.bridge.adapter.log_event(topic, msg)


async def make_way(scheduler: Scheduler) -> None:
    """Wait until a bridge has let go of the scheduler that is about to, before another comes.

    Two at once would export the same spans, and book everything twice.
    """
    known = _BRIDGES.get(scheduler)
    bridge = None if known is None else known()
    if bridge is None or bridge.gone:
        return
    present = plugin_of(scheduler)
    if bridge.leaving or present is None or present.bridge is not bridge:
        # Where its plugin was removed without a word, it has not noticed yet.
        await bridge.close()


def plugin_of(scheduler: Scheduler) -> OtelSchedulerPlugin | None:
    """Return the plugin that carries the scheduler's bridge; None if it has no bridge."""
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
    if plugin_of(scheduler) is not None:
        _warn_that_it_runs(scheduler, overrides)
        return "running"
    plugin = OtelSchedulerPlugin(overrides)
    plugin._start(scheduler)
    if plugin.bridge is None:
        return "off"
    scheduler.add_plugin(plugin)
    return "started"


def unused(scheduler: Scheduler, overrides: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return what the bridge that runs does not use of another configuration: full keys."""
    present = plugin_of(scheduler)
    if present is None or present.bridge is None:
        return ()
    return tuple(differences(present.bridge.settings, read_settings(overrides)))


def _warn_that_it_runs(scheduler: Scheduler, overrides: Mapping[str, Any] | None) -> None:
    try:
        changed = unused(scheduler, overrides)
    except ConfigurationError as error:
        logger.error("dask-otel runs already; the new configuration was not used: %s", error)
        return
    if changed:
        logger.warning(
            "dask-otel runs on this scheduler already, and keeps its configuration; what this "
            "registration would have changed: %s. To change it, call dask_otel.unregister first.",
            ", ".join(changed),
        )


async def examined(scheduler: Scheduler, seconds: float) -> dict[str, Any]:
    """Return what ``dask-otel doctor`` asks of a scheduler; see `examination.examine`."""
    from dask_otel.scheduler.examination import examine

    plugin = plugin_of(scheduler)
    bridge = None if plugin is None else plugin.bridge
    return await examine(scheduler, bridge, {} if plugin is None else plugin.overrides, seconds)


async def uninstall(scheduler: Scheduler) -> str:
    """Take the bridge off a scheduler, with everything that it wrapped.

    Returns
    -------
    status
        ``"stopped"``, or ``"absent"`` where there was none.
    """
    plugin = scheduler.plugins.get(NAME)
    if not isinstance(plugin, OtelSchedulerPlugin):
        return "absent"
    await plugin.close()
    return "stopped"

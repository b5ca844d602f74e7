"""In the client: let the caller's context travel with submissions, and stop it.

There are three ways to ask for it, and all do the same: `instrument`, the client preload, and
``opentelemetry-instrument``, which finds `DaskInstrumentor` by its entry point. The last one comes
before the user's code, in every process that inherits its environment. So nothing heavy is
imported here: Dask is hooked when the application imports it.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dask_otel.client.hook import MODULE, ImportHook
from dask_otel.client.roots import ROOTS

if TYPE_CHECKING:
    from dask_otel._dask.wrapping import Wrappers

logger = logging.getLogger("distributed.dask_otel")


class _Instrumentation:
    """Counts the requests for it in this process, and hooks Dask or restores it.

    Nothing is imported while the lock is held: another thread may be importing
    ``distributed.client``, hold its import lock, and wait for ours.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._asked = False
        self._holders = 0
        self._waiting = ImportHook(MODULE, self._imported)
        self._hook: Wrappers | None = None

    @property
    def on(self) -> bool:
        """Whether contexts travel now."""
        return ROOTS.callers_travel

    def ask(self, wanted: bool) -> None:
        """Turn it on or off for the application."""
        self._settle(asked=wanted)

    def hold(self) -> None:
        """Keep it on for one more: a client with the preload, or a worker's plugin."""
        self._settle(holders=1)

    def release(self) -> None:
        """Undo one `hold`."""
        self._settle(holders=-1)

    def _wanted(self) -> bool:
        return self._asked or self._holders > 0

    def _settle(self, asked: bool | None = None, holders: int = 0) -> None:
        """Take a request; hook or restore Dask's client now, or when it is imported."""
        with self._lock:
            self._asked = self._asked if asked is None else asked
            self._holders = max(0, self._holders + holders)
            if self._wanted():
                # Before the look, so that no import can fall in between.
                self._waiting.put()
            else:
                self._waiting.take_off()
        if MODULE in sys.modules:
            try:
                # Waits for another thread that is importing it, which may fail.
                module = import_module(MODULE)
            except ImportError:
                return
            self._imported(module)

    def _imported(self, module: ModuleType) -> None:
        try:
            owner = getattr(module, "Client", None)
            if owner is None:
                # It is being imported, and calls us: the import hook will, too, when it is done.
                return
            if not (self._wanted() or self.on):
                return
            from dask_otel.client import blocks, carriers, hook

            import_module("distributed.spans")
            if not self.on:
                carriers.prepare()
            with self._lock:
                self._waiting.take_off()
                if self._wanted() == self.on:
                    return
                ROOTS.callers_travel = not ROOTS.callers_travel
                if self.on:
                    self._hook = hook.hook_submissions(owner, carriers.annotations_for)
                    blocks.help_distributed_span()
                else:
                    blocks.leave_distributed_span()
                    if self._hook is not None:
                        self._hook.take_off()
        except Exception:
            logger.warning("dask-otel could not instrument Dask's client", exc_info=True)


INSTRUMENTATION = _Instrumentation()


def instrument() -> None:
    """Have the caller's OpenTelemetry context travel with everything that clients submit.

    The span that is current where work is submitted becomes the parent of its Dask span, if the
    scheduler has the bridge (``otel.propagation``); where none is, ``TRACEPARENT`` and
    ``TRACESTATE`` of this process's environment name the caller. And ``distributed.span`` tells
    the scheduler when its blocks end, as `dask_otel.span` does.

    Notes
    -----
    Calling it again changes nothing, from any thread. It may be called before ``distributed`` is
    imported, which it does not import.

    See Also
    --------
    uninstrument

    Examples
    --------
    >>> dask_otel.instrument()
    >>> with tracer.start_as_current_span("request"):
    ...     client.submit(sum, [1, 2]).result()
    3
    """
    INSTRUMENTATION.ask(True)


def uninstrument() -> None:
    """Undo `instrument`: Dask is left exactly as it was.

    While there are clients that load the preload, they keep what they asked for.
    """
    INSTRUMENTATION.ask(False)


class DaskInstrumentor:
    """What ``opentelemetry-instrument`` finds under the name ``dask``.

    A plain class: the package of the base class pins the semantic conventions to one release.
    ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=dask`` leaves it out.
    """

    def instrument(self, **_: Any) -> None:
        """See `instrument`; options of OpenTelemetry's own instrumentations are ignored."""
        instrument()

    def uninstrument(self, **_: Any) -> None:
        """See `uninstrument`."""
        uninstrument()

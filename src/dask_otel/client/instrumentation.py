"""In the client: add the caller's context to submissions, on request.

There are three equal ways to request it: `instrument`, the client preload, and
``opentelemetry-instrument``, which finds `DaskInstrumentor` by its entry point. The last one runs
before the user's code, in every process that inherits its environment. So this module imports
nothing heavy, and hooks Dask when the application imports it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from threading import RLock
from types import ModuleType
from typing import Any

from dask_otel._dask.wrapping import Wrappers
from dask_otel._log import logger
from dask_otel.client.hook import MODULE, ImportHook
from dask_otel.client.roots import ROOTS


class _Instrumentation:
    """Counts the requests in this process, and hooks or restores Dask's client.

    Nothing is imported while the lock is held: another thread may be importing
    ``distributed.client``, hold its import lock, and wait for ours.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._asked = self._wanted = False
        self._holders = 0
        self._waiting = ImportHook(MODULE, self._imported)
        self._hook: Wrappers | None = None

    def settle(self, asked: bool | None = None, holders: int = 0) -> None:
        """Apply a request: hook or restore Dask's client now, or hook it at its import.

        `asked` turns it on or off for the application. `holders` are clients with the preload and
        plugins of workers, to add to the present ones, or to take away.
        """
        with self._lock:
            self._asked = self._asked if asked is None else asked
            self._holders = max(0, self._holders + holders)
            self._wanted = self._asked or self._holders > 0
            if self._wanted:
                # Before the check of sys.modules, so that no import is missed.
                self._waiting.put()
            else:
                self._waiting.remove()
        if MODULE in sys.modules:
            try:
                # Waits while another thread imports it; that import may fail.
                module = import_module(MODULE)
            except ImportError:
                return
            self._imported(module)

    def _imported(self, module: ModuleType) -> None:
        try:
            owner = getattr(module, "Client", None)
            # Without one, its import is under way and has called us; the import hook calls again at
            # its end.
            if owner is None or not (self._wanted or ROOTS.callers_travel):
                return
            from dask_otel.client import carriers, hook

            import_module("distributed.spans")
            if not ROOTS.callers_travel:
                carriers.prepare()
            with self._lock:
                self._waiting.remove()
                if self._wanted == ROOTS.callers_travel:
                    return
                ROOTS.callers_travel = not ROOTS.callers_travel
                if ROOTS.callers_travel:
                    self._hook = hook.hook_submissions(owner, carriers.annotations_for)
                elif self._hook is not None:
                    self._hook.remove()
        except Exception:
            logger.warning("dask-otel could not instrument Dask's client", exc_info=True)


INSTRUMENTATION = _Instrumentation()


def instrument() -> None:
    """Send the caller's OpenTelemetry context with every submission of this process's clients.

    If the scheduler has the bridge, the span that is current at a submission becomes the parent of
    its Dask span (``otel.propagation``). Without a current span, ``TRACEPARENT`` and ``TRACESTATE``
    in this process's environment name the caller.

    Notes
    -----
    It is thread-safe, and a second call changes nothing. It does not import ``distributed``, and
    may be called before that import.

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
    INSTRUMENTATION.settle(asked=True)


def uninstrument() -> None:
    """Undo `instrument`: restore Dask exactly.

    It stays on while there are clients with the preload.
    """
    INSTRUMENTATION.settle(asked=False)


class DaskInstrumentor:
    """The instrumentor that ``opentelemetry-instrument`` finds under the name ``dask``.

    It has no base class: OpenTelemetry's base class comes in a package that pins the semantic
    conventions to one release.
    ``OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=dask`` disables it.
    """

    def instrument(self, **_: Any) -> None:
        """See `instrument`; options of OpenTelemetry's own instrumentations are ignored."""
        instrument()

    def uninstrument(self, **_: Any) -> None:
        """See `uninstrument`."""
        uninstrument()

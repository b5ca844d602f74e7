"""Wraps methods and handlers that Dask calls, and restores them exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from time import perf_counter
from typing import Any, TypeAlias

from dask_otel._dask.boundary import ErrorBoundary

Called: TypeAlias = Callable[..., Any]
#: Makes the wrapper of an original.
Make: TypeAlias = Callable[[Called], Called]


class Wrappers:
    """The wrappers of one part of the bridge.

    If other code has wrapped one of ours, ours cannot be removed. So every wrapper reads
    `attached`; if that is false, it only calls its original.
    """

    def __init__(self, boundary: ErrorBoundary | None = None) -> None:
        self._boundary = boundary or ErrorBoundary()
        #: The table that has each wrapper, its name there, and how to restore the original.
        self._undo: list[tuple[Mapping[str, Any], str, Called, Callable[[], None]]] = []
        #: Whether the wrappers are active; read at each call.
        self.attached = False
        #: Seconds of the event loop for our own work, except transitions.
        self.spent = 0.0

    def run(self, kind: str, ours: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Call code of ours: count its seconds, and catch its errors."""
        began = perf_counter()
        try:
            ours(*args, **kwargs)
        except Exception:
            self._boundary.failed(kind)
        self.spent += perf_counter() - began

    def then(self, ours: Callable[..., None], kind: str) -> Make:
        """Return the maker of a wrapper that calls the original, then `ours`, guarded."""

        def make(original: Called) -> Called:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if self.attached:
                    self.run(kind, ours, *args, **kwargs)
                return result

            return wrapper

        return make

    def method(self, owner: object, name: str, make: Make) -> None:
        """Wrap a method of a class or instance that Dask looks up for each call."""
        shadowed = vars(owner).get(name)
        wrapper = make(getattr(owner, name))
        setattr(owner, name, wrapper)
        if shadowed is None:
            restore = partial(delattr, owner, name)
        else:
            restore = partial(setattr, owner, name, shadowed)
        self._wrapped(vars(owner), name, wrapper, restore)

    def handler(self, handlers: dict[str, Called], name: str, make: Make) -> None:
        """Wrap the handler of an operation."""
        original = handlers[name]
        # Dask reads a handler's signature; `wraps` preserves it.
        wrapper = handlers[name] = wraps(original)(make(original))
        self._wrapped(handlers, name, wrapper, partial(handlers.__setitem__, name, original))

    def _wrapped(
        self, table: Mapping[str, Any], name: str, wrapper: Called, restore: Callable[[], None]
    ) -> None:
        self._undo.append((table, name, wrapper, restore))
        self.attached = True

    def remove(self) -> None:
        """Restore everything, the last wrapper first."""
        self.attached = False
        while self._undo:
            table, name, wrapper, restore = self._undo.pop()
            if table.get(name) is wrapper:
                restore()

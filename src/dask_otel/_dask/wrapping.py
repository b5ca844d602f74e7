"""Wraps methods and handlers that Dask calls, and restores them exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
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

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        #: Whether the wrappers are active; read at each call.
        self.attached = False
        #: Seconds of the event loop for the wrappers' own work.
        self.spent = 0.0

    @contextmanager
    def own_work(self, boundary: ErrorBoundary, kind: str) -> Iterator[None]:
        """Count the seconds of the code inside, and catch its errors."""
        began = perf_counter()
        with boundary.guarding(kind):
            yield
        self.spent += perf_counter() - began

    def then(self, ours: Callable[..., None], boundary: ErrorBoundary, kind: str) -> Make:
        """Return the maker of a wrapper that calls the original, then `ours`, guarded."""

        def make(original: Called) -> Called:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if self.attached:
                    with self.own_work(boundary, kind):
                        ours(*args, **kwargs)
                return result

            return wrapper

        return make

    def method(self, owner: object, name: str, make: Make) -> None:
        """Wrap a method of a class or instance that Dask looks up for each call."""
        shadowed = vars(owner).get(name)
        wrapper = make(getattr(owner, name))
        setattr(owner, name, wrapper)

        def undo() -> None:
            if vars(owner).get(name) is wrapper:
                if shadowed is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, shadowed)

        self._undo.append(undo)
        self.attached = True

    def handler(self, handlers: dict[str, Called], name: str, make: Make) -> None:
        """Wrap the handler of an operation."""
        original = handlers[name]
        # Dask reads a handler's signature; `wraps` preserves it.
        wrapper = handlers[name] = wraps(original)(make(original))

        def undo() -> None:
            if handlers.get(name) is wrapper:
                handlers[name] = original

        self._undo.append(undo)
        self.attached = True

    def remove(self) -> None:
        """Restore everything, the last wrapper first."""
        self.attached = False
        while self._undo:
            self._undo.pop()()

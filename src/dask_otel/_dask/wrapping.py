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

    Other code may keep a wrapper of ours for ever: it has wrapped it, or cached it, as Dask does
    with handlers. So Dask gets a function that only passes its calls on; after `remove` it passes
    them to the original, and holds nothing else.
    """

    def __init__(self, boundary: ErrorBoundary | None = None) -> None:
        self._boundary = boundary or ErrorBoundary()
        #: Of each wrapper: the table that has it, its name there, how to let it call the original
        #: alone, and how to restore the original.
        self._undo: list[
            tuple[Mapping[str, Any], str, Called, Callable[[], None], Callable[[], None]]
        ] = []
        #: Seconds of the event loop for our own work, except transitions.
        self.spent = 0.0

    @property
    def attached(self) -> bool:
        """Whether there are wrappers."""
        return bool(self._undo)

    def run(self, kind: str, ours: Callable[..., None], *args: Any) -> None:
        """Call code of ours: count its seconds, and catch its errors."""
        began = perf_counter()
        try:
            ours(*args)
        except Exception:
            self._boundary.failed(kind)
        self.spent += perf_counter() - began

    def method(self, owner: object, name: str, make: Make) -> None:
        """Wrap a method of a class or instance that Dask looks up for each call."""
        shadowed = vars(owner).get(name)
        if shadowed is None:
            restore = partial(delattr, owner, name)
        else:
            restore = partial(setattr, owner, name, shadowed)
        wrapper = self._wrapped(vars(owner), name, getattr(owner, name), make, restore)
        setattr(owner, name, wrapper)

    def handler(self, handlers: dict[str, Called], name: str, make: Make) -> None:
        """Wrap the handler of an operation."""
        original = handlers[name]
        restore = partial(handlers.__setitem__, name, original)
        handlers[name] = self._wrapped(handlers, name, original, make, restore)

    def after(
        self,
        handlers: dict[str, Called],
        name: str,
        kind: str,
        ours: Callable[[dict[str, Any]], None],
    ) -> None:
        """Call code of ours with each message, guarded, after its handler has returned.

        A heartbeat has many arguments: each call that passes them on takes 6,000 instructions.
        """
        original, calls = handlers[name], [partial(self.run, kind, ours)]

        @wraps(original)
        def wrapper(**message: Any) -> Any:
            result = original(**message)
            for call in calls:
                call(message)
            return result

        restore = partial(handlers.__setitem__, name, original)
        self._undo.append((handlers, name, wrapper, calls.clear, restore))
        handlers[name] = wrapper

    def _wrapped(
        self,
        table: Mapping[str, Any],
        name: str,
        original: Called,
        make: Make,
        restore: Callable[[], None],
    ) -> Called:
        called = [make(original)]

        # Dask reads a handler's signature; `wraps` preserves it.
        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return called[0](*args, **kwargs)

        release = partial(called.__setitem__, 0, original)
        self._undo.append((table, name, wrapper, release, restore))
        return wrapper

    def remove(self) -> None:
        """Restore everything, the last wrapper first."""
        while self._undo:
            table, name, wrapper, release, restore = self._undo.pop()
            release()
            if table.get(name) is wrapper:
                restore()

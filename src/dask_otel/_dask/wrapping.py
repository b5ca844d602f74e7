"""Putting ourselves around what Dask calls, and taking ourselves off again without a trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

Called: TypeAlias = Callable[..., Any]
#: Makes the wrapper of an original.
Make: TypeAlias = Callable[[Called], Called]


class Wrappers:
    """The wrappers that one part of the bridge has put up.

    Notes
    -----
    Where somebody else wrapped ours afterwards, it stays below theirs when it is taken off: so
    every wrapper asks `attached`, and does nothing but call its original once that is false.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        #: Whether any wrapper is up; read at each call.
        self.attached = False

    def method(self, instance: object, name: str, make: Make) -> None:
        """Replace a method on an instance, which Dask looks up for each call."""
        shadowed = vars(instance).get(name)
        wrapper = make(getattr(instance, name))
        setattr(instance, name, wrapper)

        def undo() -> None:
            if vars(instance).get(name) is not wrapper:
                return
            if shadowed is None:
                delattr(instance, name)
            else:
                setattr(instance, name, shadowed)

        self._undo.append(undo)
        self.attached = True

    def handler(self, handlers: dict[str, Called], name: str, make: Make) -> None:
        """Replace the handler of an operation."""
        original = handlers[name]
        # Dask looks at a handler's signature, which `wraps` keeps.
        wrapper = handlers[name] = wraps(original)(make(original))

        def undo() -> None:
            if handlers.get(name) is wrapper:
                handlers[name] = original

        self._undo.append(undo)
        self.attached = True

    def take_off(self) -> None:
        """Put everything back as it was, the last one first."""
        self.attached = False
        while self._undo:
            self._undo.pop()()

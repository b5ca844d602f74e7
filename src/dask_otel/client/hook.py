"""In the client: the one place that all submissions pass, and waiting for it to be imported.

``Client._graph_to_futures`` is called by submit, map, compute, persist and get, synchronous and
asynchronous. It is not public: where a release lacks it, nothing is hooked, and said so.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

logger = logging.getLogger("distributed.dask_otel")

#: What is hooked, and where it is.
MODULE: Final = "distributed.client"
METHOD: Final = "_graph_to_futures"


class SubmissionHook:
    """Adds annotations to what a class of clients submits, for as long as it is wanted.

    Parameters
    ----------
    owner
        The class.
    annotations
        Returns what a submission of this client gets; None for nothing. Must not raise.
    """

    def __init__(
        self, owner: type[Any], annotations: Callable[[Any], dict[str, Any] | None]
    ) -> None:
        import dask

        self._owner = owner
        self._original = original = owner.__dict__.get(METHOD)
        self._on = False
        if original is None:
            logger.warning(
                "dask-otel cannot pass the caller's context on with this release of distributed"
            )
            return

        @wraps(original)
        def submit(client: Any, *args: Any, **kwargs: Any) -> Any:
            extra = annotations(client) if self._on else None
            if extra is None:
                return original(client, *args, **kwargs)
            with dask.annotate(**extra):
                return original(client, *args, **kwargs)

        self._ours = submit

    def put(self) -> None:
        """Hook it, unless it is."""
        if self._original is None or self._on:
            return
        self._on = True
        if self._owner.__dict__[METHOD] is self._original:
            setattr(self._owner, METHOD, self._ours)

    def take_off(self) -> bool:
        """Leave the class as it was; return whether it is.

        It is not where somebody else has hooked the method since: then ours stays in between,
        does nothing, and can be put back.
        """
        self._on = False
        if self._original is None:
            return True
        if self._owner.__dict__[METHOD] is self._ours:
            setattr(self._owner, METHOD, self._original)
        return self._owner.__dict__[METHOD] is self._original


class ImportHook:
    """Calls back when a module has been imported, once, and imports nothing itself.

    A finder on ``sys.meta_path``, without the base class, whose module is heavy.

    Parameters
    ----------
    name
        Of the module.
    imported
        Called with the module. Must not raise.
    """

    def __init__(self, name: str, imported: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._imported = imported

    def put(self) -> None:
        """Wait for the import."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def take_off(self) -> None:
        """Wait no longer."""
        # Of two threads one may find it gone.
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give, with a loader that calls back."""
        if fullname != self._name:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                self._listen(spec)
                return spec
        return None

    def _listen(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            # On the instance, so that the loader stays what it is for whoever looks at it.
            del loader.exec_module
            execute(module)
            self.take_off()
            self._imported(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            logger.warning("dask-otel cannot wait for the import of %s", self._name)

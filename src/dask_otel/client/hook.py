"""In the client: hooks for submissions and for the import of Dask's client.

submit, map, compute, persist and get, synchronous and asynchronous, all call
``Client._graph_to_futures``. It is not public: if a release lacks it, a warning is logged, and
nothing is hooked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from dask_otel._dask.wrapping import Wrappers
from dask_otel._log import logger

#: The hooked method, and its module.
MODULE: Final = "distributed.client"
METHOD: Final = "_graph_to_futures"


def hook_submissions(
    owner: type[Any], annotations: Callable[[Any], dict[str, Any] | None]
) -> Wrappers:
    """Add annotations to the submissions of a class of clients until the wrapper is removed.

    `annotations` returns those for a submission of the given client, or None; it must not raise.
    """
    import dask

    wrappers = Wrappers()

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def submit(client: Any, *args: Any, **kwargs: Any) -> Any:
            extra = annotations(client)
            if extra is None:
                return original(client, *args, **kwargs)
            with dask.annotate(**extra):
                return original(client, *args, **kwargs)

        return submit

    if METHOD in vars(owner):
        wrappers.method(owner, METHOD, make)
    else:
        logger.warning(
            "dask-otel cannot pass the caller's context on with this release of distributed"
        )
    return wrappers


class ImportHook:
    """Calls back once, when the named module has been imported; imports nothing itself.

    It is a finder on ``sys.meta_path``, without the base class, whose import is slow. The callback
    gets the module, and must not raise.
    """

    def __init__(self, name: str, imported: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._imported = imported

    def put(self) -> None:
        """Wait for the import."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop waiting."""
        # Another thread may have removed it.
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give, with a loader that calls back."""
        if fullname != self._name:
            return None
        others = [one for one in sys.meta_path if one is not self and hasattr(one, "find_spec")]
        for finder in others:
            spec = finder.find_spec(fullname, path, target)
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
            # On the instance, so that the loader keeps its type.
            del loader.exec_module
            execute(module)
            self.remove()
            self._imported(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            logger.warning(
                "dask-otel does not instrument Dask's client: the loader of %s can't be wrapped. "
                "Import that module first, then call dask_otel.instrument()",
                self._name,
            )

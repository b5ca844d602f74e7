"""The worker's part as it travels to the workers.

Dask sends a plugin as a pickle to every worker, and a worker that can't read it dies at its start.
By reference, that is one without this package; by value, one with another Python, whose bytecode
differs. So what travels is text: source that asks for the plugin where the package is, and is a
plugin that does nothing where it is not.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, Final

#: The plugin's name on the workers.
NAME: Final = "dask-otel"

#: Runs on workers of any version, with `settings` and no names but these.
SOURCE: Final = """
import logging
from distributed.diagnostics.plugin import WorkerPlugin
try:
    from dask_otel.worker.plugin import TaskContextPlugin
    plugin = TaskContextPlugin(**settings)
except Exception as error:
    # Without the package, or with one from before this plugin: nothing to do, and nothing wrong.
    missing = isinstance(error, ImportError) and (error.name or "").startswith("dask_otel")
    logging.getLogger("distributed.dask_otel").log(
        logging.INFO if missing else logging.WARNING,
        "dask-otel is not used on this worker (%s): its tasks have no trace context",
        error,
        exc_info=not missing,
    )
    plugin = WorkerPlugin()
"""


class SourceText:
    """Pickles as an evaluation of source text: builtins, texts and plain values, no more.

    Parameters
    ----------
    settings
        What all workers must share, as plain values.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._names = {"source": SOURCE, "settings": dict(settings)}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, dict[str, Any]]]:
        # The globals are given: otherwise they would be those of whoever unpickles.
        return eval, ("exec(source) or plugin", self._names)


def pickled(settings: Mapping[str, Any]) -> bytes:
    """Return the plugin as it travels, for workers with any supported Python."""
    return pickle.dumps(SourceText(settings), protocol=4)

"""The worker plugin as it is sent to the workers.

Dask sends a plugin as a pickle to every worker, and a worker that cannot read it dies at its start.
A pickle by reference would kill workers without this package; one by value, those with another
Python version, whose bytecode differs. So the pickle contains source text. It imports the plugin
from the package; without the package, it makes a plugin that does nothing.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, Final

#: The plugin's name on the workers.
NAME: Final = "dask-otel"

#: Runs on workers of any version; its only global name is `settings`.
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
    """Pickles as an evaluation of source text: only builtins, strings and plain values.

    `settings` are the settings of all workers, as plain values.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._names = {"source": SOURCE, "settings": dict(settings)}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, dict[str, Any]]]:
        # With explicit globals; by default, they are those of the unpickling code.
        return eval, ("exec(source) or plugin", self._names)


def pickled(settings: Mapping[str, Any]) -> bytes:
    """Return the plugin's pickle, for workers with any supported Python."""
    return pickle.dumps(SourceText(settings), protocol=4)

"""A temporary local cluster whose scheduler writes its export into files."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import dask.config
from distributed import Client, LocalCluster

from dask_otel._otel.sdk.environment import is_disabled
from dask_otel.settings.variables import environment_of

PRELOAD: Final = "dask_otel.preload"
WORKERS: Final = 2

#: Ctrl-C in a terminal reaches the workers too. They should end with the cluster: without a
#: traceback each, and without one of a heartbeat that was under way when the scheduler closed.
#: (A preload may be a module's source.)
_END_QUIETLY: Final = """
import logging, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
logging.getLogger("distributed.worker").addFilter(
    lambda record: "during heartbeat" not in record.getMessage()
)
"""

#: Variables that would prevent a trace.
_SILENCING_VARIABLES: Final = (
    "OTEL_SDK_DISABLED",
    "OTEL_CONFIG_FILE",
    "OTEL_EXPERIMENTAL_CONFIG_FILE",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
)


def _defaults() -> dict[str, str]:
    """Return ``otel.environment``."""
    return {
        key: str(value) for key, value in (dask.config.get("otel.environment", None) or {}).items()
    }


def configured_environment() -> dict[str, str]:
    """Return this process's ``OTEL_*`` variables, with the defaults from Dask's configuration."""
    return environment_of(_defaults())


def export_environment(environ: Mapping[str, str], disabled: bool) -> dict[str, str]:
    """Return a copy of variables, changed so that there is a trace.

    With `disabled`, everything goes to the demo's own files, and nowhere else.
    """
    nowhere = {f"OTEL_{one}_EXPORTER": "none" for one in ("TRACES", "METRICS", "LOGS")}
    kept = {key: value for key, value in environ.items() if key not in _SILENCING_VARIABLES}
    return {**kept, **nowhere} if disabled else kept


def _with_preload(key: str, preload: str) -> list[Any]:
    """Return the user's preloads, and one more."""
    configured = dask.config.get(key, [])
    before = [configured] if isinstance(configured, str) else list(configured or ())
    return before if preload in before else [*before, preload]


@contextmanager
def observed_cluster(
    files: Path, endpoint: str | None = None, log_level: int = logging.ERROR
) -> Iterator[Client]:
    """Yield a client of a new local cluster whose scheduler has the bridge.

    The bridge writes into the folder `files`, and exports to `endpoint` if the standard variables
    set none. At the end of the context, everything has been exported and the cluster is closed.
    Dask's own messages are printed from `log_level` on.
    """
    preloads = {
        "distributed.scheduler.preload": PRELOAD,
        "distributed.worker.preload": _END_QUIETLY,
    }
    disabled = is_disabled(configured_environment())
    # Several exports within the demo, so that the series have several points.
    variables = {"OTEL_METRIC_EXPORT_INTERVAL": "5000", **_defaults()}
    if endpoint is not None:
        variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
    config: dict[str, Any] = {
        **{key: _with_preload(key, preload) for key, preload in preloads.items()},
        "otel.files.path": str(files),
        "otel.logs.level": "WARNING",
        # Not in the process's environment, which workers inherit.
        "otel.environment": export_environment(variables, disabled),
        # Fusing array operations would lose their spans (see `workflow.run`).
        "optimization.fuse.active": False,
    }
    with (
        # This process's variables, until the cluster is closed.
        patch.dict(os.environ, export_environment(os.environ, disabled), clear=True),
        dask.config.set(config),
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            # On a free port: 8787 may belong to the user's own cluster.
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address=None,
            # Its address is shown nowhere, and it takes most of the time to start.
            scheduler_kwargs={"dashboard": False},
            silence_logs=log_level,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client

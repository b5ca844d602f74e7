"""A local cluster whose scheduler writes what it exports into files, for a while."""

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

PRELOAD: Final = "dask_otel.preload"
WORKERS: Final = 2

#: Ctrl-C in a terminal reaches the workers too; they are to end with the cluster, not with
#: a traceback each, nor with one of a heartbeat that was under way when the scheduler went.
#: (A preload may be a module's text.)
_END_QUIETLY: Final = """
import logging, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
logging.getLogger("distributed.worker").addFilter(
    lambda record: "during heartbeat" not in record.getMessage()
)
"""

#: What would keep a trace from being shown.
_SILENCING_VARIABLES: Final = (
    "OTEL_SDK_DISABLED",
    "OTEL_CONFIG_FILE",
    "OTEL_EXPERIMENTAL_CONFIG_FILE",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
)


def configured_environment() -> dict[str, str]:
    """Return the environment with the defaults that Dask's config has for it.

    ``otel.environment`` gives OTEL_* variables where the process has none.
    """
    defaults = dask.config.get("otel.environment", None) or {}
    return {key: str(value) for key, value in defaults.items()} | dict(os.environ)


def export_environment(environ: Mapping[str, str], endpoint: str | None) -> dict[str, str]:
    """Return an environment like the given one in which everything is exported.

    Parameters
    ----------
    endpoint
        Where to, beside the files, where the environment does not say it; None for nowhere.
    """
    result = {key: value for key, value in environ.items() if key not in _SILENCING_VARIABLES}
    if is_disabled(environ):
        # The files are the demo's; nobody else is to get anything.
        result |= {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}
    elif endpoint is not None:
        result["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
    # A few exports within the demo instead of one: the series get some points.
    result.setdefault("OTEL_METRIC_EXPORT_INTERVAL", "5000")
    return result


def is_disabled(environ: Mapping[str, str]) -> bool:
    """Whether the user has switched the export off."""
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _with_preload(key: str, preload: str) -> list[Any]:
    """Return the user's preloads and one more."""
    configured = dask.config.get(key, [])
    before = [configured] if isinstance(configured, str) else list(configured or ())
    return before if preload in before else [*before, preload]


@contextmanager
def observed_cluster(
    files: Path, endpoint: str | None = None, log_level: int = logging.ERROR
) -> Iterator[Client]:
    """Give a client of a fresh local cluster whose scheduler has loaded the bridge.

    When the context ends, the cluster is closed and everything has been exported.

    Parameters
    ----------
    files
        The folder into which the bridge writes.
    endpoint
        Where it exports to as well, where the standard variables do not say it.
    log_level
        From which level on Dask's own log messages are shown.
    """
    preloads = {
        "distributed.scheduler.preload": PRELOAD,
        "distributed.worker.preload": _END_QUIETLY,
    }
    config: dict[str, Any] = {
        **{key: _with_preload(key, preload) for key, preload in preloads.items()},
        "otel.files.path": str(files),
        # Is in the environment already.
        "otel.environment": {},
        # Fusion of array operations would lose their spans (see `workflow.run`).
        "optimization.fuse.active": False,
    }
    with (
        # This process's, until the cluster is closed.
        patch.dict(os.environ, export_environment(configured_environment(), endpoint), clear=True),
        dask.config.set(config),
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            # On a free port: 8787 may belong to the user's own cluster.
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address=None,
            silence_logs=log_level,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client

"""A local cluster whose scheduler exports to an endpoint of our choice, for a while."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import dask.config
from distributed import Client, LocalCluster

PRELOAD: Final = "dask_otel.preload"
WORKERS: Final = 2

#: Ctrl-C in a terminal reaches the workers too; they are to end with the cluster, not with
#: a traceback each. (A preload may be a module's text.)
_IGNORE_CTRL_C: Final = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)"

#: The user's variables for the user's endpoint: headers may carry a token, certificates
#: and compression may not fit ours. Other preferences, such as the temporality, stay.
_ENDPOINT_VARIABLES: Final = tuple(
    f"OTEL_EXPORTER_OTLP_{signal}{name}"
    for signal in ("", "TRACES_", "METRICS_")
    for name in (
        "ENDPOINT",
        "PROTOCOL",
        "HEADERS",
        "INSECURE",
        "COMPRESSION",
        "TIMEOUT",
        "CERTIFICATE",
        "CLIENT_CERTIFICATE",
        "CLIENT_KEY",
    )
)
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


def export_environment(environ: Mapping[str, str], endpoint: str) -> dict[str, str]:
    """Return an environment like the given one that exports everything to an endpoint.

    Parameters
    ----------
    endpoint
        Base URL of an OTLP/HTTP receiver on the loopback interface.
    """
    without = {*_ENDPOINT_VARIABLES, *_SILENCING_VARIABLES}
    result = {key: value for key, value in environ.items() if key not in without}
    result |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
    }
    # A few exports within the demo instead of one: the series get some points.
    result.setdefault("OTEL_METRIC_EXPORT_INTERVAL", "5000")
    for name in ("NO_PROXY", "no_proxy"):
        # The HTTP exporter would ask a proxy for the loopback interface.
        result[name] = ",".join(filter(None, (result.get(name), "127.0.0.1")))
    return result


@contextmanager
def process_environment(environ: Mapping[str, str]) -> Iterator[None]:
    """Replace this process's environment, and restore it at the end."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _with_preload(key: str, preload: str) -> list[Any]:
    """Return the user's preloads and one more."""
    configured = dask.config.get(key, [])
    before = [configured] if isinstance(configured, str) else list(configured or ())
    return before if preload in before else [*before, preload]


@contextmanager
def observed_cluster(endpoint: str, log_level: int = logging.ERROR) -> Iterator[Client]:
    """Give a client of a fresh local cluster whose scheduler has loaded the bridge.

    When the context ends, the cluster is closed and everything has been exported.

    Parameters
    ----------
    endpoint
        Base URL of an OTLP/HTTP receiver on the loopback interface.
    log_level
        From which level on Dask's own log messages are shown.
    """
    preloads = {
        "distributed.scheduler.preload": PRELOAD,
        "distributed.worker.preload": _IGNORE_CTRL_C,
    }
    config: dict[str, Any] = {
        **{key: _with_preload(key, preload) for key, preload in preloads.items()},
        # Is in the environment already, without what would lead past our endpoint.
        "otel.environment": {},
        # Fusion of array operations would lose their spans (see `workflow.run`).
        "optimization.fuse.active": False,
    }
    with (
        process_environment(export_environment(configured_environment(), endpoint)),
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

"""OpenTelemetry for Dask: every span a trace, every fine performance metric a counter.

Nothing happens at import. A scheduler loads `dask_otel.preload`; a client can `register` the
bridge on a running cluster.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from dask_otel.client import register, unregister

try:
    __version__ = version("dask-otel")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0.0.0"

__all__ = ["__version__", "register", "unregister"]

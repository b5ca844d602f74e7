"""The installed version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("dask-otel")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0.0.0"

"""The installed versions of this package and of others."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed(distribution: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


#: Without an installation, this is a source tree.
__version__ = installed("dask-otel") or "0.0.0"

"""What is installed: the versions of this package and of others, and their entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, EntryPoint, EntryPoints, distributions
from itertools import chain
from typing import Any


def installed(distribution: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    return next((one.version for one in _distributions(distribution)), None)


def entry_points(**chosen: Any) -> tuple[EntryPoint, ...]:
    """Return entry points, as ``importlib.metadata.entry_points`` does."""
    found = chain.from_iterable(one.entry_points for one in _distributions())
    return tuple(EntryPoints(dict.fromkeys(found)).select(**chosen))


def _distributions(name: str | None = None) -> Iterable[Distribution]:
    # A worker in this process takes its folder from `sys.path` when it closes. Of a list that
    # becomes shorter while it is read, one folder is left out: it can be that of all packages.
    return distributions(name=name, path=[*sys.path])


#: Without an installation, this is a source tree.
__version__ = installed("dask-otel") or "0.0.0"

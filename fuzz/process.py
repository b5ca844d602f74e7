"""What several targets need once in a process."""

from __future__ import annotations

import tempfile
from functools import cache

from dask_otel._otel.sdk.encode import Encoder


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes with the process."""
    return tempfile.TemporaryDirectory(prefix="dask-otel-fuzz-")


@cache
def encoder() -> Encoder:
    """Return what makes bytes of records."""
    return Encoder({}, "0")

"""What several targets need once in a process."""

from __future__ import annotations

import tempfile
from functools import cache

from opentelemetry.sdk.resources import Resource

from dask_otel._otel.sdk.spans import ReadableSpans


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes with the process."""
    return tempfile.TemporaryDirectory(prefix="dask-otel-fuzz-")


@cache
def readable() -> ReadableSpans:
    """Return what makes the SDK's spans of records."""
    return ReadableSpans(Resource({}), "0")

"""OpenTelemetry for Dask: every span a trace, every fine performance metric a counter.

Nothing happens at import. A scheduler loads `dask_otel.preload`; a client can `register` the
bridge on a running cluster, and mark its work with `span`.
"""

from __future__ import annotations

from dask_otel._version import __version__
from dask_otel.blocks import span
from dask_otel.client import register, span_metrics, unregister
from dask_otel.results import SpanMetrics

__all__ = ["SpanMetrics", "__version__", "register", "span", "span_metrics", "unregister"]

"""OpenTelemetry for Dask: every span a trace, every fine performance metric a counter.

Nothing happens at import. A scheduler loads `dask_otel.preload`; a client can `register` the
bridge on a running cluster, and mark its work with `span`.
"""

from __future__ import annotations

from dask_otel._version import __version__
from dask_otel._wire import SpanMetrics
from dask_otel.client.blocks import span
from dask_otel.client.registration import register, span_metrics, unregister

__all__ = ["SpanMetrics", "__version__", "register", "span", "span_metrics", "unregister"]

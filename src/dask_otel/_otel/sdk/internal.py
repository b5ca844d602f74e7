"""The SDK's own internal metrics (``otel.sdk.exporter.*``), where the user turns them on.

Exporters of newer releases count their requests with a meter. What they count would go nowhere:
the bridge adds up its metrics itself, and no SDK reads any for it. So the exporters get a meter
of ours, and what it holds goes out with the bridge's own metrics.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry.metrics import get_meter_provider
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource

from dask_otel.core.records import Temporality

_VARIABLE: Final = "OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED"


class InternalMetrics:
    """What exporters count of themselves, for a number of readers.

    Parameters
    ----------
    resource
        Of the bridge.
    temporality
        Of counters and histograms.
    readers
        How many there are that each get everything: the metric exporters.
    """

    def __init__(self, resource: Resource, temporality: Temporality, readers: int) -> None:
        delta = AggregationTemporality.DELTA
        preferred: dict[type, AggregationTemporality] = (
            {Counter: delta, Histogram: delta} if temporality == "delta" else {}
        )
        self._readers = [
            InMemoryMetricReader(preferred_temporality=preferred) for _ in range(readers)
        ]
        self._provider = MeterProvider(self._readers, resource, shutdown_on_exit=False)

    def options(self, factory: Callable[..., Any]) -> dict[str, Any]:
        """Return the argument that makes an exporter count here, if it knows it."""
        try:
            known = "meter_provider" in inspect.signature(factory).parameters
        except (TypeError, ValueError):
            known = False
        return {"meter_provider": self._provider} if known else {}

    def take(self, reader: int) -> Sequence[ScopeMetrics]:
        """Return the present points for one of the readers; their resource is the bridge's."""
        data = self._readers[reader].get_metrics_data()
        if data is None:
            return ()
        return [scope for resource in data.resource_metrics for scope in resource.scope_metrics]


def internal_metrics(
    resource: Resource, temporality: Temporality, readers: int
) -> InternalMetrics | None:
    """Return where exporters count, or None if they need not.

    None also where the application has a global ``MeterProvider``: they count there then.
    """
    if os.environ.get(_VARIABLE, "").strip().lower() != "true" or not readers:
        return None
    if isinstance(get_meter_provider(), MeterProvider):
        return None
    return InternalMetrics(resource, temporality, readers)

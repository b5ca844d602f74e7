"""Metric sinks: points that the bridge added up itself, to an exporter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry.sdk.metrics import Exemplar as SdkExemplar
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource

from dask_otel import semconv
from dask_otel._otel.sdk.answers import ExporterLogs
from dask_otel._otel.sdk.exporters import NamedExporter
from dask_otel._otel.sdk.sink import ExporterSink
from dask_otel._otel.sdk.spans import scope
from dask_otel.core.records import (
    Exemplar,
    HistogramPoint,
    MetricRecord,
    NumberPoint,
)
from dask_otel.pump.breath import Breath, MadeInBreaths

_TEMPORALITY: Final = {
    "cumulative": sdk.AggregationTemporality.CUMULATIVE,
    "delta": sdk.AggregationTemporality.DELTA,
}


class ExporterMetricSink(ExporterSink):
    """Metrics to one exporter, through its public ``export``.

    Parameters
    ----------
    named, resource, logs, version
        The exporter, and what goes with all that it gets.
    timeout_millis
        Of one export, for exporters that take it.
    internal
        Returns what else is to be sent, once at each export.
    """

    def __init__(
        self,
        named: NamedExporter,
        resource: Resource,
        logs: ExporterLogs,
        version: str,
        timeout_millis: float | None,
        internal: Callable[[], Sequence[sdk.ScopeMetrics]] | None = None,
    ) -> None:
        super().__init__(named, logs)
        self._resource = resource
        self._scope = scope(version)
        self._internal = internal
        #: Time of the last export.
        self._last_ns = 0
        self._options = {} if timeout_millis is None else {"timeout_millis": timeout_millis}

    def export(self, records: Sequence[MetricRecord]) -> bool:
        """Export in one request."""
        metrics = [_metric(record, self._breathe) for record in records]
        # One resource for all: of two that are equal, the SDK's encoder keeps the last one only.
        scopes = [
            sdk.ScopeMetrics(self._scope, metrics, semconv.SCHEMA_URL),
            *self._others(records),
        ]
        data = sdk.MetricsData([sdk.ResourceMetrics(self._resource, scopes, "")])
        ok = self._exporter.export(data, sdk.MetricExportResult.SUCCESS, **self._options)
        exporter = self._exporter
        self.rejected, self.lost, self.said = exporter.rejected, exporter.lost, exporter.said
        return ok

    def _others(self, records: Sequence[MetricRecord]) -> Sequence[sdk.ScopeMetrics]:
        if self._internal is None or not records:
            return ()
        # An export comes in several requests; the last points of all of them have one time.
        time_ns = records[-1].points[-1].time_ns
        if time_ns == self._last_ns:
            return ()
        self._last_ns = time_ns
        return self._internal()


def _exemplars(exemplars: Sequence[Exemplar]) -> list[SdkExemplar]:
    return [
        SdkExemplar({}, exemplar.value, exemplar.time_ns, exemplar.span_id, exemplar.trace_id)
        for exemplar in exemplars
    ]


def _number_point(point: NumberPoint) -> sdk.NumberDataPoint:
    return sdk.NumberDataPoint(
        attributes=dict(point.attributes),
        start_time_unix_nano=point.start_ns,
        time_unix_nano=point.time_ns,
        value=point.value,
        exemplars=_exemplars(point.exemplars),
    )


def _histogram_point(point: HistogramPoint) -> sdk.HistogramDataPoint:
    return sdk.HistogramDataPoint(
        attributes=dict(point.attributes),
        start_time_unix_nano=point.start_ns,
        time_unix_nano=point.time_ns,
        count=point.count,
        sum=point.sum,
        bucket_counts=list(point.bucket_counts),
        explicit_bounds=list(point.bounds),
        min=point.min,
        max=point.max,
        exemplars=_exemplars(point.exemplars),
    )


def _metric(record: MetricRecord, breathe: Breath) -> sdk.Metric:
    temporality = _TEMPORALITY[record.temporality]
    histogram = record.instrument == "histogram"
    make: Callable[[Any], Any] = _histogram_point if histogram else _number_point
    points = MadeInBreaths(record.points, make, breathe)
    data: Any
    if histogram:
        data = sdk.Histogram(points, temporality)
    elif record.instrument == "gauge":
        data = sdk.Gauge(points)
    else:
        data = sdk.Sum(points, temporality, record.instrument == "counter")
    return sdk.Metric(record.name, record.description, record.unit, data)

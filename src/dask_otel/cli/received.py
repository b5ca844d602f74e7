"""What an OTLP receiver got, as protobuf messages, and how to read it.

Everything that the demo shows or writes is made from these messages and from nothing else:
what is on the screen is what a backend would have got.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    DataPointFlags,
    NumberDataPoint,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

#: An attribute's value as plain Python. Maps and bytes, which the bridge never sends, are
#: read as None.
Plain: TypeAlias = str | bool | int | float | tuple["Plain", ...] | None


@dataclass
class Telemetry:
    """Export requests of both signals, each in the order of arrival."""

    traces: list[ExportTraceServiceRequest] = field(default_factory=list)
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)


def plain_value(value: AnyValue) -> Plain:
    """Return an attribute's value as plain Python."""
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "array_value":
            return tuple(plain_value(item) for item in value.array_value.values)
        case _:
            return None


def plain_attributes(attributes: Iterable[KeyValue]) -> dict[str, Plain]:
    """Return attributes as a dict."""
    return {item.key: plain_value(item.value) for item in attributes}


def number(value: Plain) -> float | None:
    """Return a numeric attribute, None where it is absent or no number."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def spans(requests: Iterable[ExportTraceServiceRequest]) -> Iterator[Span]:
    """Yield every span once, also where an exporter's retry delivered it twice."""
    seen: set[tuple[bytes, bytes]] = set()
    for request in requests:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    identity = (span.trace_id, span.span_id)
                    if identity not in seen:
                        seen.add(identity)
                        yield span


def _point_value(point: NumberDataPoint) -> float:
    if point.WhichOneof("value") == "as_int":
        return float(point.as_int)
    return point.as_double


def _identity(attributes: Iterable[KeyValue]) -> bytes:
    items = sorted(attributes, key=lambda item: item.key)
    return b"".join(item.SerializeToString() for item in items)


def counter_totals(
    requests: Sequence[ExportMetricsServiceRequest], name: str
) -> list[tuple[dict[str, Plain], float]]:
    """Return a counter's series with what each has counted in all the requests.

    Cumulative series count their last point; a series that was born again (another start
    time) adds to the first. Delta series are summed up.

    Parameters
    ----------
    requests
        In the order of arrival.
    name
        The counter's name. Metrics of this name that are no sum are left out.

    Returns
    -------
    (attributes of the data points, total) for each series.
    """
    labels: dict[bytes, dict[str, Plain]] = {}
    totals: dict[bytes, dict[int, float]] = {}
    for request in requests:
        for resource in request.resource_metrics:
            origin = _identity(resource.resource.attributes)
            for metric in (m for s in resource.scope_metrics for m in s.metrics):
                if metric.name != name or metric.WhichOneof("data") != "sum":
                    continue
                temporality = metric.sum.aggregation_temporality
                delta = temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
                for point in metric.sum.data_points:
                    if point.flags & DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK:
                        continue
                    series = origin + b"\0" + _identity(point.attributes)
                    labels.setdefault(series, plain_attributes(point.attributes))
                    # All deltas of a series go into one sum.
                    start = 0 if delta else point.start_time_unix_nano
                    sums = totals.setdefault(series, {})
                    sums[start] = _point_value(point) + (sums.get(start, 0.0) if delta else 0.0)
    return [(labels[series], sum(sums.values())) for series, sums in totals.items()]

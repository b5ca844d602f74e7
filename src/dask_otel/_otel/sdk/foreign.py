"""The SDK's exporters, OpenTelemetry's own and vendors': they accept the SDK's objects.

The encoded request becomes the SDK's public data classes again, and goes to the exporter's public
``export``, which returns success or failure. The exporter has its own retries and log messages.
"""

from __future__ import annotations

from typing import Any, Final

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.span import TraceState

from dask_otel._otel.sdk.sampling import SAMPLED
from dask_otel._otel.sdk.transport import (
    REQUESTS,
    mask_of_environment,
    plain,
    uninstrumented,
    words_of,
)
from dask_otel.core.records import Answer

#: OTLP's numbers of span kinds begin with one for an unknown kind; the SDK's don't.
_KINDS: Final = {kind.value + 1: kind for kind in SpanKind}
_REMOTE: Final = 0x200


class ForeignExporter:
    """One exporter of the SDK as a transport.

    Parameters
    ----------
    signal
        ``"traces"`` or ``"metrics"``.
    exporter
        The exporter of that signal.
    options
        The arguments of each export.
    """

    def __init__(self, signal: str, exporter: Any, options: dict[str, Any]) -> None:
        self.exporter = exporter
        self.close = exporter.shutdown
        self._request = REQUESTS[signal]
        self._decode = _spans if signal == "traces" else _metrics
        self._options = options
        self._mask = mask_of_environment()

    def send(self, request: bytes, _longest: float) -> Answer:
        """Export; a network error means failure."""
        try:
            with uninstrumented():
                result = self.exporter.export(
                    self._decode(self._request.FromString(request)), **self._options
                )
        except BaseException as error:
            # SystemExit too: it would end this thread silently.
            return Answer(False, plain(words_of(error), self._mask))
        if result.name == "SUCCESS":
            return Answer(True)
        return Answer(False, "the exporter gave no reason; see its log")


def _spans(request: Any) -> list[ReadableSpan]:
    spans = []
    for resource in request.resource_spans:
        its_resource = Resource(_attributes(resource.resource.attributes))
        for scope in resource.scope_spans:
            its_scope = _scope(scope)
            spans += [_span(span, its_resource, its_scope) for span in scope.spans]
    return spans


def _span(span: Any, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    state = TraceState.from_header([span.trace_state]) if span.trace_state else None
    parent = None
    if span.parent_span_id:
        remote = bool(span.flags & _REMOTE)
        parent = _context(span.trace_id, span.parent_span_id, remote, state)
    code = StatusCode(span.status.code)
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id, False, state),
        parent=parent,
        resource=resource,
        attributes=_attributes(span.attributes),
        events=[
            Event(event.name, _attributes(event.attributes), event.time_unix_nano)
            for event in span.events
        ],
        links=[
            Link(_context(link.trace_id, link.span_id), _attributes(link.attributes))
            for link in span.links
        ],
        kind=_KINDS[span.kind],
        status=Status(code, span.status.message if code is StatusCode.ERROR else None),
        start_time=span.start_time_unix_nano,
        end_time=span.end_time_unix_nano,
        instrumentation_scope=scope,
    )


def _metrics(request: Any) -> sdk.MetricsData:
    return sdk.MetricsData(
        [
            sdk.ResourceMetrics(
                Resource(_attributes(resource.resource.attributes)),
                [
                    sdk.ScopeMetrics(
                        _scope(scope), [_metric(one) for one in scope.metrics], scope.schema_url
                    )
                    for scope in resource.scope_metrics
                ],
                resource.schema_url,
            )
            for resource in request.resource_metrics
        ]
    )


def _metric(metric: Any) -> sdk.Metric:
    kind = metric.WhichOneof("data")
    message = getattr(metric, kind)
    data: Any
    if kind == "histogram":
        points = [
            sdk.HistogramDataPoint(
                count=point.count,
                sum=point.sum,
                min=point.min,
                max=point.max,
                bucket_counts=list(point.bucket_counts),
                explicit_bounds=list(point.explicit_bounds),
                **_point(point),
            )
            for point in message.data_points
        ]
        data = sdk.Histogram(points, sdk.AggregationTemporality(message.aggregation_temporality))
    else:
        numbers = [
            sdk.NumberDataPoint(value=_number(point), **_point(point))
            for point in message.data_points
        ]
        data = sdk.Gauge(numbers)
        if kind == "sum":
            temporality = sdk.AggregationTemporality(message.aggregation_temporality)
            data = sdk.Sum(numbers, temporality, message.is_monotonic)
    return sdk.Metric(metric.name, metric.description, metric.unit, data)


def _point(point: Any) -> dict[str, Any]:
    return {
        "attributes": _attributes(point.attributes),
        "start_time_unix_nano": point.start_time_unix_nano,
        "time_unix_nano": point.time_unix_nano,
        "exemplars": [
            Exemplar({}, _number(one), one.time_unix_nano, _id(one.span_id), _id(one.trace_id))
            for one in point.exemplars
        ],
    }


def _number(point: Any) -> Any:
    return getattr(point, point.WhichOneof("value"))


def _context(
    trace_id: bytes, span_id: bytes, remote: bool = False, state: TraceState | None = None
) -> SpanContext:
    return SpanContext(_id(trace_id), _id(span_id), remote, SAMPLED, state)


def _id(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def _scope(scope: Any) -> InstrumentationScope:
    return InstrumentationScope(scope.scope.name, scope.scope.version, scope.schema_url)


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(item) for item in value.array_value.values)
    return getattr(value, kind) if kind else ""

"""Encodes records to OTLP bytes, once; requests are assembled from these bytes.

A span or a metric is encoded before it is queued. Its bytes wait in the queue or in the spool, and
become part of a request unchanged: a request is the head of a resource, the head of a scope, and
the bytes of the items, each with a tag and its length. OTLP gives these parts the same numbers for
all signals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord as LogMessage
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from opentelemetry.sdk.trace import SpanLimits

from dask_otel import semconv
from dask_otel._otel.sdk.environment import count, shown_to_sdk
from dask_otel.core.protobuf import encoded_fields
from dask_otel.core.records import (
    HistogramPoint,
    LogRecord,
    MetricRecord,
    NumberPoint,
    Origin,
    Row,
    SpanRecord,
)
from dask_otel.core.text import shortened
from dask_otel.core.trace import Trace

#: OTLP's names for the types of values. The order matters, since a bool is also an int.
_VALUES: Final = {
    str: "string_value",
    bool: "bool_value",
    int: "int_value",
    float: "double_value",
    bytes: "bytes_value",
}
_KINDS: Final = {"internal": 1, "server": 2}
_ERROR: Final = 2
#: The number of a log record's field ``event_name``, which older releases of the protocol lack.
_EVENT_NAME: Final = 12
#: By kind of metric: the number of its field, and its message.
_DATA: Final[dict[str, tuple[int, Any]]] = {
    "gauge": (5, Gauge),
    "sum": (7, Sum),
    "histogram": (9, Histogram),
}
_TEMPORALITY: Final = {"delta": 1, "cumulative": 2}
#: Flags of a span or a link: "it is known whether the parent or the linked span is remote", and "it
#: is remote".
_KNOWN, _REMOTE = 0x100, 0x200

_LIMITS: Final = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
)


class Encoder:
    """Encodes one scheduler's records, within the limits of the standard variables.

    Parameters
    ----------
    resource
        Attributes of the resource.
    version
        The bridge's version, for the instrumentation scope.

    Raises
    ------
    ConfigurationError
        If one of the variables has a value that is not allowed.
    """

    def __init__(self, resource: Mapping[str, Any], version: str) -> None:
        for variable in _LIMITS:
            # The SDK raises too, but old versions don't name the variable.
            count(variable, 0)
        self._limits = shown_to_sdk(SpanLimits)
        scope = InstrumentationScope(name=semconv.SCOPE_NAME, version=version)
        self.origin = Origin(
            _bytes(ResourceSpans(resource=Resource(attributes=_encodable(resource)))),
            _bytes(ScopeSpans(scope=scope, schema_url=semconv.SCHEMA_URL)),
        )

    def span(self, record: SpanRecord) -> bytes:
        """Return the bytes of a span.

        Raises
        ------
        TypeError, ValueError
            If it can't be encoded.
        """
        limits, trace = self._limits, record.trace_id
        parent, error = record.parent_span_id, record.error
        fields: dict[str, Any] = {
            "trace_id": trace.to_bytes(16, "big"),
            "span_id": record.span_id.to_bytes(8, "big"),
            "name": record.name,
            "kind": _KINDS[record.kind],
            "start_time_unix_nano": record.start_ns,
            "end_time_unix_nano": record.end_ns,
            "flags": _KNOWN | _REMOTE if record.remote_parent else _KNOWN,
            "parent_span_id": None if parent is None else parent.to_bytes(8, "big"),
            "trace_state": trace.state if isinstance(trace, Trace) else None,
            "status": {} if error is None else {"code": _ERROR, "message": error},
        } | _attributes(
            record.attributes, limits.max_span_attributes, limits.max_span_attribute_length
        )
        length = limits.max_attribute_length
        # Most spans have neither; empty lists would cost a third more.
        if record.events:
            events = record.events[: limits.max_events]
            most = limits.max_event_attributes
            fields["dropped_events_count"] = len(record.events) - len(events)
            fields["events"] = [
                {"name": event.name, "time_unix_nano": event.time_ns}
                | _attributes(event.attributes, most, length)
                for event in events
            ]
        if record.links:
            links = record.links[: limits.max_links]
            fields["dropped_links_count"] = len(record.links) - len(links)
            fields["links"] = [
                {
                    "trace_id": link.trace_id.to_bytes(16, "big"),
                    "span_id": link.span_id.to_bytes(8, "big"),
                    "flags": _KNOWN,
                }
                for link in links
            ]
        return _bytes(Span(**fields))

    def log(self, record: LogRecord) -> bytes:
        """Return the bytes of a log record.

        Its name is a field, and an attribute for backends that drop the field, such as Loki.
        """
        trace, span_id = record.trace_id, record.span_id
        fields: dict[str, Any] = {
            "time_unix_nano": record.time_ns,
            "observed_time_unix_nano": record.time_ns,
            "severity_number": record.severity,
            "severity_text": semconv.SEVERITIES[record.severity],
            "body": None if record.body is None else {"string_value": record.body},
        } | _attributes(
            {semconv.EVENT_NAME: record.name, **record.attributes},
            self._limits.max_attributes,
            self._limits.max_attribute_length,
        )
        if trace is not None and span_id is not None:
            fields["trace_id"] = trace.to_bytes(16, "big")
            fields["span_id"] = span_id.to_bytes(8, "big")
            fields["flags"] = int(getattr(trace, "sampled", None) is not False)
        return _bytes(LogMessage(**fields)) + encoded_fields((_EVENT_NAME, record.name.encode()))

    def request(self, rows: Iterable[Row]) -> bytes:
        """Return a request with the rows, each with the resource and the scope of its run."""
        runs: dict[Origin, list[bytes]] = {}
        for row in rows:
            runs.setdefault(row.origin or self.origin, []).append(row.body)
        return b"".join([_request(origin, bodies) for origin, bodies in runs.items()])

    def metrics(self, records: Iterable[MetricRecord], breathe: Callable[[], None]) -> bytes:
        """Return a request with all points of some metrics; calls `breathe` between two points."""
        return _request(self.origin, [_metric(record, breathe) for record in records])


def reread(body: bytes, end_ns: int, origin: Origin) -> bytes | None:
    """Check and return the bytes of a span from a file; None if they are damaged.

    Parameters
    ----------
    body
        The file's bytes.
    end_ns
        The earliest end of the span, which may have been open.
    origin
        Its resource and scope. Damaged ones would make a server refuse the whole request.
    """
    span = _span_of(body)
    if span is None or not _is_whole(origin):
        return None
    # This value may be damaged too.
    if not isinstance(end_ns, int) or span.end_time_unix_nano >= end_ns:
        return body
    span.end_time_unix_nano = end_ns
    return _bytes(span)


@lru_cache(maxsize=8)
def _is_whole(origin: Origin) -> bool:
    parts = ((ResourceSpans, origin.resource), (ScopeSpans, origin.scope))
    return all(_parsed(message, content) is not None for message, content in parts)


def span_name(body: bytes) -> str | None:
    """Return the name of an encoded span; None if the bytes are damaged."""
    span = _span_of(body)
    return None if span is None else str(span.name)


def _span_of(body: bytes) -> Any:
    span = _parsed(Span, body)
    return span if span and len(span.trace_id) == 16 and len(span.span_id) == 8 else None


def resource_of(origin: Origin) -> dict[str, str]:
    """Return the string attributes of a run's resource; none if it is damaged."""
    of = _parsed(ResourceSpans, origin.resource) or ResourceSpans()
    return {pair.key: pair.value.string_value for pair in of.resource.attributes}


def _parsed(message: Any, content: bytes) -> Any:
    """Return the parsed message; None if the bytes are damaged."""
    try:
        return message.FromString(content)
    except (DecodeError, TypeError):
        return None


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _request(origin: Origin, bodies: Sequence[bytes]) -> bytes:
    scope = origin.scope + encoded_fields(*[(2, body) for body in bodies])
    return encoded_fields((1, origin.resource + encoded_fields((2, scope))))


# ------------------------------------------------------------------------------- attributes


def _attributes(
    attributes: Mapping[str, Any], most: int | None = None, length: int | None = None
) -> dict[str, Any]:
    """Return the fields of the first attributes, with long strings truncated."""
    pairs = [
        {"key": key, "value": _value(value, length)}
        for key, value in islice(attributes.items(), most)
    ]
    return {"attributes": pairs, "dropped_attributes_count": len(attributes) - len(pairs)}


def _encodable(resource: Mapping[str, Any]) -> list[KeyValue]:
    """Return the attributes of a resource that can be encoded: others' detectors may find any."""
    pairs = []
    for pair in _attributes(resource)["attributes"]:
        with suppress(TypeError, ValueError):
            pairs.append(KeyValue(**pair))
    return pairs


def _value(value: Any, length: int | None) -> Any:
    if length is not None and isinstance(value, str):
        value = shortened(value, length)
    name = _VALUES.get(type(value))
    if name is not None:
        return {name: value}
    if isinstance(value, (tuple, list)):
        return {"array_value": {"values": [_value(item, length) for item in value]}}
    found = ({name: kind(value)} for kind, name in _VALUES.items() if isinstance(value, kind))
    # If it has another type, encoding fails.
    return next(found, value)


# ---------------------------------------------------------------------------------- metrics


def _metric(record: MetricRecord, breathe: Callable[[], None]) -> bytes:
    # A counter or an up-down counter.
    kind = record.instrument if record.instrument in _DATA else "sum"
    number, message = _DATA[kind]
    about = {
        "aggregation_temporality": _TEMPORALITY[record.temporality],
        "is_monotonic": record.instrument == "counter",
    }
    known = message.DESCRIPTOR.fields_by_name
    own = {name: value for name, value in about.items() if name in known}
    data = bytearray(_bytes(message(**own)))
    for point in record.points:
        breathe()
        data += encoded_fields((1, _point(point)))
    head = Metric(name=record.name, description=record.description, unit=record.unit)
    return _bytes(head) + encoded_fields((number, bytes(data)))


def _point(point: NumberPoint | HistogramPoint) -> bytes:
    fields: dict[str, Any] = {
        "time_unix_nano": point.time_ns,
        "start_time_unix_nano": point.start_ns,
        "attributes": _attributes(point.attributes)["attributes"],
        "exemplars": [
            {
                "trace_id": one.trace_id.to_bytes(16, "big"),
                "span_id": one.span_id.to_bytes(8, "big"),
                "time_unix_nano": one.time_ns,
                **_number(one.value),
            }
            for one in point.exemplars
        ],
    }
    message: Any = NumberDataPoint
    if isinstance(point, HistogramPoint):
        message = HistogramDataPoint
        fields |= {
            "count": point.count,
            "sum": point.sum,
            "min": point.min,
            "max": point.max,
            "bucket_counts": point.bucket_counts,
            "explicit_bounds": point.bounds,
        }
    else:
        fields |= _number(point.value)
    return _bytes(message(**fields))


def _number(value: float) -> dict[str, Any]:
    return {"as_int" if isinstance(value, int) else "as_double": value}

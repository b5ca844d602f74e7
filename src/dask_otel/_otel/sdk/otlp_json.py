"""OTLP/JSON: export requests as lines of text, as the Collector's otlpjsonfile receiver reads them.

Protobuf's own JSON mapping with the two deviations of OTLP/JSON
(https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): trace and span ids are
hexadecimal and not base64, enums are integers and not names.

Each line is a whole request of one resource and one scope, and at most a megabyte long where
its items allow that: what reads lines has limits, the Collector's of 1 MiB. It begins with its
items: the Collector knows a file by its first thousand bytes, and the resource is that of all.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from typing import Any, Final

#: Characters of a line, unless a single item is longer. They are ASCII, and so bytes.
LONGEST_LINE: Final = 1_000_000
#: Characters of the data points that one metric has in one piece.
_LONGEST_PIECE: Final = 250_000

#: The bytes fields that OTLP/JSON writes in hexadecimal; all others stay base64.
_ID_FIELDS: Final = frozenset({"traceId", "spanId", "parentSpanId"})
#: The kinds of metrics, and what OTLP/JSON calls them.
_KINDS: Final = {
    "gauge": "gauge",
    "sum": "sum",
    "histogram": "histogram",
    "exponential_histogram": "exponentialHistogram",
    "summary": "summary",
}


def lines(request: Any, breathe: Callable[[], None]) -> Iterator[str]:
    """Yield a request of traces or metrics as OTLP/JSON, in lines without their ends.

    Parameters
    ----------
    request
        An ``ExportTraceServiceRequest`` or an ``ExportMetricsServiceRequest``.
    breathe
        Called before each item.
    """
    spans = hasattr(request, "resource_spans")
    for resource in request.resource_spans if spans else request.resource_metrics:
        for scope in resource.scope_spans if spans else resource.scope_metrics:
            if spans:
                names = "resourceSpans", "scopeSpans", "spans"
                items = _items(scope.spans, breathe)
            else:
                names = "resourceMetrics", "scopeMetrics", "metrics"
                items = _metrics(scope.metrics, breathe)
            head, tail = _around(resource, scope, *names)
            for part in _parts(items, LONGEST_LINE - len(head) - len(tail)):
                yield head + part + tail


def _around(resource: Any, scope: Any, *names: str) -> tuple[str, str]:
    """Return what stands before and after the items of a scope."""
    outer, middle, inner = names
    tail = (
        f'],"scope":{_json(scope.scope)},"schemaUrl":{_text(scope.schema_url)}}}],'
        f'"resource":{_json(resource.resource)},"schemaUrl":{_text(resource.schema_url)}}}]}}'
    )
    return f'{{"{outer}":[{{"{middle}":[{{"{inner}":[', tail


def _metrics(metrics: Iterable[Any], breathe: Callable[[], None]) -> Iterator[str]:
    """Yield metrics; one with many data points in several pieces."""
    for metric in metrics:
        kind = metric.WhichOneof("data")
        if kind is None:
            yield _json(metric)
            continue
        data = getattr(metric, kind)
        fields = {"name": metric.name, "description": metric.description, "unit": metric.unit}
        about: dict[str, Any] = {}
        if hasattr(data, "aggregation_temporality"):
            about["aggregationTemporality"] = data.aggregation_temporality
        if hasattr(data, "is_monotonic"):
            about["isMonotonic"] = data.is_monotonic
        head = f'{_open(fields)}"{_KINDS[kind]}":{_open(about)}"dataPoints":['
        for part in _parts(_items(data.data_points, breathe), _LONGEST_PIECE):
            yield f"{head}{part}]}}}}"


def _items(messages: Iterable[Any], breathe: Callable[[], None]) -> Iterator[str]:
    for message in messages:
        breathe()
        yield _json(message)


def _parts(items: Iterable[str], longest: int) -> Iterator[str]:
    """Yield items, separated by commas, in parts of so many characters at most."""
    part: list[str] = []
    size = 0
    for item in items:
        if part and size + len(item) > longest:
            yield ",".join(part)
            part, size = [], 0
        part.append(item)
        size += len(item) + 1
    if part:
        yield ",".join(part)


def _open(fields: dict[str, Any]) -> str:
    """Return an object as JSON, still open for one more field."""
    text = _text(fields)[:-1]
    return f"{text}," if fields else text


def _json(message: Any) -> str:
    return _text(_plain(message))


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# Protobuf's own `json_format` does the same, and takes twice as long: it asks the descriptors
# of every value, where these are asked once.


def _plain(message: Any) -> dict[str, Any]:
    """Return a message as JSON has it."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        name, convert, repeated = _FIELDS.get(field.full_name) or _known(field)
        if convert is None:
            found[name] = list(value) if repeated else value
        else:
            found[name] = [convert(item) for item in value] if repeated else convert(value)
    return found


#: By a field's full name: its name in JSON, what makes JSON of a value, and whether it is repeated.
_FIELDS: Final[dict[str, tuple[str, Callable[[Any], Any] | None, bool]]] = {}


def _known(field: Any) -> tuple[str, Callable[[Any], Any] | None, bool]:
    name = field.json_name
    convert: Callable[[Any], Any] | None = None
    if field.type == field.TYPE_MESSAGE:
        convert = _plain
    elif field.type == field.TYPE_BYTES:
        convert = bytes.hex if name in _ID_FIELDS else _base64
    elif field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
        convert = str
    elif field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        convert = _number
    _FIELDS[field.full_name] = found = name, convert, _is_repeated(field)
    return found


def _is_repeated(field: Any) -> bool:
    # Newer releases of protobuf warn about `label`; older ones have nothing else.
    known = getattr(field, "is_repeated", None)
    return field.label == field.LABEL_REPEATED if known is None else bool(known)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _number(value: float) -> float | str:
    if isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"

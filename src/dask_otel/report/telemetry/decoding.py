"""Decodes JSON values to spans, points, log records: OTLP/JSON, and what Tempo and Jaeger write.

The input may be hostile: a value of the wrong shape is skipped and counted, and every length is
limited.
"""

from __future__ import annotations

import base64
import binascii
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from dask_otel import semconv
from dask_otel.core.text import full_name
from dask_otel.report.telemetry.json_files import parse
from dask_otel.report.telemetry.model import Event, Log, Plain, Skipped, Span, grouped, text
from dask_otel.report.telemetry.series import Measured, Point

#: Keys of a request's entries, one for each process; Tempo has batches.
_ENTRIES: Final = (
    "resourceSpans",
    "batches",
    "resource_spans",
    "resourceMetrics",
    "resource_metrics",
    "resourceLogs",
    "resource_logs",
)
_SCOPES: Final = (
    "scopeSpans",
    "instrumentationLibrarySpans",
    "scopeMetrics",
    "instrumentationLibraryMetrics",
    "scopeLogs",
)
#: Keys below which Jaeger and Tempo put OTLP's top level.
_WRAPPINGS: Final = ("result", "data", "trace", "traces")
_DEPTH: Final = 6
#: Suffixes of the names of Jaeger's tags that hold lists.
_LISTS: Final = (".tags", ".types")
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{16}|[0-9a-fA-F]{32})")

#: Most characters of a text, items of a list, attributes and events of a span.
LONGEST_TEXT: Final = 20_000
MOST_ITEMS: Final = 200
_MOST_ATTRIBUTES: Final = 200
_MOST_EVENTS: Final = 200
_LAST_NS: Final = 2**63 - 1
#: The longest text with a number, and the largest number, of which many have a finite sum.
_LONGEST_NUMBER: Final = 40
_LARGEST: Final = 1e300
_INTEGER: Final = re.compile(r"-?[0-9]+")


@dataclass
class Exported:
    """One export of one process."""

    resource: dict[str, Plain]
    scope_version: str = ""
    spans: list[Span] = field(default_factory=list)
    points: list[Measured] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)


def decode(value: Any, skipped: Skipped) -> Iterator[Exported]:
    """Yield the telemetry in a JSON value; a value without any is counted as skipped."""
    found = False
    stack = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        inner = reversed(item) if isinstance(item, list) else ()
        if isinstance(item, dict):
            entries = [entry for key in _ENTRIES for entry in _dicts(item.get(key))]
            if _list(item.get("spans")) and isinstance(item.get("processes"), dict):
                entries += _jaeger(item["spans"], item["processes"])
            yield from (_exported(entry, skipped) for entry in entries)
            # An empty request is valid, too.
            found = found or bool(entries) or any(key in item for key in _ENTRIES)
            inner = (item[key] for key in _WRAPPINGS if key in item)
        if depth < _DEPTH:
            stack += [(one, depth + 1) for one in inner]
    if not found:
        skipped.add("value that is neither traces, metrics nor logs")


def _exported(entry: dict[str, Any], skipped: Skipped) -> Exported:
    found = Exported(_attributes(_dict(entry.get("resource")).get("attributes")))
    for scope in [scope for key in _SCOPES for scope in _dicts(entry.get(key))]:
        origin = _dict(scope.get("scope"))
        if origin.get("name") == "dask_otel":
            found.scope_version = found.scope_version or _text(origin.get("version"))
            found.logs += [_log(raw) for raw in _dicts(scope.get("logRecords"))]
        for raw in _list(scope.get("spans")):
            if (span := _span(raw)) is None:
                skipped.add("span without ids or times")
            else:
                found.spans.append(span)
                # Jaeger's place for it.
                version = _text(span.attributes.get("otel.scope.version"))
                found.scope_version = found.scope_version or version
        for metric in _list(scope.get("metrics")):
            if not isinstance(metric, dict):
                skipped.add("metric without data")
            elif (name := _text(metric.get("name"))).startswith("dask."):
                found.points += _points(name, metric, skipped)
    return found


def _log(raw: dict[str, Any]) -> Log:
    attributes = _attributes(raw.get("attributes"))
    # Some backends drop the field.
    name = _text(raw.get("eventName")) or text(attributes.pop(semconv.EVENT_NAME, ""))
    return Log(
        name,
        _time(raw.get("timeUnixNano")),
        attributes,
        severity=_time(raw.get("severityNumber")),
        body=text(_any_value(raw.get("body"))),
    )


# ------------------------------------------------------------------------------- traces


def _span(raw: Any) -> Span | None:
    if not isinstance(raw, dict):
        return None
    trace_id, span_id = _id(raw.get("traceId")), _id(raw.get("spanId"))
    start, end = _time(raw.get("startTimeUnixNano")), _time(raw.get("endTimeUnixNano"))
    if len(trace_id) != 32 or len(span_id) != 16 or not start or not end:
        return None
    status = _dict(raw.get("status"))
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=_id(raw.get("parentSpanId")),
        name=_text(raw.get("name")),
        start_ns=start,
        end_ns=max(start, end),
        failed=status.get("code") in (2, "2", "STATUS_CODE_ERROR"),
        description=_text(status.get("message")),
        attributes=_attributes(raw.get("attributes")),
        events=[
            Event(
                _text(event.get("name")),
                _time(event.get("timeUnixNano")) or start,
                _attributes(event.get("attributes")),
            )
            for event in _dicts(raw.get("events"))[:_MOST_EVENTS]
        ],
    )


def _jaeger(spans: list[Any], processes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield Jaeger's own JSON, which its UI downloads, as OTLP entries, one for each process."""
    for key, found in grouped(spans, lambda raw: _text(_dict(raw).get("processID"))).items():
        process = _dict(processes.get(key))
        service = {"service.name": process.get("serviceName")}
        yield {
            "resource": {"attributes": _wrapped({**_tags(process.get("tags")), **service})},
            "scopeSpans": [
                {"spans": [_from_jaeger(raw) if isinstance(raw, dict) else raw for raw in found]}
            ],
        }


def _from_jaeger(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a Jaeger span, with microseconds and tags, as an OTLP span."""
    tags = _tags(raw.get("tags"))
    start = _time(raw.get("startTime")) * 1000
    parents = [
        _text(reference.get("spanID")).rjust(16, "0")
        for reference in _dicts(raw.get("references"))
        if reference.get("refType") == "CHILD_OF"
    ]
    failed = tags.get("error") is True or tags.get("otel.status_code") == "ERROR"
    return {
        "traceId": _text(raw.get("traceID")).rjust(32, "0"),
        "spanId": _text(raw.get("spanID")).rjust(16, "0"),
        "parentSpanId": parents[0] if parents else "",
        "name": raw.get("operationName"),
        "startTimeUnixNano": start,
        "endTimeUnixNano": start + max(1, _time(raw.get("duration")) * 1000),
        "status": {"code": 2 * failed, "message": tags.get("otel.status_description")},
        "attributes": _wrapped(tags),
        "events": [
            {
                "name": fields.pop("event", ""),
                "timeUnixNano": _time(log.get("timestamp")) * 1000,
                "attributes": _wrapped(fields),
            }
            for log in _dicts(raw.get("logs"))[:_MOST_EVENTS]
            for fields in (_tags(log.get("fields")),)
        ],
    }


def _tags(raw: Any) -> dict[str, Any]:
    found = [tag for tag in _dicts(raw) if isinstance(tag.get("key"), str)]
    return {tag["key"]: tag.get("value") for tag in found[:_MOST_ATTRIBUTES]}


def _wrapped(tags: dict[str, Any]) -> list[dict[str, Any]]:
    """Return Jaeger's tags as OTLP attributes."""
    return [{"key": key, "value": _value(key, value)} for key, value in tags.items()]


def _value(key: str, value: Any) -> dict[str, Any]:
    kinds = {str: "stringValue", bool: "boolValue", int: "intValue", float: "doubleValue"}
    # Jaeger has no lists: it stores them as JSON text.
    items = parse(value) if isinstance(value, str) and key.endswith(_LISTS) else None
    if isinstance(items, list):
        return {"arrayValue": {"values": [{"stringValue": item} for item in items]}}
    return {kinds.get(type(value), ""): value}


# ------------------------------------------------------------------------------ metrics


def _points(name: str, metric: dict[str, Any], skipped: Skipped) -> Iterator[Measured]:
    for kind in ("sum", "gauge", "histogram"):
        data = _dict(metric.get(kind))
        delta = data.get("aggregationTemporality") in (1, "1", "AGGREGATION_TEMPORALITY_DELTA")
        monotone = kind == "histogram" or data.get("isMonotonic") is True
        for raw in _dicts(data.get("dataPoints")):
            if _time(raw.get("flags")) & 1:  # no recorded value
                continue
            # Of a histogram, only its sum is of use. Protobuf's JSON mapping may omit a zero.
            given = (raw[key] for key in ("asInt", "asDouble", "sum") if key in raw)
            value = _number(next(given, 0.0))
            time = _time(raw.get("timeUnixNano"))
            if value is None or not time:
                skipped.add("data point without a number or a time")
                continue
            labels = {
                key: item if isinstance(item, str) else str(item)
                for key, item in _attributes(raw.get("attributes")).items()
            }
            start = _time(raw.get("startTimeUnixNano"))
            point = Point(start, time, float(value))
            yield name, labels, point, monotone, delta and monotone


# ------------------------------------------------------------------------------- pieces


def _attributes(raw: Any) -> dict[str, Plain]:
    found = {
        item["key"][:LONGEST_TEXT]: _any_value(item.get("value"))
        for item in _dicts(raw)[:_MOST_ATTRIBUTES]
        if isinstance(item.get("key"), str)
    }
    # It is a tag as it is. The report compares it with full names, where tags are written so.
    if isinstance(root := found.get(semconv.SPAN_ROOT_NAME), str):
        found[semconv.SPAN_ROOT_NAME] = full_name([root])
    return found


def _any_value(raw: Any, depth: int = 0) -> Plain:
    if not isinstance(raw, dict):
        return None
    for kind, read in _SCALARS.items():
        if kind in raw:
            return read(raw[kind])
    inner = raw.get("arrayValue")
    if isinstance(inner, dict) and depth < 2:
        items = _list(inner.get("values"))[:MOST_ITEMS]
        return tuple(_any_value(item, depth + 1) for item in items)
    return None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    value = value.encode("utf-8", "replace").decode("utf-8")  # lone surrogates can't be written
    return value if len(value) <= LONGEST_TEXT else f"{value[:LONGEST_TEXT]}…"


def _id(value: Any) -> str:
    """Return an id in hexadecimal; Tempo's ids are base64."""
    if not isinstance(value, str) or not value or len(value) > 64:
        return ""
    if _HEX.fullmatch(value):
        return value.lower()
    try:
        return base64.b64decode(value, validate=True).hex()
    except (binascii.Error, ValueError):
        return ""


def _time(value: Any) -> int:
    """Return nanoseconds, or another whole number above 0; 0 if it is missing."""
    number = _whole(value) or 0
    return number if 0 < number <= _LAST_NS else 0


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _number(value: Any) -> float | None:
    """Return a number, which may be in a text; None for any other value."""
    if isinstance(value, str) and len(value) <= _LONGEST_NUMBER:
        try:
            # A float has too few digits for nanoseconds.
            value = int(value) if _INTEGER.fullmatch(value) else float(value)
        except ValueError:
            return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and abs(value) <= _LARGEST else None


_SCALARS: Final[dict[str, Callable[[Any], Plain]]] = {
    "stringValue": _text,
    "boolValue": partial(operator.is_, True),
    "intValue": _whole,
    "doubleValue": _number,
}

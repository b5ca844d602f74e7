"""JSON values to spans and points: OTLP/JSON, and how Tempo and Jaeger wrap it.

Read like a letter from a stranger: whatever has not the shape that it should is passed by and
counted, nothing is believed to be short.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from dask_otel.report.telemetry.model import Event, Plain, Skipped, Span
from dask_otel.report.telemetry.series import Point

#: Keys below which Jaeger and Tempo put what OTLP has at the top.
_WRAPPINGS: Final = ("result", "data", "trace", "traces")
_DEPTH: Final = 6
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{16}|[0-9a-fA-F]{32})")

#: Characters of a text, items of a list, attributes and events of a span.
LONGEST_TEXT: Final = 20_000
MOST_ITEMS: Final = 200
_MOST_ATTRIBUTES: Final = 200
_MOST_EVENTS: Final = 200
_LAST_NS: Final = 2**63 - 1


class ResourceSpans(NamedTuple):
    """Spans of one process."""

    resource: dict[str, Plain]
    scope_version: str
    spans: list[Span]


class ResourceMetrics(NamedTuple):
    """Points of one process: (metric, labels, point, monotone, delta)."""

    resource: dict[str, Plain]
    scope_version: str
    points: list[tuple[str, dict[str, str], Point, bool, bool]]


def decode(value: Any, skipped: Skipped) -> Iterator[ResourceSpans | ResourceMetrics]:
    """Yield what a JSON value holds; what nobody knows is counted."""
    found = False
    stack = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, list):
            if depth < _DEPTH:
                stack += [(inner, depth + 1) for inner in reversed(item)]
            continue
        if not isinstance(item, dict):
            continue
        for key in ("resourceSpans", "batches", "resource_spans"):
            for entry in _list(item.get(key)):
                found = True
                yield _resource_spans(entry, skipped)
        for key in ("resourceMetrics", "resource_metrics"):
            for entry in _list(item.get(key)):
                found = True
                yield _resource_metrics(entry, skipped)
        if _list(item.get("spans")) and isinstance(item.get("processes"), dict):
            found = True
            yield from _jaeger(item, skipped)
        if depth < _DEPTH:
            stack += [(item[key], depth + 1) for key in _WRAPPINGS if key in item]
        # A request without anything in it is whole, too.
        found = found or any(key in item for key in ("resourceSpans", "resourceMetrics"))
    if not found:
        skipped.add("value that is neither traces nor metrics")


# ------------------------------------------------------------------------------- traces


def _resource_spans(entry: Any, skipped: Skipped) -> ResourceSpans:
    resource = _resource(entry)
    version = ""
    spans = []
    for scope in _scopes(entry, "scopeSpans", "instrumentationLibrarySpans"):
        version = version or _scope_version(scope)
        for raw in _list(scope.get("spans")):
            span = _span(raw)
            if span is None:
                skipped.add("span without ids or times")
            else:
                spans.append(span)
    return ResourceSpans(resource, version, spans)


def _span(raw: Any) -> Span | None:
    if not isinstance(raw, dict):
        return None
    trace_id, span_id = _id(raw.get("traceId")), _id(raw.get("spanId"))
    start, end = _time(raw.get("startTimeUnixNano")), _time(raw.get("endTimeUnixNano"))
    if len(trace_id) != 32 or len(span_id) != 16 or not start or not end:
        return None
    status = raw.get("status")
    status = status if isinstance(status, dict) else {}
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
            for event in _list(raw.get("events"))[:_MOST_EVENTS]
            if isinstance(event, dict)
        ],
    )


def _jaeger(trace: dict[str, Any], skipped: Skipped) -> Iterator[ResourceSpans]:
    """Yield the spans of Jaeger's own JSON, what its UI downloads: microseconds, and tags."""
    processes: dict[str, tuple[dict[str, Plain], list[Span]]] = {}
    for key, process in list(trace["processes"].items())[:1000]:
        if isinstance(process, dict):
            resource = _tags(process.get("tags"))
            resource["service.name"] = _text(process.get("serviceName"))
            processes[key] = (resource, [])
    for raw in _list(trace["spans"]):
        span = _jaeger_span(raw) if isinstance(raw, dict) else None
        place = processes.get(_text(raw.get("processID"))) if span is not None else None
        if span is None or place is None:
            skipped.add("span without ids or times")
        else:
            place[1].append(span)
    for resource, spans in processes.values():
        if spans:
            yield ResourceSpans(
                resource, _text(spans[0].attributes.get("otel.scope.version")), spans
            )


def _jaeger_span(raw: dict[str, Any]) -> Span | None:
    trace_id = _text(raw.get("traceID")).rjust(32, "0")
    span_id = _text(raw.get("spanID")).rjust(16, "0")
    start = _time(raw.get("startTime")) * 1000
    if not (_HEX.fullmatch(trace_id) and _HEX.fullmatch(span_id)) or not start:
        return None
    parents = [
        _text(reference.get("spanID")).rjust(16, "0")
        for reference in _list(raw.get("references"))
        if isinstance(reference, dict) and reference.get("refType") == "CHILD_OF"
    ]
    attributes = _tags(raw.get("tags"))
    return Span(
        trace_id=trace_id.lower(),
        span_id=span_id.lower(),
        parent_id=parents[0].lower() if parents else "",
        name=_text(raw.get("operationName")),
        start_ns=start,
        end_ns=start + max(1, _time(raw.get("duration")) * 1000),
        failed=attributes.get("error") is True or attributes.get("otel.status_code") == "ERROR",
        description=str(attributes.get("otel.status_description") or ""),
        attributes=attributes,
        events=[
            Event(str(fields.pop("event", "") or ""), _time(log.get("timestamp")) * 1000, fields)
            for log in _list(raw.get("logs"))[:_MOST_EVENTS]
            if isinstance(log, dict)
            for fields in (_tags(log.get("fields")),)
        ],
    )


def _tags(raw: Any) -> dict[str, Plain]:
    result: dict[str, Plain] = {}
    for tag in _list(raw)[:_MOST_ATTRIBUTES]:
        if not isinstance(tag, dict) or not isinstance(tag.get("key"), str):
            continue
        value = tag.get("value")
        if (
            isinstance(value, str)
            and value.startswith("[")
            and tag["key"].endswith((".tags", ".types"))
        ):
            # It has no lists: they are texts of JSON there.
            try:
                inner = json.loads(value)
            except (ValueError, RecursionError):
                inner = None
            if isinstance(inner, list):
                result[tag["key"]] = tuple(_text(item) for item in inner[:MOST_ITEMS])
                continue
        if isinstance(value, (str, bool)) or _number(value) is not None:
            result[tag["key"]] = _text(value) if isinstance(value, str) else value
    return result


# ------------------------------------------------------------------------------ metrics


def _resource_metrics(entry: Any, skipped: Skipped) -> ResourceMetrics:
    resource = _resource(entry)
    version = ""
    points: list[tuple[str, dict[str, str], Point, bool, bool]] = []
    for scope in _scopes(entry, "scopeMetrics", "instrumentationLibraryMetrics"):
        version = version or _scope_version(scope)
        for metric in _list(scope.get("metrics")):
            if not isinstance(metric, dict):
                skipped.add("metric without data")
                continue
            name = _text(metric.get("name"))
            if name.startswith("dask."):
                points += _points(name, metric, skipped)
    return ResourceMetrics(resource, version, points)


def _points(
    name: str, metric: dict[str, Any], skipped: Skipped
) -> Iterator[tuple[str, dict[str, str], Point, bool, bool]]:
    for kind in ("sum", "gauge", "histogram"):
        data = metric.get(kind)
        if not isinstance(data, dict):
            continue
        delta = data.get("aggregationTemporality") in (1, "1", "AGGREGATION_TEMPORALITY_DELTA")
        monotone = kind == "histogram" or data.get("isMonotonic") is True
        for raw in _list(data.get("dataPoints")):
            if not isinstance(raw, dict) or _integer(raw.get("flags")) & 1:
                continue
            value = _value(raw, kind)
            time = _time(raw.get("timeUnixNano"))
            if value is None or not time:
                skipped.add("data point without a number or a time")
                continue
            labels = {
                key: item if isinstance(item, str) else str(item)
                for key, item in _attributes(raw.get("attributes")).items()
            }
            start = _time(raw.get("startTimeUnixNano"))
            yield name, labels, Point(start, time, value), monotone, delta and monotone


def _value(raw: dict[str, Any], kind: str) -> float | None:
    if kind == "histogram":
        # How often is enough for a report: where the time went is in the spans.
        return _number(raw.get("sum", 0.0))
    if "asInt" in raw:
        return _number(raw["asInt"])
    # A zero may be left out by protobuf's mapping.
    return _number(raw.get("asDouble", 0.0))


# ------------------------------------------------------------------------------- pieces


def _resource(entry: Any) -> dict[str, Plain]:
    resource = entry.get("resource") if isinstance(entry, dict) else None
    return _attributes(resource.get("attributes")) if isinstance(resource, dict) else {}


def _scopes(entry: Any, *keys: str) -> Iterator[dict[str, Any]]:
    if isinstance(entry, dict):
        for key in keys:
            yield from (scope for scope in _list(entry.get(key)) if isinstance(scope, dict))


def _scope_version(scope: dict[str, Any]) -> str:
    inner = scope.get("scope")
    if isinstance(inner, dict) and inner.get("name") == "dask_otel":
        return _text(inner.get("version"))
    return ""


def _attributes(raw: Any) -> dict[str, Plain]:
    return {
        item["key"][:LONGEST_TEXT]: _any_value(item.get("value"))
        for item in _list(raw)[:_MOST_ATTRIBUTES]
        if isinstance(item, dict) and isinstance(item.get("key"), str)
    }


def _any_value(raw: Any, depth: int = 0) -> Plain:
    if not isinstance(raw, dict):
        return None
    if "stringValue" in raw:
        return _text(raw["stringValue"])
    if "boolValue" in raw:
        return raw["boolValue"] is True
    if "intValue" in raw:
        number = _number(raw["intValue"])
        return (
            None if number is None else int(number) if number < 2**53 else _integer(raw["intValue"])
        )
    if "doubleValue" in raw:
        return _number(raw["doubleValue"])
    inner = raw.get("arrayValue")
    if isinstance(inner, dict) and depth < 2:
        items = _list(inner.get("values"))[:MOST_ITEMS]
        return tuple(_any_value(item, depth + 1) for item in items)
    return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    value = value.encode("utf-8", "replace").decode("utf-8")  # lone surrogates can't be written
    return value if len(value) <= LONGEST_TEXT else f"{value[:LONGEST_TEXT]}…"


def _id(value: Any) -> str:
    """Return an id in hexadecimal, also where it is base64, as Tempo has it."""
    if not isinstance(value, str) or not value or len(value) > 64:
        return ""
    if _HEX.fullmatch(value):
        return value.lower()
    try:
        return base64.b64decode(value, validate=True).hex()
    except (binascii.Error, ValueError):
        return ""


def _integer(value: Any) -> int:
    if isinstance(value, str) and len(value) <= 20:
        try:
            return int(value)
        except ValueError:
            return 0
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _time(value: Any) -> int:
    """Return nanoseconds; 0 where there are none."""
    number = _integer(value)
    return number if 0 < number <= _LAST_NS else 0


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        if len(value) > 40:
            return None
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, int) and abs(value) > 2**100:
        return None
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None

"""Telemetry as it stands in files: OTLP/JSON made by hand, as small as it can be."""

from __future__ import annotations

from typing import Any

from dask_otel.report.document import Report
from dask_otel.report.money import Price
from dask_otel.report.telemetry.model import Run
from dask_otel.report.telemetry.reader import Reader

#: When everything here begins.
BEGIN = 1_790_000_000_000_000_000
SECOND = 1_000_000_000


def value(plain: Any) -> dict[str, Any]:
    """An attribute's value in OTLP/JSON."""
    if isinstance(plain, bool):
        return {"boolValue": plain}
    if isinstance(plain, int):
        return {"intValue": str(plain)}
    if isinstance(plain, float):
        return {"doubleValue": plain}
    if isinstance(plain, (list, tuple)):
        return {"arrayValue": {"values": [value(item) for item in plain]}}
    return {"stringValue": plain}


def attributes(plain: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(item)} for key, item in plain.items()]


def resource(instance: str = "Scheduler-1", cluster: str = "cluster") -> dict[str, Any]:
    return {
        "attributes": attributes(
            {
                "service.name": "dask-scheduler",
                "service.instance.id": instance,
                "service.version": "2026.8.0",
                "dask.cluster.name": cluster,
            }
        )
    }


def span(
    number: int,
    name: str = "load",
    *,
    parent: int = 0,
    start: float = 0.0,
    seconds: float = 1.0,
    kind: str = "span",
    failed: bool = False,
    events: tuple[tuple[str, dict[str, Any]], ...] = (),
    **more: Any,
) -> dict[str, Any]:
    """A span; underscores of `more` are dots, where it has none. Numbers are ids."""
    begin = BEGIN + int(start * SECOND)
    own = {key if "." in key else key.replace("_", "."): item for key, item in more.items()}
    if kind == "span":
        own = {"dask.span.name": name, "dask.span.root.name": name.split("/")[0], **own}
    return {
        "traceId": "ab" * 16,
        "spanId": f"{number:016x}",
        **({"parentSpanId": f"{parent:016x}"} if parent else {}),
        "name": name.rpartition("/")[2],
        "kind": 1,
        "startTimeUnixNano": str(begin),
        "endTimeUnixNano": str(begin + int(seconds * SECOND)),
        "attributes": attributes({"dask.span.type": kind, "dask.span.id": f"id-{number}", **own}),
        "events": [
            {"timeUnixNano": str(begin + number), "name": event, "attributes": attributes(inner)}
            for number, (event, inner) in enumerate(events)
        ],
        "status": {"code": 2, "message": "it failed"} if failed else {},
    }


def traces(*spans: dict[str, Any], **of: str) -> dict[str, Any]:
    """An export request of spans."""
    scope = {"scope": {"name": "dask_otel", "version": "0.1.0"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": resource(**of), "scopeSpans": [scope]}]}


def point(
    number: float, labels: dict[str, str] | None = None, *, time: float = 10.0, start: float = 0.0
) -> dict[str, Any]:
    return {
        "startTimeUnixNano": str(BEGIN + int(start * SECOND)),
        "timeUnixNano": str(BEGIN + int(time * SECOND)),
        "asDouble": number,
        "attributes": attributes(labels or {}),
    }


def counter(name: str, *points: dict[str, Any], delta: bool = False) -> dict[str, Any]:
    data = {"aggregationTemporality": 1 if delta else 2, "isMonotonic": True}
    return {"name": name, "sum": {**data, "dataPoints": list(points)}}


def level(name: str, *points: dict[str, Any]) -> dict[str, Any]:
    data = {"aggregationTemporality": 2, "isMonotonic": False}
    return {"name": name, "sum": {**data, "dataPoints": list(points)}}


def metrics(*found: dict[str, Any], **of: str) -> dict[str, Any]:
    """An export request of metrics."""
    scope = {"scope": {"name": "dask_otel", "version": "0.1.0"}, "metrics": list(found)}
    return {"resourceMetrics": [{"resource": resource(**of), "scopeMetrics": [scope]}]}


def cluster(
    seconds: dict[str, float],
    *,
    capacity: float,
    excess: float = 0.0,
    in_flight: float = 0.0,
    **of: str,
) -> dict[str, Any]:
    """The cluster's sum after ten seconds."""
    return metrics(
        counter(
            "dask.cluster.time",
            *(point(amount, {"dask.activity": name}) for name, amount in seconds.items()),
        ),
        counter("dask.cluster.capacity.time", point(capacity)),
        counter("dask.cluster.excess.time", point(excess)),
        level("dask.cluster.inflight.time", point(in_flight)),
        **of,
    )


def report_of(*requests: Any, price: float | None = None) -> Report:
    """The report of some requests."""
    reader = Reader()
    for request in requests:
        reader.take(request)
    cost = None if price is None else Price(price)
    return Report(reader.runs(), reader.skipped, price=cost)


def run_of(*requests: Any) -> Run:
    """The run of some requests."""
    (run,) = report_of(*requests).runs
    return run

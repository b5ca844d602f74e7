"""Telemetry as it stands in files: OTLP/JSON made by hand, as small as it can be."""

from __future__ import annotations

import base64
import gzip
import json
from html.parser import HTMLParser
from typing import Any

from dask_otel.report.document import Report
from dask_otel.report.money import Price
from dask_otel.report.telemetry.model import Session, Span
from dask_otel.report.telemetry.reader import Reader

#: Text that tries to be markup.
EVIL = "</script><script>window.pwned=1</script><img src=x onerror=pwned()>\"'><b>&amp;`${1}"
#: When everything here begins.
BEGIN = 1_790_000_000_000_000_000
SECOND = 1_000_000_000


_KINDS = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}


def value(plain: Any) -> dict[str, Any]:
    """An attribute's value in OTLP/JSON."""
    if isinstance(plain, (list, tuple)):
        return {"arrayValue": {"values": [value(item) for item in plain]}}
    return {_KINDS[type(plain)]: str(plain) if type(plain) is int else plain}


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
    /,
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


def log(
    number: float, body: str, name: str = "dask.worker.log", severity: int = 13, **own: Any
) -> dict[str, Any]:
    """A log record."""
    return {
        "timeUnixNano": str(BEGIN + int(number * SECOND)),
        "severityNumber": severity,
        "body": {"stringValue": body},
        "attributes": attributes({"event.name": name, **own}),
    }


def logs(*records: dict[str, Any], **of: str) -> dict[str, Any]:
    """An export request of log records."""
    scope = {"scope": {"name": "dask_otel", "version": "0.1.0"}, "logRecords": list(records)}
    return {"resourceLogs": [{"resource": resource(**of), "scopeLogs": [scope]}]}


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
    return Report(reader.sessions(), reader.skipped, price=cost)


def run_of(*requests: Any) -> Session:
    """The run of some requests."""
    (run,) = report_of(*requests).runs
    return run


#: Attributes of spans, and labels of metrics, that take any text.
_TEXTS = [
    *("dask.span.result", "dask.span.root.id", "dask.span.root.name", "dask.task.prefix"),
    *("dask.task.key", "dask.worker.name", "dask.task_group.name", "error.type"),
    *("code.file.path", "dask.task.output.type"),
]
_LABELS = [
    *("dask.span.name", "dask.span.root.name", "dask.task.prefix", "dask.activity"),
    *("dask.worker.name", "dask.task.outcome", "dask.task.retry.reason", "dask.otel.reason"),
]
_COUNTERS = [
    *("span.execute.time", "span.idle.time", "span.capacity.time", "cluster.time"),
    *("task.retried", "task.finished", "otel.dropped", "cluster.capacity.time"),
]
_LEVELS = [
    *("worker.memory.usage", "worker.memory.spilled", "worker.cpu.utilization"),
    *("cluster.inflight.time", "worker.thread.count"),
]


def everything(evil: str) -> list[dict[str, Any]]:
    """Requests with a text in every place that takes one."""
    inner = dict.fromkeys(("exception.type", "exception.message", "exception.stacktrace"), evil)
    events = (("exception", {**inner, "dask.task.key": evil}), (evil, {evil: evil}))
    own: dict[str, Any] = {
        **dict.fromkeys(_TEXTS, evil),
        evil: evil,
        "dask.span.tags": [evil],
        "dask.span.idle.time": 1.0,
        "dask.span.capacity.time": 2.0,
        f"dask.span.activity.time.{evil}": 1.0,
    }
    spans = (
        span(number, evil, parent=number - 1, kind=kind, failed=True, events=events, **own)
        for number, kind in enumerate(("span", "group", "task"), 1)
    )
    labels = dict.fromkeys(_LABELS, evil)
    counters = (
        counter(f"dask.{name}", *(point(40 * t, labels, time=t) for t in range(1, 9)))
        for name in _COUNTERS
    )
    levels = (
        level(f"dask.{name}", *(point(t, labels, time=t) for t in range(9))) for name in _LEVELS
    )
    about = {"dask.task.key": evil, "dask.worker.name": evil, "dask.worker.last_lines": [evil]}
    said = logs(log(1, evil, evil, 17, **about), log(2, evil, **{**about, evil: evil}))
    text = json.dumps([traces(*spans), metrics(*counters, *levels), said])
    # Common to all files.
    for usual in ("it failed", "dask-scheduler", "Scheduler-1", "2026.8.0", "cluster", "0.1.0"):
        text = text.replace(json.dumps(usual), json.dumps(evil))
    found: list[dict[str, Any]] = json.loads(text)
    return found


def many(count: int) -> Session:
    """A run of spans with the attributes that real ones have."""
    run = Session("Scheduler-1", "cluster")
    for number in range(count):
        attributes: dict[str, Any] = {
            "dask.span.type": "span",
            "dask.span.id": f"{number:032x}",
            "dask.span.root.id": f"{number // 10:032x}",
            "dask.span.name": f"etl/step {number % 10}",
            "dask.span.result": "success",
            **{f"dask.span.activity.time.activity-{n}": number * 1.37e-4 + n for n in range(6)},
            **{f"dask.task.{n}.count": number * n for n in range(9)},
            "dask.span.idle.time": number * 1.7e-3,
            "dask.span.capacity.time": number * 9.1e-3,
        }
        start = number * 7_919_000_000
        run.spans.append(
            Span(
                f"{number // 10:032x}",
                f"{number:016x}",
                f"{number - 1:016x}" if number % 10 else "",
                f"step {number % 10}",
                start,
                start + 5_000_000_000 + number * 1001,
                attributes=attributes,
            )
        )
    return run


class Page(HTMLParser):
    """What a browser would see of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)
        #: The data that scripts unpack, as JSON, and the scripts that run.
        texts = dict(zip(self.scripts, self.of("script"), strict=True))
        self.packed = [unpacked(text) for text, found in texts.items() if "type" in found]
        self.running = [text for text, found in texts.items() if "type" not in found]

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


def unpacked(text: str) -> str:
    return gzip.decompress(base64.b64decode(text)).decode()

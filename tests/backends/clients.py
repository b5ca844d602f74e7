"""Small clients of the servers' query APIs, over the standard library alone."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 30.0


class QueryError(AssertionError):
    """A server refused a query; the text is its answer."""


def get_json(url: str, **parameters: str | int | float) -> Any:
    """The JSON answer of a GET.

    Raises
    ------
    QueryError
        On any status but 2xx, with what the server said.
    """
    if parameters:
        url = f"{url}?{urllib.parse.urlencode(parameters)}"
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            body = error.read().decode("utf-8", "replace")
        raise QueryError(f"{url}: {error.code} {body[:2000]}") from None


def _without_name(labels: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key != "__name__"}


# ------------------------------------------------------------------------------ Prometheus


@dataclass(frozen=True)
class Series:
    """One series of a query's answer."""

    name: str
    labels: Mapping[str, str]
    #: (Unix time in seconds, value), ascending; one for an instant query.
    points: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        return self.points[-1][1]


class PrometheusClient:
    """The query API of Prometheus (https://prometheus.io/docs/prometheus/latest/querying/api/)."""

    def __init__(self, url: str) -> None:
        self._api = f"{url}/api/v1"

    def _get(self, path: str, **parameters: str | int | float) -> Any:
        return get_json(f"{self._api}/{path}", **parameters)["data"]

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """An instant query; a range selector such as ``x[1h]`` gives the raw samples."""
        when = {} if at is None else {"time": at}
        return _series(self._get("query", query=expression, **when))

    def value(self, expression: str, at: float | None = None) -> float:
        """The value of a query that must give exactly one series."""
        found = self.query(expression, at)
        assert len(found) == 1, f"{expression} gave {len(found)} series: {found}"
        return found[0].value

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        parameters = {"query": expression, "start": start, "end": end, "step": step}
        return _series(self._get("query_range", **parameters))

    def names(self) -> set[str]:
        """The name of every metric it has."""
        return set(self._get("label/__name__/values"))

    def exemplars(self, expression: str, start: float, end: float) -> list[dict[str, Any]]:
        """Every exemplar of the selected series, as Prometheus gives it."""
        found = self._get("query_exemplars", query=expression, start=start, end=end)
        return [exemplar for series in found for exemplar in series["exemplars"]]

    def alerts(self) -> list[dict[str, Any]]:
        return list(self._get("alerts")["alerts"])

    def rules(self) -> list[dict[str, Any]]:
        """The groups of rules that it has loaded."""
        return list(self._get("rules")["groups"])

    def head_series(self) -> int:
        """How many series it holds in its head: what costs it memory."""
        return int(self._get("status/tsdb")["headStats"]["numSeries"])

    def config(self) -> str:
        """The configuration that it really runs with, as YAML."""
        return str(self._get("status/config")["yaml"])


def _series(data: Mapping[str, Any]) -> list[Series]:
    if data["resultType"] in ("scalar", "string"):
        time, value = data["result"]
        return [Series("", {}, ((float(time), float(value)),))]
    return [
        Series(
            item["metric"].get("__name__", ""),
            _without_name(item["metric"]),
            tuple(
                (float(time), float(value)) for time, value in item.get("values") or [item["value"]]
            ),
        )
        for item in data["result"]
    ]


class AlertmanagerClient:
    """The API of Alertmanager, version 2."""

    def __init__(self, url: str) -> None:
        self._api = f"{url}/api/v2"

    def alerts(self) -> list[dict[str, Any]]:
        """Every alert it holds, with labels, annotations and state."""
        return list(get_json(f"{self._api}/alerts"))


# ---------------------------------------------------------------------------- OTLP as JSON


@dataclass(frozen=True)
class StoredSpan:
    """A span as a backend gives it back; ids in hex, times in ns since the epoch."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    service: str
    start_ns: int
    end_ns: int
    error: bool
    attributes: Mapping[str, Any]


def spans_of_otlp(document: Mapping[str, Any]) -> Iterator[StoredSpan]:
    """The spans of OTLP JSON (``resourceSpans``, or ``batches`` in Tempo's older spelling)."""
    for resource_spans in document.get("resourceSpans") or document.get("batches") or ():
        resource = _otlp_attributes(resource_spans.get("resource", {}).get("attributes", ()))
        for scope_spans in resource_spans.get("scopeSpans", ()):
            for span in scope_spans.get("spans", ()):
                yield StoredSpan(
                    trace_id=_hex(span["traceId"], 32),
                    span_id=_hex(span["spanId"], 16),
                    parent_id=_hex(span.get("parentSpanId", ""), 16),
                    name=span["name"],
                    service=str(resource.get("service.name", "")),
                    start_ns=int(span["startTimeUnixNano"]),
                    end_ns=int(span["endTimeUnixNano"]),
                    error=span.get("status", {}).get("code") in (2, "STATUS_CODE_ERROR"),
                    attributes=_otlp_attributes(span.get("attributes", ())),
                )


def spans_of_file(path: Path) -> list[StoredSpan]:
    """The spans that a Collector's file exporter wrote; none while the file is not there."""
    if not path.exists():
        return []
    # The last line can be half written.
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return [span for line in lines for span in spans_of_otlp(json.loads(line))]


def _hex(text: str, digits: int) -> str:
    """An id as hex: OTLP JSON has hex, protobuf's own JSON mapping (Tempo) has base64."""
    if not text or len(text) == digits:
        return text
    return base64.b64decode(text).hex()


def _otlp_attributes(items: Any) -> dict[str, Any]:
    return {item["key"]: _otlp_value(item["value"]) for item in items}


def _otlp_value(value: Mapping[str, Any]) -> Any:
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_otlp_value(item) for item in value["arrayValue"].get("values", ())]
    for kind in ("stringValue", "boolValue", "doubleValue"):
        if kind in value:
            return value[kind]
    return None


# ---------------------------------------------------------------------------------- Jaeger


class JaegerClient:
    """The query API of Jaeger 2 (https://www.jaegertracing.io/docs/latest/apis/)."""

    def __init__(self, url: str) -> None:
        self._url = url

    def trace(self, trace_id: str) -> list[StoredSpan]:
        """Every span of a trace; none if Jaeger does not have it (yet)."""
        try:
            answer = get_json(f"{self._url}/api/v3/traces/{trace_id}")
        except QueryError as error:
            if ": 404 " in str(error):
                return []
            raise
        return list(spans_of_otlp(answer.get("result", answer)))

    def page(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace as Jaeger's own page gets them, with references and warnings."""
        try:
            found = get_json(f"{self._url}/api/traces/{trace_id}")["data"]
        except QueryError as error:
            if ": 404 " in str(error):
                return []
            raise
        return [span for trace in found or () for span in trace["spans"]]

    def services(self) -> set[str]:
        return set(get_json(f"{self._url}/api/services")["data"] or ())

    def operations(self, service: str) -> set[str]:
        """The names of the spans of a service."""
        return set(get_json(f"{self._url}/api/services/{service}/operations")["data"] or ())

    def search(
        self,
        service: str,
        *,
        operation: str | None = None,
        tags: Mapping[str, str] | None = None,
        lookback: str = "1h",
        limit: int = 100,
    ) -> set[str]:
        """Ids of the traces with a span that fits; `tags` are compared as text."""
        parameters: dict[str, str | int] = {"service": service, "lookback": lookback}
        parameters["limit"] = limit
        if operation is not None:
            parameters["operation"] = operation
        if tags:
            parameters["tags"] = json.dumps(tags)
        found = get_json(f"{self._url}/api/traces", **parameters)["data"] or ()
        return {trace["traceID"].zfill(32) for trace in found}


# ----------------------------------------------------------------------------------- Tempo


class TempoClient:
    """The query API of Tempo (https://grafana.com/docs/tempo/latest/api_docs/)."""

    def __init__(self, url: str) -> None:
        self._url = url

    def trace(self, trace_id: str) -> list[StoredSpan]:
        """Every span of a trace; none if Tempo does not have it (yet)."""
        try:
            answer = get_json(f"{self._url}/api/traces/{trace_id}")
        except QueryError as error:
            if ": 404 " in str(error):
                return []
            raise
        return list(spans_of_otlp(answer))

    def search(self, traceql: str, start: float, end: float, limit: int = 100) -> set[str]:
        """Ids of the traces that fit; Tempo leaves out leading zeros, they are put back.

        Types are strict: a double is compared with ``60.0``, ``60`` finds nothing.
        """
        parameters = {"q": traceql, "start": int(start), "end": int(end), "limit": limit}
        found = get_json(f"{self._url}/api/search", **parameters).get("traces") or ()
        return {trace["traceID"].zfill(32) for trace in found}

"""Small clients of the servers' query APIs, over the standard library alone."""

from __future__ import annotations

import calendar
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.otlp.json_reading import from_json
from tests.receiver import Span, decode_spans

TIMEOUT_SECONDS = 30.0


class QueryError(AssertionError):
    """A server refused a query; the text is its answer."""


def get(url: str, accept: str, missing: bytes | None = None, **parameters: str | float) -> bytes:
    """The answer of a GET; `missing`, if it is given, where the server answers 404.

    Raises
    ------
    QueryError
        On any other status but 2xx, with the server's words.
    """
    if parameters:
        url = f"{url}?{urllib.parse.urlencode(parameters)}"
    request = urllib.request.Request(url, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404 and missing is not None:
                return missing
            raise QueryError(f"{url}: {error.code} {error.read()[:2000]!r}") from None


def get_json(url: str, missing: bytes | None = None, **parameters: str | float) -> Any:
    """The JSON answer of a GET; see `get`."""
    return json.loads(get(url, "application/json", missing, **parameters))


# ------------------------------------------------------------------------------ Prometheus


class Series(SimpleNamespace):
    """One series of a query's answer: its name, labels and points.

    A point is (Unix time in seconds, value), ascending; there is one for an instant query.
    """

    @property
    def value(self) -> float:
        return float(self.points[-1][1])


class PrometheusClient:
    """The query API of Prometheus (https://prometheus.io/docs/prometheus/latest/querying/api/)."""

    def __init__(self, url: str) -> None:
        self._api = f"{url}/api/v1"

    def get(self, path: str, **parameters: str | float) -> Any:
        """The data of an answer, as it is."""
        return get_json(f"{self._api}/{path}", **parameters)["data"]

    def query(self, expression: str, at: float | None = None) -> list[Series]:
        """An instant query; a range selector such as ``x[1h]`` gives the raw samples."""
        when = {} if at is None else {"time": at}
        return _series(self.get("query", query=expression, **when))

    def value(self, expression: str, at: float | None = None) -> float:
        """The value of a query that must give exactly one series."""
        found = self.query(expression, at)
        assert len(found) == 1, f"{expression} gave {len(found)} series: {found}"
        return found[0].value

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        parameters = {"query": expression, "start": start, "end": end, "step": step}
        return _series(self.get("query_range", **parameters))

    def exemplars(self, expression: str, start: float, end: float) -> set[tuple[str, str]]:
        """Trace and span ids of every exemplar of the selected series."""
        found = self.get("query_exemplars", query=expression, start=start, end=end)
        labels = [exemplar["labels"] for series in found for exemplar in series["exemplars"]]
        return {(one["trace_id"], one["span_id"]) for one in labels}


def _series(data: Mapping[str, Any]) -> list[Series]:
    if data["resultType"] in ("scalar", "string"):
        data = {"result": [{"metric": {}, "value": data["result"]}]}
    return [
        Series(
            name=item["metric"].get("__name__", ""),
            labels={key: value for key, value in item["metric"].items() if key != "__name__"},
            points=tuple(
                (float(time), float(value)) for time, value in item.get("values") or [item["value"]]
            ),
        )
        for item in data["result"]
    ]


# ---------------------------------------------------------------------------------- logs


class Entry(SimpleNamespace):
    """A log record as a server gives it back: its time, its line, and all other fields."""


class VictoriaLogsClient:
    """The query API of VictoriaLogs (https://docs.victoriametrics.com/victorialogs/querying/)."""

    def __init__(self, url: str) -> None:
        self._api = f"{url}/select/logsql/query"

    def rows(self, logsql: str, start: float) -> list[dict[str, str]]:
        """The answer of a query from `start` (Unix time in seconds) until now."""
        answer = get(self._api, "application/stream+json", query=logsql, start=start)
        return [json.loads(line) for line in answer.splitlines()]

    def query(self, logsql: str, start: float) -> list[Entry]:
        """The log records that a query finds."""
        return [
            Entry(time_ns=_nanoseconds(row.pop("_time")), line=row.pop("_msg"), labels=row)
            for row in self.rows(logsql, start)
        ]


def _nanoseconds(text: str) -> int:
    """The Unix time of an RFC 3339 text in UTC, to the nanosecond."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S"))
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0"))


# ---------------------------------------------------------------------------- traces


def spans_of_otlp(document: Mapping[str, Any]) -> list[Span]:
    """The spans of OTLP/JSON."""
    request = ExportTraceServiceRequest()
    from_json(json.dumps({"resourceSpans": document.get("resourceSpans") or []}), request)
    return list(decode_spans(request))


def spans_of_file(path: Path) -> list[Span]:
    """The spans that a Collector's file exporter wrote; none while the file is not there."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    # The last line can be half written.
    lines = [line for line in text.splitlines() if line.endswith("}")]
    return [span for line in lines for span in spans_of_otlp(json.loads(line))]


class JaegerClient:
    """The query API of Jaeger 2 (https://www.jaegertracing.io/docs/latest/apis/)."""

    def __init__(self, url: str) -> None:
        self.url = url

    def trace(self, trace_id: int) -> list[Span]:
        """Every span of a trace; none if Jaeger does not have it (yet)."""
        answer = get_json(f"{self.url}/api/v3/traces/{trace_id:032x}", missing=b"{}")
        return spans_of_otlp(answer.get("result", answer))

    def page(self, trace_id: int) -> list[dict[str, Any]]:
        """The spans of a trace as Jaeger's own page gets them, with references and warnings."""
        found = get_json(f"{self.url}/api/traces/{trace_id:032x}", missing=b"{}").get("data")
        return [span for trace in found or () for span in trace["spans"]]

    def operations(self, service: str) -> set[str]:
        """The names of the spans of a service."""
        return set(get_json(f"{self.url}/api/services/{service}/operations")["data"] or ())

    def search(self, service: str, *, lookback: str = "1h", **parameters: str) -> set[int]:
        """Ids of the traces with a span that fits."""
        given = {"service": service, "lookback": lookback, "limit": 100, **parameters}
        found = get_json(f"{self.url}/api/traces", **given)["data"] or ()
        return {int(trace["traceID"], 16) for trace in found}

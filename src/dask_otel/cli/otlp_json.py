"""OTLP/JSON files: what Jaeger's UI opens by upload and the Collector reads.

Written with protobuf's own JSON mapping and the two deviations of OTLP/JSON
(https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): trace and span ids are
hexadecimal and not base64, enums are integers and not names.

Why not the file exporter of OpenTelemetry Python (opentelemetry-exporter-otlp-json-file,
0.66b1): it is a pre-release that pins one minor release of the SDK, by its entry point it
writes only to standard output, and it would need a second encoding of the data that we
already have as protobuf.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

#: The bytes fields that OTLP/JSON writes in hexadecimal; all others stay base64.
_ID_FIELDS = frozenset({"traceId", "spanId", "parentSpanId"})


def _base64_to_hex(text: str) -> str:
    return base64.b64decode(text).hex()


def _hex_to_base64(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text)).decode("ascii")


def _convert_ids(value: Any, convert: Callable[[str], str]) -> Any:
    # An attribute that is called traceId is {"key": "traceId", "value": ...} in this
    # mapping, so a field name can't be mistaken.
    if isinstance(value, dict):
        return {
            key: convert(item) if key in _ID_FIELDS else _convert_ids(item, convert)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_convert_ids(item, convert) for item in value]
    return value


def to_json(message: Message) -> str:
    """Return an OTLP message as OTLP/JSON on one line, without the newline."""
    data = json_format.MessageToDict(message, use_integers_for_enums=True)
    return json.dumps(_convert_ids(data, _base64_to_hex), separators=(",", ":"))


def from_json(text: str, message: Message) -> None:
    """Read OTLP/JSON into an empty message; unknown fields are an error.

    Raises
    ------
    ValueError
        Where the text is no JSON, an id is not hexadecimal, or a field does not fit.
    """
    try:
        json_format.ParseDict(_convert_ids(json.loads(text), _hex_to_base64), message)
    except json_format.ParseError as error:
        raise ValueError(str(error)) from error


def metrics_path(traces: Path) -> Path:
    """Return the path of the metrics file that goes with a traces file.

    ``x-traces.json`` has ``x-metrics.json``, ``x.json`` has ``x-metrics.json``.
    """
    return traces.with_name(f"{traces.stem.removesuffix('-traces')}-metrics{traces.suffix}")


def write_traces(path: Path, requests: Iterable[ExportTraceServiceRequest]) -> None:
    """Write all spans as one TracesData object on one line.

    One object, because Jaeger's UI wants that (several lines only since 1.60, and never
    another signal between them); one line, because the Collector's otlpjsonfile receiver
    reads line by line. Its lines may have 1 MiB: some two thousand spans.
    """
    data = TracesData()
    for request in requests:
        data.resource_spans.extend(request.resource_spans)
    path.write_text(to_json(data) + "\n", encoding="utf-8")


def write_metrics(path: Path, requests: Iterable[ExportMetricsServiceRequest]) -> None:
    """Write one export request a line, in the order of arrival."""
    lines = [to_json(request) + "\n" for request in requests]
    path.write_text("".join(lines), encoding="utf-8")

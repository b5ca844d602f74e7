"""Reading OTLP/JSON files, as `otel.files.path` has them written: one request a line.

Read with protobuf's own JSON mapping and the two deviations of OTLP/JSON
(https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): trace and span ids are
hexadecimal and not base64, enums are integers and not names.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dask_otel.cli.received import Telemetry

#: The bytes fields that OTLP/JSON writes in hexadecimal; all others stay base64.
_ID_FIELDS: Final = frozenset({"traceId", "spanId", "parentSpanId"})


def _with_base64(value: Any) -> Any:
    # An attribute that is called traceId is {"key": "traceId", "value": ...} in this
    # mapping, so a field name can't be mistaken.
    if isinstance(value, dict):
        return {
            key: base64.b64encode(bytes.fromhex(item)).decode("ascii")
            if key in _ID_FIELDS
            else _with_base64(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_with_base64(item) for item in value]
    return value


def from_json(text: str, message: Message) -> None:
    """Read OTLP/JSON into an empty message; unknown fields are an error.

    Raises
    ------
    ValueError
        Where the text is no JSON, an id is not hexadecimal, or a field does not fit.
    """
    try:
        json_format.ParseDict(_with_base64(json.loads(text)), message)
    except json_format.ParseError as error:
        raise ValueError(str(error)) from error


def paths(folder: Path, signal: str) -> list[Path]:
    """Return the files of a signal, ``"traces"`` or ``"metrics"``, in the order of their names."""
    return sorted(folder.glob(f"*-{signal}.jsonl"))


def read_folder(folder: Path) -> Telemetry:
    """Return all that the files of a folder have.

    Raises
    ------
    OSError, ValueError
        Where a file can't be read, or a line of it is no OTLP/JSON.
    """
    telemetry = Telemetry()
    for line in _lines(folder, "traces"):
        telemetry.traces.append(ExportTraceServiceRequest())
        from_json(line, telemetry.traces[-1])
    for line in _lines(folder, "metrics"):
        telemetry.metrics.append(ExportMetricsServiceRequest())
        from_json(line, telemetry.metrics[-1])
    return telemetry


def _lines(folder: Path, signal: str) -> Iterator[str]:
    for path in paths(folder, signal):
        with path.open(encoding="utf-8") as file:
            yield from file

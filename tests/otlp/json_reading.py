"""OTLP/JSON back to messages, strictly: a second opinion on what `otel.files.path` has written.

Read with protobuf's own JSON mapping and the two deviations of OTLP/JSON
(https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding): trace and span ids are
hexadecimal and not base64, enums are integers and not names.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.receiver import Log, decode_logs

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


def logs_of(paths: Iterable[Path]) -> list[Log]:
    """Return the log records in files, as far as these are there."""
    found: list[Log] = []
    for path in paths:
        for line in path.read_text("utf-8").splitlines() if path.exists() else ():
            message = ExportLogsServiceRequest()
            from_json(line, message)
            found += decode_logs(message)
    return found

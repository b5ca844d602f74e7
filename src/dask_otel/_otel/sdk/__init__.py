"""The SDK's part: exporters and their data.

It is slow to import and may block, so only the bridge's own threads use it, never the scheduler's
event loop.
"""

import os
from importlib import import_module
from typing import Final

#: The SDK reads it as it is imported, and then raises if it is wrong.
_READ_EARLY: Final = "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"

if (_wrong := os.environ.get(_READ_EARLY, "0").strip()) and not _wrong.isdecimal():
    # `encode` refuses it, in words.
    _hidden = os.environ.pop(_READ_EARLY)
    try:
        import_module("opentelemetry.sdk.trace")
    finally:
        os.environ[_READ_EARLY] = _hidden

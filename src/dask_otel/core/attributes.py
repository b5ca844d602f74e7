"""Attributes that users give to their spans: how many, how large, and under which names.

They keep their own keys, so that semantic conventions (``enduser.id``, ``batch.id``) stay what
they are; what the bridge itself says is not theirs to overwrite: the namespaces ``dask.`` and
``otel.``, and whatever else the exported span has.

Done twice: in the client, so that no more travels than is kept, and on the scheduler, where
anything can arrive. Their texts are cleaned later, with those of the span.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from dask_otel.core.records import AttributeValue

#: Attributes of one span; characters of a key, of a text; elements of an array; and characters of
#: all of it together.
COUNT_LIMIT: Final = 32
KEY_LIMIT: Final = 128
TEXT_LIMIT: Final = 1024
ARRAY_LIMIT: Final = 64
TOTAL_LIMIT: Final = 8192

#: Namespaces that are the bridge's and OpenTelemetry's own.
RESERVED: Final = ("dask.", "otel.")

_INT64: Final = 2**63


def bounded_attributes(given: object) -> tuple[dict[str, AttributeValue], int]:
    """Return what of the given attributes a span takes, and how many it does not.

    Parameters
    ----------
    given
        Should be a mapping of texts to texts, numbers, booleans, or lists of one of these;
        can be anything. Values of other types become text, texts are cut.
    """
    if not isinstance(given, Mapping):
        return {}, 0 if given is None else 1
    kept: dict[str, AttributeValue] = {}
    left_out = total = 0
    try:
        for key, value in given.items():
            if len(kept) == COUNT_LIMIT:
                left_out += len(given) - len(kept) - left_out
                break
            clean = _value(value) if _is_key(key) else None
            size = 0 if clean is None else len(key) + _size(clean)
            if clean is None or total + size > TOTAL_LIMIT:
                left_out += 1
            else:
                kept[str(key)] = clean
                total += size
    except Exception:  # noqa: BLE001 - a mapping of the user's, with code of its own
        left_out += 1
    return kept, left_out


def _is_key(key: object) -> bool:
    return isinstance(key, str) and 0 < len(key) <= KEY_LIMIT and not key.startswith(RESERVED)


def _value(value: object) -> AttributeValue | None:
    """Return an attribute's value; None if there is none that says the same."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return tuple([_text(item) for item in value[:ARRAY_LIMIT]])
    return _scalar(value)


def _scalar(value: object) -> str | bool | int | float | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        # What OTLP has no room for becomes text, as it is.
        return int(value) if -_INT64 <= value < _INT64 else _text(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return _text(value)


def _text(value: object) -> str:
    if isinstance(value, str):
        return str.__str__(value)[:TEXT_LIMIT]
    if isinstance(value, bytes):
        return value[:TEXT_LIMIT].decode("utf-8", "backslashreplace")[:TEXT_LIMIT]
    try:
        return str.__str__(str(value))[:TEXT_LIMIT]
    except Exception:  # noqa: BLE001 - users' code runs here
        return "<unreadable>"


def _size(value: AttributeValue) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, tuple):
        return sum(map(len, value))
    return 8

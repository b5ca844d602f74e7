"""Attributes that users give to their spans: how many, how large, and under which names.

They keep their own keys, so that semantic conventions (``enduser.id``, ``batch.id``) stay what
they are; what the bridge itself says is not theirs to overwrite: the namespaces ``dask.`` and
``otel.``, and whatever else the exported span has.

Done twice: in the client, so that no more travels than is kept and all of it can travel, and on
the scheduler, where anything can arrive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from numbers import Integral, Real
from typing import Final

from dask_otel.core.records import AttributeValue
from dask_otel.core.text import Sanitizer, attribute_text

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
    sanitizer = Sanitizer()
    total = 0
    try:
        size = len(given)
        # Of more than that nobody gave them by hand.
        for raw, value in islice(given.items(), 4 * COUNT_LIMIT):
            key = _key(raw, sanitizer)
            clean = None if key is None or key in kept else _value(value, sanitizer)
            if key is None or clean is None or len(kept) == COUNT_LIMIT:
                continue
            length = len(key) + _length(clean)
            if total + length <= TOTAL_LIMIT:
                kept[key] = clean
                total += length
    except Exception:  # noqa: BLE001 - a mapping of the user's, with code of its own
        return kept, 1
    return kept, size - len(kept)


def _key(raw: object, sanitizer: Sanitizer) -> str | None:
    """Return the key's text; None where it is none, too long, or taken."""
    if not isinstance(raw, str) or not 0 < len(raw) <= KEY_LIMIT:
        return None
    key = attribute_text(raw, sanitizer)
    return None if key.startswith(RESERVED) else key


def _value(value: object, sanitizer: Sanitizer) -> AttributeValue | None:
    """Return an attribute's value; None if there is none that says the same."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return tuple([attribute_text(item, sanitizer, TEXT_LIMIT) for item in value[:ARRAY_LIMIT]])
    if isinstance(value, bool):
        return value
    # Those of NumPy, too.
    if isinstance(value, Integral):
        number = int(value)
        # What OTLP has no room for becomes text, as it is.
        return (
            number if -_INT64 <= number < _INT64 else attribute_text(number, sanitizer, TEXT_LIMIT)
        )
    if isinstance(value, Real):
        floating = float(value)
        return floating if math.isfinite(floating) else None
    return attribute_text(value, sanitizer, TEXT_LIMIT)


def _length(value: AttributeValue) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, tuple):
        return sum(map(len, value))
    return 8

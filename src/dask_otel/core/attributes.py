"""Limits and names of users' span attributes.

They keep their keys, so that semantic conventions (``enduser.id``, ``batch.id``) work. They must
not overwrite the bridge's attributes: the namespaces ``dask.`` and ``otel.``, and the other keys of
the exported span.

Applied twice: in the client, which sends only valid attributes, and on the scheduler, where
anything can arrive.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from dask_otel.core.records import AttributeValue
from dask_otel.core.text import Sanitizer, attribute_text, attribute_value

#: Limits: attributes of one span; characters of a key, and of all attributes together.
COUNT_LIMIT: Final = 32
KEY_LIMIT: Final = 128
TOTAL_LIMIT: Final = 8192

#: Namespaces of the bridge and of OpenTelemetry.
RESERVED: Final = ("dask.", "otel.")


def bounded_attributes(given: object) -> tuple[dict[str, AttributeValue], int]:
    """Return the attributes that a span keeps, and the number of discarded ones.

    Parameters
    ----------
    given
        Should map strings to strings, numbers, booleans, or lists of one of these, but can be
        anything. Values of other types become strings; strings are truncated.
    """
    if not isinstance(given, Mapping):
        return {}, 0 if given is None else 1
    kept: dict[str, AttributeValue] = {}
    sanitizer = Sanitizer()
    total = 0
    try:
        size = len(given)
        # Users hardly write more attributes by hand.
        for raw, value in islice(given.items(), 4 * COUNT_LIMIT):
            key = _key(raw, sanitizer)
            clean = None if key is None or key in kept else attribute_value(value, sanitizer)
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
    """Return the clean key; None if it is not a string, too long, or reserved."""
    if not isinstance(raw, str) or not 0 < len(raw) <= KEY_LIMIT:
        return None
    key = attribute_text(raw, sanitizer)
    return None if key.startswith(RESERVED) else key


def _length(value: AttributeValue) -> int:
    if isinstance(value, str):
        return len(value)
    return sum(map(len, value)) if isinstance(value, tuple) else 8

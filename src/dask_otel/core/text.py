"""Clean text of users' values: tags, activities, keys, messages.

Dask does not validate tags and activities: they can be any hashable, of any length, with NUL
or lone surrogates, even with a ``repr`` that raises. One such string makes an encoder
lose the whole batch, so all text that leaves the core is cleaned here. Each function
returns text that encodes as UTF-8, has no NUL, and is not longer than its limit; none
raises. A `Sanitizer` counts the changed values by kind.

Kinds: ``type`` (not a string, converted), ``repr`` (conversion failed),
``nul``, ``surrogate``, ``cut``, ``empty``, and, from the modules that use this one,
``value`` (not a finite number), ``shape``, ``unknown_key``, ``error``,
``reserved`` (a user's attribute with a key of the bridge), ``redact`` (the operator's function
failed on a text).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from math import isfinite
from numbers import Integral, Real
from typing import Final

from dask_otel import semconv
from dask_otel.core.records import AttributeValue

#: Characters of an attribute's text and of an exception's message.
ATTRIBUTE_LIMIT: Final = 1024
#: Bytes of a stacktrace.
STACKTRACE_LIMIT: Final = 8192
#: Characters of a metric label.
LABEL_LIMIT: Final = 200
#: Elements of an array attribute; the contract bounds only its strings.
ARRAY_LIMIT: Final = 64

CUT: Final = "…"
#: Replaces NUL (backends truncate there) and lone surrogates (encoders refuse them).
REPLACEMENT: Final = "\ufffd"
#: Replaces a value whose ``str`` raises.
UNREADABLE: Final = "<unreadable>"
#: Most tasks, workers or prefixes that a sentence names.
NAMED: Final = 5

_INT64: Final = 2**63
_HASH_CHARACTERS: Final = 8
_TAG: Final = re.compile(r"(?:\\.|[^\\/])+", re.DOTALL)
_NOT_SUFFIX: Final = re.compile(r"[^A-Za-z0-9_-]")


class Sanitizer:
    """Counts changed values by kind (`semconv.OTEL_SANITIZED`)."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def count(self, kind: str) -> None:
        """Count one changed value."""
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def drain(self) -> dict[str, int]:
        """Return the counts since the last call, by kind."""
        counts, self.counts = self.counts, {}
        return counts


def plain_text(value: object, sanitizer: Sanitizer) -> str:
    """Return any value as text, as a Dask user expects to read it.

    A string stays; bytes are decoded as UTF-8, with ``\\xff`` for other bytes;
    everything else is ``str(value)``: ``1``, ``True``, ``None``, ``('a', 1)``. A value that
    raises becomes ``<unreadable>``. The text is not cleaned yet.
    """
    if type(value) is str:
        return value
    try:
        if isinstance(value, str):
            # The plain string, by which Dask compares and hashes it: an Enum's str() would differ.
            return str.__str__(value)
        sanitizer.count("type")
        if isinstance(value, bytes):
            return value.decode("utf-8", "backslashreplace")
        return str.__str__(str(value))
    except Exception:  # noqa: BLE001 - users' code runs here
        sanitizer.count("repr")
        return UNREADABLE


def clean_text(text: str, sanitizer: Sanitizer) -> str:
    """Return the text with NUL and lone surrogates replaced by U+FFFD."""
    if "\0" in text:
        sanitizer.count("nul")
        text = text.replace("\0", REPLACEMENT)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            sanitizer.count("surrogate")
            # UTF-16 turns a pair of surrogates into its character.
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters; a truncated one ends in ``…``."""
    return text if len(text) <= most else text[: max(0, most - 1)] + CUT[:most]


def attribute_text(value: object, sanitizer: Sanitizer, limit: int = ATTRIBUTE_LIMIT) -> str:
    """Return an attribute's text, at most `limit` characters; a truncated one ends in ``…``."""
    text = value if type(value) is str else plain_text(value, sanitizer)
    if len(text) > limit:
        sanitizer.count("cut")
        text = shortened(text, limit)
    return clean_text(text, sanitizer)


def attribute_array(
    values: Iterable[object], sanitizer: Sanitizer, limit: int = ATTRIBUTE_LIMIT
) -> tuple[str, ...]:
    """Return an array attribute; a truncated one ends with the element ``…``."""
    items = tuple(values)
    if len(items) > ARRAY_LIMIT:
        sanitizer.count("cut")
        items = (*items[: ARRAY_LIMIT - 1], CUT)
    return tuple([attribute_text(item, sanitizer, limit) for item in items])


def attribute_value(
    value: object, sanitizer: Sanitizer, limit: int = ATTRIBUTE_LIMIT
) -> AttributeValue | None:
    """Return a value of a type that attributes can have; None if it has no equivalent.

    Other types, and integers beyond OTLP's range, become text.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (list, tuple)):
        return attribute_array(value, sanitizer, limit)
    # Including NumPy's.
    if isinstance(value, Integral) and -_INT64 <= int(value) < _INT64:
        return int(value)
    if not isinstance(value, Real) or isinstance(value, Integral):
        return attribute_text(value, sanitizer, limit)
    if isfinite(value):
        return float(value)
    sanitizer.count("value")
    return None


def stacktrace_text(value: object, sanitizer: Sanitizer, limit: int = STACKTRACE_LIMIT) -> str:
    """Return a stacktrace of at most `limit` bytes.

    Its beginning is cut: the last frames and the error itself are at the end.
    """
    text = clean_text(plain_text(value, sanitizer), sanitizer)
    raw = text.encode()
    if len(raw) <= limit:
        return text
    sanitizer.count("cut")
    mark = CUT.encode()
    room = max(limit - len(mark), 0)
    # Ignores the rest of a cut character.
    return CUT + raw[len(raw) - room :].decode("utf-8", "ignore")


def span_path(tags: Sequence[object], sanitizer: Sanitizer) -> str:
    """Return a Dask span's full name: its tags joined with ``/``, of any length.

    ``/`` and ``\\`` inside a tag become ``\\/`` and ``\\\\``, so that different tags
    have different names. Not cleaned yet: use `attribute_text` or `label_text`.
    """
    return full_name([plain_text(tag, sanitizer) for tag in tags])


def full_name(tags: Iterable[str]) -> str:
    """Return a span's full name from its tags, as `span_path`; `span_tags` returns them again."""
    return "/".join([tag.replace("\\", "\\\\").replace("/", "\\/") for tag in tags])


def span_tags(name: str) -> tuple[str, ...]:
    """Return the tags of a span's full name, as `span_path` makes it of texts."""
    return tuple([re.sub(r"(?s)\\(.)", r"\1", tag) for tag in _TAG.findall(name)])


def listed(names: Iterable[str], count: int = 0) -> str:
    """Return the first names of a list, and the number of the others; `count` is that of all."""
    texts = list(names)
    more = max(count, len(texts)) - NAMED
    return ", ".join(texts[:NAMED]) + (f", and {more:,} more" if more > 0 else "")


def line_text(value: object, limit: int = LABEL_LIMIT) -> str:
    """Return text for one line of a terminal; with control characters, its `repr`."""
    text = attribute_text(value, Sanitizer(), limit)
    return text if text.isprintable() else repr(text)


def line_name(tags: Sequence[object]) -> str:
    """Return a Dask span's full name for one line of a terminal."""
    return line_text(span_path(tags, Sanitizer()))


def label_text(value: object, sanitizer: Sanitizer, limit: int = LABEL_LIMIT) -> str:
    """Return a metric label's text.

    At most `limit` characters: a longer text ends in ``~`` and eight hex digits of its
    hash, so that different names stay different series. An empty text is ``_EMPTY``,
    because backends treat an empty label as a missing one.
    """
    text = clean_text(plain_text(value, sanitizer), sanitizer)
    if not text:
        sanitizer.count("empty")
        return semconv.EMPTY
    if len(text) > limit:
        sanitizer.count("cut")
        digest = blake2b(text.encode(), digest_size=_HASH_CHARACTERS // 2).hexdigest()
        return f"{text[: limit - _HASH_CHARACTERS - 1]}~{digest}"
    return text


def suffix_text(value: object, sanitizer: Sanitizer) -> str:
    """Return an activity as the last part of an attribute's name.

    All characters except ASCII letters, digits, ``_`` and ``-`` become ``_``. If two activities get
    the same suffix, their seconds are summed.
    """
    return _NOT_SUFFIX.sub("_", label_text(value, sanitizer))

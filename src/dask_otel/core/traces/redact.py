"""Redaction of users' texts by an operator's function.

The function is foreign code. After an error in it, the text is left out and the span is kept: a
text without redaction must not be exported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from dask_otel import semconv
from dask_otel.core.records import AttributeValue
from dask_otel.core.text import Sanitizer, attribute_text, clean_text, plain_text, span_path

#: Takes the name of an attribute and its text; returns the text to export, None for none. The
#: loader of the operator's function sees to it that it returns nothing else.
Redact: TypeAlias = Callable[[str, str], str | None]

#: Characters of a text to redact; the rest is discarded. Dask truncates exceptions at 10,000.
LONGEST: Final = 65536


def redacted(redact: Redact, name: str, value: object, sanitizer: Sanitizer) -> str | None:
    """Return the text to export, not truncated yet; None to leave it out.

    Parameters
    ----------
    redact
        The operator's function. It gets the text before truncation, because it would not recognise
        half a credential, which must not be exported either.
    name
        The text's attribute.
    value
        The user's value, which is converted to text.
    sanitizer
        Counts, as ``redact``, if the function raises.
    """
    text = clean_text(plain_text(value, sanitizer)[-LONGEST:], sanitizer)
    try:
        return redact(name, text)
    except (Exception, SystemExit):  # noqa: BLE001 - foreign code
        sanitizer.count("redact")
        return None


def redacted_tags(
    redact: Redact | None,
    tags: tuple[object, ...],
    sanitizer: Sanitizer,
    name: str = semconv.SPAN_TAGS,
) -> tuple[object, ...]:
    """Return a span's tags, or other texts; `semconv.EMPTY` replaces one that is left out."""
    if redact is None:
        return tags
    return tuple([redacted(redact, name, tag, sanitizer) or semconv.EMPTY for tag in tags])


def redacted_name(redact: Redact | None, tags: tuple[object, ...], sanitizer: Sanitizer) -> str:
    """Return a span's full name for an attribute, from its tags after redaction."""
    return attribute_text(span_path(redacted_tags(redact, tags, sanitizer), sanitizer), sanitizer)


def redacted_value(
    redact: Redact, name: str, value: AttributeValue, sanitizer: Sanitizer
) -> AttributeValue | None:
    """Return a user's attribute; numbers are redacted as text, and stay numbers."""
    if isinstance(value, (tuple, list)):
        result = [redacted(redact, name, item, sanitizer) for item in value]
        return tuple([item for item in result if item is not None])
    if isinstance(value, str):
        return redacted(redact, name, value, sanitizer)
    # A bool, int or float stays one if its text is unchanged.
    text = plain_text(value, Sanitizer())
    answer = redacted(redact, name, text, sanitizer)
    return value if answer == text else answer

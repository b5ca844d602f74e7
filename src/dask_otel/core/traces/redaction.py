"""Texts that users wrote, as an operator's function lets them be exported.

The function is somebody else's code. Whatever it does wrong costs the text, never the span: a
text that was to be looked at must not go out because the look failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from dask_otel import semconv
from dask_otel.core.records import AttributeValue
from dask_otel.core.text import Sanitizer, clean_text, plain_text

#: Takes the name of an attribute and its text; returns the text to export, None for none.
Redact: TypeAlias = Callable[[str, str], str | None]

#: Characters of a text that are looked at. Dask cuts exceptions at 10,000.
LONGEST: Final = 65536


def redacted(redact: Redact, name: str, value: object, sanitizer: Sanitizer) -> str | None:
    """Return the text to export, not cut yet; None where there is to be none.

    Parameters
    ----------
    redact
        The operator's function. It gets the text as it would be exported, but before it is cut:
        half a credential is not recognised, and is half a credential.
    name
        The attribute in which the text would stand.
    value
        What users wrote; text, or made into one.
    sanitizer
        Counts, as ``redact``, where the function raised or returned something else.
    """
    text = clean_text(plain_text(value, sanitizer)[-LONGEST:], sanitizer)
    try:
        shown = redact(name, text)
    except (Exception, SystemExit):  # noqa: BLE001 - somebody else's code
        sanitizer.count("redact")
        return None
    if shown is None or isinstance(shown, str):
        return shown
    sanitizer.count("redact")
    return None


def redacted_tags(
    redact: Redact | None, tags: tuple[object, ...], sanitizer: Sanitizer
) -> tuple[object, ...]:
    """Return a span's tags; `semconv.EMPTY` for one without text, so that the others stay put."""
    if redact is None:
        return tags
    name = semconv.SPAN_TAGS
    return tuple([redacted(redact, name, tag, sanitizer) or semconv.EMPTY for tag in tags])


def redacted_value(
    redact: Redact, name: str, value: AttributeValue, sanitizer: Sanitizer
) -> AttributeValue | None:
    """Return an attribute that a user gave; numbers are asked for as text, and stay numbers."""
    if isinstance(value, (tuple, list)):
        shown = [redacted(redact, name, item, sanitizer) for item in value]
        return tuple([item for item in shown if item is not None])
    if isinstance(value, str):
        return redacted(redact, name, value, sanitizer)
    # Of bool, int or float; whatever else comes is text from here on.
    text = plain_text(value, Sanitizer())
    answer = redacted(redact, name, text, sanitizer)
    return value if answer == text else answer

"""The address of a trace in a user interface: a user's template, filled with hex ids."""

from __future__ import annotations

from html import escape
from typing import Final
from urllib.parse import urlsplit

#: Placeholders of a template; the rest stays, including other braces.
TRACE_ID: Final = "{trace_id}"
SPAN_ID: Final = "{span_id}"
#: Characters of a template.
TEMPLATE_LIMIT: Final = 2000


def is_template(text: object) -> bool:
    """Whether this is an http(s) address with a placeholder for the trace id."""
    if not isinstance(text, str) or len(text) > TEMPLATE_LIMIT or TRACE_ID not in text:
        return False
    if not text.isprintable() or any(character in text for character in " \"'<>\\`"):
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def fill(template: str | None, trace_id: str, span_id: str) -> str | None:
    """Return the address of a span; None without a valid template."""
    if not is_template(template):
        return None
    assert template is not None
    return template.replace(TRACE_ID, trace_id).replace(SPAN_ID, span_id)


def anchor(url: str | None, text: str) -> str:
    """Return HTML: a link with this text, or only the text."""
    if url is None:
        return escape(text)
    return (
        f'<a href="{escape(url, quote=True)}" target="_blank" rel="noopener noreferrer">'
        f"{escape(text)}</a>"
    )

"""The address of a trace in a user interface: a user's template, filled with hex ids."""

from __future__ import annotations

from html import escape
from typing import Final

#: Placeholders of a template; the rest stays, including other braces.
TRACE_ID: Final = "{trace_id}"
SPAN_ID: Final = "{span_id}"


def fill(template: str | None, trace_id: str, span_id: str) -> str | None:
    """Return the address of a span; None without a template, as ``otel.trace-url`` has it."""
    return template and template.replace(TRACE_ID, trace_id).replace(SPAN_ID, span_id)


def anchor(url: str | None, text: str) -> str:
    """Return HTML: a link with this text, or only the text."""
    if url is None:
        return escape(text)
    return (
        f'<a href="{escape(url, quote=True)}" target="_blank" rel="noopener noreferrer">'
        f"{escape(text)}</a>"
    )

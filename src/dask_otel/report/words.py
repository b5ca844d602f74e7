"""Formats numbers, glyphs and lines for people, in a terminal and on a page."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Container, Iterator, Sequence
from datetime import datetime, timezone
from typing import Final

from dask_otel.core.figures import counted as counted
from dask_otel.core.figures import noun as noun
from dask_otel.core.figures import seconds as seconds
from dask_otel.core.figures import size as size
from dask_otel.core.text import shortened

#: The characters of the text that some terminals lack, and their replacements.
_ASCII: Final = str.maketrans(
    {"█": "#", "▌": "#", "·": ".", "…": "~", "✓": "ok", "✗": "x", "±": "+/-"}
    | {"├": "+", "└": "`", "─": "-", "│": "|"}
)


def in_ascii(text: str) -> str:
    """Return text for a terminal that has only ASCII."""
    # Behind a whole character of a bar, a half has no replacement.
    return text.replace("█▌", "█ ").translate(_ASCII)


def known(value: float | None) -> str:
    """Return a duration; empty if it is unknown."""
    return "" if value is None else seconds(value)


def whole(value: float | None) -> str:
    """Return a whole number; empty if it is unknown."""
    return "" if value is None else f"{value:,.0f}"


def quantity(value: float | None) -> str:
    """Return a number of anything with about three digits; empty if it is unknown."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 99.5 else f"{value:.3g}"


def exact(value: float) -> str:
    """Return seconds to the microsecond; a negative zero is 0."""
    return f"{round(value, 6) + 0.0:,.6f} s"


def signed(value: float) -> str:
    """Return a difference of two durations: ``+1.25 s``, ``-4 ms``."""
    return ("+" if value >= 0 else "-") + seconds(abs(value))


def byte_seconds(value: float | None) -> str:
    """Return bytes over time, such as ``5.8 TiB·s``; empty if they are unknown."""
    return "" if value is None else f"{size(value)}·s"


def share(value: float | None, whole: float | None) -> str:
    """Return a share in percent; empty if one of the two values is unknown."""
    return f"{value / whole:.0%}" if value is not None and whole else ""


def cut(value: str, width: int) -> str:
    """Return text of at most `width` characters on one line; an ellipsis marks a cut."""
    return shortened(one_line(value), width)


def cut_beginning(name: str, width: int) -> str:
    """Return a span's full name; if it is too long, without its outermost tags."""
    name = cut(name, 10_000)
    while len(name) > width and "/" in name.removeprefix("…/"):
        name = f"…/{name.removeprefix('…/').partition('/')[2]}"
    return cut(name, width)


def fit(value: str, columns: int) -> str:
    """Return text that fills `columns` of a terminal; an ellipsis marks a cut."""
    value = one_line(value)
    if _columns(value) > columns:
        while value and _columns(value) >= columns:
            value = value[:-1]
        value += "…"
    return value + " " * (columns - _columns(value))


def _columns(value: str) -> int:
    """Return the width of text in columns: two for a wide character, none for a combining one."""
    return sum(
        0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF")
        for one in value
    )


def bar(share: float, width: int) -> str:
    """Return a bar of ``share * width`` characters; any share above 0 is visible."""
    halves = min(2 * width, max(round(2 * width * share), share > 0))
    return "█" * (halves // 2) + "▌" * (halves % 2)


def aligned(
    rows: Sequence[Sequence[str]], numbers: Container[str], width: int = 10_000
) -> Iterator[str]:
    """Yield the lines of a table; the first row has its headings, some of which are of `numbers`.

    Where lines would be longer than `width`, a long name of the first column has one of its own.
    """
    if not rows:
        return
    wide = [max(map(_columns, column)) for column in zip(*rows, strict=True)]
    room = [max(0, min(wide[0], width - sum(wide[1:]) - 2 * len(wide[1:]))), *wide[1:]]
    for name, *others in rows:
        if _columns(name) > room[0]:
            yield fit(name, width).rstrip()
            name = ""
        cells = (
            " " * (columns - _columns(cell)) + cell if head in numbers else fit(cell, columns)
            for head, cell, columns in zip(rows[0], (name, *others), room, strict=True)
        )
        yield "  ".join(cells).rstrip()


def when(time_ns: int | None) -> str:
    """Return a time in UTC, to the second."""
    try:
        moment = datetime.fromtimestamp((time_ns or 0) / 1e9, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return "?"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC") if time_ns else "?"


def one_line(value: str, otherwise: str = "?") -> str:
    """Return text on one line, without terminal control characters."""
    return "".join(c if c.isprintable() else otherwise for c in value)


def wrapped(value: str, width: int) -> list[str]:
    """Return text as one or more lines of at most `width` characters, except for longer words.

    An address or a key stays whole, so that it can be copied.
    """
    return textwrap.wrap(
        " ".join(value.split()), max(1, width), break_long_words=False, break_on_hyphens=False
    ) or [""]


def inside(title: str) -> str:
    """Return a title for the middle of a sentence: ``Off the CPU`` becomes ``off the CPU``."""
    return title[:1].lower() + title[1:]

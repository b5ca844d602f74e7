"""Pieces of markup: tables and bars. What is no `Markup` is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dask_otel.report import words
from dask_otel.report.meanings import PARTS, hex_colour


def safe(value: object) -> str:
    """Return a value as text in markup."""
    return escape(str(value), quote=True)


class Markup(str):
    """Text that is markup already."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; a head that begins with ``#`` is of numbers."""
    numeric = [name.startswith("#") for name in head]
    top = "".join(
        f"<th{' class=num' if number else ''}>{safe(name.removeprefix('#'))}</th>"
        for name, number in zip(head, numeric, strict=True)
    )
    body = []
    for row in rows:
        cells = "".join(
            f'<td class="{"num" if number else "name" if not index else ""}">'
            f"{cell if isinstance(cell, Markup) else safe(cell)}</td>"
            for index, (cell, number) in enumerate(zip(row, numeric, strict=True))
        )
        body.append(f"<tr>{cells}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def size(value: float | None) -> str:
    """Return bytes; empty where they are not known."""
    return "" if value is None else words.size(value)


def bar(by_part: dict[str, float], small: bool = False) -> str:
    """Return one bar of the parts."""
    whole = sum(by_part.values())
    if not whole:
        return ""
    pieces = "".join(
        f'<i style="width:{100 * by_part[part.title] / whole:.3f}%;'
        f'background:{hex_colour(part.colour)}"'
        f' title="{safe(part.title)}: {safe(words.seconds(by_part[part.title]))},'
        f' {by_part[part.title] / whole:.0%}"></i>'
        for part in PARTS
        if by_part[part.title] > 0
    )
    return f'<div class="bar{" small" if small else ""}">{pieces}</div>'


def share(value: float | None, whole: float | None) -> str:
    """Return a share in percent; empty where one of the two is not known."""
    return f"{value / whole:.0%}" if value is not None and whole else ""

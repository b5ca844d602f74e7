"""Writes numbers for people: durations, sizes, counts."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def seconds(value: float) -> str:
    """Return a duration with about three significant digits: ``4 ms``, ``1.25 s``, ``3 m 05 s``."""
    if value >= 119.95:
        unit, large, small = (60, "h", "m") if value >= 3599.5 else (1, "m", "s")
        whole, rest = divmod(round(value / unit), 60)
        return f"{whole:,} {large} {rest:02} {small}"
    if value >= 9.995:
        return f"{value:.1f} s"
    if value >= 0.9995:
        return f"{value:.2f} s"
    if value >= 0.0005:
        return f"{value * 1000:.0f} ms"
    return "0 s" if value == 0 else "<1 ms"


def counted(count: int, what: str) -> str:
    """Return a number of things: ``1 span``, ``1,024 spans``."""
    return f"{count:,} {noun(count, what)}"


def noun(count: float, what: str) -> str:
    """Return the noun for a number, without the number: ``span`` for 1, else ``spans``."""
    return what if count == 1 else f"{what}s"


def size(value: float | None, limit: float | None = None) -> str:
    """Return bytes, and what they are a part of, in one unit: ``4.2 MiB``, ``3.1 of 8.0 GiB``.

    Empty if they are unknown.
    """
    if value is None:
        return ""
    power = 0
    while power < 4 and max(value, limit or 0) >= 1023.5 * 1024**power:
        power += 1
    values = [value, limit] if limit else [value]
    scaled = [one / 1024**power for one in values]
    texts = [f"{one:,.{0 if one >= 99.95 or not power else 1}f}" for one in scaled]
    return f"{' of '.join(texts)} {_UNITS[power]}"

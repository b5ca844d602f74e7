"""Writes numbers for people: durations, sizes, counts."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def seconds(value: float) -> str:
    """Return a duration with about three significant digits: ``4 ms``, ``1.25 s``, ``3 m 05 s``."""
    if value >= 119.95:
        minutes, rest = divmod(round(value), 60)
        return f"{minutes:,} m {rest:02} s"
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


def size(value: float, limit: float | None = None) -> str:
    """Return bytes, and what they are a part of, in the same unit: ``3.1 of 8.0 GiB``."""
    power = min(4, max(0, int(max(value, limit or 0)).bit_length() - 1) // 10)
    of = f" of {limit / 1024**power:.1f}" if limit else ""
    return f"{value / 1024**power:.1f}{of} {_UNITS[power]}"

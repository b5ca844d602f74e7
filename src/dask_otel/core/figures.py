"""Adds numbers up, and writes them for people: durations, sizes, counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

_Key = TypeVar("_Key")


def summed(terms: Iterable[Mapping[_Key, float]]) -> dict[_Key, float]:
    """Return the sums of several terms by their names."""
    result: dict[_Key, float] = {}
    for one in terms:
        for key, value in one.items():
            result[key] = result.get(key, 0.0) + value
    return result


def known_sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


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

"""Adds up figures by their names, and those of them that are known."""

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


def covered(times: Iterable[tuple[float, float]]) -> float:
    """Return the seconds in at least one of some times, each from a moment to another one."""
    return sum(max(0.0, end - start) for start, end in joined(times))


def joined(times: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return times in their order, those that overlap as one."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(times):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found

"""Cuts items into parts of a limited size, for requests and lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def parts(
    items: Iterable[_Item], limit: float | None, size_of: Callable[[_Item], int]
) -> Iterator[list[_Item]]:
    """Yield parts of at most `limit`, or of one item if that is larger; None for no limit."""
    part: list[_Item] = []
    room = most = math.inf if limit is None else limit
    for item in items:
        size = size_of(item)
        if part and size > room:
            yield part
            part, room = [], most
        part.append(item)
        room -= size
    if part:
        yield part

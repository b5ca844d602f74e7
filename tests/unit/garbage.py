"""Values for tests that nobody expects, where others may send anything."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=99) | st.binary(),
    lambda below: st.lists(below) | st.dictionaries(st.text() | st.integers(), below),
    max_leaves=8,
)


class Hostile(Mapping[str, Any]):
    """A mapping that raises."""

    def __getitem__(self, key: str) -> Any:
        raise ZeroDivisionError

    def __iter__(self) -> Any:
        raise ZeroDivisionError

    def __len__(self) -> int:
        raise ZeroDivisionError


class Broken:
    """A user's object without a text; hypothesis needs its `repr`."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Array:
    """Compares as arrays do, which have no single answer."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        raise ValueError("ambiguous")


class Colour(str, enum.Enum):
    """A text that has another one of its own."""

    RED = "red"


class Pretender(str):
    """A text that lies about its type."""

    def __str__(self) -> str:
        return 7  # type: ignore[return-value]

    __slots__ = ()


WORDS = (
    *("_OTHER", "_EMPTY", "default", "execute", "seconds", "p2p", "off", "nan", "1e999", "١"),
    *("9" * 5000, "x" * 70_000, "{trace_id}", "${A}", "http://u:p@h:4317/x", "[" * 5000),
    *("KeyError(1)", "Traceback (most recent call last):\n", '  File "a.py"'),
    "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01",
)

#: Texts with characters that have caused trouble anywhere, lone surrogates among them; and texts
#: that mean something somewhere, or are long. By number, or hypothesis would show all of them.
texts = st.text(st.characters(codec=None), max_size=12) | st.integers(0, len(WORDS) - 1).map(
    WORDS.__getitem__
)
numbers = (
    st.floats()
    | st.integers()
    | st.sampled_from([2**63 - 1, 2**63, -(2**63), 2**64, 10**400, -0.0, 1e-320, 1e308, math.inf])
)
hashables = st.recursive(
    texts
    | numbers
    | st.sampled_from([None, True, b"\xff\0", frozenset({1})])
    | st.builds(Broken)
    | st.builds(Pretender, st.just("p")),
    lambda below: st.lists(below, max_size=5).map(tuple),
    max_leaves=6,
)
values = anything | hashables

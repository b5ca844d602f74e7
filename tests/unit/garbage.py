"""Values for tests that nobody expects, where others may send anything."""

from __future__ import annotations

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

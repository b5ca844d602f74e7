"""Attributes that users give to their spans: bounded, of allowed types, under their own keys."""

from __future__ import annotations

import datetime
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_otel.core.attributes import (
    COUNT_LIMIT,
    KEY_LIMIT,
    TOTAL_LIMIT,
    bounded_attributes,
)
from dask_otel.core.life.blocks import DESCRIBED, Blocks
from dask_otel.core.text import ARRAY_LIMIT, ATTRIBUTE_LIMIT
from tests.unit.driven import Driven
from tests.unit.garbage import Broken, Hostile, anything


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        # What it may be stays; of other libraries' numbers, too.
        *((value, value) for value in ("acme", 5, 0.5, False, ("a", "b"))),
        *((np.int64(5), 5), (np.float32(0.5), 0.5), (Fraction(1, 2), 0.5)),
        # The rest becomes text.
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (b"raw\xff", "raw\\xff"),
        (2**70, str(2**70)),
        ([1, "a", None], ("1", "a", "None")),
        (Broken(), "<unreadable>"),
        (["x"] * 100, ("x",) * (ARRAY_LIMIT - 1) + ("…",)),
        ("x" * 5000, "x" * (ATTRIBUTE_LIMIT - 1) + "…"),
        # What no comm of Dask's takes: with it, the message that has it would be lost.
        ("\ud800", "\ufffd"),
        (["a\0"], ("a\ufffd",)),
    ],
)
def test_a_value_is_of_an_allowed_type(value: Any, kept: Any) -> None:
    found, left_out = bounded_attributes({"dry-run": value})
    assert (found, left_out) == ({"dry-run": kept}, 0)
    assert type(found["dry-run"]) is type(kept)


def test_a_huge_mapping_is_not_walked_to_its_end() -> None:
    seen = []

    class Huge(dict[str, Any]):
        def items(self) -> Any:
            return ((seen.append(key), (key, None))[1] for key in list(self))

    assert bounded_attributes(Huge.fromkeys(range(10_000))) == ({}, 10_000)
    assert len(seen) < 200


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("key", value) for value in (None, math.nan, math.inf)),
        *((key, 1) for key in ("dask.span.id", "dask.mine", "otel.status_code", "", 1, None)),
        ("x" * (KEY_LIMIT + 1), 1),
    ],
)
def test_what_says_nothing_and_keys_that_are_taken_are_left_out(key: Any, value: Any) -> None:
    assert bounded_attributes({key: value, "daskette": 2}) == ({"daskette": 2}, 1)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({f"key{n}": n for n in range(100)}, COUNT_LIMIT),
        ({f"k{n}": "x" * 1000 for n in range(20)}, TOTAL_LIMIT // 1002),
    ],
)
def test_no_more_than_the_limits(given: Any, kept: int) -> None:
    found, left_out = bounded_attributes(given)
    assert (list(found), left_out) == (list(given)[:kept], len(given) - kept)


@pytest.mark.parametrize("given", [1, "text", ["a"], Hostile()])
def test_what_is_no_mapping(given: Any) -> None:
    assert bounded_attributes(given) == ({}, 1)


# Each has many values.
@settings(max_examples=10)
@given(anything | st.dictionaries(st.text() | st.integers(), anything))
def test_whatever_comes_is_counted_and_of_allowed_types(given: Any) -> None:
    kept, left_out = bounded_attributes(given)
    assert not isinstance(given, dict) or len(kept) + left_out == len(given)
    assert {type(key) for key in kept} <= {str}
    assert {type(value) for value in kept.values()} <= {str, bool, int, float, tuple}
    # What is kept once is kept again, where it arrives.
    assert bounded_attributes(kept) == (kept, 0)


def test_what_is_remembered_of_them_is_bounded() -> None:
    blocks = Blocks(Driven().lifecycle, 10 * DESCRIBED)
    for number in range(DESCRIBED + 10):
        blocks.described(f"s{number}", {"n": number})
    assert [*blocks._described] == [f"s{number}" for number in range(10, DESCRIBED + 10)]

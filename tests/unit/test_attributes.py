"""Attributes that users give to their spans: bounded, of allowed types, under their own keys."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel import semconv
from dask_otel.core.attributes import (
    COUNT_LIMIT,
    KEY_LIMIT,
    TOTAL_LIMIT,
    bounded_attributes,
)
from dask_otel.core.life.blocks import DESCRIBED, Blocks
from dask_otel.core.text import ARRAY_LIMIT, ATTRIBUTE_LIMIT, Sanitizer
from dask_otel.core.traces.translate import translate
from dask_otel.core.traces.values import SpanLimits
from tests.contract.test_telemetry_page import EVERYTHING
from tests.unit.test_blocks import Blocked
from tests.unit.test_context import Hostile, anything
from tests.unit.test_lifecycle_histories import LIMITS


class Broken:
    def __str__(self) -> str:
        raise ZeroDivisionError


def test_what_an_attribute_may_be_stays_as_it_is() -> None:
    given = {"tenant": "acme", "rows": 5, "share": 0.5, "dry-run": False, "ids": ("a", "b")}
    assert bounded_attributes(given) == (given, 0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
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
def test_what_it_may_not_be_becomes_text(value: Any, text: Any) -> None:
    assert bounded_attributes({"key": value}) == ({"key": text}, 0)


@pytest.mark.parametrize(
    ("value", "number"), [(np.int64(5), 5), (np.float32(0.5), 0.5), (Fraction(1, 2), 0.5)]
)
def test_numbers_of_other_libraries_stay_numbers(value: Any, number: Any) -> None:
    kept, _ = bounded_attributes({"key": value})
    assert kept == {"key": number}
    assert type(kept["key"]) is type(number)


def test_a_huge_mapping_is_not_walked_to_its_end() -> None:
    seen = []

    class Huge(dict[str, Any]):
        def items(self) -> Any:
            return ((seen.append(key), (key, None))[1] for key in list(self))

    huge = Huge({f"key{n}": 0 for n in range(10_000)})
    assert bounded_attributes(huge) == ({}, 10_000)
    assert len(seen) < 200


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_says_nothing_is_left_out(value: Any) -> None:
    assert bounded_attributes({"key": value, "other": 1}) == ({"other": 1}, 1)


@pytest.mark.parametrize(
    "key", ["dask.span.id", "dask.mine", "otel.status_code", "", "x" * (KEY_LIMIT + 1), 1, None]
)
def test_keys_that_are_taken_or_none(key: Any) -> None:
    assert bounded_attributes({key: 1, "daskette": 2}) == ({"daskette": 2}, 1)


def test_no_more_than_the_limits() -> None:
    kept, left_out = bounded_attributes({f"key{n}": n for n in range(100)})
    assert list(kept) == [f"key{n}" for n in range(COUNT_LIMIT)]
    assert left_out == 100 - COUNT_LIMIT
    kept, left_out = bounded_attributes({f"k{n}": "x" * 1000 for n in range(20)})
    assert len(kept) == TOTAL_LIMIT // 1002
    assert left_out == 20 - len(kept)


@pytest.mark.parametrize("given", [1, "text", ["a"], Hostile()])
def test_what_is_no_mapping(given: Any) -> None:
    assert bounded_attributes(given) == ({}, 1)


@given(anything | st.dictionaries(st.text() | st.integers(), anything))
def test_whatever_comes_is_counted_and_of_allowed_types(given: Any) -> None:
    kept, left_out = bounded_attributes(given)
    if isinstance(given, dict):
        assert len(kept) + left_out == len(given)
    for key, value in kept.items():
        assert type(key) is str
        assert type(value) in (str, bool, int, float, tuple)
    # What is kept once is kept again, where it arrives.
    assert bounded_attributes(kept) == (kept, 0)


def test_they_are_on_the_span_and_overwrite_nothing() -> None:
    sanitizer = Sanitizer()
    mine = {"tenant": "a\0cme", "parts": ("x", "\ud800"), semconv.ERROR_TYPE: "mine", "dask.x": 1}
    before, *_ = translate(replace(EVERYTHING, attributes={}), SpanLimits(), Sanitizer())
    after, *groups = translate(replace(EVERYTHING, attributes=mine), SpanLimits(), sanitizer)
    new = {k: v for k, v in after.attributes.items() if k not in before.attributes}
    assert new == {"tenant": "a\ufffdcme", "parts": ("x", "\ufffd")}
    assert {k: after.attributes[k] for k in before.attributes} == dict(before.attributes)
    assert sanitizer.counts["reserved"] == 2
    assert all("tenant" not in group.attributes for group in groups)


@pytest.mark.parametrize("first", ["described", "opened"])
def test_every_generation_has_them_whatever_comes_first(first: str) -> None:
    sim = Blocked(LIMITS)
    if first == "described":
        sim.blocks.described("s0", {"tenant": "acme"})
    root = sim.create(None)
    if first == "opened":
        sim.blocks.described("s0", {"tenant": "acme"})
    for _ in range(2):
        sim.finish(sim.submit(root, "f"), "w0", 0.0, 0.0)
        for _ in range(3):
            sim.advance(LIMITS.settle_timeout)
            sim.tick()
    assert [life.finished.attributes for life in sim.lives if life.finished] == [
        {"tenant": "acme"}
    ] * 2


def test_what_is_remembered_of_them_is_bounded() -> None:
    blocks = Blocks(Blocked(LIMITS).lifecycle)
    for number in range(DESCRIBED + 10):
        blocks.described(f"s{number}", {"n": number})
    assert len(blocks._described) == DESCRIBED
    assert "s9" not in blocks._described

"""Text that leaves the core: clean, bounded, and readable."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.core.text import (
    ATTRIBUTE_LIMIT,
    LABEL_LIMIT,
    STACKTRACE_LIMIT,
    Sanitizer,
    attribute_array,
    attribute_text,
    label_text,
    span_path,
    stacktrace_text,
    suffix_text,
)
from tests.unit.garbage import Broken, Colour

HASHABLES = st.recursive(
    st.one_of(
        st.text(st.characters()),  # lone surrogates included
        st.text(max_size=3).map(lambda text: text * 400),
        st.integers(),
        st.floats(),
        st.booleans(),
        st.none(),
        st.binary(),
        st.builds(Broken),
        st.just("\0"),
        st.just("x" * 100_000),
        st.builds(lambda: 10**5000),  # refuses str()
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)


@pytest.fixture
def sanitizer() -> Sanitizer:
    return Sanitizer()


@given(HASHABLES)
def test_every_text_encodes_and_is_bounded(value):
    sanitizer = Sanitizer()
    for text, limit in (
        (attribute_text(value, sanitizer), ATTRIBUTE_LIMIT),
        (label_text(value, sanitizer), LABEL_LIMIT),
        (suffix_text(value, sanitizer), LABEL_LIMIT),
        (attribute_text(span_path((value, value), sanitizer), sanitizer), ATTRIBUTE_LIMIT),
        (label_text(span_path((value, "a"), sanitizer), sanitizer), LABEL_LIMIT),
    ):
        assert (type(text), "\0" in text) == (str, False)
        assert len(text.encode().decode()) <= limit
    assert label_text(value, sanitizer)
    assert len(stacktrace_text(value, sanitizer).encode()) <= STACKTRACE_LIMIT


@pytest.mark.parametrize(
    ("make", "value", "text"),
    [
        *(
            (attribute_text, value, text)
            for value, text in (
                ("train", "train"),
                (7, "7"),
                (True, "True"),
                (None, "None"),
                (("weird", 1), "('weird', 1)"),
                (b"load", "load"),
                (b"\xff", "\\xff"),
                (Colour.RED, "red"),
                (Broken(), "<unreadable>"),
                ("a\0b", "a\ufffdb"),
                ("a\udc80", "a\ufffd"),
                ("\ud83d\ude00", "\U0001f600"),
                ("", ""),
            )
        ),
        # A cut is visible.
        (attribute_text, "x" * 1024, "x" * 1024),
        (attribute_text, "x" * 1025, "x" * 1023 + "…"),
        (attribute_array, ["a", 1], ("a", "1")),
        (attribute_array, range(1000), (*map(str, range(63)), "…")),
        (span_path, ("workflow", "load"), "workflow/load"),
        (span_path, ("a/b", "c\\d"), "a\\/b/c\\\\d"),
        (span_path, (1, None, ""), "1/None/"),
        (label_text, "", "_EMPTY"),
        (label_text, b"", "_EMPTY"),
        (suffix_text, "thread-cpu", "thread-cpu"),
        (suffix_text, "p2p.send é", "p2p_send__"),
        (suffix_text, ("weird", 1), "__weird___1_"),
    ],
)
def test_values_read_as_a_dask_user_expects(sanitizer, make, value, text):
    assert make(value, sanitizer) == text


def test_a_long_stacktrace_keeps_its_end(sanitizer):
    text = stacktrace_text("first frame\n" + "é" * 10_000 + "KeyError: 'b'", sanitizer)
    assert re.fullmatch("…é+KeyError: 'b'", text)
    assert STACKTRACE_LIMIT - 2 <= len(text.encode()) <= STACKTRACE_LIMIT


@given(st.lists(st.text("ab/\\"), min_size=1), st.lists(st.text("ab/\\"), min_size=1))
def test_different_tags_have_different_names(one, other):
    sanitizer = Sanitizer()
    assert (span_path(one, sanitizer) == span_path(other, sanitizer)) == (one == other)


def test_a_long_label_ends_in_its_hash(sanitizer):
    labels = [label_text("x" * length, sanitizer) for length in (200, 201, 202)]
    assert labels[0] == "x" * 200
    assert [re.fullmatch("x{191}~[0-9a-f]{8}", label) is None for label in labels[1:]] == [
        False
    ] * 2
    assert labels[1] != labels[2]


def test_changes_are_counted_by_kind(sanitizer):
    attribute_text("fine", sanitizer)
    found = [sanitizer.drain()]
    for value in (1, "\0\ud800", Broken(), "x" * 1025):
        attribute_text(value, sanitizer)
    label_text("", sanitizer)
    expected = {"type": 2, "nul": 1, "surrogate": 1, "repr": 1, "cut": 1, "empty": 1}
    assert [*found, sanitizer.drain(), sanitizer.drain()] == [{}, expected, {}]

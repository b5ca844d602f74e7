"""A span as bytes and back: nothing changes, and damage is an error."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_otel.core.context import Caller, Traceparent
from dask_otel.core.records import Event, Link, Origin, SpanRecord
from dask_otel.core.trace import Trace
from dask_otel.spool import encoding

#: Any at all: also lone surrogates, and two that would make a pair.
TEXTS = st.text(st.characters(codec=None), max_size=20) | st.just("\ud83d\ude00 \ud800 \0 é")
NUMBERS = (
    st.booleans()
    | st.integers()
    | st.integers(-(2**64), 2**200)
    | st.sampled_from([2**63, 0, -1])
    | st.floats()
    | st.just(-0.0)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    TEXTS | NUMBERS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5
)
ATTRIBUTES = st.dictionaries(TEXTS, VALUES, max_size=4)
TRACE_IDS = st.integers(1, 2**128 - 1)
SPAN_IDS = st.integers(1, 2**64 - 1)
TIMES = st.integers(0, 2**64 - 1)
CALLERS = st.builds(
    Caller, st.builds(Traceparent, TRACE_IDS, SPAN_IDS, st.integers(0, 255)), state=TEXTS
)


@st.composite
def records(draw: st.DrawFn) -> SpanRecord:
    root_name = draw(TEXTS)
    trace = Trace(draw(TRACE_IDS), root_name, draw(st.none() | CALLERS))
    trace.sampled = True
    return SpanRecord(
        trace_id=trace,
        span_id=draw(SPAN_IDS),
        parent_span_id=draw(st.none() | SPAN_IDS),
        name=draw(TEXTS),
        kind=draw(st.sampled_from(["server", "internal"])),
        start_ns=draw(TIMES),
        end_ns=draw(TIMES),
        attributes=draw(ATTRIBUTES),
        events=tuple(draw(st.lists(st.builds(Event, TEXTS, TIMES, ATTRIBUTES), max_size=2))),
        links=tuple(draw(st.lists(st.builds(Link, TRACE_IDS, SPAN_IDS, ATTRIBUTES), max_size=2))),
        error=draw(st.none() | TEXTS),
        root_name=root_name,
        remote_parent=draw(st.booleans()),
    )


def exactly(value: Any) -> Any:
    """Return what differs wherever two values do, in type and bits, too."""
    if isinstance(value, Trace):
        return (int(value), value.name, value.caller, value.state, value.sampled)
    if isinstance(value, SpanRecord):
        return [exactly(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, dict):
        return ["dict", *[(key, exactly(item)) for key, item in value.items()]]
    if isinstance(value, tuple):
        return [type(value).__name__, *map(exactly, value)]
    if isinstance(value, float):
        return ("nan",) if math.isnan(value) else (value, math.copysign(1.0, value), "float")
    return (value, type(value).__name__)


@settings(max_examples=60, deadline=None)
@given(records())
def test_a_record_comes_back_as_it_was(record: SpanRecord) -> None:
    assert exactly(encoding.decode(encoding.encode(record))) == exactly(record)


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_that_python_writes_in_no_decimal_come_back_all_the_same(sign: int) -> None:
    # Not among those of hypothesis, which would want to show it.
    huge = sign * 10**5000
    attributes = {"i": huge, "t": (1, (huge, "a", 0.5), True), "small": 2**65}
    record = SpanRecord(Trace(1, "r"), 2, None, "n", "server", 3, 4, attributes, (), (), None, "r")
    found = encoding.decode(encoding.encode(record)).attributes
    assert exactly(found) == exactly(attributes)


@settings(max_examples=60, deadline=None)
@given(ATTRIBUTES)
def test_the_attributes_of_a_resource_come_back_as_they_were(attributes: dict[str, Any]) -> None:
    found = encoding.decode_attributes(encoding.encode_attributes(attributes))
    assert exactly(found) == exactly(attributes)


@settings(max_examples=60, deadline=None)
@given(records(), st.data())
def test_damage_is_a_value_error_or_a_record_that_can_be_sent(
    record: SpanRecord, data: st.DataObject
) -> None:
    body = bytearray(encoding.encode(record))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        found = encoding.decode(bytes(body))
    except ValueError:
        return
    # What can be read has the types that an exporter relies on.
    assert exactly(encoding.decode(encoding.encode(found))) == exactly(found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(records(), st.data())
def test_a_part_of_another_kind_is_a_value_error_or_fits(
    record: SpanRecord, data: st.DataObject
) -> None:
    body = json.loads(encoding.encode(record).decode("utf-8", "surrogatepass"))
    body[data.draw(st.sampled_from([*body, "p", "c", "v", "l", "a"]))] = data.draw(JSON)
    try:
        found = encoding.decode(json.dumps(body).encode())
    except ValueError:
        return
    assert exactly(encoding.decode(encoding.encode(found))) == exactly(found)


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"1", b"[]", b"{}", b"null", b"[" * 100_000, b'{"t":1}']
)
def test_what_is_no_span_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        encoding.decode(body)
    with pytest.raises(ValueError):
        encoding.name_of(body)


def test_it_is_compact_json_in_which_empty_parts_are_left_out() -> None:
    record = SpanRecord(Trace(1, "r"), 2, None, "é", "server", 3, 4, {}, (), (), None, "r")
    assert encoding.encode(record).decode() == (
        f'{{"t":"{1:032x}","s":"{2:016x}","n":"é","k":"server","b":3,"e":4,"r":"r"}}'
    )
    assert encoding.name_of(encoding.encode(record)) == "é"


def test_numbers_of_other_libraries_become_plain_ones() -> None:
    class Whole:
        def __index__(self) -> int:
            return 5

    class Real:
        def __float__(self) -> float:
            return 0.5

    attributes: Any = {"i": Whole(), "f": Real(), "t": (Real(),)}
    record = SpanRecord(Trace(1, "r"), 2, None, "n", "server", 3, 4, attributes, (), (), None, "r")
    found = encoding.decode(encoding.encode(record)).attributes
    assert exactly(found) == exactly({"i": 5, "f": 0.5, "t": (0.5,)})


def test_what_is_neither_text_nor_number_is_a_type_error() -> None:
    record = SpanRecord(
        Trace(1, "r"),
        2,
        None,
        "n",
        "server",
        3,
        4,
        {"a": object()},  # type: ignore[dict-item]
        (),
        (),
        None,
        "r",
    )
    with pytest.raises(TypeError):
        encoding.encode(record)


def test_a_record_of_an_earlier_run_says_so() -> None:
    origin = Origin({"service.instance.id": "a"}, "0.1")
    record = SpanRecord(Trace(1, "r"), 2, None, "n", "server", 3, 4, {}, (), (), None, "r")
    assert encoding.decode(encoding.encode(record), origin).origin is origin

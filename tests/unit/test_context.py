"""Trace context as text: strict where W3C is, within bounds, and calm about garbage."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.baggage import get_all, set_baggage
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context

from dask_otel.core.context import (
    BAGGAGE,
    MAX_BAGGAGE,
    MAX_STATE,
    TRACEPARENT,
    TRACESTATE,
    Caller,
    Traceparent,
    baggage_entries,
    bounded_baggage,
    bounded_tracestate,
    caller_dask_id,
    format_traceparent,
    make_carrier,
    parse_traceparent,
    read_carrier,
)
from tests.unit.garbage import Hostile, anything

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"

parents = st.builds(
    Traceparent,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.integers(0, 255),
)


@given(parents)
def test_what_is_written_is_read(parent: Traceparent) -> None:
    text = format_traceparent(parent)
    assert (len(text), parse_traceparent(text)) == (55, parent)


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (GOOD, 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-02", 2),
        # Sampled and random; flags that nobody knows.
        (f"00-{TRACE}-{SPAN}-03", 3),
        (f"00-{TRACE}-{SPAN}-ff", 255),
        # Later versions, as far as the first one goes.
        (f"01-{TRACE}-{SPAN}-01", 1),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", 1),
        *(
            (text, None)
            for text in (
                *(None, 1, b"", GOOD.encode(), [GOOD], ""),
                f"ff-{TRACE}-{SPAN}-01",
                f"00-{'0' * 32}-{SPAN}-01",
                f"00-{TRACE}-{'0' * 16}-01",
                GOOD.upper(),
                f" {GOOD}",
                f"{GOOD} ",
                f"{GOOD}\n",
                f"{GOOD}-",
                f"{GOOD}-00",
                f"01-{TRACE}-{SPAN}-01.",
                f"01-{TRACE}-{SPAN}-01-{'x' * 1000}",
                f"cc-{TRACE}-{SPAN}-01more",
                f"00-{TRACE[:-1]}-{SPAN}-01",
                f"00-{TRACE}-{SPAN}-0",
                f"00_{TRACE}_{SPAN}_01",
                f"0०-{TRACE}-{SPAN}-01",
                GOOD.replace("4", "４"),
            )
        ),
    ],
)
def test_traceparents(text: object, flags: int | None) -> None:
    valid = flags is not None and Traceparent(int(TRACE, 16), int(SPAN, 16), flags)
    assert parse_traceparent(text) == (valid or None)
    assert not valid or valid.sampled is (flags in (1, 3, 255))


@given(anything | st.text(alphabet="0123456789abcdef-", min_size=50, max_size=60))
@example(Hostile())
def test_garbage_is_nothing(value: Any) -> None:
    parsed = parse_traceparent(value)
    assert parsed is None or parse_traceparent(format_traceparent(parsed)) == parsed
    header = isinstance(value, str) and re.fullmatch(r"[ -~\t]*", value)
    kept = value if header else ""
    found = (read_carrier(value), bounded_tracestate(value), bounded_baggage(value))
    assert found == (None, kept, kept)


@given(st.dictionaries(st.sampled_from([TRACEPARENT, TRACESTATE, BAGGAGE, "b3"]), anything))
def test_a_carrier_of_garbage_is_nothing_or_within_bounds(carrier: Mapping[str, Any]) -> None:
    caller: Any = read_carrier({**carrier, TRACEPARENT: GOOD})
    assert len(caller.state) <= MAX_STATE
    assert len(caller.baggage) <= MAX_BAGGAGE
    assert read_carrier(carrier) is None


@given(parents, st.text(max_size=2000), st.text(max_size=20_000), st.booleans())
def test_every_carrier_is_plain_bounded_and_read_again(
    parent: Traceparent, state: str, baggage: str, nested: bool
) -> None:
    carrier = make_carrier(Caller(parent, state, baggage, nested))
    assert pickle.loads(pickle.dumps(carrier)) == carrier
    assert {type(part) for item in carrier.items() for part in item} == {str}
    read: Any = read_carrier(carrier)
    assert (read.parent, read.nested, make_carrier(read)) == (parent, nested, carrier)


SHORT = [f"v{number}={'y' * 50}" for number in range(12)]
LONG = f"long={'x' * 200}"
ENTRIES = [f"key{number}=value{number}" for number in range(2000)]


@pytest.mark.parametrize(
    ("bounded", "given", "kept", "most", "shortest"),
    [
        # Long entries go first, then the last; each as a whole.
        (bounded_tracestate, [SHORT[0], LONG, *SHORT[1:]], SHORT, MAX_STATE, 60),
        (bounded_tracestate, ["a=1", LONG], ["a=1", LONG], MAX_STATE, MAX_STATE),
        (bounded_baggage, ENTRIES, ENTRIES, MAX_BAGGAGE, 30),
        (bounded_baggage, ["x" * (MAX_BAGGAGE + 1)], [""], MAX_BAGGAGE, MAX_BAGGAGE + 1),
    ],
)
def test_what_is_too_long_loses_whole_entries(
    bounded: Any, given: list[str], kept: list[str], most: int, shortest: int
) -> None:
    found = bounded(",".join(given))
    assert found.split(",") == kept[: len(found.split(","))]
    assert most - shortest < len(found) <= most


TOKENS = st.text("abcXYZ019.-_", min_size=1, max_size=8)


@given(st.dictionaries(TOKENS, st.text(max_size=20)), st.sets(TOKENS))
def test_wanted_baggage_is_what_the_propagator_would_read(
    given: dict[str, str], more: set[str]
) -> None:
    context, carrier = Context(), dict[str, str]()
    for key, value in given.items():
        context = set_baggage(key, value, context)
    W3CBaggagePropagator().inject(carrier, context)
    wanted = {*list(given)[::2], *more}
    read = get_all(W3CBaggagePropagator().extract(carrier, Context()))
    assert baggage_entries(carrier.get(BAGGAGE, ""), wanted) == {
        key: value for key, value in read.items() if key in wanted
    }


@given(st.text(alphabet="ab=,;% +\x00\u0131", max_size=40) | st.text())
def test_baggage_of_garbage_has_wanted_keys_only(text: str) -> None:
    found = baggage_entries(text, {"a", "b"})
    assert found.keys() <= {"a", "b"}
    assert {type(value) for value in found.values()} <= {str}


def test_baggage_without_its_properties() -> None:
    text = " tenant = a%20b+c ;secret=1, user=%FF;x ,tenant2,user=last"
    assert baggage_entries(text, {"tenant", "user", "tenant2"}) == {
        "tenant": "a b c",
        "user": "last",
    }


@given(parents, parents)
def test_ids_of_callers_are_text_and_tell_spans_apart(a: Traceparent, b: Traceparent) -> None:
    assert type(caller_dask_id(a)) is str
    assert (caller_dask_id(a) == caller_dask_id(b)) == (a[:2] == b[:2])

"""What becomes of callers' contexts: adopted, linked, given to tasks, or ignored."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel.core.context import Caller, Traceparent, make_carrier
from dask_otel.core.life.callers import MAX_LINKS, Callers
from dask_otel.core.life.generations import Generations
from dask_otel.core.life.open_span import OpenSpan
from tests.limits import make_limits
from tests.unit.garbage import Array, Hostile, anything

A, B = 0xA << 64, 0xB << 64


def carrier(trace_id: int, span_id: int = 1, flags: int = 1, state: str = "") -> dict[str, str]:
    return make_carrier(Caller(Traceparent(trace_id, span_id, flags), state))


class Setup:
    def __init__(self, propagation: Any = "adopt", baggage: tuple[str, ...] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self.callers = Callers(propagation, lambda kind: self.counts.update([kind]), baggage)
        self.generations = Generations(make_limits())

    def span(self, name: str, carrier: Any = None, parent: OpenSpan | None = None) -> OpenSpan:
        """As it is opened where Dask has made it."""
        above = () if parent is None else (parent.identity.dask_id,)
        opener = self.callers.read(carrier)
        asked = self.callers.opens((name,), not above, opener)
        spans = () if parent is None else (parent, *parent.above)
        span = OpenSpan(0.0, spans, self.generations.first(name, (name,), above, asked), False)
        self.callers.opened(span, opener)
        return span


def own(span: OpenSpan, flags: int = 1) -> str:
    ident = span.identity
    return f"00-{ident.trace_id:032x}-{ident.span_id:016x}-{flags:02x}"


def test_links_are_bounded_and_counted() -> None:
    setup = Setup()
    root = setup.span("r", carrier(A, 7))
    for _ in range(2):
        for number in range(1, 101):
            setup.callers.task_context(root, carrier(B, number))
    assert setup.callers.links[root] == tuple(Traceparent(B, n, 1) for n in range(1, MAX_LINKS + 1))
    assert setup.counts["linked"] == MAX_LINKS
    assert setup.counts["dropped"] == 2 * (100 - MAX_LINKS)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [(0x00, 0x00), (0x01, 0x01), (0x02, 0x02), (0x03, 0x03), (0xFF, 0x03)],
)
def test_the_flag_of_a_random_trace_id_goes_on_and_unknown_ones_do_not(
    flags: int, expected: int
) -> None:
    setup = Setup()
    theirs = carrier(A, 7, flags=flags)
    span = setup.span("r", theirs)
    assert setup.callers.task_context(span, theirs)[0] == own(span, expected)
    setup.callers.sampled = lambda trace: True
    assert setup.callers.task_context(span, theirs)[0] == own(span, expected | 1)
    alone = setup.span("alone")
    assert setup.callers.task_context(alone, None)[0] == own(alone, 1)


@pytest.mark.parametrize("junk", [{}, [], 5, b"a=1", "a=\n1", object(), {"tenant": "a"}, Array()])
@pytest.mark.parametrize("key", ["baggage", "tracestate", "nested"])
def test_junk_beside_a_valid_traceparent_is_left_out_alone(key: str, junk: Any) -> None:
    setup = Setup()
    caller = setup.callers.read({**carrier(A, 7), key: junk})
    assert caller == Caller(Traceparent(A, 7, 1))
    assert not setup.counts


@given(
    anything
    | st.fixed_dictionaries({"traceparent": anything}, optional={"tracestate": anything})
    | st.just(Hostile())
)
def test_garbage_is_ignored_and_counted(garbage: Any) -> None:
    setup = Setup()
    root = setup.span("r", garbage)
    assert setup.callers.task_context(root, garbage)[0] == own(root)
    assert setup.counts == ({"malformed": 1} if garbage is not None else {})

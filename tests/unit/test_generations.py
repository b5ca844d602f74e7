"""Which trace a span is in: its own, its root's, or its caller's; decided once.

Random spans of random callers are in ``tests/simulated/test_histories.py``.
"""

from __future__ import annotations

from dask_otel.core import identity
from dask_otel.core.context import Caller, Traceparent
from dask_otel.core.life.generations import Generations
from dask_otel.core.life.summaries import SpanSummary
from dask_otel.core.records import SpanIdentity
from tests.limits import make_limits
from tests.unit.finished import make_span

A, B = 0xA << 64, 0xB << 64


def caller(trace_id: int, span_id: int = 1, nested: bool = False) -> Caller:
    return Caller(Traceparent(trace_id, span_id, 1), state=f"x={trace_id:x}", nested=nested)


def end(generations: Generations, ident: SpanIdentity, stop: float = 1.0) -> None:
    generations.remember(make_span(identity=ident, stop=stop), SpanSummary())


def test_a_continuation_that_leaves_its_trace_is_decided_anew() -> None:
    generations = Generations(make_limits(trace_gap=100.0))
    root = generations.first("r", ("root",), (), caller(A, 7))
    end(generations, root, 10.0)
    adopted = generations.next("r", ("root",), (), 500.0, (), caller(B, 8))
    assert (adopted.trace_id, adopted.parent_span_id, adopted.remote) == (B, 8, True)
    assert adopted.first == (A, root.span_id)
    end(generations, adopted, 510.0)
    own = generations.next("r", ("root",), (), 1000.0, ())
    assert own.trace_id == identity.trace_id("r", 3)
    assert (own.parent_span_id, own.first) == (None, (A, root.span_id))
    # What a new span of the tree asks for is the root's trace, as before.
    assert generations.first("c", ("root", "c"), ("r",)).trace_id is root.trace_id


def test_a_full_trace_is_not_entered_again_and_counts_by_root() -> None:
    generations = Generations(make_limits(max_per_trace=3))
    root = generations.first("r", ("root",), (), caller(A, 7))
    other = generations.first("o", ("other",), (), caller(A, 7))
    assert [generations.claim(root) for _ in range(4)] == [True, True, True, False]
    assert generations.claim(other), "as many for each root"
    end(generations, root)
    again = generations.next("r", ("root",), (), 2.0, (), caller(A, 7))
    assert again.trace_id == identity.trace_id("r", 2)
    end(generations, again)
    elsewhere = generations.next("r", ("root",), (), 3.0, (), caller(B, 7))
    assert elsewhere.trace_id == B


def test_what_has_open_spans_is_not_forgotten() -> None:
    generations = Generations(make_limits(remember=1))
    root = generations.first("r", ("root",), (), caller(A, 7))
    for number in range(5):
        end(generations, generations.first(f"{number}", ("x",), ()))
    assert generations.first("c", ("root", "c"), ("r",)).trace_id is root.trace_id
    assert len(generations._live) == 1
    assert len(generations._traces) == 1


def test_where_an_adopted_trace_is_forgotten_no_parent_is_named_that_is_elsewhere() -> None:
    generations = Generations(make_limits(remember=1))
    root = generations.first("r", ("root",), (), caller(A, 7))
    end(generations, root)
    end(generations, generations.first("x", ("x",), ()))
    child = generations.first("c", ("root", "c"), ("r",))
    assert (child.trace_id, child.parent_span_id) == (identity.trace_id("c"), None)
    assert generations.trace_of("r", "r") is None
    again = generations.next("r", ("root",), (), 9.0, ())
    assert (again.parent_span_id, again.first) == (None, None)
    assert again.trace_id == identity.trace_id("r", again.generation)
    # Nor is a number given twice, also if a span with a smaller one is forgotten later.
    for ident in (again, *[generations.first(name, (name,), ()) for name in "yz"]):
        end(generations, ident)
    assert generations.next("r", ("root",), (), 19.0, ()).generation > again.generation

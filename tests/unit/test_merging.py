"""A merged batch comes to the same as its parts, one after the other."""

from __future__ import annotations

import copy
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel import semconv
from dask_otel.core.metrics.batch import (
    MAX_OF_NAME,
    MAX_SINGLE,
    MetricBatch,
    Observation,
    SpanDeltas,
)
from dask_otel.core.metrics.merging import merge
from tests.limits import make_state
from tests.unit.metric_states import S, durations

USAGE, CPU = semconv.WORKER_MEMORY_USAGE.name, semconv.WORKER_CPU_UTILIZATION.name
#: Sums of eighths are exact, in any order.
values = st.integers(0, 800).map(lambda eighths: eighths / 8)
workers = st.sampled_from(["a", "b", "c"])


def few(*choices: Any) -> st.SearchStrategy[dict[Any, float]]:
    return st.dictionaries(st.sampled_from(choices), values, max_size=3)


@st.composite
def batches(draw: st.DrawFn) -> list[MetricBatch]:
    made = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        shown = draw(st.sets(workers))
        made.append(
            MetricBatch(
                time_ns=number * S,
                span_deltas={
                    span: SpanDeltas(("x", span), (1, number), draw(few(
                        ("execute", "f", "thread-cpu", "seconds"), ("execute", "f", "n", "count")
                    )))
                    for span in draw(st.sets(st.sampled_from(["p", "q"])))
                },
                cluster_deltas=draw(
                    few(("get-data", "network", "seconds"), ("gather-dep", "x", "bytes"))
                ),
                increments=draw(few(("dask.cluster.time", "idle"), ("dask.span.active", ("x",)))),
                levels={
                    (name, worker): draw(values) for worker in sorted(shown)
                    for name in (USAGE, CPU)
                },
                observations=[
                    Observation("dask.span.duration", (("x",), "success"), value, (1, 2))
                    for value in draw(st.lists(values, max_size=3))
                ],
                distributions={
                    ("dask.task.duration", "f"): durations(draw(st.lists(values, min_size=1)))
                },
                ended=[
                    (name, worker) for worker in sorted(draw(st.sets(workers)) - shown)
                    for name in (USAGE, CPU)
                ],
            )
        )  # fmt: skip
    return made


def totals(parts: list[MetricBatch]) -> dict[str, dict[tuple[Any, ...], Any]]:
    """The exported values by metric and labels, two exports later: what ended is gone then."""
    state = make_state(S // 2)
    for part in parts:
        state.apply(part)
    for number in (10, 11, 12):
        records = list(state.collect(number * S))
        state.settled(True)
    return {
        record.name: {
            tuple(point.attributes.values()): (
                getattr(point, "value", None)
                if record.instrument != "histogram"
                else (point.bucket_counts, point.sum, point.min, point.max)  # type: ignore[union-attr]
            )
            for point in record.points
        }
        for record in records
    }


@given(batches())
def test_a_merged_batch_comes_to_the_same_totals(parts: list[MetricBatch]) -> None:
    """At once, and in steps. Other threads read the parts: they stay as they are."""
    before = copy.deepcopy(parts)
    merged = merge(parts)
    in_steps = reduce(lambda one, other: merge([one, other]), parts)
    assert totals([merged]) == totals(parts) == totals([in_steps])
    assert (merged.time_ns, parts) == (parts[-1].time_ns, before)


def test_exemplars_point_to_the_last_generation() -> None:
    deltas = [
        MetricBatch(time_ns=n, span_deltas={"id": SpanDeltas(("x",), (n, n), {("a",): 1.0})})
        for n in (1, 2)
    ]
    assert merge(deltas).span_deltas == {"id": SpanDeltas(("x",), (2, 2), {("a",): 2.0})}


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([1.5, Decimal("2.5")], 4.0),
        *(
            case
            for odd in ("text", None, float("inf"), object())
            for case in (([2.0, odd, 3.0], 5.0), ([odd, 3.0], 3.0), ([odd], odd))
        ),
    ],
)
def test_what_is_no_number_spoils_nothing_else(numbers: list[Any], expected: Any) -> None:
    merged = merge([MetricBatch(cluster_deltas={"a": number, "b": 1.0}) for number in numbers])
    assert merged.cluster_deltas == {"a": expected, "b": float(len(numbers))}


KEY = ("execute", "inc", "thread-cpu", "seconds")


def deltas_of(batch: MetricBatch, number: int, tags: tuple[str, ...], seconds: float) -> None:
    deltas = batch.span_deltas.get(number) or batch.deltas_of(number, tags, (1, number + 1))
    deltas.values[KEY] = deltas.values.get(KEY, 0.0) + seconds


def test_a_batch_that_nobody_takes_grows_with_the_names_alone() -> None:
    batch = MetricBatch()
    for number in range(MAX_SINGLE + 500):
        tags = (f"name {number % 3}",)
        deltas_of(batch, number, tags, 1.0)
        series = semconv.SPAN_DURATION.name, (tags, "success")
        batch.observe(Observation(*series, 2.0, (1, number + 1)))
    assert (len(batch.span_deltas), len(batch.observations)) == (3 * (MAX_OF_NAME + 1), MAX_SINGLE)
    found = totals([batch])
    assert sum(found["dask.span.execute.time"].values()) == MAX_SINGLE + 500
    counts = [sum(counts) for counts, *_ in found[semconv.SPAN_DURATION.name].values()]
    assert sum(counts) == MAX_SINGLE + 500


def test_only_a_span_that_stands_alone_is_an_exemplar() -> None:
    batch, state = MetricBatch(time_ns=10 * S), make_state(S // 2)
    for number in [*range(99)] * 2:
        deltas_of(batch, number, ("x",), number + 1.0)
    state.apply(batch)
    (record,) = state.collect(20 * S)
    (exemplar,) = record.points[-1].exemplars
    assert record.points[-1].value == 2 * sum(range(100))  # type: ignore[union-attr]
    assert 1 <= exemplar.span_id <= MAX_OF_NAME
    assert exemplar.value == 2 * exemplar.span_id

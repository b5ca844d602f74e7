"""A merged batch comes to the same as its parts, one after the other."""

from __future__ import annotations

import copy
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_otel import semconv
from dask_otel.core.metrics.batch import (
    MAX_OF_NAME,
    MetricBatch,
    Observation,
    SpanDeltas,
)
from dask_otel.core.metrics.merging import merge
from dask_otel.core.metrics.state import MetricState
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
                worker_deltas=draw(
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
    state = MetricState(S // 2)
    for part in parts:
        state.apply(part)
    shown: dict[str, dict[tuple[Any, ...], Any]] = {}
    for number in (10, 11, 12):
        records = list(state.collect(number * S))
        state.settled(True)
        shown = {
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
    return shown


@given(batches())
def test_a_merged_batch_comes_to_the_same_totals(parts: list[MetricBatch]) -> None:
    before = copy.deepcopy([vars_of(part) for part in parts])
    merged = merge(parts)
    assert merged.time_ns == parts[-1].time_ns
    assert totals([merged]) == totals(parts)
    assert [vars_of(part) for part in parts] == before, "other threads read them"


@given(batches())
def test_merging_in_steps_changes_nothing(parts: list[MetricBatch]) -> None:
    merged = parts[0]
    for part in parts[1:]:
        merged = merge([merged, part])
    assert totals([merged]) == totals(parts)


def vars_of(batch: MetricBatch) -> dict[str, Any]:
    found = {name: getattr(batch, name) for name in batch.__slots__}
    found["distributions"] = {
        series: (of.counts, of.sum, of.low, of.high) for series, of in batch.distributions.items()
    }
    return found


def test_exemplars_point_to_the_last_generation() -> None:
    deltas = [
        MetricBatch(time_ns=n, span_deltas={"id": SpanDeltas(("x",), (n, n), {("a",): 1.0})})
        for n in (1, 2)
    ]
    merged = merge(deltas).span_deltas["id"]
    assert merged.ids == (2, 2)
    assert merged.values == {("a",): 2.0}


@pytest.mark.parametrize("odd", ["text", None, float("nan"), object()])
def test_what_is_no_number_spoils_nothing_else(odd: Any) -> None:
    parts = [MetricBatch(worker_deltas={"a": value, "b": 1.0}) for value in (2.0, odd, 3.0)]
    assert merge(parts).worker_deltas == {"a": 5.0, "b": 3.0}
    assert merge(parts[1:]).worker_deltas == {"a": 3.0, "b": 2.0}
    assert merge(parts[1:2]).worker_deltas == {"a": odd, "b": 1.0}


def test_numbers_of_two_kinds_add_up() -> None:
    parts = [MetricBatch(worker_deltas={"a": value}) for value in (1.5, Decimal("2.5"))]  # type: ignore[dict-item]
    assert merge(parts).worker_deltas == {"a": 4.0}


def test_what_waits_for_one_that_hangs_grows_with_the_names_alone() -> None:
    key = ("execute", "inc", "thread-cpu", "seconds")
    merged = MetricBatch()
    for number in range(4):
        spans = {
            f"{number}-{index}": SpanDeltas((f"name {index % 3}",), (1, 1), {key: 1.0})
            for index in range(500)
        }
        merged = merge([merged, MetricBatch(time_ns=number, span_deltas=dict(spans))])
    assert len(merged.span_deltas) == 3 * (MAX_OF_NAME + 1)
    assert sum(deltas.values[key] for deltas in merged.span_deltas.values()) == 2000

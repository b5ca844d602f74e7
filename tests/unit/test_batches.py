"""Batches of metrics, whenever they come, and however many."""

from __future__ import annotations

from itertools import islice
from operator import add
from typing import Any

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
from dask_otel.core.records import NumberPoint, Temporality
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


def totals(
    parts: list[MetricBatch], first: int = 6, points: int = 0, ok: bool = True,
    temporality: Temporality = "cumulative",
) -> dict[tuple[Any, ...], list[float]]:  # fmt: skip
    """The exported values but 0 by metric and labels, two exports later: what ended is gone then.

    Only so many batches come before the first export, and the others after so many of its points.
    """
    state = make_state(S // 2, temporality=temporality)
    sums: dict[tuple[Any, ...], list[float]] = {}
    for part in parts[:first]:
        state.apply(part)
    for number, accepted in ((10, ok), (11, True), (12, True)):
        present: dict[tuple[Any, ...], list[float]] = {}
        records = state.collect(number * S)
        made = [*islice(records, points)]
        for part in parts[first:] if number == 10 else ():
            state.apply(part)
        made += records
        state.settled(accepted)
        for record in made if accepted else ():
            for point in record.points:
                key = (record.name, *point.attributes.values())
                values = (
                    [point.value]
                    if isinstance(point, NumberPoint)
                    else [*point.bucket_counts, point.sum]
                )
                if record.temporality == "delta":
                    sums[key] = [*map(add, sums.get(key, [0.0] * len(values)), values)]
                else:
                    present[key] = values
    return {key: values for key, values in (present | sums).items() if any(values)}


@given(
    batches(), st.integers(0, 6), st.integers(0, 4), st.booleans(),
    st.sampled_from(["cumulative", "delta"]),
)  # fmt: skip
def test_a_batch_may_come_between_the_points_of_an_export(
    parts: list[MetricBatch], first: int, points: int, ok: bool, temporality: Temporality
) -> None:
    """As for an exporter that hangs in one of several requests, or fails."""
    assert totals(parts, first, points, ok, temporality) == totals(parts)


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
    assert repr(batch) == f"<MetricBatch of {3 * (MAX_OF_NAME + 1)} spans, 0 levels>"
    assert (len(batch.span_deltas), len(batch.observations)) == (3 * (MAX_OF_NAME + 1), MAX_SINGLE)
    found = totals([batch])
    assert sum(sum(one) for key, one in found.items() if key[0] == "dask.span.execute.time") == (
        MAX_SINGLE + 500
    )
    durations = (one for key, one in found.items() if key[0] == semconv.SPAN_DURATION.name)
    assert sum(sum(counts) for *counts, _ in durations) == MAX_SINGLE + 500


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

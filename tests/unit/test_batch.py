"""A batch stays small while nobody takes it."""

from __future__ import annotations

from dask_otel import semconv
from dask_otel.core.metrics.batch import MAX_OF_NAME, MAX_SINGLE, MetricBatch, Observation
from dask_otel.core.metrics.state import MetricState


def test_a_batch_that_nobody_takes_grows_with_the_names_alone():
    batch, expected = MetricBatch(), MetricState(0)
    for number in range(MAX_SINGLE + 500):
        tags = (f"name {number % 3}",)
        span_id, ids = f"s{number}", (1, number + 1)
        deltas = batch.span_deltas.get(span_id) or batch.deltas_of(span_id, tags, ids)
        key = ("execute", "inc", "thread-cpu", "seconds")
        deltas.values[key] = deltas.values.get(key, 0.0) + 1.0
        batch.observe(Observation(semconv.SPAN_DURATION.name, (tags, "success"), 2.0, ids))
    assert len(batch.span_deltas) == 3 * (MAX_OF_NAME + 1)
    assert len(batch.observations) == MAX_SINGLE
    expected.apply(batch)
    batch.time_ns = 1
    records = {record.name: record for record in expected.collect(10**18)}
    seconds = [p.value for p in records["dask.span.execute.time"].points if p.value]
    assert sum(seconds) == MAX_SINGLE + 500
    durations = records[semconv.SPAN_DURATION.name].points
    assert sum(point.count for point in durations) == MAX_SINGLE + 500


def test_only_a_span_that_stands_alone_is_an_exemplar():
    batch, state = MetricBatch(time_ns=10**18), MetricState(0)
    key = ("execute", "inc", "thread-cpu", "seconds")
    for _ in range(2):
        for number in range(1, 100):
            place = batch.span_deltas.get(number) or batch.deltas_of(number, ("x",), (1, number))
            place.values[key] = place.values.get(key, 0.0) + float(number)
    state.apply(batch)
    records = {record.name: record for record in state.collect(2 * 10**18)}
    point = records["dask.span.execute.time"].points[-1]
    assert point.value == 2 * sum(range(100))
    (exemplar,) = point.exemplars
    assert 1 <= exemplar.span_id <= MAX_OF_NAME
    assert exemplar.value == 2 * exemplar.span_id

"""A batch stays small while nobody takes it."""

from __future__ import annotations

from dask_otel import semconv
from dask_otel.core.filling import MAX_SINGLE, keep, observe
from dask_otel.core.records import MetricBatch, Observation, SpanDeltas
from dask_otel.core.series import MetricState


def test_a_batch_that_nobody_takes_grows_with_the_names_alone():
    batch, expected = MetricBatch(), MetricState(0)
    for number in range(MAX_SINGLE + 500):
        tags = (f"name {number % 3}",)
        span_id, ids = f"s{number}", (1, number + 1)
        deltas = keep(batch, span_id, SpanDeltas(tags, ids))
        key = ("execute", "inc", "thread-cpu", "seconds")
        deltas.values[key] = deltas.values.get(key, 0.0) + 1.0
        observe(batch, Observation(semconv.SPAN_DURATION.name, (tags, "success"), 2.0, ids))
    assert len(batch.span_deltas) == MAX_SINGLE + 3
    assert len(batch.observations) == MAX_SINGLE
    expected.apply(batch)
    batch.time_ns = 1
    records = {record.name: record for record in expected.collect(10**18)}
    seconds = [p.value for p in records["dask.span.execute.time"].points if p.value]
    assert sum(seconds) == MAX_SINGLE + 500
    durations = records[semconv.SPAN_DURATION.name].points
    assert sum(point.count for point in durations) == MAX_SINGLE + 500

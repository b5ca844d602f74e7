"""What the event loop puts into a batch of metrics one by one, up to a limit.

A batch is handed over long before that, unless every exporter hangs. What waits then must not
grow with the number of spans, but with that of their names alone.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from dask_otel.core.distribution import Distribution
from dask_otel.core.records import MetricBatch, Observation, RawSeries, SpanDeltas

#: Spans, and points of histograms, that a batch keeps apart.
MAX_SINGLE: Final = 10_000


def observe(batch: MetricBatch, observation: Observation) -> None:
    """Add a point of a histogram; beyond `MAX_SINGLE` without its exemplar."""
    if len(batch.observations) < MAX_SINGLE:
        batch.observations.append(observation)
        return
    distribution(batch, (observation.metric, *observation.labels)).add(observation.value)


def distribution(batch: MetricBatch, series: RawSeries) -> Distribution:
    """Return a batch's distribution of a series, an empty one where there was none."""
    found = batch.distributions.get(series)
    if found is None:
        found = batch.distributions[series] = Distribution()
    return found


def keep(batch: MetricBatch, span_id: Hashable, deltas: SpanDeltas) -> SpanDeltas:
    """Keep the deltas of a span that is new to a batch; returns where they are added up.

    Beyond `MAX_SINGLE` spans, those of one name share a place, and the exemplars of one.
    """
    if len(batch.span_deltas) < MAX_SINGLE:
        batch.span_deltas[span_id] = deltas
        return deltas
    return batch.span_deltas.setdefault(deltas.tags, deltas)

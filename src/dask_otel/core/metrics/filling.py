"""What the event loop puts into a batch of metrics one by one, up to a limit.

A batch is handed over long before that, unless every exporter hangs. What waits then must not
grow with the number of spans, but with that of their names alone.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from dask_otel.core.metrics.distribution import Distribution
from dask_otel.core.records import MetricBatch, Observation, RawSeries, SpanDeltas, Tags

#: Points of histograms that a batch keeps apart.
MAX_SINGLE: Final = 10_000
#: Spans of one name that a batch keeps apart. Each of them can be an exemplar; thousands would
#: be as many containers more for Python's garbage collector, to become the same few series.
MAX_OF_NAME: Final = 8


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


def deltas_of(
    batch: MetricBatch, span_id: Hashable, tags: Tags, ids: tuple[int, int] | None
) -> SpanDeltas:
    """Return where a batch adds up the deltas of a span that it does not know yet.

    Beyond `MAX_OF_NAME` spans of a name, the others share a place, and are no exemplars.
    """
    count = batch.spans_of_name.get(tags, 0)
    if count >= MAX_OF_NAME:
        span_id, ids = tags, None
        shared = batch.span_deltas.get(tags)
        if shared is not None:
            return shared
    else:
        batch.spans_of_name[tags] = count + 1
    deltas = batch.span_deltas[span_id] = SpanDeltas(tags, ids)
    return deltas

"""A batch of metrics: what changed since the last one, on its way from the event loop to a thread.

It is handed over at every export, unless every exporter hangs. What waits then must not grow with
the number of spans, but with that of their names alone: hence the limits.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from dask_otel.core.metrics.distribution import Distribution
from dask_otel.core.records import Tags, WorkerMetricKey

#: Points of histograms that a batch keeps apart.
MAX_SINGLE: Final = 10_000
#: Spans of one name that a batch keeps apart. Each of them can be an exemplar; thousands would
#: be as many containers more for Python's garbage collector, to become the same few series. Where
#: one trace in ten is sampled, 58 % of the points have an exemplar so; with one span it were 9 %.
MAX_OF_NAME: Final = 8

#: A series before its labels are text: the metric's name, then the label values in the
#: order of `semconv`; the span label (name and root name) stands as one `Tags` tuple.
RawSeries: TypeAlias = tuple[Hashable, ...]


class Observation(NamedTuple):
    """One point of a histogram."""

    metric: str
    #: Label values in the order of the metric's definition in `semconv`; the span label
    #: stands as one `Tags` tuple.
    labels: tuple[Hashable, ...]
    value: float
    ids: tuple[int, int] | None


@dataclass(slots=True)
class SpanDeltas:
    """What the workers reported for one Dask span since the last batch.

    Or for several of one name, together; see `MetricBatch.deltas_of`.
    """

    tags: Tags
    #: (trace id, span id) for the exemplars; None for several spans.
    ids: tuple[int, int] | None
    values: dict[WorkerMetricKey, float] = field(default_factory=dict)


@dataclass(slots=True)
class MetricBatch:
    """Everything that changed in the metrics since the last batch.

    The event loop fills one and swaps it for an empty one: handing over costs the same
    however much is in it. Its methods are the only way to change it; who has been handed one
    reads it.
    """

    #: When the batch was handed over; 0 while it is being filled.
    time_ns: int = 0
    #: By Dask span id; by tags where many share a place.
    span_deltas: dict[Hashable, SpanDeltas] = field(default_factory=dict)
    #: How many spans of a name stand in `span_deltas` by their id.
    spans_of_name: dict[Tags, int] = field(default_factory=dict)
    #: Deltas of ``Scheduler.cumulative_worker_metrics``, over all workers.
    worker_deltas: dict[Hashable, float] = field(default_factory=dict)
    #: Increments of counters and up-down counters.
    increments: dict[RawSeries, float] = field(default_factory=dict)
    #: Present values of up-down counters and gauges.
    levels: dict[RawSeries, float] = field(default_factory=dict)
    observations: list[Observation] = field(default_factory=list)
    #: Durations counted by bucket, for histograms with too many to list them.
    distributions: dict[RawSeries, Distribution] = field(default_factory=dict)
    #: Levels of what is there no longer, such as a worker that left.
    ended: list[RawSeries] = field(default_factory=list)

    def add(self, *series: Hashable, value: float = 1) -> None:
        """Add an increment to a counter, or to an up-down counter."""
        increments = self.increments
        increments[series] = increments.get(series, 0) + value

    def add_of_worker(self, key: Hashable, value: float) -> None:
        """Add a delta of ``Scheduler.cumulative_worker_metrics``."""
        self.worker_deltas[key] = self.worker_deltas.get(key, 0) + value

    def set_level(self, *series: Hashable, value: float) -> None:
        """Set the present value of an up-down counter or gauge."""
        self.levels[series] = value

    def observe(self, observation: Observation) -> None:
        """Add a point of a histogram; beyond `MAX_SINGLE` without its exemplar."""
        if len(self.observations) < MAX_SINGLE:
            self.observations.append(observation)
            return
        self.distribution(observation.metric, *observation.labels).add(observation.value)

    def distribution(self, *series: Hashable) -> Distribution:
        """Return the distribution of a series, an empty one where there was none."""
        found = self.distributions.get(series)
        if found is None:
            found = self.distributions[series] = Distribution()
        return found

    def deltas_of(self, span_id: Hashable, tags: Tags, ids: tuple[int, int] | None) -> SpanDeltas:
        """Return where the deltas of a span add up that is not known yet.

        Beyond `MAX_OF_NAME` spans of a name, the others share a place, and are no exemplars.
        """
        count = self.spans_of_name.get(tags, 0)
        if count >= MAX_OF_NAME:
            span_id, ids = tags, None
            shared = self.span_deltas.get(tags)
            if shared is not None:
                return shared
        else:
            self.spans_of_name[tags] = count + 1
        deltas = self.span_deltas[span_id] = SpanDeltas(tags, ids)
        return deltas


class Batches:
    """The batch that is being filled, for all who fill it."""

    def __init__(self) -> None:
        #: What changed in the metrics since the last `swap`.
        self.open = MetricBatch()

    def swap(self, time_ns: int) -> MetricBatch:
        """Return the batch, closed at that time; the next one begins."""
        batch, self.open = self.open, MetricBatch()
        batch.time_ns = time_ns
        return batch

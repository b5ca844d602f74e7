"""A batch of metrics: the changes since the last one, for the way from the event loop to a thread.

It is handed over at every export, unless every exporter hangs. A waiting batch must not grow with
the number of spans, only with the number of their names: hence the limits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple, TypeAlias

from dask_otel import semconv
from dask_otel.core.records import SpanMetricKey, Tags

#: Limit of the measurements that a batch keeps as single observations.
MAX_SINGLE: Final = 10_000
#: Limit of the spans of one name that a batch keeps separate. Each can be an exemplar; thousands
#: would be as many containers for Python's garbage collector, and end in the same few series. If
#: one trace in ten is sampled, 58 % of the points have an exemplar; with one span it would be 9 %.
MAX_OF_NAME: Final = 8

#: A series with raw labels: the metric's name, then the label values in the order of `semconv`.
#: The span label (name and root name) is one `Tags` tuple.
RawSeries: TypeAlias = tuple[Hashable, ...]


_BOUNDS: Final = (*semconv.DURATION_BOUNDS, inf)


@dataclass(slots=True)
class Distribution:
    """Durations in seconds, counted by bucket (`semconv.DURATION_BOUNDS`)."""

    #: One more than the bounds.
    counts: list[int] = field(default_factory=([0] * len(_BOUNDS)).copy)
    sum: float = 0.0
    low: float = inf
    high: float = -inf

    def add(self, *seconds: float) -> None:
        """Count some durations. A negative one, from a clock that was set back, counts as 0."""
        ordered = sorted(seconds)
        if ordered[0] < 0.0:
            ordered = [max(0.0, one) for one in ordered]
        low, high = ordered[0], ordered[-1]
        known = 0
        for bucket in range(bisect_left(_BOUNDS, low), bisect_left(_BOUNDS, high) + 1):
            before, known = known, bisect_right(ordered, _BOUNDS[bucket])
            self.counts[bucket] += known - before
        self.sum += sum(ordered)
        self.low, self.high = min(self.low, low), max(self.high, high)

    def merge(self, other: Distribution) -> None:
        """Add the counts of another distribution."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)


class Observation(NamedTuple):
    """One measurement: a point of a histogram, or an increment of a counter with an exemplar."""

    metric: str
    #: As in `RawSeries`.
    labels: tuple[Hashable, ...]
    value: float
    ids: tuple[int, int] | None


@dataclass(slots=True)
class SpanDeltas:
    """Values that workers reported since the last batch for one Dask span.

    Or for several spans of one name: see `MetricBatch.deltas_of`.
    """

    tags: Tags
    #: (trace id, span id) for the exemplars; None for several spans.
    ids: tuple[int, int] | None
    values: dict[SpanMetricKey, float] = field(default_factory=dict)


@dataclass(slots=True, repr=False)
class MetricBatch:
    """Everything that changed in the metrics since the last batch.

    The event loop fills one and swaps it for an empty one, so the hand-over costs the same for any
    size. Only its methods change it, and only before the hand-over.
    """

    #: When the batch was handed over; 0 while it is being filled.
    time_ns: int = 0
    #: By Dask span id; by tags if many share a place.
    span_deltas: dict[Hashable, SpanDeltas] = field(default_factory=dict)
    #: Number of spans of a name that are in `span_deltas` by their id.
    spans_of_name: dict[Tags, int] = field(default_factory=dict)
    #: Deltas of ``Scheduler.cumulative_worker_metrics``, over all workers.
    cluster_deltas: dict[Hashable, float] = field(default_factory=dict)
    #: Increments of counters and up-down counters.
    increments: dict[RawSeries, float] = field(default_factory=dict)
    #: Present values of up-down counters and gauges.
    levels: dict[RawSeries, float] = field(default_factory=dict)
    observations: list[Observation] = field(default_factory=list)
    #: Histograms with too many durations for `observations`.
    distributions: defaultdict[RawSeries, Distribution] = field(
        default_factory=lambda: defaultdict(Distribution)
    )
    #: Levels whose subject is gone, such as a worker that left.
    ended: list[RawSeries] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<MetricBatch of {len(self.span_deltas)} spans, {len(self.levels)} levels>"

    def add(self, *series: Hashable, value: float = 1) -> None:
        """Add an increment to a counter, or to an up-down counter."""
        increments = self.increments
        increments[series] = increments.get(series, 0) + value

    def add_of_cluster(self, deltas: Mapping[Hashable, float], without: Set[Hashable]) -> None:
        """Add deltas of ``Scheduler.cumulative_worker_metrics``, except those of some contexts."""
        known = self.cluster_deltas
        for key, value in deltas.items():
            if type(key) is tuple and key and key[0] not in without:
                known[key] = known.get(key, 0) + value

    def set_level(self, *series: Hashable, value: float) -> None:
        """Set the present value of an up-down counter or gauge."""
        self.levels[series] = value

    def observe(self, observation: Observation) -> None:
        """Add a measurement; beyond `MAX_SINGLE` without its exemplar."""
        series = (observation.metric, *observation.labels)
        if len(self.observations) < MAX_SINGLE:
            self.observations.append(observation)
        elif semconv.METRICS[observation.metric].instrument == "histogram":
            self.distributions[series].add(observation.value)
        else:
            self.add(*series, value=observation.value)

    def deltas_of(self, span_id: Hashable, tags: Tags, ids: tuple[int, int] | None) -> SpanDeltas:
        """Return the deltas of a span that is new in this batch.

        Spans of a name beyond `MAX_OF_NAME` share one, and are not exemplars.
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


@dataclass(slots=True)
class Batches:
    """The present batch, shared by its writers."""

    open: MetricBatch = field(default_factory=MetricBatch)

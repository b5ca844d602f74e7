"""Computed seconds of the cluster, of each span, and of each worker in each task group."""

from __future__ import annotations

from typing import Final, NamedTuple

from dask_otel.core.life.open_span import Group, OpenSpan

#: Most workers of a group whose seconds are known.
MAX_WORKERS: Final = 128
#: A worker differs if its runs take so many times as long as the others' on average.
_DIFFERS: Final = 1.5


class SlowWorker(NamedTuple):
    """The worker of a group whose runs take the longest on average."""

    name: str
    runs: int
    seconds: float


class Computing:
    """Adds up the seconds of all runs with a result. O(1) for each."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def opened(self, span: OpenSpan) -> None:
        """Note when a span began."""
        span.cluster_before = span.cluster_computed = self.seconds

    def quiet(self, span: OpenSpan) -> None:
        """Note when the work of a span was done."""
        span.cluster_computed = self.seconds

    def ran(self, group: Group, worker: object, seconds: float) -> None:
        """Add a run: `worker` is the worker's name."""
        self.seconds += seconds
        span = group.span
        span.computed += seconds
        if span.above:
            # A loop over none costs more than the question.
            for above in span.above:
                above.computed += seconds
        known, runs = group.computed, group.run_counts
        if worker in known:
            known[worker] += seconds
            runs[worker] += 1
        elif len(known) < MAX_WORKERS:
            known[worker], runs[worker] = seconds, 1

    def elsewhere(self, span: OpenSpan) -> float:
        """Return what other spans' tasks computed while a span, or one below it, had work."""
        until = self.seconds if span.busy else span.cluster_computed
        return max(0.0, until - span.cluster_before - span.computed)


def slow_worker(group: Group) -> SlowWorker | None:
    """Return the slowest worker of a group, if it differs from the others; each has two runs."""
    means = {w: group.computed[w] / n for w, n in group.run_counts.items() if n > 1}
    if len(means) < 2:
        return None
    name = max(means, key=means.__getitem__)
    runs = sum(group.run_counts.values()) - group.run_counts[name]
    others = (sum(group.computed.values()) - group.computed[name]) / runs
    if means[name] < _DIFFERS * others:
        return None
    return SlowWorker(str(name), group.run_counts[name], group.computed[name])

"""Computed seconds of the cluster, of each span, and of the workers of a task group."""

from __future__ import annotations

from typing import Final, NamedTuple

from dask_otel.core.life.open_span import Group, OpenSpan

#: Most workers of a group whose runs are known; first runs of a group that are looked at, and then
#: each of so many.
MAX_WORKERS: Final = 128
_FIRST, _EACH = 64, 8
#: A worker differs if its runs take so many times as long as the others' on average.
_DIFFERS: Final = 1.5


class SlowWorker(NamedTuple):
    """The worker of a group whose runs take the longest on average."""

    name: str
    #: Its share of the runs; mean seconds of its runs, and of the others'.
    share: float
    mean: float
    others: float


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
        if group.memory > _FIRST and group.memory % _EACH:
            return
        runs = group.by_worker.get(worker)
        if runs is not None:
            runs[0] += 1
            runs[1] += seconds
        elif group.tasks > 1 and len(group.by_worker) < MAX_WORKERS:
            group.by_worker[worker] = [1, seconds]

    def elsewhere(self, span: OpenSpan) -> float:
        """Return what other spans' tasks computed while a span, or one below it, had work."""
        until = self.seconds if span.busy else span.cluster_computed
        return max(0.0, until - span.cluster_before - span.computed)


def slow_worker(group: Group) -> SlowWorker | None:
    """Return the slowest worker of a group, if it differs from the others; each has two runs."""
    known = {name: runs for name, runs in group.by_worker.items() if runs[0] > 1}
    if len(known) < 2:
        return None
    name = max(known, key=lambda one: known[one][1] / known[one][0])
    count, seconds = known.pop(name)
    runs = sum(count for count, _ in known.values())
    others = sum(seconds for _, seconds in known.values()) / runs
    mean = seconds / count
    if mean < _DIFFERS * others:
        return None
    return SlowWorker(str(name), count / (count + runs), mean, others)

"""Computed seconds and times of the cluster, of each span, and of the workers of a task group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from dask_otel.core.life.open_span import Group, OpenSpan
from dask_otel.core.metrics.batch import Distribution
from dask_otel.core.pace import slow_of
from dask_otel.core.path.step import SECONDS, START, STOP, WORKER
from dask_otel.core.records import RawRun

#: Runs of a group that are added together. One by one, each takes 24,000 instructions more,
#: and 600 more by 16. A run takes 300 bytes until then.
TOGETHER: Final = 32
#: Most workers of a group whose runs are known; first runs of a group that are looked at, and then
#: each of so many, if they take fewer seconds on average. If longer ones are slow, few cost much.
MAX_WORKERS: Final = 128
_FIRST, _EACH, _SHORT = 64, 8, 0.1
#: Of the runs of a worker, so many sums are known; and once more as those of the latest ones, for
#: which earlier runs count less with each later one, by this factor.
_SUMS: Final = 3
_LATEST: Final = 0.75

_seconds, _start, _stop = map(itemgetter, (SECONDS, START, STOP))


class Computing:
    """Adds up the seconds and the times of all runs with a result. O(1) for each.

    Parameters
    ----------
    ran
        Called with a group, None, and the first start, the last end (twice) of some runs.
    """

    def __init__(self, ran: Callable[[Group, None, float, float, float], None]) -> None:
        self._ran = ran
        #: Called with a group and the runs that are added, if anybody keeps them.
        self.keep: Callable[[Group, list[RawRun]], None] | None = None
        self.seconds = 0.0
        #: The groups with runs that are not added. The owner puts them here, and calls `add` if
        #: one has `TOGETHER`.
        self.waiting: dict[Group, None] = {}
        #: Since the last export: seconds by prefix, and the number of runs by group. Hashing a
        #: group is fast, and hashing its series is not.
        self.durations: defaultdict[str, Distribution] = defaultdict(Distribution)
        self.counts: defaultdict[Group, int] = defaultdict(int)

    def opened(self, span: OpenSpan) -> None:
        """Note when a span began."""
        self.add_all()
        span.cluster_before = span.cluster_computed = self.seconds

    def quiet(self, span: OpenSpan) -> None:
        """Note when the work of a span was done."""
        self.add_all()
        span.cluster_computed = self.seconds

    def add_all(self) -> None:
        """Add the runs of all groups."""
        for group in [*self.waiting]:
            self.add(group)

    def add(self, group: Group) -> None:
        """Add the runs of a group."""
        del self.waiting[group]
        runs, group.new_runs = group.new_runs, []
        if self.keep is not None:
            self.keep(group, runs)
        spent = [*map(_seconds, runs)]
        seconds = sum(spent)
        self.counts[group] += len(runs)
        self.durations[group.prefix].add(*spent)
        self.seconds += seconds
        for span in (group.span, *group.span.above):
            span.computed += seconds
        ended = max(map(_stop, runs))
        self._ran(group, None, min(map(_start, runs)), ended, ended)
        by_worker = group.by_worker
        some = group.memory > _FIRST and seconds < _SHORT * len(runs)
        for run in runs[::_EACH] if some else runs:
            known, took = by_worker.get(run[WORKER]), run[SECONDS]
            if known is not None:
                runs_of, sums, squares, latest, latest_sums, latest_squares = known
                known[:] = (
                    runs_of + 1,
                    sums + took,
                    squares + took * took,
                    latest * _LATEST + 1,
                    latest_sums * _LATEST + took,
                    latest_squares * _LATEST + took * took,
                )
            elif group.tasks > 1 and len(by_worker) < MAX_WORKERS:
                by_worker[run[WORKER]] = [1, took, took * took] * 2

    def elsewhere(self, span: OpenSpan) -> float:
        """Return what other spans' tasks computed while a span, or one below it, had work."""
        self.add_all()
        until = self.seconds if span.busy else span.cluster_computed
        return max(0.0, until - span.cluster_before - span.computed)


def slow_workers(group: Group, seconds: float) -> tuple[list[str], float, float, float] | None:
    """Return the slow workers of a group, if it has some.

    Returns their names, the share of the runs that were slow there, and the mean seconds of these
    and of the others'. All runs computed for `seconds`.
    """
    # One that was as fast as others before is slow by its latest runs only.
    for first in (0, _SUMS):
        runs = {name: one[first:][:_SUMS] for name, one in group.by_worker.items()}
        names, own, others = slow_of(runs)
        if names:
            mean, usual = (one[1] / one[0] for one in (own, others))
            more = (seconds / max(1, group.memory) - usual) / (mean - usual)
            share = more if first else own[0] / (own[0] + others[0])
            return [*map(str, names)], min(1.0, max(0.0, share)), mean, usual
    return None

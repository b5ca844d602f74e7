"""When threads were really free: from the tasks' own start and stop, and the scheduler's workers.

A closed sum is no evidence that idle is true: this is what the exported idle is compared with,
at every export and not at the end alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

import pytest
from distributed import get_worker

from tests.cluster.conftest import Bridged
from tests.cluster.truth import described_spans
from tests.receiver import Receiver
from tests.waiting import eventually

#: Seconds a scenario may be off: hand-over between scheduler, worker and thread on a machine
#: that other tests share. The errors to be caught are whole tasks, of a second and more.
TOLERANCE = 0.3

#: Idle may come two heartbeats of 0.5 s after it passed, and shows at the next export.
LATE = 1.5

#: Export ten times a second: what jumps and falls back is seen.
FAST = {"OTEL_METRIC_EXPORT_INTERVAL": "100"}


class Run(NamedTuple):
    """One occupation of a thread, by the wall clock that Dask uses too."""

    #: Address of the worker; None if the process that ran it can't tell.
    worker: str | None
    start: float
    stop: float


#: Every run so far, written by the tasks themselves; workers are threads of this process.
RUNS: list[Run] = []
_LOCK = threading.Lock()


@contextmanager
def recorded() -> Iterator[None]:
    """Record the block as a run; to be used in a task."""
    worker, began = get_worker().address, time.time()
    try:
        yield
    finally:
        with _LOCK:
            RUNS.append(Run(worker, began, time.time()))


def work(seconds: float, *_: object) -> float:
    """A task that holds its thread for some time."""
    with recorded():
        time.sleep(seconds)
    return seconds


def fail(seconds: float) -> None:
    """A task that fails after some time."""
    with recorded():
        time.sleep(seconds)
        raise RuntimeError("as asked for")


@dataclass
class Truth:
    """Free thread-seconds of a cluster while it had work, up to any moment."""

    #: When there was work.
    begin: float
    end: float
    #: Dask's own ``total_nthreads_history``.
    threads: list[tuple[float, int]]
    #: When workers left: what their threads did afterwards is nobody's.
    left: dict[str, float]

    @classmethod
    def of(cls, bridged: Bridged, span_name: str, end: float | None = None) -> Truth:
        """Take the time of a span's work, and the scheduler's history of workers.

        Parameters
        ----------
        end
            When there was no more work; None if that is when the last run stopped.
        """
        scheduler = bridged.scheduler
        begin = min(
            dask_span["enqueued"]
            for dask_span in bridged.client.run_on_scheduler(described_spans).values()
            if dask_span["name"][0] == span_name
        )
        left = {
            event["worker"]: when
            for when, event in scheduler.get_events("all")
            if event.get("action") == "remove-worker"
        }
        if end is None:
            end = max(run.stop for run in RUNS if run.stop < inf)
        return cls(begin, end, list(scheduler.total_nthreads_history), left)

    def capacity(self, until: float = inf) -> float:
        """Thread-seconds that there were."""
        until = min(until, self.end)
        return sum(
            max(0.0, min(after[0], until) - max(before[0], self.begin)) * before[1]
            for before, after in pairwise([*self.threads, (inf, 0)])
        )

    def busy(self, until: float = inf) -> float:
        """Thread-seconds in which a task ran."""
        until = min(until, self.end)
        seconds = 0.0
        for run in RUNS:
            stop = min(run.stop, until, self.left.get(run.worker or "", inf))
            seconds += max(0.0, stop - max(run.start, self.begin))
        return seconds

    def ran(self) -> float:
        """Thread-seconds of all runs, with what ran on when there was no more work."""
        return sum(min(run.stop, self.left.get(run.worker or "", inf)) - run.start for run in RUNS)

    def idle(self, until: float = inf) -> float:
        """Thread-seconds in which a thread was free."""
        return self.capacity(until) - self.busy(until)


def cluster_time(received: Receiver, activity: str) -> float:
    """Return the last value of an activity of ``dask.cluster.time``."""
    return received.last("dask.cluster.time").get((("dask.activity", activity),), 0.0)


def reported_time(received: Receiver) -> float:
    """Return what the workers reported, over all activities."""
    return sum(
        value
        for labels, value in received.last("dask.cluster.time").items()
        if dict(labels)["dask.activity"] not in ("idle", "unused", "lost")
    )


def excess_time(received: Receiver) -> float:
    """Return what was booked beyond the threads."""
    return received.last("dask.cluster.excess.time")[()]


def idle_points(received: Receiver) -> list[tuple[float, float]]:
    """Return every exported (time, idle seconds)."""
    return [
        (point.time_ns / 1e9, point.value)
        for point in received.points
        if point.metric == "dask.cluster.time" and point.attributes["dask.activity"] == "idle"
    ]


def at_rest(bridged: Bridged) -> Receiver:
    """Wait until nothing is in flight any more and all has been exported."""
    received = bridged.exported(60)
    eventually(lambda: received.last("dask.cluster.inflight.time")[()] == 0, 20, "in flight is 0")
    return bridged.exported()


def assert_idle_is_true(
    received: Receiver,
    truth: Truth,
    late: float = inf,
    overhead: float = 0.0,
    within: float = TOLERANCE,
) -> None:
    """Check every exported value of idle, while it ran and at rest.

    Parameters
    ----------
    late
        Seconds after which idle that passed must show at the latest.
    overhead
        Seconds that Dask metered beyond what the tasks saw of themselves; these are not idle.
    """
    points = idle_points(received)
    assert points[-1][0] > truth.end
    below = within + overhead
    for at, idle in points:
        assert idle <= truth.idle(at) + within, (at - truth.begin, idle, truth.idle(at))
        settled = truth.idle(at - late)
        assert idle >= settled - below, (at - truth.begin, idle, settled)
    assert abs(points[-1][1] + overhead - truth.idle()) <= within, (points[-1][1], truth.idle())


def used_unreported(bridged: Bridged, name: str, end: float | None = None) -> float:
    """Seconds that tasks ran on workers that were there, and that were never reported."""
    reported = reported_time(at_rest(bridged))
    return Truth.of(bridged, name, end).ran() - reported


def check(
    bridged: Bridged,
    name: str,
    *,
    end: float | None = None,
    late: float = LATE,
    lost: float = 0.0,
    excess: float = 0.0,
    within: float = TOLERANCE,
) -> Truth:
    """Wait until the cluster is at rest, and compare everything with the truth.

    Parameters
    ----------
    name
        Of the span with the work.
    end
        When there was no more work, if not when the last run stopped.
    lost, excess
        The truth, in seconds.
    """
    received = at_rest(bridged)
    truth = Truth.of(bridged, name, end)
    # What is reported was compared with Dask's own figures before.
    overhead = max(0.0, reported_time(received) - (truth.ran() - lost) - excess)
    assert_idle_is_true(received, truth, late, overhead, within)
    assert cluster_time(received, "lost") == pytest.approx(lost, abs=within)
    assert excess_time(received) == pytest.approx(excess, abs=within)
    return truth

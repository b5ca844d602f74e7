"""Which workers still owe a finished span its last metrics.

Workers send metrics with their heartbeats, so those of the last tasks come after the tasks'
ends. "A heartbeat since" is not enough: it may have been cut before the end and travelled
long. One that *began* since is, and so is the second one that arrived since.
"""

from __future__ import annotations

import math

from dask_otel.core.spans import OpenSpan


class WorkerClock:
    """What a worker's heartbeats say about how far its reports reach."""

    __slots__ = ("beats", "began", "cancelled", "least_delay")

    def __init__(self) -> None:
        self.beats = 0
        self.least_delay = math.inf
        #: When its last heartbeat began, on the scheduler's clock.
        self.began = 0.0
        #: Cancelled tasks that still ran at its last heartbeat.
        self.cancelled = 0


class Reports:
    """How far the reports of each worker reach."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerClock] = {}

    def heartbeat(self, worker: str, received: float, delay: float, cancelled: int) -> None:
        """A worker has reported everything that it had metered when the heartbeat began.

        Parameters
        ----------
        received
            When it arrived (``WorkerState.last_seen``).
        delay
            Its way and the clocks' difference (``WorkerState.time_delay``).
        cancelled
            Cancelled tasks that still ran.
        """
        clock = self._workers.get(worker)
        if clock is None:
            clock = self._workers[worker] = WorkerClock()
        clock.beats += 1
        # The smallest delay seen is taken for the clocks' difference; the rest was spent
        # between the worker's reading of its clock and the arrival. It may drift by a
        # millisecond a heartbeat, so that a step of a clock heals.
        clock.least_delay = min(delay, clock.least_delay + 0.001)
        clock.began = received - (delay - clock.least_delay)
        clock.cancelled = cancelled

    def left(self, worker: str) -> None:
        """A worker is gone: nobody waits for it any longer."""
        self._workers.pop(worker, None)

    def clock_set_back(self, now: float) -> None:
        """The scheduler's clock was set back: heartbeats from its future say nothing."""
        for clock in self._workers.values():
            if clock.began > now:
                clock.began = 0.0

    def complete(self, span: OpenSpan) -> bool:
        """Whether every live worker that ran tasks of the span, or ever reported metrics for
        it, has reported since its last task ended."""
        if span.owing is None:
            span.owing = {
                worker: clock.beats
                for worker in span.workers | span.reporters | span.zombies
                if (clock := self._workers.get(worker)) is not None
            }
        owing = span.owing
        for worker in list(owing):
            if not self._has_reported(span, worker, owing[worker]):
                return False
            del owing[worker]
        return True

    def _has_reported(self, span: OpenSpan, worker: str, beats: int) -> bool:
        clock = self._workers.get(worker)
        if clock is None:
            return True
        if clock.began <= span.quiet_since and clock.beats < beats + 2:
            return False
        return not (clock.cancelled and worker in span.zombies)

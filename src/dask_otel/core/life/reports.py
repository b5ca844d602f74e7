"""Which workers still owe a finished span its last metrics.

Workers send metrics with their heartbeats, so those of the last tasks come after the tasks'
ends. "A heartbeat since" is not enough: it may have been cut before the end and travelled
long. One that *began* since is, and so is the second one that arrived since.

A span waits for one worker at a time, and is looked at again when that one has reported: however
many spans wait, a look costs nothing for those about whom there is no news.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from dask_otel.core import clock_step
from dask_otel.core.life.open_span import OpenSpan


@dataclass(slots=True)
class WorkerClock:
    """How far a worker's reports reach, by its heartbeats."""

    beats: int = 0
    least_delay: float = inf
    #: When its last heartbeat began, on the scheduler's clock.
    began: float = 0.0
    #: Cancelled tasks that still ran at its last heartbeat.
    cancelled: int = 0


class Reports:
    """How far the reports of each worker reach."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerClock] = {}
        #: Spans by the worker that they wait for.
        self._waiting: dict[str, dict[OpenSpan, None]] = {}
        #: Spans to look at: new ones, and those for which there was news.
        self._due: dict[OpenSpan, None] = {}

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
        late = delay - clock.least_delay
        if late > clock_step.CLOCK_STEP and clock_step.was_set(received - late, clock.began):
            clock.least_delay, late = delay, 0.0
        clock.began = received - late
        clock.cancelled = cancelled
        self._heard_of(worker)

    def began(self, worker: str) -> float:
        """Return when a worker's last heartbeat began, by the scheduler's clock; 0.0 if none."""
        clock = self._workers.get(worker)
        return 0.0 if clock is None else clock.began

    def left(self, worker: str) -> None:
        """A worker is gone: nobody waits for it any longer."""
        self._workers.pop(worker, None)
        self._heard_of(worker)

    def clock_set_back(self, now: float) -> None:
        """The scheduler's clock was set back: heartbeats from its future say nothing."""
        for clock in self._workers.values():
            if clock.began > now:
                clock.began = 0.0
        for worker in list(self._waiting):
            self._heard_of(worker)

    def _heard_of(self, worker: str) -> None:
        waiting = self._waiting.pop(worker, None)
        if waiting is not None:
            for span in waiting:
                span.awaits = None
            self._due.update(waiting)

    def wait_for(self, span: OpenSpan) -> None:
        """A span's work is done: `take_complete` tells when everything about it is in."""
        self._due[span] = None

    def reported(self, span: OpenSpan, worker: str) -> None:
        """A worker reported metrics of a span."""
        span.reporters[worker] = None

    def begin_anew(self, span: OpenSpan) -> None:
        """A span has work again: who owes metrics will be asked anew."""
        span.owing = None

    def forget(self, span: OpenSpan) -> None:
        """Wait for a span no longer; `OpenSpan.owing` has those who did not report."""
        self._due.pop(span, None)
        if span.awaits is not None:
            waiting = self._waiting[span.awaits]
            del waiting[span]
            if not waiting:
                del self._waiting[span.awaits]
            span.awaits = None

    def take_complete(self) -> list[OpenSpan]:
        """Return the spans that have become complete since the last call, and forget them."""
        due, self._due = self._due, {}
        return [span for span in due if self._complete(span)]

    def _complete(self, span: OpenSpan) -> bool:
        """Whether every live worker that ran tasks of the span, or ever reported metrics for
        it, has reported since its last task ended."""
        if span.owing is None:
            span.owing = {
                worker: clock.beats
                for worker in span.workers.keys() | span.reporters.keys() | span.zombies
                if (clock := self._workers.get(worker)) is not None
            }
        owing = span.owing
        for worker in list(owing):
            if not self._has_reported(span, worker, owing[worker]):
                span.awaits = worker
                self._waiting.setdefault(worker, {})[span] = None
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

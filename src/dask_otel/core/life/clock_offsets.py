"""Start and end of a run on the scheduler's clock.

A worker converts the times of its runs itself. At every heartbeat it estimates the scheduler's
clock, and assumes that the clock was read in the middle of the round trip. If the two ways differ,
the error is half of the difference: usually milliseconds, and 0.1 s in a worker that has just
registered. So runs seem to end after their message arrived, or to begin before the task was sent.

The offset between the two clocks is constant, and every message bounds it:

- a run ended before its message was made, and the message was made before it was received; the
  run began after the task was sent to the worker;
- a heartbeat was sent before it was received, and answered after that: the next heartbeat reports
  the length of the round trip.

So the interval of the offset narrows with every message. It widens by the drift of the clocks, so
that old bounds expire. If a clock is stepped, new bounds contradict the old ones, and the interval
starts again.

The worker reads its clock when it makes the message, a little after the end of the run: usually
0.3 ms, until its event loop notices, and more if threads compete for Python's lock. The offset that
the worker assumes is constant between two heartbeats; the quickest of the first messages reveals
it. Later runs are only shifted by its error if their bounds allow it, which takes a tenth of the
work.

Only times are corrected. Seconds stay as the worker measured them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

#: The fastest drift between two clocks. Quartz is off by 50 ppm at most; NTP corrects it, and
#: slews by less than that after its first minutes.
DRIFT: Final = 1e-4

#: Messages of runs after a heartbeat from which the worker's own offset is known.
SAMPLES: Final = 3

#: A heartbeat that seems older than the previous one by more than these seconds has the time of
#: a clock that was stepped, because heartbeats are sent in order.
CLOCK_STEP: Final = 10.0

#: Round trips of a heartbeat after which its answer has certainly arrived.
ARRIVED: Final = 2.0


@dataclass(slots=True, eq=False)
class WorkerOffset:
    """The offset of one worker: the scheduler's clock minus the worker's.

    Notes
    -----
    O(1) in time and space. Nothing here raises, for any numbers.
    """

    #: Bounds of the offset, at the time `_at`.
    lower: float = -inf
    upper: float = inf
    _at: float = 0.0
    #: When a message last lowered the upper bound.
    _lowered: float = -inf
    #: When the last heartbeat was received, and this time minus the worker's clock at sending.
    _received: float = 0.0
    _delay: float = inf
    #: `_delay` of the quickest recent message.
    _quickest: float = inf
    #: The offset that the worker assumes, from `_samples` messages of runs that began after
    #: `_began` (by its estimate of the scheduler's clock).
    _applied: float = -inf
    _samples: int = 0
    _began: float = inf
    #: How late the worker's times are, for runs that began after `settled`.
    error: float = 0.0
    settled: float = inf

    def heartbeat(self, received: float, delay: float, round_trip: float | None) -> float:
        """Read the clocks of a heartbeat or a registration; return how long it travelled.

        Parameters
        ----------
        received
            When it was received.
        delay
            `received` minus the worker's clock at sending.
        round_trip
            How long the worker waited for the answer to its previous heartbeat; None if
            unknown.

        Returns
        -------
        travelled
            Seconds, without those of the quickest recent message.
        """
        if not -inf < received + delay < inf:
            return 0.0
        if delay - self._quickest > received - self._received + CLOCK_STEP:
            self.lower, self.upper, self._quickest = -inf, inf, inf
        began = received
        if self._delay < inf and round_trip is not None and 0.0 <= round_trip < inf:
            # The answer came after the heartbeat was received. This bound is old: if a newer one
            # contradicts it, it is wrong; if an older one does, a clock was stepped. A late
            # heartbeat contradicts neither. Nor does drift: the upper bound has widened by it.
            lower = self._delay - round_trip
            if self.lower < lower <= self.upper:
                self.lower = lower
            elif self.upper < lower <= delay and self._lowered <= self._received:
                self.lower, self.upper = lower, delay
            began += ARRIVED * round_trip
        self._received, self._delay = received, delay
        # The worker will make a new estimate from the answer.
        self._applied, self._samples, self._began = -inf, 0, began
        self.settled = inf
        self._narrow(-inf, delay, received)
        # Not the upper bound itself, which rises: a heartbeat must not seem newer than it is.
        if not self.lower <= self._quickest <= self.upper:
            self._quickest = self.upper
        return delay - self._quickest

    def corrected(
        self, start: float, stop: float, stamped: float, sent: float, received: float
    ) -> tuple[float, float]:
        """Return a run's start and end on the scheduler's clock, and learn from its message.

        Parameters
        ----------
        start, stop
            The worker's times, by its estimate of the scheduler's clock.
        stamped
            When the worker made the message of the end, on its own clock.
        sent
            When the task was sent to the worker; 0.0 if unknown.
        received
            When the message was received.

        Returns
        -------
        start, stop
            As far apart as the worker's times, and not after `received`. Not before `sent`, unless
            the run is longer than the time between `sent` and `received`.
        """
        length = stop - start
        # The offset that the worker assumes, minus its delay until it noticed the end.
        applied = stop - stamped
        # False if any of them is infinite or NaN.
        if not -inf < length + applied + stamped + sent + received < inf:
            return received, received
        length = max(0.0, length)
        # The run may be too long: a clock was stepped meanwhile, or it began for an earlier
        # assignment that was revoked.
        fits = length <= received - sent
        self._narrow(sent + length - stamped if fits else -inf, received - stamped, received)
        stop = stamped + self._offset(applied)
        # Rounding.
        if stop > received:
            stop = received
        elif fits and stop - length < sent:
            stop = sent + length
        # Not by the worker's own estimate alone, which may be wrong by more than the run has taken;
        # nor without it: an end that a blocked event loop noticed late is of an older estimate.
        began, start = start, stop - length
        if began >= self._began <= start:
            if applied > self._applied:
                self._applied = applied
            self._samples += 1
            if self._samples >= SAMPLES:
                self.settled = self._began
                self.error = self._applied - self._offset(self._applied)
        return start, stop

    def _offset(self, applied: float) -> float:
        """Return the most likely offset, if the worker assumes `applied`."""
        # Tasks on their way to the thread (other tasks, dependencies, imports) are delayed more
        # than messages on their way back, so the upper bound is closer. The worker's value is used
        # if the bounds allow it, but not in the lower half.
        if not self.lower <= applied <= self.upper:
            return self.upper
        middle = 0.5 * (self.lower + self.upper)
        return middle if middle > applied else applied

    def offset(self) -> float:
        """Return the offset that corrects the runs; may be infinite."""
        return self.upper if self._applied == -inf else self._offset(self._applied)

    def _narrow(self, lower: float, upper: float, now: float) -> None:
        """Apply the bounds of a message."""
        drifted = DRIFT * abs(now - self._at)
        self._at = now
        lowest = self.lower - drifted
        highest = self.upper + drifted
        if upper < highest:
            self._lowered = now
        if lower > highest or upper < lowest:
            # A clock was stepped: start again.
            self.lower, self.upper = lower, upper
        else:
            self.lower = lower if lower > lowest else lowest
            self.upper = upper if upper < highest else highest


#: Of an unknown worker.
UNKNOWN_OFFSET: Final = WorkerOffset()


class ClockOffsets:
    """The clocks of all workers of one scheduler, by address.

    Parameters
    ----------
    stimulus_time
        Returns when the worker made a message, on its own clock, by the message's id; None if
        unknown.
    """

    def __init__(self, stimulus_time: Callable[[str], float | None]) -> None:
        self._stimulus_time = stimulus_time
        self._workers: defaultdict[str | None, WorkerOffset] = defaultdict(WorkerOffset)

    def of(self, worker: str) -> WorkerOffset:
        """Return the offset of a worker, which is then known."""
        return self._workers[worker]

    def worker_removed(self, worker: str) -> None:
        """Forget a worker that is gone."""
        self._workers.pop(worker, None)

    def offset(self, worker: str | None) -> float | None:
        """Return the scheduler's clock minus a worker's own; None if unknown."""
        offset = self._workers.get(worker, UNKNOWN_OFFSET).offset()
        return offset if -inf < offset < inf else None

    def bounds(self, worker: str | None) -> tuple[float | None, float | None]:
        """Return the bounds of the scheduler's clock minus a worker's; None if unknown."""
        known = self._workers.get(worker, UNKNOWN_OFFSET)
        lower, upper = known.lower, known.upper
        return (lower if lower > -inf else None), (upper if upper < inf else None)

    def corrected(
        self,
        worker: str | None,
        start: float,
        stop: float,
        message: str,
        sent: float,
        received: float,
    ) -> tuple[float, float]:
        """Return a run's start and end on the scheduler's clock.

        For most runs, whose offset is `settled`, `_dask/tasks` does without this call.

        Parameters
        ----------
        worker
            Where it ran; None if unknown.
        start, stop
            The worker's times.
        message
            Id of the message of the end, for `stimulus_time`.
        sent, received
            See `WorkerOffset.corrected`.
        """
        offset = self._workers.get(worker)
        if offset is None:
            return shifted(start, stop, received)
        stamped = self._stimulus_time(message)
        if stamped is None:
            return shifted(start, stop, received)
        return offset.corrected(start, stop, stamped, sent, received)


def shifted(start: float, stop: float, received: float) -> tuple[float, float]:
    """Return a run's times, shifted to end no later than its message was received."""
    length = stop - start
    if not -inf < length + stop < inf:
        return received, received
    stop = min(stop, received)
    return stop - max(0.0, length), stop

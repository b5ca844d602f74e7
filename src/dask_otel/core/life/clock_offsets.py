"""When a run really began and ended, on the scheduler's clock.

A worker converts the times of its runs itself, by an estimate of the scheduler's clock that it
makes anew with every heartbeat: it takes the clock's reading to be from the middle of the round
trip. Where the ways there and back differ, it errs by half of the difference: by milliseconds
usually, and by 0.1 s in a worker that has just registered. So runs ended after they were received,
and began before they were sent.

What is constant is the offset between the two clocks, and every message bounds it:

- a run ended before its message was made, and that before it was received; it began after it was
  sent to the worker;
- a heartbeat was sent before it was received, and its answer came after that: the worker says
  with the next one how long the round trip took.

So the interval in which the offset lies narrows with every message. It widens again by what
clocks drift apart, so that old bounds give way; and where one of the clocks was stepped, new
bounds contradict the old ones, and it starts over.

The reading of the worker's clock is that at which it made the message. It is a little later than
the end of the run: by what its event loop took to notice, which is 0.3 ms usually, and more where
threads compete for Python's lock. What the worker adds to its clock is constant from one heartbeat
to the next, and is had from the quickest of some messages: the other runs are shifted by it, for
a tenth of the work, as long as what is known of them allows that.

Only times are corrected. Seconds stay as the worker has measured them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

#: How fast two clocks may drift apart. Quartz is off by 50 ppm at most; NTP corrects it, and
#: itself slews by less than that but for its first minutes.
DRIFT: Final = 1e-4


#: Messages of runs, after a heartbeat, by which it is found out what the worker adds to its clock.
SAMPLES: Final = 3

#: Round trips of a heartbeat after which its answer has certainly arrived.
ARRIVED: Final = 2.0


class WorkerOffset:
    """What is known of one worker's clock: the scheduler's clock less the worker's.

    Notes
    -----
    O(1) in time and space. Nothing here raises, whatever the numbers.
    """

    __slots__ = (
        "_applied",
        "_at",
        "_began",
        "_delay",
        "_received",
        "_samples",
        "error",
        "lower",
        "settled",
        "upper",
    )

    def __init__(self) -> None:
        #: Bounds of the offset, at the time `_at`.
        self.lower = -inf
        self.upper = inf
        self._at = 0.0
        #: When the last heartbeat was received, and that less the worker's clock when it was
        #: sent.
        self._received = 0.0
        self._delay = inf
        #: What the worker takes for the offset, as far as `_samples` messages showed, in runs
        #: that began after `_began`, by its estimate of the scheduler's clock.
        self._applied = -inf
        self._samples = 0
        self._began = inf
        #: By how much the times are late of runs that began after `settled`.
        self.error = 0.0
        self.settled = inf

    def heartbeat(self, received: float, delay: float, round_trip: float | None) -> None:
        """Take in what a heartbeat, or a registration, says of the clocks.

        Parameters
        ----------
        received
            When it was received.
        delay
            That, less the worker's clock when it was sent.
        round_trip
            How long the worker waited for the answer to the heartbeat before; None if it does
            not say.
        """
        if not -inf < received + delay < inf:
            return
        began = received
        if self._delay < inf and round_trip is not None and 0.0 <= round_trip < inf:
            # The answer came after the heartbeat was received. This is older than what came
            # since: where they contradict each other, it is wrong.
            drifted = DRIFT * abs(self._at - self._received)
            lower = self._delay - round_trip - drifted
            if self.lower < lower <= self.upper:
                self.lower = lower
            began += ARRIVED * round_trip
        self._received, self._delay = received, delay
        # With its answer the worker will make a new estimate.
        self._applied, self._samples, self._began = -inf, 0, began
        self.settled = inf
        self._narrow(-inf, delay, received)

    def shown(
        self, start: float, stop: float, stamped: float, sent: float, received: float
    ) -> tuple[float, float]:
        """Return when a run began and ended, on the scheduler's clock, and learn from it.

        Parameters
        ----------
        start, stop
            As the worker says, by its estimate of the scheduler's clock.
        stamped
            When it made the message that it ended, by its own clock.
        sent
            When the task was sent to the worker; 0.0 if that is not known.
        received
            When the message was received.

        Returns
        -------
        start, stop
            As long apart as the worker says, and not after `received`; not before `sent`
            either, if the run is no longer than the time between the two.
        """
        length = stop - start
        # What the worker takes the offset for, less what it took to notice the end.
        applied = stop - stamped
        # Infinities don't add up to anything finite.
        if not -inf < length + applied + stamped + sent + received < inf:
            return received, received
        if length < 0.0:
            length = 0.0
        # It may be longer: a clock was stepped meanwhile, or the run had begun before, for an
        # assignment that was taken back.
        fits = length <= received - sent
        self._narrow(sent + length - stamped if fits else -inf, received - stamped, received)
        stop = stamped + self._offset(applied)
        # For what is lost in rounding.
        if stop > received:
            stop = received
        elif fits and stop - length < sent:
            stop = sent + length
        if start >= self._began:
            if applied > self._applied:
                self._applied = applied
            self._samples += 1
            if self._samples >= SAMPLES:
                self.settled = self._began
                self.error = self._applied - self._offset(self._applied)
        return stop - length, stop

    def _offset(self, applied: float) -> float:
        """Return the most likely offset, where the worker takes it for `applied`."""
        # What delays tasks on their way to the thread (other tasks, their dependencies, imports)
        # is more than what delays messages on their way back: the upper bound is the closer one.
        # The worker is believed where it can be right, but not in the lower half.
        if not self.lower <= applied <= self.upper:
            return self.upper
        return max(applied, 0.5 * (self.lower + self.upper))

    def offset(self) -> float:
        """Return the scheduler's clock less the worker's, as runs are shown by; may be infinite."""
        return self.upper if self._applied == -inf else self._offset(self._applied)

    def _narrow(self, lower: float, upper: float, now: float) -> None:
        """Take in the bounds that a message gives."""
        drifted = DRIFT * abs(now - self._at)
        self._at = now
        lowest = self.lower - drifted
        highest = self.upper + drifted
        if lower > highest or upper < lowest:
            # A clock was stepped: start over.
            self.lower, self.upper = lower, upper
        else:
            self.lower = lower if lower > lowest else lowest
            self.upper = upper if upper < highest else highest


class ClockOffsets:
    """The clocks of all workers of one scheduler, by address.

    Parameters
    ----------
    stimulus_time
        Reads from the id of a message when the worker made it, by its own clock; None if it does
        not say.
    """

    def __init__(self, stimulus_time: Callable[[str], float | None]) -> None:
        self._stimulus_time = stimulus_time
        self._workers: dict[str | None, WorkerOffset] = {}

    def __len__(self) -> int:
        return len(self._workers)

    def heartbeat(
        self, worker: str, received: float, delay: float, round_trip: float | None
    ) -> None:
        """See `WorkerOffset.heartbeat`; the first one makes the worker known."""
        offset = self._workers.get(worker)
        if offset is None:
            offset = self._workers[worker] = WorkerOffset()
        offset.heartbeat(received, delay, round_trip)

    def left(self, worker: str) -> None:
        """A worker is gone."""
        self._workers.pop(worker, None)

    def offset(self, worker: str | None) -> float | None:
        """Return the scheduler's clock less a worker's own; None if that is not known."""
        known = self._workers.get(worker)
        if known is None:
            return None
        offset = known.offset()
        return offset if -inf < offset < inf else None

    def bounds(self, worker: str | None) -> tuple[float | None, float | None]:
        """Return between what the scheduler's clock less a worker's lies; None is not known."""
        known = self._workers.get(worker)
        if known is None:
            return None, None
        lower, upper = known.lower, known.upper
        return (lower if lower > -inf else None), (upper if upper < inf else None)

    def shown(
        self,
        worker: str | None,
        start: float,
        stop: float,
        message: str,
        sent: float,
        received: float,
    ) -> tuple[float, float]:
        """Return when a run began and ended, on the scheduler's clock.

        Here alone a worker's times become those that are shown. Every run comes here.

        Parameters
        ----------
        worker
            Where it ran; None if that is not known.
        start, stop
            As the worker says.
        message
            Id of the message that it ended, for `stimulus_time`.
        sent, received
            See `WorkerOffset.shown`.
        """
        offset = self._workers.get(worker)
        if offset is None:
            return shifted(start, stop, received)
        if start >= offset.settled:
            error = offset.error
            first, last = start - error, stop - error
            if sent <= first <= last <= received:
                return first, last
        stamped = self._stimulus_time(message)
        if stamped is None:
            return shifted(start, stop, received)
        return offset.shown(start, stop, stamped, sent, received)


def shifted(start: float, stop: float, received: float) -> tuple[float, float]:
    """Return a run as long as it was, ended when it was received at the latest."""
    length = stop - start
    if not -inf < length + stop < inf:
        return received, received
    if length < 0.0:
        length = 0.0
    if stop > received:
        stop = received
    return stop - length, stop

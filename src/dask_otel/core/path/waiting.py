"""Why ready tasks had to wait: for a worker, for any thread, or for one of their worker.

A wait has a remedy only with its counterfactual. So there is one record of the cluster's threads,
which is replaced when their state changes, and tasks keep a reference to it when they begin to wait
and when that ends. The seconds between two such moments are computed only for the tasks of a path.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from math import inf
from typing import Final, TypeAlias

#: The states of a cluster: no worker takes tasks, all threads of those that do are taken, or some
#: of them is certainly free. In the order of their parts of a path.
NO_WORKER, TAKEN, FREE = range(3)

#: Whether a task that was sent to a worker waits there for a thread, and whether one of the others
#: was released: nobody reports when it ends.
AT_ONCE, BEHIND, BEHIND_RELEASED = range(3)

#: Since when the cluster is in its state, the seconds before that without a worker and with a free
#: thread, and the state.
Threads: TypeAlias = tuple[float, float, float, int]
STATE: Final = 3

#: When a thread of a worker became free, and the cluster's threads just before that.
Turn: TypeAlias = tuple[float, Threads | None]

#: The number of ends that a worker keeps for tasks that wait for its threads, or four times its
#: threads.
MAX_ENDS: Final = 64


class FreeThreads:
    """The threads of one cluster that a ready task could have; `now` returns the time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._workers = self._free = 0
        self.present: Threads = (now(), 0.0, 0.0, NO_WORKER)

    def add(self, workers: int, free: int) -> None:
        """Count more workers that take tasks, or fewer, and more free threads of such workers."""
        self._workers += workers
        self._free += free
        state = FREE if self._free else TAKEN if self._workers else NO_WORKER
        if state != self.present[STATE]:
            now = self._now()
            self.present = (now, *_sums(self.present, now), state)


def _sums(threads: Threads, at: float) -> tuple[float, float]:
    """Return the seconds until a time without a worker, and with a free thread."""
    since, absent, free, state = threads
    passed = at - since if at > since else 0.0
    return absent + passed * (state == NO_WORKER), free + passed * (state == FREE)


def waits(
    begin: float, first: Threads | None, end: float, last: Threads | None
) -> tuple[float, float, float]:
    """Return the seconds of a wait by the state of the cluster: no worker, all taken, one free.

    Parameters
    ----------
    begin, end
        When it began, and when it ended.
    first, last
        The cluster's threads at these times; None if unknown, which counts as all taken.
    """
    passed = end - begin
    if passed <= 0.0 or first is None or last is None:
        return 0.0, passed, 0.0
    (absent, free), (absent_before, free_before) = _sums(last, end), _sums(first, begin)
    # The times may be of several clocks.
    absent = min(max(0.0, absent - absent_before), passed)
    free = min(max(0.0, free - free_before), passed - absent)
    return absent, passed - absent - free, free


class Turns:
    """When tasks that waited on one worker could have a thread: another one ended or seceded."""

    __slots__ = ("_ends", "_limit", "pause")

    def __init__(self, threads: int) -> None:
        self._limit = max(MAX_ENDS, 4 * threads)
        #: When the worker noticed each end, by its own clock, and the turn.
        self._ends: list[tuple[float, float, Threads]] = []
        #: When its last pause began, when that ended, and the cluster's threads then.
        self.pause: tuple[float, float, Threads | None] | None = None

    def ended(self, noticed: float, stop: float, threads: Threads) -> None:
        """Record that a thread became free: at `stop`, which its worker noticed then."""
        insort(self._ends, (noticed, stop, threads))
        del self._ends[: -self._limit]

    def paused(self, running: bool, now: float, threads: Threads) -> None:
        """Record that the worker begins no tasks any more, or that it does again."""
        if not running:
            self.pause = now, inf, None
        elif self.pause is not None:
            self.pause = self.pause[0], now, threads

    def of(
        self, waited: int, sent: float, start: float, began: float, threads: Threads
    ) -> Turn | None:
        """Return when a task's worker had a thread for it; None if that was at once.

        Parameters
        ----------
        waited
            Whether it waited for a thread of the worker when it was sent.
        sent, start
            When it was sent, and when it began.
        began
            When it began, by the worker's own clock.
        threads
            The cluster's threads now.
        """
        turn: Turn | None = None
        if waited:
            number = bisect_right(self._ends, (began, inf))
            # If too many others have ended since, it began as soon as it could.
            if number or len(self._ends) == self._limit:
                turn = self._ends[max(0, number - 1)][1:]
            if waited == BEHIND_RELEASED and (turn is None or turn[0] <= sent):
                turn = start, threads
        if self.pause is not None:
            paused, resumed, then = self.pause
            if paused <= start and sent < resumed and (turn is None or turn[0] < resumed):
                return resumed, then
        return turn

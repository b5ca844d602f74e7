"""Why ready tasks had to wait: for a worker, for any thread, or for one of their worker.

A wait has a remedy only with its counterfactual. So there is one record of the cluster's threads,
which is replaced when their state changes, and tasks keep a reference to it when they begin to wait
and when that ends. A run that waited on its worker keeps a reference to the last ends there. All
seconds are computed later, and only for the runs of a path.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple, TypeAlias

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

#: When a thread of a worker became free, and the cluster's threads then.
Turn: TypeAlias = tuple[float, Threads | None]

#: When a run's worker had a thread for it, or the fields of a `Waited`; None if that was at once.
Place: TypeAlias = tuple[Any, ...] | None

#: A worker's last pauses: when each began, when that ended, and the cluster's threads then.
Pauses: TypeAlias = tuple[tuple[float, float, Threads | None], ...]
#: The most of them.
MAX_PAUSES: Final = 8

#: The last ends on one worker, after those before them: of each, the worker's message, when it was,
#: the cluster's threads then, and the task.
Ends: TypeAlias = list[Any]
#: The most ends in one such list. A run keeps two of them at most.
MAX_ENDS: Final = 64


class Waited(NamedTuple):
    """What a run may have waited for on its worker, when that has ended.

    Kept as a plain tuple, which takes a fifth of the instructions.
    """

    #: Returns the worker's clock in a message.
    clock: Callable[[str], float | None]
    #: See `BEHIND`.
    waited: int
    #: Its task, and the message of its end.
    key: Hashable
    message: str
    #: The ends, their number at its own end, and those before them.
    ends: Ends
    number: int
    earlier: Ends | None
    pauses: Pauses
    #: The cluster's threads at its end.
    threads: Threads


def sums(threads: Threads, at: float) -> tuple[float, float]:
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
    (absent, free), (absent_before, free_before) = sums(last, end), sums(first, begin)
    # The times may be of several clocks.
    absent = min(max(0.0, absent - absent_before), passed)
    free = min(max(0.0, free - free_before), passed - absent)
    return absent, passed - absent - free, free


def turn_of(place: Place, sent: float, start: float, stop: float) -> Turn | None:
    """Return when a run's worker had a thread for it; None if that was at once."""
    turn: Turn | None = None
    if place is None or len(place) == 2:
        return place
    run = Waited._make(place)
    noticed = run.clock(run.message)
    if run.waited and noticed is not None:
        # In their order, but for a clock that was set; without that it seceded itself.
        known = [*(run.earlier or ())[1:], *run.ends[1 : run.number]]
        ends = [end for end in known if end[3] != run.key]
        began = noticed - (stop - start)
        number = bisect_right(ends, began, key=lambda end: run.clock(end[0]) or 0.0)
        # If too many others have ended since, it began as soon as it could.
        if number or (ends and run.earlier is not None):
            turn = ends[max(0, number - 1)][1:3]
        if run.waited == BEHIND_RELEASED and (turn is None or turn[0] <= sent):
            turn = start, run.threads
    for paused, resumed, then in reversed(run.pauses):
        # No run begins in a pause, but both times may be off by a message's way.
        if paused + resumed < 2 * start:
            if sent < resumed and (turn is None or turn[0] < resumed):
                return resumed, then
            break
    return turn

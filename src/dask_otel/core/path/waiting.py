"""Why ready tasks had to wait: for a worker, for any thread, or for one of their worker.

A wait has a remedy only with its counterfactual. So there is one record of the cluster's threads,
which is replaced when their state changes, and tasks keep a reference to it when they begin to wait
and when that ends. A run that waited on its worker keeps a reference to the last ends there. All
seconds are computed later, and only for the runs of a path.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf
from typing import Any, Final, TypeAlias

#: The states of a cluster: no worker takes tasks, all threads of those that do are taken, or some
#: of them is certainly free. In the order of their parts of a path.
NO_WORKER, TAKEN, FREE = range(3)

#: Whether a task that was sent to a worker waits there for a thread, and whether one of the others
#: was released: nobody reports when it ends. Or the worker had a thread for it, and others ended
#: there meanwhile: while a task fetches its data, those that were sent later begin. Or another one
#: was released before this one began, and after the last end there: nobody reports when it ended.
AT_ONCE, BEHIND, BEHIND_RELEASED, OVERTAKEN, RELEASED = range(5)
#: A worker begins a task so many seconds after the end for which it waited, at most; an overtaken
#: one waited longer.
MOMENT: Final = 0.01

#: Since when the cluster is in its state, the seconds before that without a worker and with a free
#: thread, and the state.
Threads: TypeAlias = tuple[float, float, float, int]
STATE: Final = 3

#: Of a task that was sent to a worker: the cluster's threads then, whether it waits for one there,
#: and the seconds after which it seceded, if it did. Most tasks share theirs.
Sent: TypeAlias = tuple[Threads | None, int, float | None]
#: In its place.
UNKNOWN: Final[Sent] = (None, AT_ONCE, None)

#: A worker's last pauses: when each began, when that ended, and the cluster's threads then.
Pauses: TypeAlias = tuple[tuple[float, float, Threads | None], ...]
#: The most of them.
MAX_PAUSES: Final = 8

#: Returns the worker's clock in a message; None if it has none.
Clock: TypeAlias = Callable[[str], float | None]

#: How to read the worker's clock, and its last pauses; then the last ends on it, in their order. Of
#: each end: the worker's message, when it was, the cluster's threads then, the task, and whether
#: another one waited for its thread. The list is replaced before old ends are removed, so runs can
#: keep it.
Ends: TypeAlias = list[Any]
#: The ends that a worker keeps at least.
MAX_ENDS: Final = 64

#: When a thread of a worker became free, and the cluster's threads then.
Turn: TypeAlias = tuple[float, Threads | None]

#: When a run's worker had a thread for it, or the ends on its worker, with its own; None if that
#: was at once.
Place: TypeAlias = Turn | Ends | None


def last_ends(ends: Ends) -> Ends:
    """Return a new list of the last ends."""
    return [ends[0], *ends[1:][-MAX_ENDS:]]


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
    if last[0] <= begin:
        # Nothing has changed. The first record is older, if a wait is cut.
        state = last[STATE]
        return passed * (state == NO_WORKER), passed * (state == TAKEN), passed * (state == FREE)
    (absent, free), (absent_before, free_before) = sums(last, end), sums(first, begin)
    # The times may be of several clocks.
    absent = min(max(0.0, absent - absent_before), passed)
    free = min(max(0.0, free - free_before), passed - absent)
    return absent, passed - absent - free, free


def how_waited(
    how: int,
    tied: object,
    ends: Ends,
    key: Hashable,
    sent: float,
    start: float,
    released: float = -inf,
) -> int:
    """Return whether a run waited on its worker, now that it has ended; see `Sent`.

    Parameters
    ----------
    how
        Whether it waited for a thread, as it was known when the run was sent.
    tied
        Whether it needs resources: it can wait for these even if a thread is free.
    ends, key, sent, start
        The last ends on its worker, with or without its own; of the run.
    released
        When a task was last released there before this one may have begun.
    """
    last = next((end[1] for end in reversed(ends[1:]) if end[3] != key), sent)
    if how or tied:
        return RELEASED if released > max(last, sent) else how or BEHIND
    return OVERTAKEN if start > sent + MOMENT and last > sent else AT_ONCE


def turn_of(
    place: Place, how: int, key: Hashable, sent: float, start: float, stop: float
) -> Turn | None:
    """Return when a run's worker had a thread for it; None if that was at once.

    Parameters
    ----------
    how
        Whether it waited; see `Sent`.
    key, sent, start, stop
        Of the run.
    """
    if not isinstance(place, list):
        return place
    turn: Turn | None = None
    (clock, pauses), *known = place
    noticed = None
    if how:
        # The last one: that it seceded may have the same time.
        own = max(number for number, end in enumerate(known) if end[1] == stop and end[3] == key)
        message, _, threads, *_ = known[own]
        noticed = clock(message)
    if noticed is not None:
        # In their order; without that it seceded itself.
        ends = [end for end in known[:own] if end[3] != key and (end[4] or how != OVERTAKEN)]
        began = noticed - (stop - start)
        # From the last one on: those before a clock was set back have later times.
        earlier = (n for n, end in enumerate(reversed(ends)) if (clock(end[0]) or 0.0) <= began)
        number = len(ends) - next(earlier, len(ends))
        # If too many others have ended since, it began as soon as it could.
        waited = number > 0 or (bool(ends) and own >= MAX_ENDS)
        if how == OVERTAKEN and waited:
            # Not if a blocked event loop noticed that end late, and then began this run; or noticed
            # the end of this one late.
            end = ends[number - 1][1]
            waited = sent + MOMENT < end and start - MOMENT <= end <= start + MOMENT
        if waited:
            turn = ends[max(0, number - 1)][1:3]
        if how == RELEASED or (how == BEHIND_RELEASED and (turn is None or turn[0] <= sent)):
            turn = start, threads
    for paused, resumed, then in reversed(pauses):
        # No run begins in a pause, but both times may be off by a message's way.
        if paused + resumed < 2 * start:
            if sent < resumed and (turn is None or turn[0] < resumed):
                return resumed, then
            break
    return turn

"""Breath: a thread of ours lets the event loop have the GIL before that has to ask for it.

A thread that computes in Python keeps the GIL until another one has waited for 5 ms
(``sys.getswitchinterval``, which belongs to the whole process and is not ours to change). The
scheduler's event loop would wait that long each time it wakes up. So our threads sleep for a
moment after each half a millisecond of work: who waits gets the GIL at once. Where nobody took
it, they work a little longer, up to a millisecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

#: Seconds of work between two breaths, where somebody else wants the GIL and where nobody does.
WORK: Final = 0.0005
LONGEST_WORK: Final = 0.001
#: Seconds of a breath: shorter ones end before a waiting thread is awake.
PAUSE: Final = 0.0001
#: A breath that took so many seconds was not over before somebody else had had the GIL.
TAKEN: Final = 0.0003

T = TypeVar("T")


class Breath:
    """Call it after each small piece of work; it sleeps where it is time. For one thread.

    Parameters
    ----------
    clock, sleep
        Seconds, and what waits for some.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._work = WORK
        self._next = 0.0

    def __call__(self) -> None:
        """Sleep if the last breath is long enough ago."""
        now = self._clock()
        if now < self._next:
            return
        self._sleep(PAUSE)
        awake = self._clock()
        self._work = WORK if awake - now > TAKEN else min(LONGEST_WORK, self._work * 1.1)
        self._next = awake + self._work


class BreathingList(list[T]):
    """A list that is gone through with breaths, by whoever does: encoders of the SDK.

    They do all their work on an item before they take the next one.
    """

    def __init__(self, items: Iterable[T], breathe: Breath) -> None:
        super().__init__(items)
        self._breathe = breathe

    def __iter__(self) -> Iterator[T]:
        breathe = self._breathe
        for item in super().__iter__():
            breathe()
            yield item

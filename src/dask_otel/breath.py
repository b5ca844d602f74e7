"""Breath: a thread of ours lets the event loop have the GIL before that has to ask for it.

A thread that computes in Python keeps the GIL until another one has waited for 5 ms
(``sys.getswitchinterval``, which belongs to the whole process and is not ours to change). The
scheduler's event loop would wait that long each time it wakes up. So our threads sleep for a
moment after each half a millisecond of work: who waits gets the GIL at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, TypeVar

#: Seconds of work between two breaths, and of a breath: shorter ones end before a waiting
#: thread is awake.
WORK: Final = 0.0005
PAUSE: Final = 0.0001

T = TypeVar("T")


class Breath:
    """Call it after each small piece of work; it sleeps where it is time. For one thread.

    Parameters
    ----------
    work, pause
        Seconds.
    """

    def __init__(self, work: float = WORK, pause: float = PAUSE) -> None:
        self._work = work
        self._pause = pause
        self._next = 0.0

    def __call__(self) -> None:
        """Sleep if the last breath is long enough ago."""
        if time.perf_counter() >= self._next:
            time.sleep(self._pause)
            self._next = time.perf_counter() + self._work


class BreathingList(list[T]):
    """A list that is gone through with breaths, by whoever does: encoders of the SDK.

    They do all their work on an item before they take the next one.
    """

    def __iter__(self) -> Iterator[T]:
        breath = Breath()
        for item in super().__iter__():
            breath()
            yield item

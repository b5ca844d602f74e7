"""Breath: a thread of ours lets the event loop have the GIL before that has to ask for it.

A thread that computes in Python keeps the GIL until another one has waited for 5 ms
(``sys.getswitchinterval``, which belongs to the whole process and is not ours to change). The
scheduler's event loop would wait that long each time it wakes up. So our threads sleep for a
moment after each half a millisecond of work: who waits gets the GIL at once. Where nobody took
it, they work a little longer, up to a millisecond.

Measured on two cores: nine in ten times a loop that wakes
up each millisecond waits for 3 to 6 ms at most, and for 13 to 23 ms without any breath. In three
runs beside a loop that did little else, what was left of the throughput was 0.83 to 0.91, and
0.77 to 0.84 with half a millisecond always: that is why it looks at who wants the GIL. Beside a
loop that computed for half of the time the two could not be told apart. A second pause between
two batches changed nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

#: Seconds of work between two breaths, where somebody else wants the GIL and where nobody does.
WORK: Final = 0.0005
LONGEST_WORK: Final = 0.001
#: Seconds of a breath: shorter ones end before a waiting thread is awake.
PAUSE: Final = 0.0001
#: A breath that took so many seconds was not over before somebody else had had the GIL.
TAKEN: Final = 0.0003


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

"""Breath: our threads release the GIL before the event loop has to request it.

A thread that computes in Python keeps the GIL until another one has waited for 5 ms
(``sys.getswitchinterval``, a setting of the whole process that we must not change). The
scheduler's event loop would wait that long each time it wakes up. So our threads sleep briefly
after each half millisecond of work, and a waiting thread gets the GIL at once. If no thread
took it, they work a little longer, up to a millisecond.

Measured on two cores: for a loop that wakes up each millisecond, the 90th percentile of the wait
is 3 to 6 ms, and 13 to 23 ms without breaths. In three runs beside a loop that did little else,
0.83 to 0.91 of the throughput remained, and 0.77 to 0.84 with a fixed half millisecond: hence the
adaptive time. Beside a loop that computed half of the time there was no difference. A second
pause between two batches changed nothing.
"""

from __future__ import annotations

import time
from typing import Final

#: Seconds of work between two breaths: if another thread wants the GIL, and the limit if none does.
WORK: Final = 0.0005
LONGEST_WORK: Final = 0.001
#: Seconds of a breath: a shorter one ends before a waiting thread is awake.
PAUSE: Final = 0.0001
#: If a breath took longer than this many seconds, another thread had the GIL meanwhile.
TAKEN: Final = 0.0003


class Breath:
    """Call it after each small piece of work; it sleeps when a pause is due. For one thread."""

    def __init__(self) -> None:
        self._work = WORK
        self._next = 0.0

    def __call__(self) -> None:
        """Sleep if a pause is due."""
        now = time.perf_counter()
        if now < self._next:
            return
        time.sleep(PAUSE)
        awake = time.perf_counter()
        self._work = WORK if awake - now > TAKEN else min(LONGEST_WORK, self._work * 1.1)
        self._next = awake + self._work

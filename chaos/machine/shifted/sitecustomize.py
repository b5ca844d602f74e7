"""A wall clock that can be set: for processes that have this folder first on their path.

Python imports it before anything else. The number in the file `CHAOS_CLOCK` (a double, in seconds,
mapped into memory) is added to what `time.time` and `time.time_ns` return from then on, also
where they were imported before. The monotonic clocks stay, as they do where an operator sets a
machine's clock. Code that reads the clock in C, such as `datetime.now`, sees the true time.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

_read = struct.Struct("d").unpack_from


class _Shifted:
    # No function: one that somebody keeps in a class would become a method.
    def __init__(self, real, shift) -> None:
        self._real = real
        self._shift = shift
        self.__name__ = real.__name__

    def __call__(self):
        return self._real() + self._shift()


def _install(path: str) -> None:
    with open(path, "rb") as file:
        held = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    time.time = _Shifted(time.time, lambda: _read(held)[0])
    time.time_ns = _Shifted(time.time_ns, lambda: int(_read(held)[0]) * 1_000_000_000)


_install(os.environ["CHAOS_CLOCK"])

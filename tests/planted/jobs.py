"""What the tasks of real processes do. Quick to import: the first task of each worker does it."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

MB = 10**6


def busy(seconds: float, *after: Any) -> float:
    """Compute for so long on the clock, without the GIL, however busy the CPUs are."""
    data, end = bytes(MB), time.perf_counter() + seconds
    while time.perf_counter() < end:
        hashlib.sha256(data)
    return seconds


def hashed(seconds: float, *after: Any) -> float:
    """Compute for so many seconds of a CPU, without the GIL."""
    data, end = bytes(MB), time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.sha256(data)
    return seconds


def looped(seconds: float, *after: Any) -> float:
    """Compute for so long on the CPU, in Python."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return seconds


def summed(numbers: int, *after: Any) -> int:
    """Compute in C, without ever releasing the GIL."""
    return sum(range(numbers))


def random_bytes(size: int, *after: Any) -> bytes:
    """Return bytes that no compression makes smaller, quickly."""
    return os.urandom(MB) * (size // MB)


def length(*data: Any) -> int:
    return sum(map(len, data))


class SlowToPickle:
    """Takes half a second to pickle."""

    def __len__(self) -> int:
        return 1

    def __reduce__(self) -> Any:
        time.sleep(0.5)
        return (SlowToPickle, ())


def slow_to_pickle(number: int) -> SlowToPickle:
    return SlowToPickle()


class Point:
    """A small object."""

    def __init__(self, x: int) -> None:
        self.x, self.y = x, str(x)


def points(number: int) -> list[Point]:
    return [Point(x) for x in range(10_000)]


def once(folder: str) -> bool:
    """Return whether it is the first call in any process."""
    try:
        Path(folder, "begun").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def hungry(folder: str, *after: Any) -> int:
    """Take more and more memory, in the first run."""
    kept = []
    if once(folder):
        while True:
            kept.append(os.urandom(20 * MB))
            time.sleep(0.05)
    return 1


def exits(folder: str, *after: Any) -> int:
    """End the process of the worker, in the first run."""
    if once(folder):
        os._exit(3)
    return 1


def synced(seconds: float) -> None:
    """Write to a disk."""
    end = time.perf_counter() + seconds
    with tempfile.NamedTemporaryFile(dir=".") as file:
        while time.perf_counter() < end:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())


def table(number: int) -> Any:
    import pandas

    ids = range(number, number + 200_000)
    return pandas.DataFrame({"id": ids, **dict.fromkeys("abcd", 0.5)})

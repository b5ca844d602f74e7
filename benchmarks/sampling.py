"""Row 18: the sampler of profiles on a worker, by the CPU clock of its thread.

A thread that only wakes up as often runs beside it: on a busy machine that alone takes much of it.
"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, Final

from benchmarks.results import Row, verdict
from dask_otel.core.profiles.stacks import BLOB
from dask_otel.settings.keys import ProfileSettings
from dask_otel.worker.sampling import Sampler

#: Threads with tasks, and their frames.
THREADS: Final = 4
DEPTH: Final = 45
#: The part of a CPU that the sampler may take.
PART: Final = 0.005


class Worker:
    """A worker whose threads run tasks; it counts the sampler's bytes."""

    def __init__(self, stop: threading.Event) -> None:
        self.active_threads: dict[int, str] = {}
        self.active_keys = set[str]()
        self.state = SimpleNamespace(tasks={})
        self.bytes = 0
        for number in range(THREADS):
            thread = threading.Thread(target=_works, args=(stop,), daemon=True)
            thread.start()
            assert thread.ident is not None
            key = f"fit-{number}"
            self.active_threads[thread.ident] = key
            self.active_keys.add(key)
            self.state.tasks[key] = SimpleNamespace(
                span_id="span", prefix="fit", start_time=time.time()
            )

    def log_event(self, _topic: str, message: dict[str, Any]) -> None:
        """Count a message."""
        self.bytes += len(message[BLOB])


def _works(stop: threading.Event) -> None:
    # 64 stacks, as those of a program with branches: each is a way through two functions.
    def even(left: int, way: int) -> None:
        if left:
            (odd if way % 2 else even)(left - 1, way // 2)
        else:
            stop.wait(0.05)

    def odd(left: int, way: int) -> None:
        even(left, way)

    # Frames of threading are below and above.
    number = 0
    while not stop.is_set():
        number += 1
        even(DEPTH - 9, number % 64)


def _share(thread: threading.Thread, seconds: float) -> float:
    """Return the part of a CPU that a running thread takes."""
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    before, began = time.clock_gettime(clock), time.perf_counter()
    time.sleep(seconds)
    return (time.clock_gettime(clock) - before) / (time.perf_counter() - began)


def run(quick: bool) -> list[Row]:
    """Measure the sampler, and a thread that only wakes up."""
    seconds, interval = 5.0 if quick else 40.0, ProfileSettings().interval
    stop = threading.Event()
    worker = Worker(stop)
    try:
        sampler = Sampler(worker, interval)  # type: ignore[arg-type]
        taken, sample = 0, sampler._sample

        def counted(now: float) -> None:
            nonlocal taken
            taken += 1
            sample(now)

        sampler._sample = counted  # type: ignore[method-assign]
        sampler.start()
        share = _share(sampler._thread, seconds)
        sampler.stop()

        def wakes() -> None:
            while not stop.is_set():
                time.sleep(interval)

        idle = threading.Thread(target=wakes, daemon=True)
        idle.start()
        alone = _share(idle, seconds)
    finally:
        stop.set()
    rate = taken / seconds
    each, often = share / rate, 1 / interval
    return [
        Row(
            "18", f"worker: sampler of profiles, {THREADS} threads of depth {DEPTH}",
            f"≤ {PART:.1%} of a CPU",
            f"{share:.2%} of a CPU with {rate:.0f} samples a second, each of {each * 1e6:.0f} µs; "
            f"{often:.0f} of them would take {often * each:.2%}, and a thread that only wakes up "
            f"takes {alone:.2%}; {worker.bytes / seconds:,.0f} bytes a second",
            # What it took in the last pause, it pays for in the next one.
            verdict(share <= 1.05 * PART),
            {"share": share, "rate": rate, "wakes": alone, "bytes": worker.bytes / seconds},
        )
    ]  # fmt: skip

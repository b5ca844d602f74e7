"""Row 18: the sampler of profiles on a worker, by the CPU clock of its thread.

A thread that only wakes up as often runs in turn with it: on a busy machine that alone takes much
of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from statistics import median
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


def _share(target: Callable[[], None], seconds: float) -> float:
    """Return the part of a CPU that a function takes in a thread."""
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    before, began = time.clock_gettime(clock), time.perf_counter()
    time.sleep(seconds)
    return (time.clock_gettime(clock) - before) / (time.perf_counter() - began)


def _round(worker: Worker, seconds: float) -> tuple[float, float, float]:
    """Return the CPU of the sampler, its samples in a second, and the CPU of waking up as often."""
    sampler = Sampler(worker, ProfileSettings().interval)  # type: ignore[arg-type]
    taken, sample = 0, sampler._sample

    def counted(now: float) -> None:
        nonlocal taken
        taken += 1
        sample(now)

    sampler._sample = counted  # type: ignore[method-assign]
    # Its first samples come before it knows what they cost.
    share, ended = _share(sampler._run, seconds), threading.Event()
    rate = taken / seconds
    sampler.stop()

    def wakes() -> None:
        while not ended.is_set():
            time.sleep(sampler._pause)

    alone = _share(wakes, seconds)
    ended.set()
    return share, rate, alone


def run(quick: bool) -> list[Row]:
    """Measure the sampler, and a thread that only wakes up, in turn."""
    rounds, seconds = (3, 2.0) if quick else (9, 10.0)
    stop = threading.Event()
    worker = Worker(stop)
    try:
        found = [_round(worker, seconds) for _ in range(rounds)]
    finally:
        stop.set()
    share, rate, alone = (median(column) for column in zip(*found, strict=True))
    costs = [1e6 * share / rate for share, rate, _ in found]
    ratios = [share / alone for share, _, alone in found]
    each, ratio, often = median(costs), median(ratios), 1 / ProfileSettings().interval
    sent = worker.bytes / seconds / rounds
    return [
        Row(
            "18", f"worker: sampler of profiles, {THREADS} threads of depth {DEPTH}",
            f"≤ {PART:.1%} of a CPU",
            f"{share:.2%} of a CPU with {rate:.0f} samples a second, each of {each:.0f} µs "
            f"({min(costs):.0f} to {max(costs):.0f}): {ratio:.1f} times ({min(ratios):.1f} to "
            f"{max(ratios):.1f}) what a thread takes that only wakes up as often; {often:.0f} of "
            f"them would take {often * each / 1e6:.2%}; {sent:,.0f} bytes a second",
            # What it took in the last pause, it pays for in the next one.
            verdict(share <= 1.05 * PART),
            {"share": share, "rate": rate, "wakes": alone, "micros": costs, "ratios": ratios,
             "bytes": sent},
        )
    ]  # fmt: skip

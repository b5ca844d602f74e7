"""Row 3: how late the scheduler's event loop is while the bridge exports.

Another process sends a message each millisecond; the kernel notes the time of its arrival, and the
loop its age when it reads it. So everything counts that keeps the loop from its work: callbacks of
the bridge and of Dask, and other threads that hold the GIL.
"""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from benchmarks.cluster import answer, run_apart
from benchmarks.results import Row, percentile, verdict
from benchmarks.simulated import SimulatedCluster
from benchmarks.sink import Sink
from dask_otel.scheduler.bridge import Bridge
from dask_otel.scheduler.plugin import install

WORKERS = 1000
BEATS_PER_SECOND = 200
OPEN_SPANS = 10_000
KEYS = 100
NAMES = 50
#: Bytes that are touched before a window.
WARM = 256 << 20
_kept: list[float] = []

_SENDER = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("127.0.0.1", int(sys.argv[1])))
while True:
    time.sleep(0.001)
    s.send(b" ")
"""
#: Not in Python's socket module.
_SO_TIMESTAMPNS = 35


class Probe:
    """Notes how old messages are when the loop reads them.

    And how old they would be without the collections of garbage that went on meanwhile, in any
    thread: each stops the whole process.
    """

    def __init__(self) -> None:
        #: When each message came, and when it was read. No pairs: they would set off collections.
        self.came: list[float] = []
        self.read: list[float] = []
        #: Start and end of each collection.
        self.collections: list[tuple[float, float]] = []
        self._began = 0.0
        gc.callbacks.append(self._collecting)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SENDER, str(self._socket.getsockname()[1])]
        )
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def _read(self) -> None:
        # All that is there, as a stream is read: a loop that is busy is not late again for
        # each message that waited.
        with suppress(BlockingIOError):
            while True:
                _, ((_, _, stamp),), _, _ = self._socket.recvmsg(8, 64)
                seconds, nanoseconds = struct.unpack("qq", stamp)
                self.came.append(seconds + nanoseconds / 1e9)
                self.read.append(time.time())

    def ages(self, collections: Sequence[tuple[float, float]] = ()) -> list[float]:
        """Return how old each message was, or would have been without these collections."""
        # Afterwards: a message can be read before the callback at a collection's end has run.
        starts = [start for start, _ in collections]
        ages = []
        for came, read in zip(self.came, self.read, strict=True):
            first = max(0, bisect_left(starts, came) - 1)
            collected = sum(
                max(0.0, min(stop, read) - max(start, came))
                for start, stop in islice(collections, first, bisect_left(starts, read))
            )
            ages.append(max(0.0, read - came - collected))
        return ages

    def _collecting(self, phase: str, _info: dict[str, int]) -> None:
        now = time.time()
        if phase == "start":
            self._began = now
        else:
            self.collections.append((self._began, now))

    def close(self) -> None:
        """End the sender."""
        gc.callbacks.remove(self._collecting)
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._process.terminate()
        self._process.wait()


class Own:
    """Notes how much CPU time the bridge's own callbacks take, without collections of garbage."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}
        self._collected = 0.0
        self._thread = threading.get_ident()
        gc.callbacks.append(self._collecting)

    def _collecting(self, phase: str, _info: dict[str, int]) -> None:
        # A collection of another thread is in that one's CPU time.
        if threading.get_ident() == self._thread:
            self._collected += time.thread_time() * (-1 if phase == "start" else 1)

    def watch(self, thing: Any, name: str) -> None:
        """Time a method from now on."""
        call = getattr(thing, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time() - self._collected
            try:
                return call(*args, **kwargs)
            finally:
                took = time.thread_time() - self._collected - began
                self.longest[name] = max(took, self.longest.get(name, 0.0))

        setattr(thing, name, timed)


def watch_bridges(own: Own) -> None:
    """Time the callbacks of each bridge that starts from now on."""
    start = Bridge.start

    def start_watched(self: Bridge, plugin: Any) -> None:
        own.watch(self, "_tick")
        own.watch(self.hand_over, "_take_step")
        start(self, plugin)

    Bridge.start = start_watched  # type: ignore[method-assign]


def _warm_memory() -> None:
    """Touch memory for Python's objects that both arms will use, and let the process keep it.

    A page of memory is slow at its first use in a virtual machine, whose host has to find it
    first: 10 µs where this was written, against 1.5 µs once it is there.
    """
    objects = [float(i) for i in range(WARM // 24)]
    # One that stays in each of the allocator's arenas keeps it.
    _kept.extend(objects[:: (1 << 18) // 24])


async def _load(cluster: SimulatedCluster, seconds: float) -> Probe:
    """Heartbeats, and spans that come and go, evenly over the time."""
    rng = random.Random(0)
    spans = deque(cluster.submit((f"span {i % NAMES}",))[0] for i in range(OPEN_SPANS))

    def beat(address: str) -> None:
        chosen = [spans[rng.randrange(len(spans))] for _ in range(KEYS // 10)]
        cluster.heartbeat(address, cluster.metered(chosen, KEYS))

    # Dask keeps the last message of each worker: a cluster that runs has had one of each.
    for address in cluster.addresses:
        beat(address)
        await asyncio.sleep(0)
    await asyncio.sleep(2.5)
    # Both arms begin with the same state of the collector.
    gc.collect()
    probe = Probe()
    try:
        began, beats = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            while beats < passed * BEATS_PER_SECOND:
                beat(rng.choice(cluster.addresses))
                beats += 1
                # Each message is a callback of its own, as in a scheduler.
                await asyncio.sleep(0)
                if not beats % 4:
                    cluster.finish([spans.popleft()])
                    await asyncio.sleep(0)
                    spans.append(cluster.submit((f"span {beats % NAMES}",))[0])
                    await asyncio.sleep(0)
            await asyncio.sleep(0.001)
    finally:
        probe.close()
    return probe


async def arm(kind: str, seconds: float) -> dict[str, Any]:
    """Measure one window in this process."""
    # As `dask scheduler` does.
    gc.set_threshold(*(3 * threshold for threshold in gc.get_threshold()))
    _warm_memory()
    own = Own()
    async with SimulatedCluster(WORKERS) as cluster:
        if kind == "bridge":
            watch_bridges(own)
            await install(cluster.scheduler)
        probe = await _load(cluster, seconds)
        answer(
            {
                "all": _quantiles(probe.ages()),
                "without collections": _quantiles(probe.ages(probe.collections)),
                "own": {name: 1000 * took for name, took in own.longest.items()},
            }
        )


def _quantiles(ages: list[float]) -> dict[str, float]:
    milliseconds = [1000 * age for age in ages]
    named = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    return {name: percentile(milliseconds, part) for name, part in named.items()} | {
        "max": max(milliseconds),
        "messages": len(milliseconds),
    }


def run(quick: bool) -> list[Row]:
    """Measure windows with and without the bridge in turn."""
    pairs, seconds = (1, 12.0) if quick else (5, 32.0)
    kinds = [kind for i in range(pairs) for kind in (("none", "bridge"), ("bridge", "none"))[i % 2]]
    windows: dict[str, list[dict[str, Any]]] = {"none": [], "bridge": []}
    with Sink() as sink:
        # More often than the default of 60 s, so that each window has some exports.
        more = sink.environment() | {"OTEL_METRIC_EXPORT_INTERVAL": "10000"}
        for kind in kinds:
            windows[kind].append(run_apart(arm, kind, seconds, more=more))
    return _judge(windows)


def _judge(windows: dict[str, list[dict[str, Any]]]) -> list[Row]:
    def middle(kind: str, figure: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(map(figure, windows[kind]))

    def added(which: str, name: str) -> tuple[float, str]:
        with_it, without = (
            middle(kind, lambda window: window[which][name]) for kind in ("bridge", "none")
        )
        return with_it - without, f"{with_it:.1f} with, {without:.1f} without"

    own = max(max(w["own"].values(), default=0.0) for w in windows["bridge"])
    worst, worst_of = added("all", "max")
    late, late_of = added("all", "p99.9")
    other_worst, other_worst_of = added("without collections", "max")
    other_late, other_late_of = added("without collections", "p99.9")
    return [
        Row(
            "3",
            "largest pause by the bridge",
            "≤ 5 ms",
            f"{max(own, worst):.1f} ms (own callbacks {own:.1f}; loop {worst_of})",
            verdict(max(own, worst) <= 5),
            windows,
        ),
        Row(
            "3",
            "loop latency added, 99.9th percentile",
            "≤ 1 ms",
            f"{max(0.0, late):.2f} ms ({late_of})",
            verdict(late <= 1),
        ),
        Row(
            "3",
            "both without what Python's collections of garbage take, in both arms",
            "",
            f"largest {max(own, other_worst):.1f} ms ({other_worst_of}); 99.9th percentile "
            f"{max(0.0, other_late):.2f} ms ({other_late_of})",
            "info",
        ),
    ]

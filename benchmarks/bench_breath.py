"""What the breath of our threads gives and takes: a busy thread beside a loop that wakes up.

``python -m benchmarks.bench_breath``: each way of breathing in turn, some rounds, in one process. A
thread does the export's work (SDK spans made and encoded, in pure Python); another one, the loop,
waits for a millisecond again and again, alone or computing for half of the time. Shown is how much
was encoded, over no breath at all, and how late the loop was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import product
from statistics import median

from tests.otlp.pipeline import make_span

from benchmarks.results import percentile
from dask_otel._otel.sdk.encode import Encoder
from dask_otel.core.records import Row, SpanRecord
from dask_otel.core.traces.translate import translate
from dask_otel.pump.breath import LONGEST_WORK, PAUSE, WORK, Breath

SECONDS = 1.5
ROUNDS = 7


def fixed(work: float, pause: float) -> Callable[[], None]:
    """Return a breath that does not look at who wants the GIL."""
    following = 0.0

    def breathe() -> None:
        nonlocal following
        if time.perf_counter() >= following:
            time.sleep(pause)
            following = time.perf_counter() + work

    return breathe


WAYS: dict[str, Callable[[], Callable[[], None]]] = {
    "none": lambda: lambda: None,
    f"fixed, {WORK * 1e3:g} ms": lambda: fixed(WORK, PAUSE),
    f"fixed, {LONGEST_WORK * 1e3:g} ms": lambda: fixed(LONGEST_WORK, PAUSE),
    "adaptive (ours)": Breath,
}


def run(
    breathe: Callable[[], None], busy: bool, records: list[SpanRecord], between: float
) -> tuple[float, float, float]:
    """Return spans a second, and how late the loop was: at the 90th and the 99th percentile."""
    encoder = Encoder({}, "0")
    stop, late = threading.Event(), list[float]()

    def loop() -> None:
        while not stop.is_set():
            due = time.perf_counter() + 0.001
            time.sleep(0.001)
            awake = time.perf_counter()
            late.append(awake - due)
            while busy and time.perf_counter() < awake + 0.001:
                pass

    thread = threading.Thread(target=loop)
    thread.start()
    began, done = time.perf_counter(), 0
    while time.perf_counter() < began + SECONDS:
        rows = []
        for record in records:
            breathe()
            rows.append(Row(encoder.span(record)))
        encoder.request(rows)
        done += len(records)
        if between:
            time.sleep(between)
    rate = done / (time.perf_counter() - began)
    stop.set()
    thread.join()
    return rate, percentile(late, 0.9) * 1e3, percentile(late, 0.99) * 1e3


def main() -> None:
    """Print a table."""
    records = [r for n in range(64) for r in translate(make_span(f"root-{n}", groups=1))]
    for busy in (False, True):
        found: dict[str, list[tuple[float, float, float]]] = {}
        for _, (name, way) in product(range(ROUNDS), WAYS.items()):
            found.setdefault(name, []).append(run(way(), busy, records, 0.0))
            if name.endswith("(ours)"):
                again = run(way(), busy, records, 0.0002)
                found.setdefault("ours, and between batches", []).append(again)
        print(f"\nloop {'busy for half of the time' if busy else 'alone'}; medians of {ROUNDS}")
        for name, runs in found.items():
            ratio = median(r[0] / none[0] for r, none in zip(runs, found["none"], strict=True))
            usual, tail = median(r[1] for r in runs), median(r[2] for r in runs)
            print(f"{name:28} {ratio:5.2f} of the spans  p90 {usual:5.2f} ms  p99 {tail:5.2f} ms")


if __name__ == "__main__":
    main()

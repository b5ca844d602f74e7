"""Row 10: what the spool costs the event loop, its thread and the disk."""

from __future__ import annotations

import gc
import re
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.cluster import run_apart
from benchmarks.instructions import count_work, counted
from benchmarks.results import Row, verdict
from benchmarks.simulated import SimulatedCluster
from benchmarks.throughput import finished
from dask_otel._otel.sdk.encode import Encoder, reread
from dask_otel.core.traces.translate import translate
from dask_otel.spool.store import Store

SPANS: Final = 20_000
#: Spans of one transaction.
BATCH: Final = 100
#: Spans on the simulated scheduler, and tasks of each.
RECORDED, TASKS = 500, 4
#: CPU of the thread for a span, in microseconds, from its end until it is settled.
LIMIT: Final = 100.0
_MEBIBYTE: Final = 2**20
_SETTINGS: Final[tuple[dict[str, Any], ...]] = ({}, {"spool": {"path": "/not/opened"}})


# ------------------------------------------------------------------------- the event loop


def _spans(cluster: SimulatedCluster, tick: Callable[[], None], spans: int) -> int:
    """Let spans come and end; each is noted while it is open. Returns the number of tasks."""
    for number in range(spans):
        keys = cluster.submit((f"span {number % 50}",), TASKS)
        tick()
        cluster.finish(keys)
        if number % 10 == 9:
            for address in 2 * cluster.addresses:
                cluster.heartbeat(address, {})
            tick()
    return spans * TASKS


async def _event_loop(spans: int) -> int:
    """Count without the bridge, without a spool and with one; return the number of notes."""
    # The first ones warm up.
    for settings in 2 * (None, *_SETTINGS):
        exports = await count_work(settings, partial(_spans, spans=spans))
    return exports.notes


def run_counted(quick: bool) -> list[Row]:
    """Count the instructions that the spool adds on the event loop."""
    what = f"instructions per span of {TASKS} tasks that the spool adds (event loop)"
    spans = RECORDED // 5 if quick else RECORDED
    notes, sums = counted(_event_loop, spans)
    bare, without, with_spool = sums[-3:]
    added, whole = (with_spool - without) / spans, (without - bare) / spans
    figure = (
        f"{added:,.0f}, noted {notes / spans:.1f} times; all that the bridge does for "
        f"such a span takes {whole:,.0f}"
    )
    return [Row("10", what, "", figure, "info", {"added": added, "whole": whole, "notes": notes})]


# --------------------------------------------------------------------- thread and disk


def _written() -> int:
    """Return how many bytes this process has given to the kernel to be written."""
    found = re.search(r"^wchar: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)
    return int(found[1])


def measure(folder: str, spans: int) -> dict[str, float]:
    """Write spans and settle them; return microseconds and bytes for one."""
    records = [record for number in range(spans) for record in translate(finished(number))]
    encoder = Encoder({"service.instance.id": "benchmark"}, "1")
    path = Path(folder) / "spool.db"
    store = Store.open(path, 256 * _MEBIBYTE, encoder.origin, 1, reread)
    batches = [records[begin : begin + BATCH] for begin in range(0, len(records), BATCH)]
    gc.collect()
    gc.freeze()
    bytes_before, began, cpu = _written(), time.perf_counter(), time.thread_time()
    after, numbers = 0, []
    for batch in batches:
        store.write([("otlp", None, encoder.span(one)) for one in batch], alive_ns=2)
        # As the journal does: what is sent is read.
        numbers.append([row.number for row in store.waiting("otlp", after, BATCH)])
        after = numbers[-1][-1]
    wrote, wrote_cpu = time.perf_counter() - began, time.thread_time() - cpu
    size = store.size
    cpu = time.thread_time()
    for settled in numbers:
        store.write(settled=settled, alive_ns=2)
    settled_cpu = time.thread_time() - cpu
    disk = _written() - bytes_before
    store.close(clean=True)
    return {
        "write": 1e6 * wrote_cpu / len(records),
        "settle": 1e6 * settled_cpu / len(records),
        "rate": len(records) / wrote,
        "size": size / len(records),
        "disk": disk / len(records),
    }


def run(quick: bool) -> list[Row]:
    """Measure the store in processes of its own."""
    spans = SPANS // 10 if quick else SPANS
    runs = []
    for _ in range(2 if quick else 5):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(run_apart(measure, folder, spans))
    found = {name: median(one[name] for one in runs) for name in runs[0]}
    cpu = found["write"] + found["settle"]
    thread = (
        f"{cpu:.0f} µs ({found['write']:.0f} written, {found['settle']:.0f} settled; "
        f"{found['rate']:,.0f} spans/s)"
    )
    disk = (
        f"{found['size']:,.0f} bytes while it waits; {found['disk']:,.0f} bytes written until it "
        f"is settled"
    )
    what = "CPU of the spool's thread per span, written and settled by 100"
    return [
        Row("10", what, f"≤ {LIMIT:.0f} µs", thread, verdict(cpu <= LIMIT), {"runs": runs}),
        Row("10", "the disk, per span", "", disk, "info"),
    ]

"""Row 10: what the spool costs the event loop, its thread and the disk."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.cluster import environment
from benchmarks.instructions import count, counted, write_sum
from benchmarks.recording import Call, Recorder, Replay
from benchmarks.results import Row, verdict
from benchmarks.simulated import SimulatedCluster
from benchmarks.throughput import finished
from dask_otel._otel.sdk.encode import Encoder, reread
from dask_otel.core.traces.translate import translate
from dask_otel.spool.store import Run, Store

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


async def _event_loop(spans: int) -> int:
    """Count a bare replay, and ones without and with a spool; return how many notes there were."""
    cluster = SimulatedCluster(2)
    await cluster.start()
    recorder = Recorder(cluster.scheduler)
    for number in range(spans):
        keys = cluster.submit((f"span {number % 50}",), TASKS)
        # It is noted.
        recorder.calls.append(Call("tick"))
        cluster.finish(keys)
        if number % 10 == 9:
            for address in cluster.addresses:
                for _ in range(2):
                    cluster.heartbeat(address, {})
            recorder.calls.append(Call("tick"))
    recorder.finish()
    notes = 0
    for _ in range(2):
        for settings in (None, *_SETTINGS):
            gc.collect()
            gc.freeze()
            run = Replay(cluster.scheduler, recorder, settings is not None, settings)
            count(run.run)
            write_sum()
            run.check()
            notes = run.notes
    await cluster.close()
    return notes


def _instructions(quick: bool) -> Row:
    what = f"instructions per span of {TASKS} tasks that the spool adds (event loop)"
    spans = RECORDED // 5 if quick else RECORDED
    try:
        told, sums = counted("benchmarks.spool", spans)
    except RuntimeError as error:
        return Row("10", what, "", str(error).strip().splitlines()[-1], "skipped")
    bare, without, with_spool = sums[-3:]
    added, whole = (with_spool - without) / spans, (without - bare) / spans
    figure = (
        f"{added:,.0f}, noted {told['notes'] / spans:.1f} times; all that the bridge does for "
        f"such a span takes {whole:,.0f}"
    )
    return Row("10", what, "", figure, "info", {"added": added, "whole": whole, **told})


# --------------------------------------------------------------------- thread and disk


def _written() -> int:
    """Return how many bytes this process has given to the kernel to be written."""
    found = re.search(r"^wchar: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)
    assert found is not None
    return int(found.group(1))


def measure(folder: str, spans: int) -> dict[str, float]:
    """Write spans and settle them; return microseconds and bytes for one."""
    records = [record for number in range(spans) for record in translate(finished(number))]
    encoder = Encoder({"service.instance.id": "benchmark"}, "1")
    path = Path(folder) / "spool.db"
    run = Run("benchmark", encoder.origin, 1)
    store = Store.open(path, 256 * _MEBIBYTE, run, 1, reread)
    batches = [records[begin : begin + BATCH] for begin in range(0, len(records), BATCH)]
    gc.collect()
    gc.freeze()
    bytes_before, began, cpu = _written(), time.perf_counter(), time.thread_time()
    after, numbers = 0, []
    for batch in batches:
        finished_now = [("otlp", (one.trace_id, one.span_id), encoder.span(one)) for one in batch]
        store.write(finished=finished_now, alive_ns=2)
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


def _flushes(command: list[str]) -> str:
    """Return how often the process told the disk to flush, as strace counts it."""
    strace = shutil.which("strace")
    if strace is None:
        return "not counted"
    calls = "fsync,fdatasync,sync_file_range,msync"
    done = subprocess.run(
        [strace, "-f", "-qq", "-e", f"trace={calls}", *command],
        env=environment({}), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    if done.returncode:
        return "not counted"
    # Whatever else strace says.
    return str(len(re.findall(rf"\b(?:{calls.replace(',', '|')})\(", done.stderr)))


def _run(spans: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.spool", folder, str(spans)],
            env=environment({}), capture_output=True, check=True, timeout=240,
        )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(quick: bool) -> list[Row]:
    """Measure the store in processes of its own, and count on the event loop."""
    spans = SPANS // 10 if quick else SPANS
    runs = [_run(spans) for _ in range(2 if quick else 5)]
    found = {name: median(one[name] for one in runs) for name in runs[0]}
    with tempfile.TemporaryDirectory() as folder:
        flushes = _flushes([sys.executable, "-m", "benchmarks.spool", folder, str(SPANS // 20)])
    cpu = found["write"] + found["settle"]
    thread = (
        f"{cpu:.0f} µs ({found['write']:.0f} written, {found['settle']:.0f} settled; "
        f"{found['rate']:,.0f} spans/s)"
    )
    disk = (
        f"{found['size']:,.0f} bytes while it waits; {found['disk']:,.0f} bytes written until it "
        f"is settled; flushes: {flushes}"
    )
    data: dict[str, Any] = {"runs": runs}
    what = "CPU of the spool's thread per span, written and settled by 100"
    return [
        _instructions(quick),
        Row("10", what, f"≤ {LIMIT:.0f} µs", thread, verdict(cpu <= LIMIT), data),
        Row("10", "the disk, per span", "", disk, "info"),
    ]


if __name__ == "__main__":
    if len(sys.argv) == 2:
        told = {"notes": asyncio.run(_event_loop(int(sys.argv[1])))}
    else:
        told = measure(sys.argv[1], int(sys.argv[2]))  # type: ignore[assignment]
    print(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)

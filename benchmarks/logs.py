"""Row 13: log records of workers, on the scheduler.

Whole runs with and without a storm differ by less than they differ among themselves. What reaches
the scheduler does not: so its messages and bytes are counted, and what each costs the event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from distributed.protocol import dumps, loads

from benchmarks.results import Row, verdict
from benchmarks.simulated import SimulatedCluster
from dask_otel._dask.lines import WorkerLines
from dask_otel.core.events import lines
from dask_otel.core.life.clock_offsets import ClockOffsets

#: Records of the storm, in a second.
STORM: Final = 10_000
#: The part of the event loop that a storm of one worker may take.
PART: Final = 0.001
#: Seconds of a storm, by a simulated clock.
SECONDS: Final = 60


def lasting() -> list[dict[str, Any]]:
    """Return the messages of a storm that lasts; its records have 300 characters."""
    batch, written = lines.LineBatch(), lines.line(0.0, 30, "user", "x" * 300)
    sent, planned = [], None
    for number in range(SECONDS * STORM):
        now = number / STORM
        if planned is not None and now >= planned:
            sent.append(batch.take(now))
            planned = None
        if not batch.leave_out(urgent=True):
            wait = batch.add(written, urgent=True, now=now)
            if wait == 0:
                sent.append(batch.take(now, planned=False))
            elif wait is not None:
                planned = now + wait
    return [message for message in sent if message is not None]


async def received(messages: list[dict[str, Any]]) -> float:
    """Return CPU seconds of the event loop for messages: Dask's own, and the bridge's."""
    async with SimulatedCluster(1) as cluster:
        (worker,) = cluster.addresses
        read = WorkerLines(cluster.scheduler, ClockOffsets(lambda _: None), 30).read
        bodies = [dumps(("log_event", lines.TOPIC, {**one, "worker": worker})) for one in messages]
        began = time.thread_time()
        for number, body in enumerate(bodies):
            _, topic, message = loads(body)
            cluster.scheduler.log_event(topic, message)
            read(topic, message, number * SECONDS / len(messages))
        return time.thread_time() - began


def run(quick: bool) -> list[Row]:
    """Measure what a storm costs the scheduler."""
    messages = lasting()
    size = sum(len(message[lines.BLOB]) for message in messages)
    counted = sum(message[lines.RECORDS] + message[lines.LEFT_OUT] for message in messages)
    of_loop = asyncio.run(received(messages)) / SECONDS
    return [
        Row(
            "13", f"scheduler's event loop, while a worker logs {STORM:,} records a second",
            f"≤ {PART:.1%} of a CPU",
            f"{of_loop:.4%} of a CPU: {len(messages) / SECONDS:.2f} messages and "
            f"{size / SECONDS / 1024:.1f} KiB a second, for {counted:,} records in {SECONDS} s",
            verdict(of_loop <= PART),
            {"part": of_loop, "messages": len(messages), "bytes": size, "records": counted},
        )
    ]  # fmt: skip

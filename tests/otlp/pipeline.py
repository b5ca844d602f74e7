"""The bridge's export side alone: finished spans and batches in, OTLP out.

Everything between the event loop and the socket is real: translation, totals, pump, exporters.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from dask_otel.core import identity
from dask_otel.core.metrics.batch import MetricBatch, SpanDeltas
from dask_otel.core.records import (
    FinishedGroup,
    FinishedSpan,
    SpanIdentity,
    TaskCounts,
)
from dask_otel.pump.pump import Pump

#: Any time in the past, in seconds since the epoch: exactly a float.
T = 1_700_000_000.0


@dataclass
class Export:
    """A running pump."""

    pump: Pump

    def spans(self, *finished: FinishedSpan) -> list[bool]:
        """Offer finished spans."""
        return [self.pump.spans.offer(one) for one in finished]

    def metrics(self, batch: MetricBatch, time_ns: int | None = None) -> int:
        """Hand a batch over; returns its time."""
        batch.time_ns = time.time_ns() if time_ns is None else time_ns
        self.pump.offer_metrics(batch)
        return batch.time_ns

    def close(self, seconds: float = 30.0) -> float:
        """Close as the bridge does; returns how long it took, at most the deadline."""
        start = time.monotonic()
        self.pump.request_close(seconds)
        while not self.pump.closed and time.monotonic() < start + seconds:
            time.sleep(0.01)
        self.pump.release()
        return time.monotonic() - start


def make_group(number: int, owner: str = "root") -> FinishedGroup:
    """Return a task group."""
    return FinishedGroup(
        name=f"load-{number}",
        prefix="load",
        ordinal=1,
        start=T + 2,
        stop=T + 6,
        counts=TaskCounts(tasks=3, memory=3),
        output_bytes=300,
        durations={"compute": 6.5},
        types=("numpy.ndarray",),
    )


def make_span(dask_id: str = "root", groups: int = 0, **changes: object) -> FinishedSpan:
    """Return a finished root span with so many task groups."""
    fields: dict[str, object] = {
        "identity": SpanIdentity(
            dask_id=dask_id,
            root_id=dask_id,
            tags=("workflow",),
            generation=1,
            trace_id=identity.trace_id(dask_id),
            span_id=identity.span_id(dask_id),
            parent_span_id=None,
        ),
        "start": T,
        "stop": T + 10,
        "first_start": T + 2.5,
        "result": "success",
        "complete": True,
        "counts": TaskCounts(tasks=3, memory=3),
        "output_bytes": 300,
        "group_count": groups,
        "worker_count": 2,
        "thread_count": 4,
        "active_cpu": 40.0,
        "dask_idle": 33.5,
        "idle": 33.25,
        "capacity": 39.75,
        "activities": {"thread-cpu": 6.0},
        "groups": tuple(make_group(number) for number in range(groups)),
    }
    return FinishedSpan(**{**fields, **changes})  # type: ignore[arg-type]


def make_batch(seconds: float = 1.5, prefix: str = "load", spans: int = 1) -> MetricBatch:
    """Return a batch in which spans have that many seconds of one activity."""
    return MetricBatch(
        span_deltas={
            f"root-{number}": SpanDeltas(
                tags=("workflow", f"part-{number}"),
                ids=(identity.trace_id("root"), identity.span_id(f"root-{number}")),
                values={("execute", prefix, "thread-cpu", "seconds"): seconds},
            )
            for number in range(spans)
        }
    )

"""The bridge's export side alone: finished spans and batches in, OTLP out.

Everything between the event loop and the socket is real: translation, totals, pump, exporters.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from dask_otel.core import identity
from dask_otel.core.metrics.batch import MetricBatch, SpanDeltas
from dask_otel.core.records import FinishedGroup, FinishedSpan
from dask_otel.pump.pump import Pump
from tests.unit import finished


@dataclass
class Export:
    """A running pump."""

    pump: Pump

    def spans(self, *ended: FinishedSpan) -> list[bool]:
        """Offer finished spans."""
        return [self.pump.spans.offer(one) for one in ended]

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


def make_group(number: int) -> FinishedGroup:
    """Return a task group."""
    return finished.make_group(name=f"load-{number}")


def make_span(dask_id: str = "root", groups: int = 0, **changes: object) -> FinishedSpan:
    """Return a finished root span with so many task groups."""
    ids = {"trace_id": identity.trace_id(dask_id), "span_id": identity.span_id(dask_id)}
    return finished.make_span(
        identity=finished.make_identity(dask_id=dask_id, root_id=dask_id, **ids),
        group_count=groups,
        groups=tuple(make_group(number) for number in range(groups)),
        **changes,
    )


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

"""The bridge's export side alone: finished spans and batches in, OTLP out.

Everything between the event loop and the socket is real: translation, totals, pump, exporters.
"""

from __future__ import annotations

import time

from dask_otel.core import identity
from dask_otel.core.metrics.batch import MetricBatch, SpanDeltas
from dask_otel.core.records import FinishedSpan
from tests.unit import finished


def make_span(dask_id: str = "root", groups: int = 0, **changes: object) -> FinishedSpan:
    """Return a finished root span with so many task groups."""
    ids = {"trace_id": identity.trace_id(dask_id), "span_id": identity.span_id(dask_id)}
    return finished.make_span(
        identity=finished.make_identity(dask_id=dask_id, root_id=dask_id, **ids),
        group_count=groups,
        groups=tuple(finished.make_group(name=f"load-{number}") for number in range(groups)),
        **changes,
    )


def make_batch(seconds: float = 1.5, spans: int = 1) -> MetricBatch:
    """Return a batch of now, in which spans have that many seconds of one activity."""
    return MetricBatch(
        time.time_ns(),
        span_deltas={
            f"root-{number}": SpanDeltas(
                tags=("workflow", f"part-{number}"),
                ids=(identity.trace_id("root"), identity.span_id(f"root-{number}")),
                values={("execute", "load", "thread-cpu", "seconds"): seconds},
            )
            for number in range(spans)
        },
    )

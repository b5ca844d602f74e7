"""Heartbeats: workers' metrics and clocks, and the record of workers that have reported."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final

from dask_otel import semconv
from dask_otel._dask.facts import trace_of
from dask_otel._dask.spans import DaskSpans
from dask_otel._dask.threads import ThreadTime
from dask_otel._dask.workers.samples import LoopHealth
from dask_otel._dask.wrapping import Wrappers
from dask_otel.core import identity
from dask_otel.core.life.clock_offsets import ClockOffsets
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.metrics.batch import SpanDeltas

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

#: Contexts that belong to spans; their cluster-wide sums would be counted twice.
_SPAN_CONTEXTS: Final = frozenset({"execute", "p2p"})

_LATE_KINDS: Final = frozenset({"seconds", "bytes", "count"})


class Heartbeats:
    """Reads the reports of one scheduler's workers."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        time: ThreadTime,
        clocks: ClockOffsets,
        loops: LoopHealth,
        spans: DaskSpans,
    ) -> None:
        self._spans = spans
        self._lifecycle = lifecycle
        self._time = time
        self._clocks = clocks
        self._loops = loops
        self._batches = spans.batches
        #: Interned batch keys without the span id.
        self.own_keys: dict[tuple[Hashable, ...], tuple[Hashable, ...]] = {}

    def wrap(self, wrappers: Wrappers) -> None:
        """Wrap the extension's method; in it, an error of ours would close the worker."""
        make = wrappers.then(self._heartbeat, "heartbeat")
        wrappers.method(self._spans.extension, "heartbeat", make)

    def _heartbeat(self, ws: WorkerState, data: dict[tuple[Hashable, ...], float]) -> None:
        metrics = ws.metrics
        counts = metrics.get("task_counts")
        cancelled = counts.get("cancelled", 0) if isinstance(counts, Mapping) else 0
        # The worker's wait for the answer to its previous heartbeat.
        waited = metrics.get("digests_total_since_heartbeat", {}).get("latency")
        travelled = self.report(
            ws,
            cancelled if type(cancelled) is int else 0,
            waited if type(waited) is float else None,
        )
        self._time.begin_heartbeat(travelled)
        self.worker_deltas(metrics)
        if data:
            self._span_deltas(ws.address, data)

    def report(self, ws: WorkerState, cancelled: int = 0, waited: float | None = None) -> float:
        """Read the clocks of a heartbeat or a registration; return how long it travelled."""
        travelled = self._clocks.heartbeat(ws.address, ws.last_seen, ws.time_delay, waited)
        self._lifecycle.reports.heartbeat(ws.address, ws.last_seen - travelled, cancelled)
        self._loops.heartbeat(ws)
        return travelled

    def worker_deltas(self, metrics: Mapping[str, Any]) -> None:
        """Add a worker's metrics outside of spans."""
        deltas = metrics.get("digests_total_since_heartbeat", {})
        self._batches.open.add_of_worker(deltas, _SPAN_CONTEXTS)

    def _span_deltas(self, worker: str, data: dict[tuple[Hashable, ...], float]) -> None:
        open_spans = self._lifecycle.open
        by_span = self._batches.open.span_deltas
        own_keys = self.own_keys
        span_id: Any = None
        span: OpenSpan | None = None
        values: dict[tuple[Hashable, ...], float] = {}
        for key, value in data.items():
            if key[1] != span_id:
                span_id = key[1]
                span = open_spans.get(span_id)
                deltas = by_span.get(span_id)
                if deltas is None:
                    deltas = self._deltas_of(span_id, span)
                values = deltas.values
                if span is not None:
                    span.reported(worker)
            own_key = (key[0], *key[2:])
            # One tuple for all spans: many tuples until the export would trigger full garbage
            # collections, which pause a large scheduler for 0.3 s.
            own_key = own_keys.setdefault(own_key, own_key)
            values[own_key] = values.get(own_key, 0) + value
            if span is None:
                kind = key[-1] if key[-1] in _LATE_KINDS else "other"
                self._batches.open.add(semconv.OTEL_LATE.name, kind, value=value)
            if key[0] == "execute" and key[-1] == "seconds":
                activity = key[3] if len(key) == 5 else key[3:-1]
                self._time.metered(span_id, activity, value)
                if span is not None:
                    span.metered(worker, activity, value)

    def _deltas_of(self, span_id: str, span: OpenSpan | None) -> SpanDeltas:
        if span is not None:
            tags, ident = span.identity.tags, span.identity
            ids: tuple[int, int] | None = (ident.trace_id, ident.span_id)
        else:
            dask_span = self._spans.extension.spans[span_id]
            tags, trace = dask_span.name, trace_of(dask_span, self._lifecycle)
            ids = None if trace is None else (trace, identity.span_id(span_id))
        return self._batches.open.deltas_of(span_id, tags, ids)

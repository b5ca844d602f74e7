"""Heartbeats: the metrics that workers report, their clocks, and who has reported."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Final

from dask_otel import semconv
from dask_otel._dask.boundary import Boundary
from dask_otel._dask.facts import trace_of
from dask_otel._dask.threads import ThreadTime
from dask_otel._dask.workers.samples import LoopHealth
from dask_otel._dask.wrapping import Wrappers
from dask_otel.core import identity
from dask_otel.core.life.clock_offsets import ClockOffsets
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.metrics.batch import Batches, SpanDeltas

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState
    from distributed.spans import SpansSchedulerExtension

#: Contexts that spans own; their cluster-wide sums would be counted twice.
_SPAN_CONTEXTS: Final = frozenset({"execute", "p2p"})

_LATE_KINDS: Final = frozenset({"seconds", "bytes", "count"})


class Heartbeats:
    """Reads the reports of one scheduler's workers.

    Parameters
    ----------
    scheduler, extension
        A running scheduler, and its spans extension, whose ``heartbeat`` is wrapped.
    lifecycle, time, clocks, loops
        Notified of each heartbeat.
    batches
        Sum the metrics.
    boundary
        Catches our errors: one in ``heartbeat`` would close the worker.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        extension: SpansSchedulerExtension,
        lifecycle: Lifecycle,
        time: ThreadTime,
        clocks: ClockOffsets,
        loops: LoopHealth,
        batches: Batches,
        boundary: Boundary,
    ) -> None:
        self._scheduler = scheduler
        self._extension = extension
        self._lifecycle = lifecycle
        self._time = time
        self._clocks = clocks
        self._loops = loops
        self._batches = batches
        self._boundary = boundary
        self.wrappers = Wrappers()
        #: One tuple for each key of the batch without its span id, by itself.
        self._own_keys: dict[tuple[Hashable, ...], tuple[Hashable, ...]] = {}

    def attach(self) -> None:
        """Wrap the extension's method."""
        make = self.wrappers.then(self._heartbeat, self._boundary, "heartbeat")
        self.wrappers.method(self._extension, "heartbeat", make)

    def detach(self) -> None:
        """Restore the method."""
        self.wrappers.take_off()

    def batch_taken(self) -> None:
        """Forget the keys of the last batch."""
        self._own_keys = {}

    def _heartbeat(self, ws: WorkerState, data: dict[tuple[Hashable, ...], float]) -> None:
        metrics = ws.metrics
        counts = metrics.get("task_counts")
        cancelled = counts.get("cancelled", 0) if isinstance(counts, Mapping) else 0
        cancelled = cancelled if type(cancelled) is int else 0
        self._lifecycle.reports.heartbeat(ws.address, ws.last_seen, ws.time_delay, cancelled)
        # How long the worker waited for the answer to its previous heartbeat.
        waited = metrics.get("digests_total_since_heartbeat", {}).get("latency")
        waited = waited if type(waited) is float else None
        self._clocks.heartbeat(ws.address, ws.last_seen, ws.time_delay, waited)
        self._worker_deltas(metrics)
        if data:
            self._span_deltas(ws.address, data)
        self._loops.heartbeat(ws)

    def first_report(self, address: str) -> None:
        """Read a worker's registration, which is no heartbeat of the spans extension."""
        ws = self._scheduler.workers[address]
        self._lifecycle.reports.heartbeat(address, ws.last_seen, ws.time_delay, 0)
        self._clocks.heartbeat(address, ws.last_seen, ws.time_delay, None)
        self._loops.heartbeat(ws)
        if self.wrappers.attached:
            self._worker_deltas(ws.metrics)

    def _worker_deltas(self, metrics: Mapping[str, Any]) -> None:
        batch = self._batches.open
        for key, value in metrics.get("digests_total_since_heartbeat", {}).items():
            if type(key) is tuple and key and key[0] not in _SPAN_CONTEXTS:
                batch.add_of_worker(key, value)

    def _span_deltas(self, worker: str, data: dict[tuple[Hashable, ...], float]) -> None:
        open_spans = self._lifecycle.open
        by_span = self._batches.open.span_deltas
        own_keys = self._own_keys
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
                    self._lifecycle.reports.reported(span, worker)
            own_key = (key[0], *key[2:])
            # One tuple for all spans: many that live until the export would trigger full garbage
            # collections, which stop a large scheduler for 0.3 s.
            own_key = own_keys.setdefault(own_key, own_key)
            values[own_key] = values.get(own_key, 0) + value
            if span is None:
                self._late(key[-1], value)
            if key[0] == "execute" and key[-1] == "seconds":
                activity = key[3] if len(key) == 5 else key[3:-1]
                self._time.metered(span_id, activity, value)
                if span is not None:
                    span.metered(worker, activity, value)

    def _deltas_of(self, span_id: str, span: OpenSpan | None) -> SpanDeltas:
        batch = self._batches.open
        if span is not None:
            ident = span.identity
            return batch.deltas_of(span_id, ident.tags, (ident.trace_id, ident.span_id))
        dask_span = self._extension.spans[span_id]
        trace = trace_of(dask_span, self._lifecycle)
        ids = None if trace is None else (trace, identity.span_id(span_id))
        return batch.deltas_of(span_id, dask_span.name, ids)

    def _late(self, unit: Hashable, value: float) -> None:
        kind = unit if unit in _LATE_KINDS else "other"
        self._batches.open.add(semconv.OTEL_LATE.name, kind, value=value)

"""Heartbeats: workers' metrics and clocks, and the record of workers that have reported."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import inf
from time import monotonic
from typing import Any, Final

from distributed.scheduler import Scheduler, WorkerState

from dask_otel import semconv
from dask_otel._dask.facts import measured, trace_of
from dask_otel._dask.runs import RunsUnderWay
from dask_otel._dask.spans import DaskSpans
from dask_otel._dask.threads import ThreadTime
from dask_otel._dask.workers.samples import LoopHealth
from dask_otel._dask.wrapping import Wrappers
from dask_otel.core import identity
from dask_otel.core.life.clock_offsets import ClockOffsets
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.metrics.batch import SpanDeltas

#: Contexts that belong to spans; their cluster-wide sums would be counted twice.
_SPAN_CONTEXTS: Final = frozenset({"execute", "p2p"})

_LATE_KINDS: Final = frozenset({"seconds", "bytes", "count"})


class Heartbeats:
    """Reads the reports of one scheduler's workers."""

    def __init__(
        self,
        scheduler: Scheduler,
        lifecycle: Lifecycle,
        time: ThreadTime,
        clocks: ClockOffsets,
        loops: LoopHealth,
        spans: DaskSpans,
        under_way: RunsUnderWay,
    ) -> None:
        self._scheduler = scheduler
        self._spans = spans
        self._lifecycle = lifecycle
        self._time = time
        self._clocks = clocks
        self._loops = loops
        self._batches = spans.batches
        self._under_way = under_way
        #: Interned batch keys without the span id.
        self.own_keys: dict[tuple[Hashable, ...], tuple[Hashable, ...]] = {}

    def wrap(self, wrappers: Wrappers) -> None:
        """Wrap the handler; in it, an error of ours would close the worker."""
        wrappers.after(self._scheduler.handlers, "heartbeat_worker", "heartbeat", self._heartbeat)

    def _heartbeat(self, message: Mapping[str, Any]) -> None:
        workers, address, metrics = self._scheduler.workers, message["address"], message["metrics"]
        ws = workers.get(address) or workers.get(self._scheduler.coerce_address(address))
        if ws is None:
            return
        travelled = 0.0
        seconds: dict[str, float] = {}
        try:
            digests = metrics.get("digests_total_since_heartbeat", {})
            counts = metrics.get("task_counts")
            cancelled = counts.get("cancelled", 0) if isinstance(counts, dict) else 0
            # The worker's wait for the answer to its previous heartbeat.
            waited = digests.get("latency")
            travelled = self.report(
                ws,
                cancelled if type(cancelled) is int else 0,
                waited if type(waited) is float else None,
            )
            self.worker_deltas(digests)
            data = (message.get("extensions") or {}).get("spans")
            if data:
                self._span_deltas(ws.address, data, seconds)
        finally:
            executing = message.get("executing") or {}
            self._time.accounting.heartbeat(ws.address, executing, seconds, monotonic(), travelled)
            self._under_way.heartbeat(ws.address, executing)
            memory = self._lifecycle.memory
            # Only open spans have a fullest worker.
            if (
                memory is not None
                and self._lifecycle.open
                and ws.memory_limit
                and (used := measured(metrics.get("memory"))) is not None
            ):
                name, seen = str(ws.name), ws.last_seen
                memory.workers.heartbeat(used / ws.memory_limit, name, seen)
                memory.running.heartbeat(len(executing), name, seen)

    def report(self, ws: WorkerState, cancelled: int = 0, waited: float | None = None) -> float:
        """Read the clocks of a heartbeat or a registration; return how long it travelled."""
        address, seen = ws.address, ws.last_seen
        travelled = self._clocks.of(address).heartbeat(seen, ws.time_delay, waited)
        self._lifecycle.reports.heartbeat(address, seen - travelled, cancelled)
        self._loops.heartbeat(ws)
        return travelled

    def worker_deltas(self, digests: Mapping[Hashable, float]) -> None:
        """Add a worker's metrics outside of spans."""
        self._batches.open.add_of_cluster(digests, _SPAN_CONTEXTS)

    def _span_deltas(
        self, worker: str, data: dict[tuple[Hashable, ...], float], seconds: dict[str, float]
    ) -> None:
        """Add a worker's metrics of spans; their execute seconds go to `seconds`, by span id.

        Even if a value raises, `seconds` and the cluster's seconds agree.
        """
        open_spans, own_keys = self._lifecycle.open, self.own_keys
        cluster = self._time.activities
        span_id: Any = None
        values: dict[tuple[Hashable, ...], float] = {}
        activities: dict[Hashable, float] = {}
        # Without needless calls: a heartbeat has many keys.
        for key, value in data.items():
            try:
                context, owner, prefix, activity, unit = key
                own_key: tuple[Hashable, ...] = (context, prefix, activity, unit)
            except ValueError:
                # Users can meter with any key.
                context, owner, activity, unit = key[0], key[1], key[3:-1], key[-1]
                own_key = (context, *key[2:])
            if owner != span_id:
                span_id = owner
                span = open_spans.get(span_id)
                values = self._deltas_of(span_id, span).values
                activities = {} if span is None else span.activities
                seconds.setdefault(span_id, 0.0)
            before = values.get(own_key)
            if before is None:
                # One tuple for all spans: many tuples until the export would trigger full garbage
                # collections, which pause a large scheduler for 0.3 s.
                values[own_keys.setdefault(own_key, own_key)] = value
            else:
                values[own_key] = before + value
            # Values that a counter cannot hold are ignored on both sides of the sum.
            if unit == "seconds" and context == "execute" and 0.0 < value < inf:
                seconds[span_id] += value
                cluster[activity] = cluster.get(activity, 0.0) + value
                activities[activity] = activities.get(activity, 0.0) + value
        for span_id, metered in seconds.items():
            if (span := open_spans.get(span_id)) is not None:
                span.reported(worker, metered > 0.0)
        if not seconds.keys() <= open_spans.keys():
            self._late(data)

    def _late(self, data: Mapping[tuple[Hashable, ...], float]) -> None:
        """Count the metrics of spans that are not open."""
        for key, value in data.items():
            if key[1] not in self._lifecycle.open:
                kind = key[-1] if key[-1] in _LATE_KINDS else "other"
                self._batches.open.add(semconv.OTEL_LATE.name, kind, value=value)

    def _deltas_of(self, span_id: str, span: OpenSpan | None) -> SpanDeltas:
        known = self._batches.open.span_deltas.get(span_id)
        if known is not None:
            return known
        if span is not None:
            tags, ident = span.identity.tags, span.identity
            ids: tuple[int, int] | None = (ident.trace_id, ident.span_id)
        else:
            dask_span = self._spans.extension.spans[span_id]
            tags, trace = dask_span.name, trace_of(dask_span, self._lifecycle)
            ids = None if trace is None else (trace, identity.span_id(span_id))
        return self._batches.open.deltas_of(span_id, tags, ids)

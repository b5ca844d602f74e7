"""The pump: two threads that carry records from the event loop to the exporters.

Why not the SDK's batch processor: it drops silently, loses a batch that failed, ignores its
flush timeout, and can block a shutdown for half a minute. A scheduler lives for months.

- The event loop hands over without waiting: an append to a deque, no lock that a thread
  could hold while it works.
- Queues are bounded, and what is dropped is counted by reason.
- Encoding is pure Python and holds the GIL, so spans go out in small batches with a breath
  between them: the event loop gets its turn.
- A batch that failed is kept, and tried again with backoff. One that keeps failing while
  others succeed is taken apart, until the record that spoils it is found and dropped.
- Spans and metrics have a thread each: a dead traces endpoint delays no metrics.
- Closing has a hard deadline. The threads are daemons: one that hangs in an exporter is left
  behind, and holds up nothing.

Nothing here knows OpenTelemetry or Dask.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from dask_otel import semconv
from dask_otel.core.records import (
    FinishedSpan,
    MetricBatch,
    MetricRecord,
    Progress,
    RawSeries,
    SpanRecord,
)

logger = logging.getLogger("dask_otel")

#: Batches of metrics that may wait; more pile up in one batch on the event loop.
MAX_METRIC_BATCHES: Final = 4
#: Failures in a row before a batch is suspected of being the reason itself.
SUSPICIOUS_AFTER: Final = 3
FIRST_BACKOFF: Final = 1.0
LONGEST_BACKOFF: Final = 30.0


class SpanSink(Protocol):
    """Where spans go: one exporter."""

    #: What a person needs to recognise it: the exporter and its endpoint.
    name: str

    def export(self, records: Sequence[SpanRecord]) -> bool:
        """Export; False if it failed and may be tried again. Raises what can't be encoded."""

    def last_error(self) -> str:
        """Return why the last export failed, as far as it is known."""

    def shutdown(self) -> None:
        """Release what the exporter holds."""


class MetricSink(Protocol):
    """Where metrics go: one exporter."""

    name: str
    #: Whether the last export was refused as invalid, so that nothing of it was stored.
    rejected: bool

    def export(self, records: Sequence[MetricRecord]) -> bool:
        """Export; False if it failed."""

    def last_error(self) -> str:
        """Return why the last export failed, as far as it is known."""

    def shutdown(self) -> None:
        """Release what the exporter holds."""


class MetricTotals(Protocol):
    """The totals behind a metric sink: `dask_otel.core.series.MetricState`."""

    def apply(self, batch: MetricBatch) -> None:
        """Add everything in a batch."""

    def increment(self, raw: RawSeries, value: float) -> None:
        """Add to a counter."""

    def level(self, raw: RawSeries, value: float) -> None:
        """Set an up-down counter or gauge."""

    def collect(self, time_ns: int) -> list[MetricRecord]:
        """Return the points of one export."""

    def settled(self, ok: bool, *, rejected: bool = False) -> bool:
        """Say what became of it; whether to collect and send once more."""


class ThreadLogs(Protocol):
    """Marks threads as ours, so that exporters' messages in them are held back."""

    def ours(self) -> AbstractContextManager[None]:
        """Enter it in a thread for as long as that lives."""

    def remove(self) -> None:
        """Hold back nothing any more."""


@dataclass(frozen=True, slots=True)
class PumpLimits:
    """Sizes in spans, times in seconds."""

    queue_size: int = 2048
    batch_size: int = 32
    #: Longest time that a finished span waits for others.
    schedule_delay: float = 1.0
    #: Pause between two batches, in which the event loop has the GIL to itself.
    breath: float = 0.002


class Health:
    """Tells a person once that an exporter fails, and once that it works again."""

    def __init__(self, what: str, name: str) -> None:
        self._what = what
        self._name = name
        self.failures = 0

    def ok(self) -> None:
        """Take note of a success."""
        if self.failures:
            logger.info("dask-otel exports %s to %s again", self._what, self._name)
        self.failures = 0

    def failed(self, reason: str) -> None:
        """Take note of a failure."""
        self.failures += 1
        if self.failures == 1:
            logger.warning(
                "dask-otel can't export %s to %s: %s. Dask is not affected; the bridge keeps what "
                "fits its queue and goes on trying, without saying so each time. Check that a "
                "collector listens there, and OTEL_EXPORTER_OTLP_ENDPOINT and "
                "OTEL_EXPORTER_OTLP_PROTOCOL.",
                self._what,
                self._name,
                reason or "no reason given",
            )

    def backoff(self) -> float:
        """Return how long to wait before the next try."""
        doubled = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(self.failures - 1, 10))
        return doubled * random.uniform(0.8, 1.2)


class Tally:
    """Counts that one thread makes and another reads: totals since the start, by label."""

    def __init__(self) -> None:
        self._totals: dict[tuple[Hashable, ...], int] = {}

    def add(self, *series: Hashable, count: int = 1) -> None:
        """Count; called by one thread alone."""
        self._totals[series] = self._totals.get(series, 0) + count

    def since(self, seen: dict[tuple[Hashable, ...], int]) -> dict[tuple[Hashable, ...], int]:
        """Return what was added since `seen`, and bring `seen` up to date."""
        new = {}
        for series, total in list(self._totals.items()):
            if total > seen.get(series, 0):
                new[series] = total - seen.get(series, 0)
                seen[series] = total
        return new


class _Outlet:
    """One span sink with its own queue, so that it neither blocks nor doubles another."""

    def __init__(self, sink: SpanSink, limits: PumpLimits, tally: Tally) -> None:
        self.sink = sink
        self.queue: deque[SpanRecord] = deque()
        self.retry_at = 0.0
        self._limits = limits
        self._tally = tally
        self._health = Health("spans", sink.name)
        self._size = limits.batch_size
        #: Set while the head of the queue fails and others do not.
        self._suspect = False

    def put(self, records: Sequence[SpanRecord]) -> None:
        """Take records in; what does not fit is dropped and counted."""
        room = self._limits.queue_size - len(self.queue)
        if len(records) > room:
            self._drop("queue_full", len(records) - max(0, room))
            records = records[: max(0, room)]
        self.queue.extend(records)

    def pump(self, now: Callable[[], float]) -> bool:
        """Export one batch. Returns whether there is more that could go out now."""
        if not self.queue or now() < self.retry_at:
            return False
        batch = [self.queue[i] for i in range(min(self._size, len(self.queue)))]
        try:
            ok = self.sink.export(batch)
        except Exception as error:
            self._isolate(batch, "unencodable", error)
            return bool(self.queue)
        if ok:
            self._sent(len(batch))
            return bool(self.queue)
        return self._failed(batch, now)

    def _sent(self, count: int) -> None:
        for _ in range(count):
            self.queue.popleft()
        self._tally.add(semconv.OTEL_EXPORTED.name, "traces", count=count)
        self._health.ok()
        self._size = self._limits.batch_size
        self._suspect = False

    def _failed(self, batch: Sequence[SpanRecord], now: Callable[[], float]) -> bool:
        self._health.failed(self.sink.last_error())
        if self._health.failures >= SUSPICIOUS_AFTER and not self._suspect:
            self._suspect = self._another_succeeds(len(batch))
        if self._suspect:
            self._isolate(batch, "rejected", None)
            return bool(self.queue)
        self.retry_at = now() + self._health.backoff()
        return False

    def _another_succeeds(self, size: int) -> bool:
        """Whether the last record of the queue can be exported, though the first ones can't."""
        if len(self.queue) <= size:
            return False
        try:
            ok = self.sink.export([self.queue[-1]])
        except Exception:
            return False
        if ok:
            self.queue.pop()
            self._tally.add(semconv.OTEL_EXPORTED.name, "traces")
        return ok

    def _isolate(self, batch: Sequence[SpanRecord], reason: str, error: Exception | None) -> None:
        """Take a bad batch apart: a smaller one is next, or the record alone is dropped."""
        if len(batch) > 1:
            self._size = max(1, len(batch) // 2)
            return
        self.queue.popleft()
        self._size = self._limits.batch_size
        self._suspect = False
        self._drop(reason, 1)
        logger.warning(
            "dask-otel dropped one span that %s does not take (%s): %s",
            self.sink.name,
            reason,
            error or self.sink.last_error(),
        )

    def _drop(self, reason: str, count: int) -> None:
        self._tally.add(semconv.OTEL_DROPPED.name, "traces", reason, count=count)

    def close(self) -> None:
        """Drop what is left, counted, and release the exporter."""
        if self.queue:
            self._drop("shutdown", len(self.queue))
            self.queue.clear()
        self.sink.shutdown()


class _Lane:
    """A thread that works until it is told to close, and survives its own errors."""

    def __init__(self, name: str, surroundings: Callable[[], AbstractContextManager[None]]) -> None:
        self.wake = threading.Event()
        self.closed = threading.Event()
        #: On the monotonic clock; None until closing.
        self.deadline: float | None = None
        self._surroundings = surroundings
        self._logged: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, deadline: float) -> None:
        """Ask it to finish before the deadline; returns at once."""
        self.deadline = deadline
        self.wake.set()

    def _run(self) -> None:
        try:
            with self._surroundings():
                while self.deadline is None:
                    self.wake.wait(self._guarded(self.work) or 0.05)
                    self.wake.clear()
                self._guarded(self.finish)
                self._guarded(self.shutdown)
        finally:
            self.closed.set()

    def _guarded(self, call: Callable[[], float]) -> float:
        try:
            return call()
        except Exception as error:
            kind = type(error).__name__
            if kind not in self._logged:
                self._logged.add(kind)
                logger.warning("dask-otel: an error in its export was swallowed", exc_info=True)
            return 1.0

    def work(self) -> float:
        """Do what is due; return how many seconds until there may be more."""
        raise NotImplementedError

    def finish(self) -> float:
        """Do what is left, before the deadline."""
        raise NotImplementedError

    def shutdown(self) -> float:
        """Release the exporters."""
        raise NotImplementedError


class SpanLane(_Lane):
    """Carries finished spans to the span sinks."""

    def __init__(
        self,
        sinks: Sequence[SpanSink],
        translate: Callable[[FinishedSpan | Progress], Sequence[SpanRecord]],
        limits: PumpLimits,
        surroundings: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__("dask-otel-traces", surroundings)
        self.tally = Tally()
        #: What the event loop counts.
        self.refused = Tally()
        self._inbox: deque[FinishedSpan | Progress] = deque()
        # Two counters, each written by one thread: no lock.
        self._offered = 0
        self._taken = 0
        self._translate = translate
        self._limits = limits
        self._outlets = [_Outlet(sink, limits, self.tally) for sink in sinks]

    @property
    def size(self) -> int:
        """OpenTelemetry spans that wait."""
        waiting = max((len(outlet.queue) for outlet in self._outlets), default=0)
        return self._offered - self._taken + waiting

    def offer(self, finished: FinishedSpan | Progress) -> bool:
        """Queue a finished span; False, counted, if there is no room. Called by the loop."""
        weight = finished.weight
        waiting = self._offered - self._taken
        if waiting and waiting + weight > self._limits.queue_size:
            self.refused.add(semconv.OTEL_DROPPED.name, "traces", "queue_full", count=weight)
            return False
        self._offered += weight
        self._inbox.append(finished)
        if waiting + weight >= self._limits.batch_size and not self.wake.is_set():
            self.wake.set()
        return True

    def work(self) -> float:
        """Export what is there, in small batches."""
        self._take_in()
        more = True
        while more and self.deadline is None:
            # Each outlet gets its turn, whatever the others say.
            turns = [outlet.pump(time.monotonic) for outlet in self._outlets]
            more = any(turns)
            if more:
                time.sleep(self._limits.breath)
                self._take_in()
        return self._limits.schedule_delay

    def _take_in(self) -> None:
        while self._inbox:
            finished = self._inbox.popleft()
            try:
                records = self._translate(finished)
                for outlet in self._outlets:
                    outlet.put(records)
            except Exception:
                self.tally.add(
                    semconv.OTEL_DROPPED.name, "traces", "untranslatable", count=finished.weight
                )
            self._taken += finished.weight

    def finish(self) -> float:
        """Export what is left; each sink is given one try."""
        self._take_in()
        for outlet in self._outlets:
            outlet.retry_at = 0.0
            while self._time_left() and outlet.pump(time.monotonic):
                pass
        return 0.0

    def _time_left(self) -> bool:
        return self.deadline is None or time.monotonic() < self.deadline

    def shutdown(self) -> float:
        """Count what is left as dropped, and release the exporters."""
        for outlet in self._outlets:
            outlet.close()
        return 0.0


class MetricLane(_Lane):
    """Carries the metrics' changes into the totals, and the totals to the metric sinks."""

    def __init__(
        self,
        sinks: Sequence[tuple[MetricSink, MetricTotals]],
        surroundings: Callable[[], AbstractContextManager[None]],
        own: Callable[[], MetricBatch],
    ) -> None:
        super().__init__("dask-otel-metrics", surroundings)
        self.tally = Tally()
        self.last_success_ns: int | None = None
        self._batches: deque[MetricBatch] = deque()
        self._own = own
        self._sinks = [(sink, totals, Health("metrics", sink.name)) for sink, totals in sinks]

    def accepts(self) -> bool:
        """Whether there is room for a batch. Called by the event loop."""
        return len(self._batches) < MAX_METRIC_BATCHES

    def offer(self, batch: MetricBatch) -> None:
        """Queue a batch. Called by the event loop."""
        self._batches.append(batch)
        self.wake.set()

    def work(self) -> float:
        """Add up everything that waits, and export it once."""
        latest: MetricBatch | None = None
        while self._batches:
            latest = self._batches.popleft()
            for _, totals, _ in self._sinks:
                totals.apply(latest)
        if latest is not None:
            own = self._own()
            for sink, totals, health in self._sinks:
                totals.apply(own)
                self._export(sink, totals, health, latest.time_ns)
        return 60.0

    def _export(self, sink: MetricSink, totals: MetricTotals, health: Health, time_ns: int) -> None:
        ok = self._send(sink, totals.collect(time_ns))
        if totals.settled(ok, rejected=not ok and sink.rejected):
            # It was refused because of its zero points; the values alone are in order.
            ok = self._send(sink, totals.collect(time_ns))
            totals.settled(ok)
        if ok:
            health.ok()
            self.last_success_ns = time_ns
        else:
            health.failed(sink.last_error())

    def _send(self, sink: MetricSink, records: Sequence[MetricRecord]) -> bool:
        if not records:
            return True
        try:
            ok = sink.export(records)
        except Exception:
            logger.debug("dask-otel: a metric exporter raised", exc_info=True)
            ok = False
        if ok:
            points = sum(len(record.points) for record in records)
            self.tally.add(semconv.OTEL_EXPORTED.name, "metrics", count=points)
        return ok

    def finish(self) -> float:
        """Export the last batches."""
        return self.work()

    def shutdown(self) -> float:
        """Release the exporters."""
        for sink, _, _ in self._sinks:
            sink.shutdown()
        return 0.0


class Pump:
    """What the bridge knows of export.

    Parameters
    ----------
    span_sinks
        Exporters of spans.
    metric_sinks
        Exporters of metrics, each with totals of its own.
    translate
        Makes OpenTelemetry spans of a finished Dask span; called in the traces thread.
    limits
        Sizes and times.
    logs
        Entered by each thread for as long as it lives; removed when both have ended.
    extra
        More counts of the translation, drained: by kind of what had to be sanitised.
    """

    def __init__(
        self,
        span_sinks: Sequence[SpanSink],
        metric_sinks: Sequence[tuple[MetricSink, MetricTotals]],
        translate: Callable[[FinishedSpan | Progress], Sequence[SpanRecord]],
        limits: PumpLimits,
        logs: ThreadLogs,
        extra: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._limits = limits
        self._extra = extra
        self._logs = logs
        self._traces = SpanLane(span_sinks, translate, limits, logs.ours) if span_sinks else None
        self._metrics = MetricLane(metric_sinks, logs.ours, self._own) if metric_sinks else None
        self._seen: list[dict[tuple[Hashable, ...], int]] = [{}, {}, {}]

    def start(self) -> None:
        """Start the threads."""
        for lane in self._lanes():
            lane.start()

    def offer_span(self, finished: FinishedSpan | Progress) -> bool:
        """Queue a finished span without waiting; False, counted, if there is no room."""
        return True if self._traces is None else self._traces.offer(finished)

    def accepts_metrics(self) -> bool:
        """Whether a batch can be handed over; if not, go on filling the one at hand."""
        return self._metrics is None or self._metrics.accepts()

    def offer_metrics(self, batch: MetricBatch) -> None:
        """Queue a batch of metrics without waiting."""
        if self._metrics is not None:
            self._metrics.offer(batch)

    def request_close(self, seconds: float) -> None:
        """Ask the threads to export what is left, for so long at most; returns at once."""
        deadline = time.monotonic() + seconds
        for lane in self._lanes():
            lane.close(deadline)

    @property
    def closed(self) -> bool:
        """Whether both threads have finished."""
        return all(lane.closed.is_set() for lane in self._lanes())

    def release(self) -> None:
        """Let go of what the threads share; what one that hangs may still say stays held back."""
        if self.closed:
            self._logs.remove()

    def _lanes(self) -> list[SpanLane | MetricLane]:
        return [lane for lane in (self._traces, self._metrics) if lane is not None]

    def _own(self) -> MetricBatch:
        """Return the pump's counts as a batch; called in the metrics thread."""
        batch = MetricBatch()
        lanes = [] if self._traces is None else [self._traces.tally, self._traces.refused]
        lanes += [] if self._metrics is None else [self._metrics.tally]
        for tally, seen in zip(lanes, self._seen, strict=False):
            batch.increments.update(tally.since(seen))
        for kind, count in self._extra().items():
            batch.increments[semconv.OTEL_SANITIZED.name, kind] = count
        if self._traces is not None:
            batch.levels[semconv.OTEL_QUEUE_SIZE.name,] = self._traces.size
            batch.levels[semconv.OTEL_QUEUE_CAPACITY.name,] = self._limits.queue_size
        return batch

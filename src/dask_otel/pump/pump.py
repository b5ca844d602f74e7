"""The pump: threads that carry records from the event loop to the exporters.

The SDK's batch processor won't do, since a scheduler runs for months: it drops silently, loses a
failed batch, ignores its flush timeout, and can block a shutdown for half a minute.

- The event loop hands over records without blocking: an append to a deque.
- Queues are bounded, and dropped records are counted by reason.
- Encoding is pure Python and holds the GIL, so our threads sleep briefly and often
  (`dask_otel.pump.breath`) to let the event loop run.
- One thread between the event loop and the span sinks translates and encodes; with a spool it
  writes the spans to the disk (`dask_otel.pump.feeder`). Another one does so for log records.
- A failed batch is kept and retried; if it keeps failing while others get through, it is split
  (`dask_otel.pump.policy`).
- Each sink has its own thread: a dead endpoint does not delay the others.
- Closing has a hard deadline. The threads are daemons: one that hangs in an exporter is left
  behind, and does not block the end of the process.

Nothing here knows OpenTelemetry or Dask.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from dask_otel import semconv
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.records import (
    ClusterEvent,
    FinishedSpan,
    LogRecord,
    OpenNote,
    Progress,
    SpanRecord,
)
from dask_otel.pump.feeder import Feeder, Spool
from dask_otel.pump.health import MOST_NOTICES, Health, Notices, Series, Tally
from dask_otel.pump.lanes import MAX_METRIC_BATCHES, MetricLane, SpanLane
from dask_otel.pump.sinks import MetricSink, PumpLimits, SpanSink
from dask_otel.pump.thread import PumpThread

__all__ = ["MAX_METRIC_BATCHES", "Pump", "PumpLimits"]

#: The spans' share of the closing time; the rest is for the last metrics, which count the spans.
_SPANS_SHARE: Final = 0.6
#: The largest share of the closing time for the feeder.
_SPOOL_SHARE: Final = 0.95


class Pump:
    """The bridge's interface to the export. Its methods return at once.

    Parameters
    ----------
    span_sinks
        Exporters of spans.
    metric_sinks
        Exporters of metrics, each with its own state.
    translate
        Makes OpenTelemetry spans of a finished Dask span, or one of a note of an open span; called
        in the feeder's thread.
    limits
        Sizes and times.
    sanitized
        Returns and resets the number of values that the translation had to change, by kind.
    page
        The page for scrapers, with its state. It is renewed with every batch of metrics, in its
        own thread like any other sink, but does not count as an export.
    metric_interval
        Least seconds between two exports of a metric sink.
    hurried
        By name of a metric sink, whether it ignores the interval and exports every batch.
    without_server
        Names of sinks that were already reported as missing.
    spool
        Stores spans of some sinks on the disk; None without one.
    log_sinks
        Exporters of log records.
    narrate
        Makes log records of an event; called in a feeder's thread.
    log_limits
        Sizes and times of log records; by default those of spans.
    notices
        Gets events of the bridge itself.
    """

    def __init__(
        self,
        span_sinks: Sequence[SpanSink],
        metric_sinks: Sequence[tuple[MetricSink, MetricState]],
        translate: Callable[[FinishedSpan | Progress | OpenNote], Sequence[SpanRecord]],
        limits: PumpLimits,
        sanitized: Callable[[], dict[str, int]] = dict,
        *,
        page: tuple[MetricSink, MetricState] | None = None,
        metric_interval: float = 0.0,
        hurried: Mapping[str, Callable[[], bool]] | None = None,
        without_server: Collection[str] = (),
        spool: Spool | None = None,
        log_sinks: Sequence[SpanSink] = (),
        narrate: Callable[[ClusterEvent], Sequence[LogRecord]] = lambda _: (),
        log_limits: PumpLimits | None = None,
        notices: Notices | None = None,
    ) -> None:
        #: Events of the bridge itself; the event loop takes them out.
        self.notices: Notices = deque(maxlen=MOST_NOTICES) if notices is None else notices
        self._limits = limits
        self._sanitized = sanitized
        self._tally = Tally()
        sinks = [*span_sinks, *(sink for sink, _ in metric_sinks), *log_sinks]
        self._healths = {
            sink.name: Health(sink.name, advice=sink.advice, notices=self.notices) for sink in sinks
        }
        for name in without_server:
            self._healths[name].expect_no_server()
        keys = ("",) * len(span_sinks) if spool is None else spool.keys
        wake = threading.Event()
        self._spans: list[SpanLane] = []
        for number, (sink, key) in enumerate(zip(span_sinks, keys, strict=True)):
            health = self._healths[sink.name]
            if key:
                health.keeps = "spans in its spool"
            own = key or f"memory {number}"
            self._spans.append(
                SpanLane(sink, own, bool(key), limits, self._tally, health, wake.set)
            )
        self.feeder = Feeder(
            self._spans,
            partial(self._translate_and_count, translate),
            limits.queue_size,
            self._tally,
            wake,
            spool if any(keys) else None,
            notices=self.notices,
        )
        self._log_limits = of_logs = log_limits or limits
        roused = threading.Event()
        self._logs = [
            SpanLane(
                sink,
                f"memory {number}",
                False,
                of_logs,
                self._tally,
                self._healths[sink.name],
                roused.set,
                "logs",
            )
            for number, sink in enumerate(log_sinks)
        ]
        telling = partial(self._translate_and_count, narrate)
        self._teller = Feeder(
            self._logs, telling, of_logs.queue_size, self._tally, roused, None, "logs"
        )
        made = [
            (*sink, limits, self._tally, self._healths[sink[0].name], metric_interval)
            for sink in metric_sinks
        ]
        if page is not None:
            # All at once: there is no request that could become too large.
            whole = replace(limits, max_points=None)
            made.append((*page, whole, Tally(), Health(page[0].name), 0.0))
        self._metrics = [
            MetricLane(
                *one,
                own=partial(self._own_counts, {}),
                before_last=self._settle_spans,
                hurried=(hurried or {}).get(one[0].name, bool),
            )
            for one in made
        ]
        for lane in self._metrics:
            lane.peers = [peer for peer in self._metrics if peer is not lane]
        #: All threads.
        self._threads: list[PumpThread] = [*self._spans, *self._logs, *self._metrics]
        if self._spans:
            self._threads.append(self.feeder)
        if self._logs:
            self._threads.append(self._teller)

    def _own_counts(self, seen: dict[Series, int]) -> MetricBatch:
        """Return the increases of the pump's counts since `seen`, and its levels; update `seen`."""
        batch = MetricBatch(increments=self._tally.since(seen))
        lanes_of: dict[str, Sequence[SpanLane | MetricLane]] = {
            "traces": self._spans,
            "metrics": self._metrics,
        }
        for signal, lanes in lanes_of.items():
            times = [lane.succeeded_at for lane in lanes]
            known = [at for at in times if at is not None]
            # The longest over the lanes; absent until each has succeeded once.
            if known and len(known) == len(times):
                age = time.monotonic() - min(known)
                batch.set_level(semconv.OTEL_EXPORT_LAST_SUCCESS_AGE.name, signal, value=age)
        for name, value in self.feeder.levels.items():
            batch.set_level(name, "traces", value=value)
        queues = (
            ("traces", self._spans, self.feeder, self._limits),
            ("logs", self._logs, self._teller, self._log_limits),
        )
        for signal, fed, feeder, limits in queues:
            if fed:
                batch.set_level(semconv.OTEL_QUEUE_SIZE.name, signal, value=feeder.size)
                batch.set_level(semconv.OTEL_QUEUE_CAPACITY.name, signal, value=limits.queue_size)
        return batch

    def open_spool(self, patience: float) -> str:
        """Open the spool; return its description. Waits `patience` seconds at most."""
        if self.feeder.spool is None:
            return ""
        self.feeder.start()
        if not self.feeder.opened.wait(patience):
            return "its spool is still being opened"
        return self.feeder.found

    def start(self) -> None:
        """Start all threads."""
        for thread in self._threads:
            thread.start()

    def offer_span(self, finished: FinishedSpan | Progress) -> bool:
        """Queue a finished span without waiting; False (counted) if there is no room."""
        return not self._spans or self.feeder.offer(finished)

    def offer_event(self, event: ClusterEvent, counted: bool = True) -> bool:
        """Queue an event without waiting; see `Feeder.offer`."""
        return not self._logs or self._teller.offer(event, counted)

    def accepts_metrics(self) -> bool:
        """Whether a batch can be handed over; if not, continue to fill the present one.

        False only while every metric exporter hangs for several intervals. Nothing is lost then,
        and the number of series bounds the waiting data. If only some exporters hang, the threads
        of the others merge the waiting batches.
        """
        return not self._metrics or any(lane.accepts() for lane in self._metrics)

    def offer_metrics(self, batch: MetricBatch) -> None:
        """Queue a batch of metrics without waiting. The caller must not change it afterwards."""
        for lane in self._metrics:
            lane.offer(batch)

    def request_close(self, seconds: float) -> None:
        """Request the threads to export the rest within `seconds`; returns at once."""
        now = time.monotonic()
        share = _SPANS_SHARE if self._metrics else 1.0
        for lane in (*self._spans, *self._logs):
            lane.close(now + seconds * share)
        # A little before the bridge's deadline: the feeder has to settle the last rows.
        for feeder in (self.feeder, self._teller):
            feeder.close(now + seconds * min(share, _SPOOL_SHARE))
        for other in self._metrics:
            other.close(now + seconds)

    @property
    def closed(self) -> bool:
        """Whether all threads have exported or counted their records."""
        return all(thread.closed.is_set() for thread in self._threads)

    def release(self) -> None:
        """Leave hanging threads behind, with a message."""
        for thread in self._threads:
            if not thread.settled.is_set():
                thread.abandon()

    def counts(self) -> dict[Series, float]:
        """Return the counts of exported and dropped records, by metric and labels."""
        return self._tally.since({})

    def look(self) -> None:
        """Report requests that have been open for long. Cheap; call it often."""
        for health in self._healths.values():
            health.look()

    def condition(self) -> dict[str, Any]:
        """Return the state of destinations and queues as plain data. Any thread may call it."""
        condition = {
            "destinations": [health.condition() for health in self._healths.values()],
            "waiting": self.feeder.size,
            "capacity": self._limits.queue_size,
        }
        if self.feeder.spool is not None:
            condition["spool"] = self.feeder.condition()
        return condition

    def _translate_and_count(
        self, translate: Callable[[Any], Sequence[Any]], finished: Any
    ) -> Sequence[Any]:
        records = translate(finished)
        for kind, count in self._sanitized().items():
            self._tally.add(semconv.OTEL_SANITIZED.name, kind, count=count)
        return records

    def _settle_spans(self) -> None:
        """Wait until the last spans and events are counted; called by metrics threads."""
        for lane in (*self._spans, *self._logs):
            if lane.deadline is not None:
                lane.settled.wait(max(0.0, lane.deadline - time.monotonic()))
            if not lane.settled.is_set():
                lane.abandon()

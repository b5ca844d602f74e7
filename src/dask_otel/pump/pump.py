"""The pump: threads that carry records from the event loop to the exporters.

The SDK's batch processor won't do, since a scheduler runs for months: it drops silently, loses a
failed batch, ignores its flush timeout, and can block a shutdown for half a minute.

- The event loop hands over records without blocking: an append to a deque.
- Queues are bounded, and dropped records are counted by reason.
- Encoding is pure Python and holds the GIL, so our threads sleep briefly and often
  (`dask_otel.pump.breath`) to let the event loop run.
- One thread between the event loop and the span sinks translates and encodes
  (`dask_otel.pump.feeder`); with a spool it writes the spans to the disk
  (`dask_otel.pump.spooled`). Log records have another one, and so have graph logs.
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
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from dask_otel import semconv
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.metrics.state import MetricState
from dask_otel.pump.destination import MOST_NOTICES, MetricSink, Notices, SpanSink
from dask_otel.pump.feeder import Feeder
from dask_otel.pump.lanes import SpanLane
from dask_otel.pump.limits import PumpLimits
from dask_otel.pump.metrics import MetricLane
from dask_otel.pump.profile_files import ProfileFiles
from dask_otel.pump.spooled import BACKLOG, Spool, SpooledFeeder
from dask_otel.pump.tally import Series, Tally
from dask_otel.pump.thread import PumpThread

#: The spans' share of the closing time; the rest is for the last metrics, which count the spans.
_SPANS_SHARE: Final = 0.6
#: The largest share of the closing time for the feeder.
_SPOOL_SHARE: Final = 0.95


@dataclass(frozen=True, slots=True)
class RecordExport:
    """The export of spans, of log records, or of graph logs."""

    #: The exporters.
    sinks: Sequence[SpanSink] = ()
    #: Makes OpenTelemetry spans of a finished Dask span, or one of a note of an open span; or log
    #: records of an event. Called in the feeder's thread.
    translate: Callable[[Any], Sequence[Any]] = lambda _: ()
    limits: PumpLimits = field(default_factory=PumpLimits)
    #: Returns and resets the number of values that this thread had to change, by kind.
    sanitized: Callable[[], dict[str, int]] = dict
    #: Stores the spans of the sinks with a key on the disk; None without one.
    spool: Spool | None = None


@dataclass(frozen=True, slots=True)
class MetricExport:
    """The export of metrics."""

    #: The exporters, each with its own series.
    sinks: Sequence[tuple[MetricSink, MetricState]] = ()
    #: Least seconds between two exports of a sink, unless its destination is eager.
    interval: float = 0.0
    #: The page for scrapers, with its series. It is renewed with every batch, in its own thread
    #: like any other sink, but does not count as an export.
    page: tuple[MetricSink, MetricState] | None = None


class Pump:
    """The bridge's interface to the export. Its methods return at once.

    The event loop offers items to `spans`, `logs` and `graphs`.

    Parameters
    ----------
    spans, metrics, logs, graphs
        How each of them is exported.
    notices
        Gets events of the bridge itself.
    profiles
        Writes profiles; None for none.
    within
        What limits the time of its close, for messages.
    """

    def __init__(
        self,
        spans: RecordExport,
        metrics: MetricExport,
        logs: RecordExport,
        notices: Notices | None = None,
        graphs: RecordExport = RecordExport(),
        profiles: ProfileFiles | None = None,
        within: str = "otel.close-timeout",
    ) -> None:
        #: Events of the bridge itself; the event loop takes them out.
        self.notices: Notices = deque(maxlen=MOST_NOTICES) if notices is None else notices
        self._within = within
        self._capacity = spans.limits.queue_size
        self._tally = Tally()
        sinks = [*spans.sinks, *(sink for sink, _ in metrics.sinks), *logs.sinks]
        sinks += graphs.sinks
        for sink in sinks:
            sink.destination.signals.add(sink.signal)
            sink.destination.notices, sink.destination.within = self.notices, within
        self.destinations = list(dict.fromkeys(sink.destination for sink in sinks))
        #: With a spool, the feeder of the spans; else None.
        self.spooled: SpooledFeeder | None = None
        self.spans = self._feeder("traces", spans)
        self.logs = self._feeder("logs", logs)
        self.graphs = self._feeder("graph", graphs)
        self._feeders = [one for one in (self.spans, self.logs, self.graphs) if one.lanes]
        self._lanes = [lane for feeder in self._feeders for lane in feeder.lanes]
        made = [(*one, metrics.interval, self._tally) for one in metrics.sinks]
        if metrics.page is not None:
            made.append((*metrics.page, 0.0, Tally()))
        self._metrics = [
            MetricLane(
                *one, own=partial(self._own_counts, Counter()), before_last=self._settle_spans
            )
            for one in made
        ]
        for lane in self._metrics:
            lane.peers = [peer for peer in self._metrics if peer is not lane]
        self.profiles = profiles
        self._profiles = [] if profiles is None else [profiles]
        for writer in self._profiles:
            writer.counted_by(self._tally)
        self._threads: list[PumpThread] = [
            *self._lanes,
            *self._metrics,
            *self._feeders,
            *self._profiles,
        ]

    def __repr__(self) -> str:
        return f"<Pump to {', '.join(one.name for one in self.destinations) or 'nowhere'}>"

    def _feeder(self, signal: str, way: RecordExport) -> Feeder:
        """Return the feeder of a signal, with its lanes."""
        wake, spool, limits = threading.Event(), way.spool, way.limits
        keys = [sink.key if spool else None for sink in way.sinks]
        lanes = [
            SpanLane(sink, key or f"memory {number}", bool(key), limits, self._tally, wake.set)
            for number, (sink, key) in enumerate(zip(way.sinks, keys, strict=True))
        ]
        # An event of a full queue of events would not fit in it either.
        notices: Notices = self.notices if signal == "traces" else deque(maxlen=0)
        parts = (self._tally, wake, notices, self._within)
        translate = partial(self._translate_and_count, way)
        if spool is None:
            return Feeder(signal, lanes, translate, limits.queue_size, *parts)
        self.spooled = SpooledFeeder(spool, signal, lanes, translate, BACKLOG, *parts)
        return self.spooled

    def _own_counts(self, seen: Counter[Series]) -> MetricBatch:
        """Return the increases of the pump's counts since `seen`, and its levels; update `seen`."""
        batch = MetricBatch(increments=self._tally.since(seen))
        lanes_of: dict[str, Sequence[SpanLane | MetricLane]] = {
            "traces": self.spans.lanes,
            "metrics": self._metrics,
        }
        for signal, lanes in lanes_of.items():
            times = [lane.succeeded_at for lane in lanes]
            known = [at for at in times if at is not None]
            # The longest over the lanes; absent until each has succeeded once.
            if known and len(known) == len(times):
                age = time.monotonic() - min(known)
                batch.set_level(semconv.OTEL_EXPORT_LAST_SUCCESS_AGE.name, signal, value=age)
        if self.spooled is not None:
            for name, value in self.spooled.levels.items():
                batch.set_level(name, "traces", value=value)
        for feeder in self._feeders:
            signal, most = feeder.signal, feeder.lanes[0].limits.queue_size
            batch.set_level(semconv.OTEL_QUEUE_SIZE.name, signal, value=feeder.size)
            batch.set_level(semconv.OTEL_QUEUE_CAPACITY.name, signal, value=most)
        return batch

    def open_spool(self, patience: float) -> str:
        """Open the spool; return its description. Waits `patience` seconds at most."""
        if self.spooled is None:
            return ""
        self.spooled.start()
        if not self.spooled.opened.wait(patience):
            return "its spool is still being opened"
        return self.spooled.found

    def start(self) -> None:
        """Start all threads; if one can't, because the machine has no more, the others end."""
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:
            self.request_close(0.0)
            raise

    def accepts_metrics(self) -> bool:
        """Whether a batch can be handed over; if not, continue to fill the present one.

        False only while every metric exporter hangs for several intervals. Nothing is lost then,
        and the number of series bounds the waiting data. If only some exporters hang, the threads
        of the others add the waiting batches to the series.
        """
        return not self._metrics or any(lane.accepts() for lane in self._metrics)

    def relieve(self, other: Pump) -> None:
        """Take in the batches of metrics that wait in another pump while its exporters hang."""
        for lane in self._metrics:
            lane.peers = other._metrics

    def offer_metrics(self, batch: MetricBatch, last: bool = False) -> None:
        """Queue a batch of metrics without waiting. The caller must not change it afterwards.

        The last one is exported when the pump closes, with the counts of the last spans.
        """
        for lane in self._metrics:
            lane.offer(batch, last)

    def request_close(self, seconds: float) -> None:
        """Request the threads to export the rest within `seconds`; returns at once."""
        now = time.monotonic()
        share = _SPANS_SHARE if self._metrics else 1.0
        for lane in (*self._lanes, *self._profiles):
            lane.close(now + seconds * share)
        # A little before the bridge's deadline: the feeder has to settle the last rows.
        for feeder in self._feeders:
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
        return self._tally.since(Counter())

    def look(self) -> None:
        """Report requests that have been open for long. Cheap; call it often."""
        for destination in self.destinations:
            destination.look()

    def condition(self) -> dict[str, Any]:
        """Return the state of destinations and queues as plain data. Any thread may call it."""
        return {
            "destinations": [destination.condition() for destination in self.destinations],
            "waiting": self.spans.size,
            "capacity": self._capacity,
            **({} if self.spooled is None else {"spool": self.spooled.condition()}),
        }

    def _translate_and_count(self, way: RecordExport, finished: Any) -> Sequence[Any]:
        records = way.translate(finished)
        for kind, count in way.sanitized().items():
            self._tally.add(semconv.OTEL_SANITIZED.name, kind, count=count)
        return records

    def _settle_spans(self) -> None:
        """Wait until the last spans and events are counted; called by metrics threads."""
        # A feeder counts what came too late for its lanes. With a spool, it may go on.
        for thread in (*self._lanes, *self._feeders, *self._profiles):
            if thread.deadline is not None:
                thread.settled.wait(max(0.0, thread.deadline - time.monotonic()))
            if not isinstance(thread, Feeder) and not thread.settled.is_set():
                thread.abandon()

"""The threads of the pump, one for each sink: a dead endpoint does not delay the others."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from dask_otel import semconv
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.metrics.merging import merge
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.records import (
    Answer,
    MetricRecord,
    Row,
)
from dask_otel.pump.breath import Breath
from dask_otel.pump.health import Health, Tally
from dask_otel.pump.outlet import WORDS, Outlet, send
from dask_otel.pump.parts import parts
from dask_otel.pump.sinks import MetricSink, PumpLimits, Sink, SpanSink, pause_of
from dask_otel.pump.thread import PumpThread

#: Limit of waiting metric batches; more are merged, here or on the event loop.
MAX_METRIC_BATCHES: Final = 4
#: If this many requests of one metrics export fail in a row, or one fails after more than this
#: many seconds, there is probably no server: the other requests wait for the next export.
_FAILED_REQUESTS: Final = 3
_PROMPT: Final = 1.0
#: Seconds between two attempts at the end, if there is no server.
_MOMENT: Final = 0.1
#: With a shorter schedule delay, in seconds, each span wakes the thread: no polling.
AT_ONCE: Final = 0.05

_Sink = TypeVar("_Sink", bound=Sink)


class Lane(PumpThread, Generic[_Sink]):
    """The thread of one sink."""

    def __init__(self, name: str, sink: _Sink, tally: Tally) -> None:
        super().__init__(name, "export", tally, threading.Event())
        self._nobody_until = 0.0
        self._sink = sink

    def close(self, deadline: float) -> None:
        """Ask it to finish before the deadline; returns at once."""
        self._nobody_until = min(deadline, time.monotonic() + self._sink.patience)
        super().close(deadline)

    def release(self) -> None:
        """Close the sink."""
        self._sink.close()

    def _comes_back(self, answer: Answer) -> bool:
        """While closing, sleep before the next attempt; False if another attempt is pointless.

        The sleep is the server's pause, or a moment if no server answers.
        """
        now = time.monotonic()
        if 0.0 < answer.pause < (self.deadline or 0.0) - now:
            time.sleep(answer.pause)
            return True
        if not answer.absent or now >= self._nobody_until:
            return False
        time.sleep(_MOMENT)
        return True


class SpanLane(Lane[SpanSink]):
    """Exports rows, spans or log records, to one sink; the feeder queues them.

    A row with a number is also in the spool. It can't get lost here: at the end it stays there.

    Parameters
    ----------
    sink
        The exporter.
    key
        Tells its rows from those of other lanes, in the spool too.
    stored
        Whether its rows go through the spool.
    limits
        Sizes and times. With a spool the queue's size is a window: other rows wait in the spool.
    tally, health
        Counts and messages.
    notify
        Called when rows have left the queue.
    signal
        ``"traces"`` or ``"logs"``.
    """

    def __init__(
        self,
        sink: SpanSink,
        key: str,
        stored: bool,
        limits: PumpLimits,
        tally: Tally,
        health: Health,
        notify: Callable[[], None],
        signal: str = "traces",
    ) -> None:
        super().__init__(f"dask-otel-{signal}", sink, tally)
        self.signal = signal
        self.key, self.stored = key, stored
        #: Rows of its queue, at most, and of one request.
        self.window, self.batch_size = limits.queue_size, limits.batch_size
        #: Number of the last row fed to it from the spool.
        self.fed = 0
        #: Set by the feeder while closing: there are no more rows.
        self.all_fed = threading.Event()
        self._inbox: deque[Row] = deque()
        self._schedule_delay = limits.schedule_delay
        self._health = health
        self._outlet = Outlet(
            sink, limits.batch_size, tally, health, time.monotonic, self._gone, signal
        )
        self._notify = notify
        # Shared by the feeder, the lane, and the thread that gives up on a hanging exporter.
        self._accounts = threading.RLock()
        #: Rows in the queue.
        self._queued = 0
        #: OpenTelemetry spans that wait in memory only.
        self.size = 0
        #: Rows of the spool that have left for good.
        self._settled: list[int] = []

    @property
    def succeeded_at(self) -> float | None:
        """When the sink last accepted a span, on the monotonic clock; None before the first one."""
        return self._outlet.succeeded_at

    # ------------------------------------------------------------------- called by the feeder

    @property
    def over(self) -> bool:
        """Whether it accepts no more rows, and the rest is counted."""
        return self._outlet.abandoned

    @property
    def room(self) -> int:
        """How many more rows fit."""
        return 0 if self.over else self.window - self._queued

    def encoded(self, record: Any, counted: bool = True) -> Any:
        """Return the body of a row; None if the span is not sampled, or can't be encoded."""
        try:
            return self._sink.encode(record) if self._sink.wants(record) else None
        except BaseException as error:
            if counted:
                self._outlet.lose(None, repr(error), "unencodable")
            return None

    def feed(self, rows: Sequence[Row]) -> None:
        """Queue rows."""
        with self._accounts:
            if not self.over:
                self._queued += len(rows)
                self.size += sum(not row.number for row in rows)
                self._inbox.extend(rows)
        enough = self._queued >= self.batch_size or self.deadline is not None
        if enough or self._schedule_delay < AT_ONCE:
            self.wake.set()

    def give(self, bodies: Sequence[Any]) -> None:
        """Queue spans that are in memory only, and count those without room as dropped."""
        with self._accounts:
            # An empty queue accepts even more rows than its size.
            fit = len(bodies) if self.room == self.window else max(0, self.room)
            reason = "shutdown" if self.over else "queue_full"
            self.feed([Row(body) for body in bodies[:fit]])
        lost = len(bodies[fit:])
        self._tally.add(semconv.OTEL_DROPPED.name, self.signal, reason, count=lost)

    def take_settled(self) -> list[int]:
        """Return each row to remove from the spool, once."""
        with self._accounts:
            settled, self._settled = self._settled, []
        return settled

    # --------------------------------------------------------------------- called by the lane

    def work(self) -> float:
        """Export the waiting spans, in small batches."""
        self._take_in()
        # While more spans are due.
        while self.deadline is None and (
            self._outlet.pump() or (self._inbox and not self._outlet.queue)
        ):
            self._take_in()
        wait = max(AT_ONCE, self._schedule_delay)
        if self._outlet.queue:
            wait = min(wait, max(AT_ONCE, self._outlet.policy.retry_at - time.monotonic()))
        return wait

    def _take_in(self) -> None:
        while self._inbox and len(self._outlet.queue) < self._outlet.policy.room:
            self._outlet.queue.append(self._inbox.popleft())

    def _gone(self, rows: Sequence[Row]) -> None:
        """Record rows that have left the queue for good."""
        with self._accounts:
            # After the end, a row was counted or stays in the spool.
            if not self.over:
                self._queued -= len(rows)
                self.size -= sum(not row.number for row in rows)
                self._settled += [row.number for row in rows if row.number]
        self._notify()

    def finish(self) -> None:
        """Export the rest until the deadline, and count the remaining spans as dropped."""
        deadline = self.deadline or 0.0
        while not self.over and time.monotonic() < deadline:
            self._take_in()
            before = len(self._outlet.queue)
            if before:
                self._outlet.flush(deadline)
                if len(self._outlet.queue) == before and not self._comes_back(self._outlet.answer):
                    break
            elif not self.all_fed.is_set():
                self.all_fed.wait(max(0.0, deadline - time.monotonic()))
            elif not self._inbox:
                break
        self.abandon()

    def abandon(self) -> None:
        """Count the rows that are not in the spool as lost, and accept no more.

        Later results don't count. Called by the lane at its end, or by another thread if it hangs
        in its exporter.
        """
        with self._accounts:
            if self.over:
                return
            self._outlet.abandoned = True
            lost, self.size = self.size, 0
        self._tally.add(semconv.OTEL_DROPPED.name, self.signal, "shutdown", count=lost)
        if lost:
            several, one, signal = WORDS[self.signal]
            self._health.gave_up(signal, f"{lost} {one if lost == 1 else several}")
        self._notify()


class MetricLane(Lane[MetricSink]):
    """Adds metric batches to the series, and exports their points to one metric sink.

    Parameters
    ----------
    sink, state
        The exporter, and its series.
    limits
        The size of a request.
    tally, health
        Counts and messages.
    interval
        Least seconds between two exports; batches may arrive more often.
    own
        Returns the pump's own counts since the last call.
    before_last
        Called before the last export; returns when all other counts are complete.
    hurried
        Whether to ignore the interval for now, and export each batch.
    """

    def __init__(
        self,
        sink: MetricSink,
        state: MetricState,
        limits: PumpLimits,
        tally: Tally,
        health: Health,
        interval: float,
        own: Callable[[], MetricBatch],
        before_last: Callable[[], None],
        hurried: Callable[[], bool],
    ) -> None:
        super().__init__("dask-otel-metrics", sink, tally)
        #: The lanes of other sinks; this one merges their batches if their exporters hang.
        self.peers: Sequence[MetricLane] = ()
        self._batches: deque[MetricBatch] = deque()
        # Held by the thread that takes batches out. The event loop only appends.
        self._taking = threading.Lock()
        self._state = state
        self._limits = limits
        self._health = health
        self._own = own
        self._before_last = before_last
        self._interval = interval
        self._hurried = hurried
        self._exported_at = time.monotonic()
        #: The server requests a pause until this time.
        self._not_before = 0.0
        #: Time of the last batch that was added to the series and not exported yet.
        self._pending_ns: int | None = None
        #: Start of the last successful export, on the monotonic clock; None before the first one.
        self.succeeded_at: float | None = None
        #: Time of the last export, if it failed; the last refusal.
        self._unsent_ns: int | None = None
        self._answer = Answer(True)

    def accepts(self) -> bool:
        """Whether there is room for a batch. Called by the event loop."""
        return len(self._batches) < MAX_METRIC_BATCHES

    def offer(self, batch: MetricBatch) -> None:
        """Queue a batch. Called by the event loop."""
        self._batches.append(batch)
        self.wake.set()

    def relieve(self) -> None:
        """Merge the waiting batches if there are too many. Called by another lane.

        If there are, this lane's thread hangs in its exporter. If the event loop held batches back
        for it, the other lanes would get none; if all were queued, memory would grow without limit.
        """
        if not self.accepts():
            self._guarded(self._merge)

    def _merge(self) -> None:
        with self._taking:
            # The event loop may append meanwhile, behind these.
            count = len(self._batches)
            if count > 1:
                merged = merge([self._batches[index] for index in range(count)], Breath())
                for _ in range(count):
                    self._batches.popleft()
                self._batches.appendleft(merged)

    def _next_batch(self) -> MetricBatch | None:
        with self._taking:
            return self._batches.popleft() if self._batches else None

    def work(self) -> float:
        """Add all waiting batches to the series, and export them once, if due."""
        for peer in self.peers:
            peer.relieve()
        now = time.monotonic()
        interval = 0.0 if self._hurried() else self._interval
        return self._work(due=now - self._exported_at >= interval and now >= self._not_before)

    def _work(self, due: bool) -> float:
        while (batch := self._next_batch()) is not None:
            self._state.apply(batch)
            self._pending_ns = batch.time_ns
        if due and self._pending_ns is not None:
            self._exported_at = time.monotonic()
            time_ns, self._pending_ns = self._pending_ns, None
            own = self._own()
            own.time_ns = time_ns
            self._state.apply(own)
            self._export(time_ns)
        return 60.0

    def finish(self) -> None:
        """Export the last batches, including the results of the last spans."""
        self._before_last()
        self._work(due=True)
        while self._unsent_ns is not None and self._comes_back(self._answer):
            self._export(self._unsent_ns)
        if self._unsent_ns is not None:
            self.abandon()

    def abandon(self) -> None:
        """Log that the last metrics were refused, or hang in the exporter and are left behind."""
        self._health.gave_up("metrics", "the last metrics")

    def _export(self, time_ns: int) -> None:
        sent = self._send(time_ns)
        if self._state.settled(sent is not None, rejected=sent is None and self._answer.blames):
            # The zero points may be the reason: try the values alone.
            sent = self._send(time_ns)
            self._state.settled(sent is not None)
        self._unsent_ns = time_ns if sent is None else None
        if sent:
            self._health.ok("metrics")
            self.succeeded_at = self._exported_at
        elif sent is None:
            self._health.failed("metrics", self._answer.reason)

    def _send(self, time_ns: int) -> int | None:
        """Return how many points were sent; None if a request failed.

        One request of many may be refused: by a flaky endpoint, or because of one bad point. The
        others are sent anyway; else the last instruments would hardly ever arrive.
        """
        limit = self._limits.max_points
        sent = failed = 0
        complete = True
        points = self._state.collect(time_ns, limit, time.monotonic_ns())
        for part in parts(points, limit, _size):
            began = time.monotonic()
            longest = math.inf if self.deadline is None else self.deadline - began
            answer = send(self._sink, part, longest, self._health, "metrics")
            self._state.part_settled(len(part), answer.taken)
            if answer.taken:
                failed = 0
                sent += self._count(part, answer)
                continue
            self._answer = answer
            complete = False
            failed += 1
            late = time.monotonic() - began > _PROMPT
            self._not_before = time.monotonic() + pause_of(answer)
            if late or answer.pause or failed == _FAILED_REQUESTS:
                break
        return sent if complete else None

    def _count(self, part: Sequence[MetricRecord], answer: Answer) -> int:
        """Count the accepted and rejected points; return the number of accepted ones."""
        size = sum(map(_size, part))
        lost = min(answer.lost, size)
        self._tally.add(semconv.OTEL_EXPORTED.name, "metrics", count=size - lost)
        self._tally.add(semconv.OTEL_DROPPED.name, "metrics", "rejected", count=lost)
        if answer.said:
            self._health.server_message("data points", lost, size, answer.said)
        return size - lost


def _size(record: MetricRecord) -> int:
    return len(record.points)

"""The threads of metrics, one for each sink: a dead endpoint delays no other."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from dask_otel import semconv
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.metrics.state import MetricState
from dask_otel.core.records import Answer, MetricRecord
from dask_otel.pump.destination import MetricSink
from dask_otel.pump.lanes import Lane
from dask_otel.pump.parts import parts
from dask_otel.pump.policy import pause_of
from dask_otel.pump.tally import Tally

#: If more metric batches wait than this, another lane adds them to the series.
MAX_METRIC_BATCHES: Final = 4
#: If this many requests of one metrics export fail in a row, or one fails after more than this
#: many seconds, there is probably no server: the other requests wait for the next export.
_FAILED_REQUESTS: Final = 3
_PROMPT: Final = 1.0


class MetricLane(Lane[MetricSink]):
    """Adds metric batches to the series, and exports their points to one metric sink.

    Parameters
    ----------
    sink, state
        The exporter, and its series.
    interval
        Least seconds between two exports; batches may arrive more often.
    tally
        Counts the points.
    own
        Returns the pump's own counts since the last call.
    before_last
        Called before the last export; returns when all other counts are complete.
    """

    def __init__(
        self,
        sink: MetricSink,
        state: MetricState,
        interval: float,
        tally: Tally,
        own: Callable[[], MetricBatch],
        before_last: Callable[[], None],
    ) -> None:
        super().__init__(sink, tally)
        #: The lanes of other sinks: if their exporters hang, this one takes their batches in.
        self.peers: Sequence[MetricLane] = ()
        self._batches: deque[MetricBatch] = deque()
        # Held while the series change or are read, but never during a request.
        self._counting = threading.Lock()
        self._state = state
        self._own = own
        self._before_last = before_last
        self._interval = interval
        self._exported_at = time.monotonic()
        #: Whether the last batch was queued: it waits for the counts of the last spans.
        self._ends = False
        #: The server requests a pause until this time.
        self._not_before = 0.0
        #: Time of the last batch that was added to the series and not exported yet.
        self._pending_ns: int | None = None
        #: Time of the last export, if it failed.
        self._unsent_ns: int | None = None

    def accepts(self) -> bool:
        """Whether there is room for a batch. Called by the event loop."""
        return len(self._batches) < MAX_METRIC_BATCHES

    def offer(self, batch: MetricBatch, last: bool) -> None:
        """Queue a batch. Called by the event loop."""
        self._ends = last
        self._batches.append(batch)
        self.wake.set()

    def relieve(self) -> None:
        """Add the waiting batches to the series if there are too many. Called by another lane.

        If there are, this lane's thread hangs in its exporter. If the event loop held batches back
        for it, the other lanes would get none; if all were queued, memory would grow without limit.
        The rest of the export that hangs then has the values of these batches, too.
        """
        if not self.accepts():
            self._guarded(self._take)

    def _take(self) -> None:
        """Add the waiting batches to the series."""
        with self._counting:
            while self._batches:
                batch = self._batches.popleft()
                self._state.apply(batch)
                self._pending_ns = batch.time_ns

    def work(self) -> float:
        """Add all waiting batches to the series, and export them once, if due."""
        for peer in self.peers:
            peer.relieve()
        now = time.monotonic()
        late = self._destination.eager() or now - self._exported_at >= self._interval
        return self._work(due=late and now >= self._not_before)

    def _work(self, due: bool) -> float:
        self._take()
        if due and self._pending_ns is not None and not self._ends:
            self._exported_at = time.monotonic()
            with self._counting:
                time_ns, self._pending_ns = self._pending_ns, None
                self._state.apply(self._own())
            self._export(time_ns)
        return 60.0

    def finish(self) -> None:
        """Export the last batches, including the results of the last spans."""
        self._before_last()
        self._ends = False
        self._work(due=True)
        while self._unsent_ns is not None and self._comes_back():
            self._export(self._unsent_ns)
        if self._unsent_ns is not None:
            self.abandon()

    def abandon(self) -> None:
        """Log that the last metrics were refused, or hang in the exporter and are left behind."""
        self._destination.gave_up(self._sink, "the last metrics")

    def _export(self, time_ns: int) -> None:
        sent = self._send(time_ns)
        if self._state.settled(sent is not None, rejected=sent is None and self.answer.blames):
            # The zero points may be the reason: try the values alone.
            sent = self._send(time_ns)
            self._state.settled(sent is not None)
        self._unsent_ns = time_ns if sent is None else None
        if sent:
            self._destination.ok(self._sink)
            self.succeeded_at = self._exported_at
        elif sent is None:
            self._destination.failed(self._sink, self.answer.reason)

    def _send(self, time_ns: int) -> int | None:
        """Return how many points were sent; None if a request failed.

        One request of many may be refused: by a flaky endpoint, or because of one bad point. The
        others are sent anyway; else the last instruments would hardly ever arrive.
        """
        limit = self._sink.max_points
        sent = failed = 0
        complete = True
        with self._counting:
            points = self._state.collect(time_ns, limit, time.monotonic_ns())
        made = parts(points, limit, _size)
        while part := self._made(made):
            began = time.monotonic()
            longest = math.inf if self.deadline is None else self.deadline - began
            answer = self._destination.send(self._sink, part, longest)
            self._state.part_settled(len(part), answer.taken)
            if answer.taken:
                failed = 0
                sent += self._count(part, answer)
                continue
            self.answer = answer
            complete = False
            failed += 1
            late = time.monotonic() - began > _PROMPT
            self._not_before = time.monotonic() + pause_of(answer)
            if late or answer.pause or failed == _FAILED_REQUESTS:
                break
        return sent if complete else None

    def _made(self, points: Iterator[list[MetricRecord]]) -> list[MetricRecord] | None:
        with self._counting:
            return next(points, None)

    def _count(self, part: Sequence[MetricRecord], answer: Answer) -> int:
        """Count the accepted and rejected points; return the number of accepted ones."""
        size = sum(map(_size, part))
        lost = min(answer.lost, size)
        self._tally.add(semconv.OTEL_EXPORTED.name, self.signal, count=size - lost)
        self._tally.add(semconv.OTEL_DROPPED.name, self.signal, "rejected", count=lost)
        self._destination.server_message(self._sink, answer, lost, size)
        return size - lost


def _size(record: MetricRecord) -> int:
    return len(record.points)

"""The journal: the thread that writes finished spans, and notes of open ones, into the spool.

It stands between the event loop and the lanes of those sinks whose spans are spooled:

- What comes is translated and encoded once, and written in one transaction with all that came
  meanwhile. An exporter that hangs delays none of it.
- The spool is the queue behind the lanes: they are fed with its rows, in their order, while they
  have room, and say which rows are settled.
- Where the spool can't be opened or written, spans go to the lanes from memory, as without one,
  until it can be: the scheduler before this one may still have it, or its volume is not there yet.
  Nothing of the spool ever stops the export.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from dask_otel import semconv
from dask_otel.core.records import FinishedSpan, OpenNote, Progress, SpanRecord
from dask_otel.pump.breath import Breath
from dask_otel.pump.health import Tally
from dask_otel.pump.inbox import Inbox, Item, Over
from dask_otel.pump.internal_errors import InternalErrors
from dask_otel.pump.spool_health import SpoolHealth, found
from dask_otel.pump.spooled import SpooledLane

if TYPE_CHECKING:
    from dask_otel.spool.store import Encoded, Ids, Store

logger = logging.getLogger("distributed.dask_otel")

#: OpenTelemetry spans that may wait to be written: for as long as the disk takes.
BACKLOG: Final = 10_000
#: OpenTelemetry spans, and notes, of one transaction.
_AT_ONCE: Final = 256
#: Rows that are read at once.
_ROWS: Final = 64
#: Seconds between two signs of life, while any span is open.
ALIVE: Final = 1.0
#: Seconds, at the end, that the last spans have to be written, also if there is no time left.
MOMENT: Final = 1.0
#: Seconds between two looks at lanes that finish.
_LOOK: Final = 0.02


@dataclass(frozen=True, slots=True)
class Spool:
    """What the pump must know of the spool."""

    #: For a person.
    path: str
    max_bytes: int
    #: Opens it, in the thread that will use it. Raises OSError where it can't be used, as it is
    #: told a person.
    open: Callable[[], Store]
    #: Of each span sink, whose rows in the spool are its own; empty for one without.
    keys: Sequence[str]


class Journal:
    """The thread that has the spool.

    Parameters
    ----------
    spool
        What is opened.
    lanes
        Of the sinks whose spans go there.
    translate
        Makes OpenTelemetry spans of what comes; called in this thread.
    tally
        Counts what is lost here.
    backlog
        OpenTelemetry spans that may wait to be written.
    """

    def __init__(
        self,
        spool: Spool,
        lanes: Sequence[SpooledLane],
        translate: Callable[[Item], Sequence[SpanRecord]],
        tally: Tally,
        backlog: int = BACKLOG,
    ) -> None:
        #: Set when it is known whether the spool can be used, and when the thread is over.
        self.opened = threading.Event()
        self.closed = threading.Event()
        #: Set, while closing, when all that came is written, and when the thread is over.
        self.written = threading.Event()
        self.wake = threading.Event()
        self.deadline: float | None = None
        #: For a person: what was found, and whether there is a spool at all. Known once opened.
        self.found = ""
        self._spool = spool
        self._lanes = {lane.key: lane for lane in lanes}
        self._translate = translate
        self._tally = tally
        self._store: Store | None = None
        self._inbox = Inbox(backlog)
        #: The lanes for which there may be rows that they were not fed.
        self._behind = set(lanes)
        #: The lane whose rows could not be read, until they can be. They may be damaged for good,
        #: while others can still be written.
        self._unread: SpooledLane | None = None
        #: Spans of which the spool has a note; notes and removals that are to be written.
        self._noted: set[Ids] = set()
        self._notes: dict[Ids, OpenNote] = {}
        self._ended: set[Ids] = set()
        self._settled: list[int] = []
        self._written_at = 0.0
        self._health = SpoolHealth(spool.path, spool.max_bytes)
        self._usage = self._waiting = 0
        self._errors = InternalErrors(tally, "spool")
        self._breathe = Breath()
        for lane in lanes:
            lane.tell = self.wake.set
        # A daemon: a disk that hangs must not hold up the end of the process.
        self._thread = threading.Thread(target=self._run, name="dask-otel-spool", daemon=True)

    # ---------------------------------------------------------------- called by other threads

    def start(self) -> None:
        """Start the thread, which opens the spool."""
        self._thread.start()

    def offer(self, finished: FinishedSpan | Progress) -> bool:
        """Queue a finished span; False, counted, if there is no room. Called by the loop."""
        taken = self._inbox.offer(finished)
        if not taken:
            self._drop("queue_full", finished.weight * len(self._lanes))
        if not self.wake.is_set():
            self.wake.set()
        return taken

    def note(self, note: OpenNote) -> None:
        """Queue a note of an open span. Called by the loop, while there is room for notes."""
        self._inbox.put_light(note)
        if not self.wake.is_set():
            self.wake.set()

    @property
    def has_room_for_notes(self) -> bool:
        """Whether notes may come; they are made later if not. Asked by the loop."""
        return self._inbox.has_room_for_notes

    @property
    def usable(self) -> bool:
        """Whether there is a spool now, as far as that is known."""
        return self._store is not None or not self.opened.is_set()

    @property
    def size(self) -> int:
        """OpenTelemetry spans that wait in memory alone, for the sink that has most of them."""
        if self._inbox.given_up:
            return 0
        return self._inbox.waiting + max((lane.size for lane in self._lanes.values()), default=0)

    @property
    def levels(self) -> dict[str, int]:
        """What the spool holds, by metric; empty where it can't be used."""
        if self._store is None:
            return {}
        return {
            semconv.OTEL_SPOOL_SIZE.name: self._waiting,
            semconv.OTEL_SPOOL_USAGE.name: self._usage,
            semconv.OTEL_SPOOL_LIMIT.name: self._spool.max_bytes,
        }

    def condition(self) -> dict[str, Any]:
        """Return how the spool does, as plain data."""
        return {
            "path": self._spool.path,
            "usable": self._store is not None and not self._health.trouble,
            "reason": self._health.trouble,
            "waiting": self._waiting,
            "usage": self._usage,
            "limit": self._spool.max_bytes,
            "full": self._health.full,
        }

    def close(self, deadline: float) -> None:
        """Ask it to write what is left, and to let go of the spool; returns at once."""
        self.deadline = deadline
        self.wake.set()

    def abandon(self) -> None:
        """Count what it has not taken in as lost: it hangs, or its time is up."""
        left = self._inbox.give_up()
        if left:
            self._drop("shutdown", left * len(self._lanes))
            logger.warning(
                "dask-otel closes, and %d spans could not be written to the spool %s within "
                "otel.close-timeout",
                left,
                self._spool.path,
            )

    # ------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            self._open()
            self.opened.set()
            while self.deadline is None:
                self.wake.wait(self._guarded(self._work))
                self.wake.clear()
            self._guarded(self._finish)
        finally:
            self.opened.set()
            self.written.set()
            self.abandon()
            for lane in self._lanes.values():
                lane.all_fed = True
            self._guarded(self._let_go)
            self.closed.set()

    def _guarded(self, call: Callable[[], float]) -> float:
        try:
            return call()
        except BaseException as error:
            self._errors.take(error)
            # Whatever was written and not fed is read.
            self._behind = set(self._lanes.values())
            return ALIVE

    def _open(self) -> None:
        try:
            store = self._spool.open()
        except Exception as error:
            if not isinstance(error, OSError):
                self._errors.take(error)
            self._health.not_opened(error)
            self._behind.clear()
            return
        self._waiting, self._usage = store.count(), store.size
        self._store = store
        # Rows of earlier runs.
        self._behind = set(self._lanes.values())
        self.found = found(self._spool.path, self._waiting, store.recovered)
        self._health.opened(self.found)

    def _work(self) -> float:
        """Write and feed until nothing is to be done; return how long that may last."""
        if self._store is None and not self._health.rest:
            self._open()
        while self._step():
            if self.deadline is not None:
                return 0.0
        if self._health.trouble:
            return max(_LOOK, self._health.rest)
        return ALIVE if self._noted or self._notes else 60.0

    def _step(self) -> bool:
        """Write what came, and feed the lanes; whether there is more to do."""
        finished, ended = self._take_in()
        for lane in self._lanes.values():
            self._settled += lane.take_settled()
        if self._unread is not None:
            # Before the write: what is written where nothing can be read would be stuck.
            self._feed()
        news = finished or self._notes or ended & self._noted or self._ended or self._settled
        if (
            news
            or self._health.trouble
            or (self._noted and time.monotonic() - self._written_at >= ALIVE)
        ):
            self._write(finished, ended)
        fed = self._feed()
        return bool(self._inbox) or fed or bool(self._notes and not self._health.trouble)

    def _take_in(self) -> tuple[list[Encoded], set[Ids]]:
        """Encode about one transaction's worth; returns what is over, and which spans are."""
        finished: list[Encoded] = []
        ended: set[Ids] = set()
        weight = 0
        while weight < _AT_ONCE and (item := self._inbox.take()) is not None:
            ids = (int(item.identity.trace_id), item.identity.span_id)
            weight += 1 if isinstance(item, (OpenNote, Over)) else item.weight
            if isinstance(item, OpenNote):
                self._notes[ids] = item
                continue
            if not isinstance(item, Progress):
                self._notes.pop(ids, None)
                ended.add(ids)
            if not isinstance(item, Over):
                finished += self._encoded(item)
        return finished, ended

    def _encoded(self, item: Item) -> list[Encoded]:
        """Return the rows that an item becomes; what can't be made of it is counted."""
        encoded: list[Encoded] = []
        try:
            self._breathe()
            for record in self._translate(item):
                ids = (int(record.trace_id), record.span_id)
                for lane in self._lanes.values():
                    self._breathe()
                    body = lane.encoded(record, told=not isinstance(item, OpenNote))
                    if body is not None:
                        encoded.append((lane.key, ids, body))
        except BaseException:
            logger.debug("dask-otel: a span could not be translated", exc_info=True)
            if not isinstance(item, OpenNote):
                self._drop("untranslatable", item.weight * len(self._lanes))
        return encoded

    # ------------------------------------------------------------------------- the spool

    def _write(self, finished: list[Encoded], ended: set[Ids]) -> None:
        """Write one transaction; where that is not possible, spans go on from memory."""
        # A span whose record nobody wants, or that can't be written, has no note either.
        self._ended |= ended & self._noted
        if self._store is None or self._health.rest:
            self._not_written(finished)
            return
        notes = dict(islice(self._notes.items(), _AT_ONCE))
        noted = [one for note in notes.values() for one in self._encoded(note)]
        try:
            written = self._store.write(
                finished=finished,
                noted=noted,
                over=list(self._ended),
                settled=self._settled,
                alive_ns=time.time_ns(),
            )
        except OSError as error:
            self._health.failed(error)
            self._not_written(finished)
            return
        except Exception as error:
            # Not the disk's fault: the same would happen again.
            self._errors.take(error)
            self._forget(notes)
            self._give(finished)
            return
        self._noted -= self._ended | ended
        self._noted.update(ids for _, ids, _ in noted)
        self._forget(notes)
        self._ended.clear()
        self._settled = []
        self._written_at = time.monotonic()
        self._behind.update(self._lanes[key] for key, _, _ in finished)
        if written.gone:
            # Those that are still in a lane's queue, or sent already, are not lost.
            dropped = {row for row in written.gone if row < written.first}
            saved = sum(lane.cut_off(dropped) for lane in self._lanes.values())
            self._drop("spool_full", len(dropped) - saved)
            # Those of this very write go on from memory.
            self._give([finished[row - written.first] for row in written.gone[len(dropped) :]])
        self._drop("unreadable", written.unreadable)
        self._waiting, self._usage = self._store.count(), self._store.size
        if self._unread is None:
            self._health.ok(bool(written.gone), self._usage)

    def _forget(self, notes: Iterable[Ids]) -> None:
        for ids in notes:
            self._notes.pop(ids, None)

    def _not_written(self, finished: list[Encoded]) -> None:
        """Give spans to the lanes from memory, and keep no more notes than there is room for."""
        if self._store is None:
            self._notes.clear()
            self._ended.clear()
            self._settled = []
        self._forget(list(self._notes)[: -self._inbox.backlog])
        self._give(finished)

    def _give(self, finished: list[Encoded]) -> None:
        for key, lane in self._lanes.items():
            own = [body for sink, _, body in finished if sink == key]
            if own:
                lane.give(own)

    def _feed(self) -> bool:
        """Feed the lanes that have room; whether any of them may take more."""
        if self._store is None or self._health.rest:
            return False
        more = False
        for lane in list(self._behind):
            self._breathe()
            again = lane is self._unread
            if again:
                self._unread = None
            if lane.over or lane.allowance <= 0:
                self._behind.discard(lane)
                continue
            # By whole requests: each read has its price.
            if lane.room < min(_ROWS, lane.batch_size) and not again:
                continue
            most = max(1, min(lane.room, _ROWS, lane.allowance))
            try:
                rows = self._store.waiting(lane.key, lane.fed, int(most))
            except OSError as error:
                self._unread = lane
                self._health.failed(error)
                return False
            if rows:
                lane.feed(rows)
                more = True
            else:
                self._behind.discard(lane)
        return more

    # -------------------------------------------------------------------- what a person is told

    def _drop(self, reason: str, count: int) -> None:
        self._tally.add(semconv.OTEL_DROPPED.name, "traces", reason, count=count)

    # ------------------------------------------------------------------------------- the end

    def _finish(self) -> float:
        """Write what is left; feed lanes and settle rows until they are done, or the deadline."""
        deadline = self.deadline or 0.0
        lanes = self._lanes.values()
        for lane in lanes:
            # As much as would have been in its queue without a spool; the rest stays in it.
            lane.allowance = lane.window
        # Also where no time is left for the exporters: this takes a moment.
        until = max(deadline, time.monotonic() + MOMENT)
        while self._inbox and time.monotonic() < until:
            self._step()
        self.written.set()
        while time.monotonic() < deadline and not all(lane.over for lane in lanes):
            self._step()
            # Where the disk makes trouble, nothing more can be read.
            blind = self._store is None or self._health.rest > 0
            for lane in lanes:
                if not lane.all_fed and (blind or lane not in self._behind):
                    lane.all_fed = True
                    lane.wake.set()
            self.wake.wait(_LOOK)
            self.wake.clear()
        return 0.0

    def _let_go(self) -> float:
        """Settle the last rows, and close the spool."""
        if self._store is None:
            return 0.0
        store = self._store
        # Whatever is open now was not exported: it is lost with the scheduler, or was counted.
        self._notes.clear()
        self._health.try_now()
        for lane in self._lanes.values():
            # What it still sends could not be settled: it would be sent, and counted, again.
            lane.abandon()
            self._settled += lane.take_settled()
        try:
            if self._settled or self._ended:
                self._write([], set())
            waiting = store.count()
        finally:
            self._store = None
            # What was not written has its notes, which tell of it.
            store.close(clean=not self._inbox.waiting)
        if waiting:
            logger.info(
                "dask-otel closes, and %s in the spool %s. The next scheduler with that "
                "otel.spool.path sends them; so does `dask-otel spool send %s`.",
                "a span waits" if waiting == 1 else f"{waiting} spans wait",
                self._spool.path,
                self._spool.path,
            )
        return 0.0

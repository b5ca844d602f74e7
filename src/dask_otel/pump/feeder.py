"""The feeder: the thread between the event loop and the lanes of the sinks of one signal.

It translates each item once, and encodes it for each sink. Without a spool the rows go to the lanes
at once. With a spool:

- One transaction writes all items that have arrived meanwhile, and the notes of open spans. An
  exporter that hangs does not delay it.
- The spool is the queue of the lanes: they get its rows in order while they have room. The next
  write removes the rows that have left a lane.
- If the spool can't be opened, written or read, spans go to the lanes from memory, as without a
  spool, until it works: the previous scheduler may still hold it, or its volume is not mounted
  yet. The spool never stops the export.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from dask_otel import semconv
from dask_otel.core.records import ClusterEvent, FinishedSpan, OpenNote, Progress, SpanIdentity
from dask_otel.pump.breath import Breath
from dask_otel.pump.health import QUIET, Notices, Tally
from dask_otel.pump.inbox import Inbox, Item
from dask_otel.pump.lanes import SpanLane
from dask_otel.pump.outlet import WORDS
from dask_otel.pump.spool_health import LONGEST_RETRY, SpoolHealth, found
from dask_otel.pump.thread import PumpThread

if TYPE_CHECKING:
    from dask_otel.spool.store import Encoded, Ids, Store

logger = logging.getLogger("distributed.dask_otel")

#: Limit of the OpenTelemetry spans that wait for the disk.
_BACKLOG: Final = 10_000
#: OpenTelemetry spans of one transaction, and notes.
_AT_ONCE: Final = 256
#: Rows of one read.
_ROWS: Final = 64
#: Seconds between two signs of life, while any span is open.
ALIVE: Final = 1.0
#: Seconds to write the last spans at the end, even after the deadline.
MOMENT: Final = 1.0
#: Seconds between two checks of finishing lanes and of a spool in trouble.
_LOOK: Final = 0.02


@dataclass(frozen=True, slots=True)
class Spool:
    """The pump's interface to the spool."""

    #: The setting's value.
    path: str
    max_bytes: int
    #: Opens it in the thread that will use it. Raises OSError with a message if it is unusable.
    open: Callable[[], Store]
    #: The key of each span sink's rows; empty for a sink without a spool.
    keys: Sequence[str]


class Feeder(PumpThread):
    """The thread that feeds the lanes. It owns the spool; its first work is to open it.

    Parameters
    ----------
    lanes
        The lanes of the span sinks, or of the log sinks.
    translate
        Makes OpenTelemetry spans, or log records, of an item; called in this thread.
    queue_size
        Limit of these that wait in memory without a spool.
    tally
        Counts the losses here.
    wake
        Wakes the thread; the lanes set it too.
    spool
        The spool to open; None if no lane has one.
    signal
        ``"traces"`` or ``"logs"``.
    notices
        Gets an event, at most every ten minutes, if there is no room.
    """

    def __init__(
        self,
        lanes: Sequence[SpanLane],
        translate: Callable[[Any], Sequence[Any]],
        queue_size: int,
        tally: Tally,
        wake: threading.Event,
        spool: Spool | None,
        signal: str = "traces",
        notices: Notices | None = None,
    ) -> None:
        self._notices: Notices = deque(maxlen=1) if notices is None else notices
        self._noticed_at = -math.inf
        self._signal = signal
        self._items, _, named = WORDS[signal]
        super().__init__(f"dask-otel-{named}", "export" if spool is None else "spool", tally, wake)
        #: Set after the first attempt to open the spool.
        self.opened = threading.Event()
        #: Whether everything for the disk is written, after `close`.
        self.written = spool is None
        #: A description of the spool's content when it was opened; empty without a spool.
        self.found = ""
        self.spool = spool
        self._lanes = lanes
        self._stored = {lane.key: lane for lane in lanes if lane.stored}
        self._translate = translate
        self._store: Store | None = None
        self._inbox = Inbox(queue_size if spool is None else _BACKLOG)
        #: OpenTelemetry spans between the inbox and the lanes or the disk.
        self._in_hand = 0
        #: Open spans: notes to write, notes in the spool, notes to remove.
        self._notes: dict[Ids, OpenNote] = {}
        self._noted: set[Ids] = set()
        self._ended: set[Ids] = set()
        #: Rows to remove.
        self._settled: list[int] = []
        self._written_at = 0.0
        self._path, self._max_bytes = ("", 0) if spool is None else (spool.path, spool.max_bytes)
        self._health = SpoolHealth(self._path, self._max_bytes)
        self._breathe = Breath()

    # ---------------------------------------------------------------- called by other threads

    def offer(self, finished: FinishedSpan | Progress | ClusterEvent, counted: bool = True) -> bool:
        """Queue a finished span; False if there is no room. Called by the event loop.

        `counted` is whether it is lost then.
        """
        # The emptiest lane counts: a dead exporter must not stop the others.
        behind = 0 if self._stored else self._in_hand + min(lane.size for lane in self._lanes)
        taken = self._inbox.offer(finished, behind)
        if not taken and counted:
            self._drop("queue_full", finished.weight * len(self._lanes))
            now = time.monotonic()
            if now - self._noticed_at >= QUIET:
                self._noticed_at = now
                about = {semconv.OTEL_SIGNAL: self._signal}
                self._notices.append((semconv.OTEL_QUEUE_FULL, about))
        self.wake.set()
        return taken

    def note(self, note: OpenNote | SpanIdentity) -> None:
        """Queue a note of an open span, or its removal. Called by the event loop."""
        self._inbox.put_light(note)
        self.wake.set()

    @property
    def takes_notes(self) -> bool:
        """Whether notes may be offered now; if not, they are made later. For the event loop."""
        return not self._health.trouble and len(self._inbox) < self._inbox.backlog

    @property
    def size(self) -> int:
        """OpenTelemetry spans that wait in memory only: the maximum over the sinks."""
        if self._inbox.given_up:
            return 0
        return (
            self._inbox.waiting
            + self._in_hand
            + max([lane.size for lane in self._lanes], default=0)
        )

    @property
    def levels(self) -> dict[str, int]:
        """The spool's levels by metric; empty if it was never usable."""
        if self._store is None:
            return {}
        return {
            semconv.OTEL_SPOOL_SIZE.name: self._store.count,
            semconv.OTEL_SPOOL_USAGE.name: self._store.size,
            semconv.OTEL_SPOOL_LIMIT.name: self._max_bytes,
        }

    def condition(self) -> dict[str, Any]:
        """Return the spool's condition as plain data."""
        store, trouble = self._store, self._health.trouble
        return {
            "path": self._path,
            "usable": store is not None and not trouble,
            "reason": trouble,
            "waiting": store.count if store else 0,
            "usage": store.size if store else 0,
            "limit": self._max_bytes,
            "full": self._health.full,
        }

    def abandon(self) -> None:
        """Count the unread items as lost: the thread hangs, or its time is up."""
        left = self._inbox.give_up()
        if left:
            self._drop("shutdown", left * len(self._lanes))
            logger.warning(
                "dask-otel is closing; %d %s could not be %s within otel.close-timeout",
                left,
                self._items,
                f"written to the spool {self._path}" if self._path else "exported",
            )

    # ------------------------------------------------------------------------- the thread

    def work(self) -> float:
        """Write and feed until nothing is left to do; return the seconds until the next look."""
        if self.spool is not None and self._store is None and not self._health.rest:
            self._open(self.spool)
        while self._step():
            if self.deadline is not None:
                return 0.0
        if self._health.trouble:
            return max(_LOOK, self._health.rest)
        return ALIVE if self._noted or self._notes else 60.0

    def _open(self, spool: Spool) -> None:
        try:
            store = self._store = spool.open()
            self.found = found(self._path, store.count, store.recovered)
            self._health.works(f"now uses the {self.found}")
        except Exception as error:
            if not isinstance(error, OSError):
                self._swallow(error)
            self._health.failed(error, opening=True)
        finally:
            self.opened.set()

    def _step(self) -> bool:
        """Write new items, and feed the lanes; return whether there is more to do."""
        store = None if self._health.rest else self._store
        # One at a time if they stay in memory: then the size of the queues is exact to one span.
        rows = self._take_in(_AT_ONCE if store else 1)
        for lane in self._lanes:
            self._settled += lane.take_settled()
        if store is None:
            self._give(rows)
            self._in_hand = 0
            return bool(self._inbox)
        finished = [row for row in rows if row[0] in self._stored]
        if len(finished) < len(rows):
            self._give([row for row in rows if row[0] not in self._stored])
        fed, stored = False, bool(finished or self._notes)
        try:
            if self._health.trouble:
                # If reading fails, rows written now would be stuck.
                self._feed(store)
            late = self._noted and time.monotonic() - self._written_at >= ALIVE
            news = finished or self._notes or self._ended or self._settled
            if news or late or self._health.trouble:
                self._write(store, finished)
            fed = self._feed(store)
            self._health.works(
                f"uses its spool {self._path} again",
                # That sent rows could be removed is no sign of room on a full disk.
                LONGEST_RETRY if stored or fed else math.inf,
            )
        except BaseException as error:
            if isinstance(error, OSError):
                self._health.failed(error)
            else:
                # Not the disk's fault: a retry would fail again.
                self._notes.clear()
                self._swallow(error)
            self._give(finished)
        self._in_hand = 0
        return bool(self._inbox or (self._notes and not self._health.trouble)) or fed

    def _take_in(self, most: int) -> list[Encoded]:
        """Encode finished spans, `most` or a few more; collect the notes."""
        finished: list[Encoded] = []
        weight = self._in_hand = 0
        while weight < most and (item := self._inbox.take()) is not None:
            if not isinstance(item, ClusterEvent):
                identity = item if isinstance(item, SpanIdentity) else item.identity
                ids = b"%032x%016x" % (identity.trace_id, identity.span_id)
                weight += 1
                if isinstance(item, OpenNote):
                    self._notes[ids] = item
                elif not isinstance(item, Progress):
                    self._notes.pop(ids, None)
                    # Even without a row: the span may be unsampled, or impossible to encode.
                    self._ended |= self._noted & {ids}
            if not isinstance(item, (OpenNote, SpanIdentity)):
                weight += item.weight
                self._in_hand += item.weight
                finished += self._encoded(item, None)
        return finished

    def _encoded(self, item: Item, ids: Ids | None) -> list[Encoded]:
        """Return the rows of an item; count errors, except a note's."""
        encoded: list[Encoded] = []
        try:
            self._breathe()
            lanes = self._lanes if ids is None else self._stored.values()
            for record in self._translate(item):
                for lane in lanes:
                    self._breathe()
                    body = lane.encoded(record, counted=ids is None)
                    if body is not None:
                        encoded.append((lane.key, ids, body))
        except BaseException:
            logger.debug("dask-otel: an item could not be translated", exc_info=True)
            if not isinstance(item, OpenNote):
                self._drop("untranslatable", item.weight * len(self._lanes))
        return encoded

    # ------------------------------------------------------------------------- the spool

    def _write(self, store: Store, finished: list[Encoded]) -> None:
        """Write one transaction, and empty `finished`."""
        notes = dict(islice(self._notes.items(), _AT_ONCE))
        noted = [row for ids, note in notes.items() for row in self._encoded(note, ids)]
        dropped, left_out = store.write(
            [*noted, *finished],
            over=list(self._ended),
            settled=self._settled,
            # The lanes have these rows in their queues.
            fed={key: lane.fed for key, lane in self._stored.items()},
            alive_ns=time.time_ns(),
        )
        finished.clear()
        self._written_at = time.monotonic()
        self._noted -= self._ended
        self._noted.update(ids for _, ids, _ in noted if ids is not None)
        for ids in notes:
            del self._notes[ids]
        self._ended.clear()
        self._settled = []
        self._drop("spool_full", dropped)
        self._give(left_out)
        self._health.wrote(bool(dropped or left_out), store.size)

    def _give(self, rows: Sequence[Encoded]) -> None:
        """Give spans to the lanes from memory."""
        for lane in self._lanes:
            lane.give([body for sink, ids, body in rows if sink == lane.key and ids is None])

    def _feed(self, store: Store) -> bool:
        """Feed the lanes that have room; return whether any of them may take more."""
        more = False
        for lane in self._stored.values():
            self._breathe()
            # In whole requests, since each read has a cost. After trouble, try one row.
            least = 1 if self._health.trouble else min(_ROWS, lane.batch_size)
            room = min(_ROWS, max(lane.room, 1 if self._health.trouble else 0))
            if lane.all_fed.is_set() or lane.fed >= store.last or room < least:
                continue
            rows = store.waiting(lane.key, lane.fed, room)
            lane.fed = max(row.number for row in rows) if len(rows) == room else store.last
            damaged = [row.number for row in rows if row.body is None]
            self._settled += damaged
            self._drop("unreadable", len(damaged))
            lane.feed([row for row in rows if row.body is not None])
            more = more or bool(rows)
        return more

    def _drop(self, reason: str, count: int) -> None:
        self._tally.add(semconv.OTEL_DROPPED.name, self._signal, reason, count=count)

    # ------------------------------------------------------------------------------- the end

    def finish(self) -> None:
        """Write the rest; let the lanes finish until the deadline."""
        deadline = self.deadline or 0.0
        # Even if no time is left for the exporters: writing is quick.
        until = max(deadline, time.monotonic() + MOMENT) if self._stored else deadline
        while self._inbox and time.monotonic() < until:
            self._step()
        self.written = True
        # As many rows as their queues would hold without a spool; the rest stays in it.
        for _ in range(0, max(lane.window for lane in self._lanes), _ROWS):
            if not self._step():
                break
        for lane in self._lanes:
            lane.all_fed.set()
        while time.monotonic() < deadline and not all(lane.over for lane in self._lanes):
            self._step()
            self.wake.wait(_LOOK)
            self.wake.clear()

    def release(self) -> None:
        """Remove the last rows that were sent, and close the spool."""
        self.written = True
        self.abandon()
        for lane in self._lanes:
            lane.all_fed.set()
        for lane in self._stored.values():
            lane.abandon()
            self._settled += lane.take_settled()
        store = self._store
        if store is None:
            return
        # At a close each open span was exported or counted, so its note is not needed.
        self._notes.clear()
        try:
            if self._settled or self._ended:
                self._write(store, [])
        except OSError as error:
            self._health.failed(error)
        finally:
            # If spans were not written, keep their notes.
            store.close(clean=not self._inbox.waiting)
        if waiting := store.count:
            logger.info(
                "dask-otel is closing; %s in the spool %s. The next scheduler with that "
                "otel.spool.path sends them; so does `dask-otel spool --send %s`.",
                "1 span remains" if waiting == 1 else f"{waiting} spans remain",
                self._path,
                self._path,
            )

"""The feeder of spans with a spool.

- One transaction writes all items that have arrived meanwhile, and the notes of open spans. An
  exporter that hangs does not delay it.
- The spool is the queue of the lanes: they get its rows in order while they have room. The next
  write removes the rows that have left a lane.
- If the spool can't be opened, written or read, spans go to the lanes from memory, as without a
  spool, until it works: the previous scheduler may still hold it, or its volume is not mounted
  yet. The spool never stops the export.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from dask_otel import semconv
from dask_otel._log import logger
from dask_otel.core.records import (
    ClusterEvent,
    FinishedGraph,
    FinishedSpan,
    OpenNote,
    Progress,
    SpanIdentity,
)
from dask_otel.pump.feeder import Feeder
from dask_otel.pump.lanes import SpanLane
from dask_otel.pump.spool_health import LONGEST_RETRY, SpoolHealth

if TYPE_CHECKING:
    from dask_otel.spool.store import Encoded, Ids, Store

#: Limit of the OpenTelemetry spans that wait for the disk.
BACKLOG: Final = 10_000
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


class SpooledFeeder(Feeder):
    """The feeder that owns a spool; its first work is to open it.

    Parameters
    ----------
    spool
        The spool to open.
    parts
        As for `Feeder`; at least one lane is stored.
    """

    kind = "spool"
    written = False

    def __init__(self, spool: Spool, *parts: Any) -> None:
        super().__init__(*parts)
        self.task = f"written to the spool {spool.path}"
        #: Set after the first attempt to open the spool.
        self.opened = threading.Event()
        #: A description of the spool's content when it was opened.
        self.found = ""
        self._spool = spool
        self._store: Store | None = None
        self._stored = {lane.key: lane for lane in self.lanes if lane.stored}
        #: Open spans: notes to write, notes in the spool, notes to remove.
        self._notes: dict[Ids, OpenNote] = {}
        self._noted: set[Ids] = set()
        self._ended: set[Ids] = set()
        #: Rows to remove.
        self._settled: list[int] = []
        self._written_at = 0.0
        self._health = SpoolHealth(spool.path, spool.max_bytes)

    # ---------------------------------------------------------------- called by other threads

    def offer(
        self, item: FinishedSpan | Progress | ClusterEvent | FinishedGraph, counted: bool = True
    ) -> bool:
        """Queue an item; False if there is no room. Called by the event loop."""
        taken = super().offer(item, counted)
        if not taken and isinstance(item, FinishedSpan):
            # Its note must be removed all the same.
            self.note(item.identity)
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
    def levels(self) -> dict[str, int]:
        """The spool's levels by metric; empty if it was never usable."""
        if self._store is None:
            return {}
        return {
            semconv.OTEL_SPOOL_SIZE.name: self._store.count,
            semconv.OTEL_SPOOL_USAGE.name: self._store.size,
            semconv.OTEL_SPOOL_LIMIT.name: self._spool.max_bytes,
        }

    def condition(self) -> dict[str, Any]:
        """Return the spool's condition as plain data."""
        store, trouble = self._store, self._health.trouble
        return {
            "path": self._spool.path,
            "usable": store is not None and not trouble,
            "reason": trouble,
            "waiting": store.count if store else 0,
            "usage": store.size if store else 0,
            "limit": self._spool.max_bytes,
            "full": self._health.full,
        }

    # ------------------------------------------------------------------------- the thread

    def work(self) -> float:
        """Write and feed until nothing is left to do; return the seconds until the next check."""
        if self._store is None and not self._health.rest:
            self._open()
        super().work()
        if self._health.trouble:
            return max(_LOOK, self._health.rest)
        return ALIVE if self._noted or self._notes else 60.0

    def _open(self) -> None:
        try:
            store = self._store = self._spool.open()
            self.found = (
                f"spool {self._spool.path} (spans of earlier runs: {store.count}, open at their "
                f"end: {store.recovered})"
            )
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
        for lane in self._stored.values():
            self._settled += lane.take_settled()
        if store is None:
            self._give(rows)
            self._in_hand = 0
            return bool(self._inbox)
        self._give([row for row in rows if not row[0].stored])
        finished = [row for row in rows if row[0].stored]
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
                f"uses its spool {self._spool.path} again",
                # Removing sent rows works even on a full disk, so it proves nothing.
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

    def _take_in(self, most: int) -> list[tuple[SpanLane, Any]]:
        """Encode finished spans, `most` or a few more; collect the notes."""
        finished: list[tuple[SpanLane, Any]] = []
        weight = self._in_hand = 0
        while weight < most and (item := self._inbox.take()) is not None:
            weight += 1
            identity = item if isinstance(item, SpanIdentity) else item.identity
            ids = b"%032x%016x" % (identity.trace_id, identity.span_id)
            if isinstance(item, OpenNote):
                self._notes[ids] = item
                continue
            if not isinstance(item, Progress):
                self._notes.pop(ids, None)
                # Even without a row: the span may be unsampled, or impossible to encode.
                self._ended |= self._noted & {ids}
            if item is not identity:
                weight += item.weight
                self._in_hand += item.weight
                finished += self._encoded(item, self.lanes)
        return finished

    # -------------------------------------------------------------------------- the spool

    def _write(self, store: Store, finished: list[tuple[SpanLane, Any]]) -> None:
        """Write one transaction, and empty `finished`."""
        notes = dict(islice(self._notes.items(), _AT_ONCE))
        stored = [*self._stored.values()]
        rows: list[Encoded] = [
            (lane.key, ids, body)
            for ids, note in notes.items()
            for lane, body in self._encoded(note, stored, counted=False)
        ]
        noted = {ids for _, ids, _ in rows if ids is not None}
        rows += [(lane.key, None, body) for lane, body in finished]
        dropped, left_out = store.write(
            rows,
            over=list(self._ended),
            settled=self._settled,
            # The lanes have these rows in their queues.
            fed={key: lane.fed for key, lane in self._stored.items()},
            alive_ns=time.time_ns(),
        )
        finished.clear()
        self._written_at = time.monotonic()
        self._noted -= self._ended
        self._noted |= noted
        for ids in notes:
            del self._notes[ids]
        self._ended.clear()
        self._settled = []
        self._drop("spool_full", dropped)
        self._give([(self._stored[key], body) for key, ids, body in left_out if ids is None])
        self._health.wrote(bool(dropped or left_out), store.size)

    def _feed(self, store: Store) -> bool:
        """Feed the lanes that have room; return whether any of them may take more."""
        more = False
        for lane in self._stored.values():
            self._breathe()
            # In whole requests, since each read has a cost. After trouble, try one row.
            least = 1 if self._health.trouble else min(_ROWS, lane.limits.batch_size)
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

    # ------------------------------------------------------------------------------- the end

    def finish(self) -> None:
        """Write the rest; let the lanes finish until the deadline."""
        deadline = self.deadline or 0.0
        # Even if no time is left for the exporters: writing is quick.
        self._finish(max(deadline, time.monotonic() + MOMENT))
        self.written = True
        # As many rows as their queues would hold without a spool; the rest stays in it.
        for _ in range(0, max(lane.limits.queue_size for lane in self.lanes), _ROWS):
            if not self._step():
                break
        for lane in self.lanes:
            lane.all_fed.set()
        while time.monotonic() < deadline and not all(lane.over for lane in self.lanes):
            self._step()
            self.wake.wait(_LOOK)
            self.wake.clear()

    def release(self) -> None:
        """Remove the last rows that were sent, and close the spool."""
        self.written = True
        super().release()
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
                self._spool.path,
                self._spool.path,
            )

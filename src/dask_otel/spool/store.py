"""The spool's store: what is written to it, what waits in it, and what a killed run left there.

One table holds finished spans, in the order in which they came, another one a note of each open
span: as it would be exported if its scheduler died now. When the next run opens the file, the notes
that it finds there become finished spans, which end at their run's last sign of life.

Spans are rows of bytes, as they are sent. Each call of `Store.write` is one transaction, as is what
is done at the start. What is in memory changes after it alone.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from dask_otel.core.records import Origin, Row
from dask_otel.spool import files, log, schema
from dask_otel.spool.lock import Lock
from dask_otel.spool.problems import SpoolError, as_os_error

__all__ = ["Run", "SpoolError", "Store", "Written"]

#: Rows that one statement takes; SQLite knows 999 parameters at least.
_AT_ONCE: Final = 500
#: Part of the bytes that are allowed which is written before room is made again.
_PIECE: Final = 16
#: Pages that are neither rows nor log: one of each table and index, and the reserve.
_OTHERS: Final = 8
#: Bytes of a row beside its body, in the table and its index.
_ROW: Final = 40
_LAST_NUMBER: Final = 2**63
#: Runs of which nothing waits any more. A new one has no rows yet.
_FORGET_RUNS: Final = "DELETE FROM runs WHERE over AND id NOT IN (SELECT run FROM spans)"

#: Trace id and span id.
Ids: TypeAlias = tuple[int, int]
#: The key of a sink, which span, and its bytes.
Encoded: TypeAlias = tuple[str, Ids, bytes]
#: Checks the bytes of a span, and lets it end at a time at the soonest; None for damaged ones.
Reread: TypeAlias = Callable[[bytes, int, Origin], "bytes | None"]


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a bridge, which writes."""

    #: Dask's id of the scheduler.
    instance_id: str
    #: What its spans are sent with.
    origin: Origin
    started_ns: int


class Written(NamedTuple):
    """What became of a write."""

    #: Rows that were dropped because the spool is full; some may be in somebody's memory.
    gone: Sequence[int] = ()
    #: How many rows of the file could not be read, and were dropped.
    unreadable: int = 0
    #: The number of the first finished row; the others' follow. Larger than any without one.
    first: int = _LAST_NUMBER


def _nothing() -> None:
    """Take no breath."""


class Store:
    """An open spool. Belongs to the thread that has opened it, but for `count` and `size`.

    Made by `open`. Methods that touch the disk raise OSError for trouble with it.
    """

    def __init__(
        self,
        path: Path,
        lock: Lock,
        connection: sqlite3.Connection,
        max_bytes: int | None,
        reread: Reread,
    ) -> None:
        self.path = path
        #: Notes of a lost run that became finished rows when it was opened.
        self.recovered = 0
        self._lock = lock
        self._connection = connection
        #: Bytes that rows may have; None for no limit.
        self._limit = None if max_bytes is None else rows_limit(max_bytes)
        self._reread = reread
        self._stat = os.stat(path)
        #: Number of the present run; 0, which no run has, where nothing is written.
        self._run = 0
        #: Of earlier runs.
        self._origins: dict[int, Origin] = {}
        #: Numbers of the sinks, and how many rows of each wait.
        self._sinks: dict[str, int] = {}
        self._counts: Counter[str] = Counter()
        self._damaged: set[int] = set()
        #: Rows that are settled, and could not be removed.
        self._settled: set[int] = set()
        self._size = 0

    @classmethod
    def open(
        cls,
        path: Path,
        max_bytes: int | None,
        run: Run | None,
        now_ns: int,
        reread: Reread,
        breathe: Callable[[], None] = _nothing,
    ) -> Store:
        """Open a spool; it is made where it is missing.

        Parameters
        ----------
        path
            Absolute; see `dask_otel.spool.files.place`.
        max_bytes
            What the file may become, with its log, as near as is practical.
        run
            Who writes; None for one who only reads and settles.
        now_ns
            The present time: the run's first sign of life.
        reread
            Checks what earlier runs have left.
        breathe
            Called between two pieces of what keeps Python's lock.

        Raises
        ------
        SpoolError
            If it can't be used: in use, no spool, not ours, of a later version, damaged, no folder.
        OSError
            If the disk makes trouble.
        """
        there = files.check(path)
        if run is None and not there:
            raise SpoolError(f"there is no {path}")
        lock = Lock.take(path)
        connection = None
        try:
            # Again: nobody else has it now.
            there = files.check(path)
            log.check(path, breathe)
            if not there:
                files.make(path)
            files.keep_private(path)
            files.reserve(path)
            connection = schema.connect(path, max_bytes)
            store = cls(path, lock, connection, max_bytes, reread)
            store._recover(run, now_ns)
        except BaseException as error:
            if connection is not None:
                connection.close()
            lock.release()
            # Damage shows itself at the first look into a table, and is no trouble of the disk's.
            found = error.__cause__ if isinstance(error, OSError) else error
            if isinstance(found, sqlite3.Error):
                raise schema.unusable(path, found) from found
            raise
        return store

    # --------------------------------------------------------------------------- writing

    def write(
        self,
        *,
        finished: Sequence[Encoded] = (),
        noted: Sequence[Encoded] = (),
        over: Sequence[Ids] = (),
        settled: Iterable[int] = (),
        alive_ns: int,
    ) -> Written:
        """Write all of it in one transaction, or nothing.

        Parameters
        ----------
        finished
            Spans that are over: they wait from now on, and replace their notes.
        noted
            Spans that are open, as they would be exported if the process ended now; each replaces
            the earlier note of the same sink and ids.
        over
            (trace id, span id) of notes to be removed without a span.
        settled
            Numbers of rows that wait no more.
        alive_ns
            The present time: the run's sign of life.

        Raises
        ------
        OSError
            If the disk makes trouble: full, read-only, broken, or the file was removed. Nothing
            has changed then, but that what is settled waits no more: it is removed if possible.
        """
        self._check_there()
        self._know_sinks({sink for sink, _, _ in [*finished, *noted]})
        self._settled.update(settled)
        try:
            with schema.transaction(self._connection):
                written, counts = self._written(finished, noted, over)
                alive = _fitting(alive_ns), self._run
                self._connection.execute("UPDATE runs SET alive_ns = ? WHERE id = ?", alive)
                size = self._used()
        except OSError:
            # What has arrived needs no room for what comes.
            if not self._remove_settled() or finished or noted or over:
                raise
            return Written()
        self._damaged.clear()
        self._settled.clear()
        self._counts, self._size = counts, size
        return written

    def _written(
        self, finished: Sequence[Encoded], noted: Sequence[Encoded], over: Sequence[Ids]
    ) -> tuple[Written, Counter[str]]:
        """Change the tables; returns what will have become of it, and how many rows wait then."""
        execute = self._connection.execute
        counts = self._counts.copy()
        gone: list[int] = []
        self._settle([*self._settled, *self._damaged], counts)
        waiting, first = 0, _LAST_NUMBER
        for is_open, rows in ((True, noted), (False, finished)):
            if not is_open:
                forgotten = [(_key(ids),) for ids in over]
                self._connection.executemany("DELETE FROM notes WHERE ids = ?", forgotten)
            for sink, ids, body in rows:
                note = self._sinks[sink], _key(ids)
                if is_open:
                    execute(_NOTE, (*note, body))
                else:
                    execute("DELETE FROM notes WHERE sink = ? AND ids = ?", note)
                    cursor = execute(_SPAN, (note[0], self._run, 0, body))
                    first = min(first, cursor.lastrowid or first)
                    counts[sink] += 1
                waiting += len(body) + _ROW
                if self._limit is not None and waiting > self._limit // _PIECE:
                    waiting = self._make_room(gone, counts)
        self._make_room(gone, counts)
        return Written(gone, len(self._damaged), first), counts

    def _remove_settled(self) -> bool:
        """Remove what is settled where there is no room for more; whether that was possible."""
        files.give_up_reserve(self.path)
        counts = self._counts.copy()
        with suppress(OSError):
            with schema.transaction(self._connection):
                self._settle([*self._settled], counts)
            self._counts = counts
            self._settled.clear()
        return not self._settled

    def _know_sinks(self, names: set[str]) -> None:
        for name in names - self._sinks.keys():
            with schema.transaction(self._connection):
                cursor = self._connection.execute("INSERT INTO sinks (name) VALUES (?)", (name,))
            self._sinks[name] = cursor.lastrowid or 0

    def _settle(self, rows: Sequence[int], counts: Counter[str]) -> None:
        """Remove finished rows, those that are there."""
        names = {number: name for name, number in self._sinks.items()}
        for some in _pieces(rows):
            which = f"id IN ({','.join('?' * len(some))})"
            found = self._connection.execute(
                f"SELECT sink, count(*) FROM spans WHERE {which} GROUP BY sink", some
            )
            for sink, count in found.fetchall():
                if sink in names:
                    counts[names[sink]] -= count
            self._connection.execute(f"DELETE FROM spans WHERE {which}", some)

    def _make_room(self, gone: list[int], counts: Counter[str]) -> int:
        """Leave no more than is allowed: drop the oldest rows, or notes where there are none."""
        while self._limit is not None and (used := self._used()) > self._limit:
            # A little more, so that not each write comes here.
            wanted = used - self._limit + self._limit // (4 * _PIECE)
            rows: list[int] = []
            found = self._connection.execute("SELECT id, length(body) FROM spans ORDER BY id")
            for row, size in found:
                rows.append(row)
                wanted -= size + _ROW
                if wanted <= 0:
                    break
            found.close()
            self._settle(rows, counts)
            gone += rows
            if not rows and not self._connection.execute(_DROP_NOTE).rowcount:
                break
        return 0

    def _used(self) -> int:
        """Return how many bytes of the file hold something."""
        free = schema.number(self._connection, "freelist_count")
        return (schema.number(self._connection, "page_count") - free) * schema.PAGE

    def _check_there(self) -> None:
        """Raise OSError where somebody has removed the file: what is written would be nowhere."""
        if not os.path.samestat(os.stat(self.path), self._stat):
            raise FileNotFoundError(2, "the spool was replaced by another file", str(self.path))

    # --------------------------------------------------------------------------- reading

    def waiting(self, sink: str, after: int, limit: int) -> list[Row]:
        """Return finished rows of a sink with higher numbers than `after`, the lowest first.

        Rows that can't be read are left out. The next write removes and counts them.
        """
        rows: list[Row] = []
        while self._counts[sink] and len(rows) < limit:
            found = self._select(
                "SELECT id, run, end_ns, body FROM spans "
                "WHERE sink = ? AND id > ? ORDER BY id LIMIT ?",
                (self._sinks[sink], after, limit - len(rows)),
            )
            if not found:
                break
            for after, run, end_ns, body in found:
                origin = self._origins.get(run)
                if run != self._run:
                    # Not ours: it may be damaged.
                    body = None if origin is None else self._reread(body, end_ns, origin)
                if body is None:
                    self._damaged.add(after)
                else:
                    rows.append(Row(body, origin, after))
        return rows

    def _select(self, statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            raise as_os_error(error) from error

    def count(self, sink: str | None = None) -> int:
        """Return how many finished rows wait, for one sink or for all. Any thread may ask."""
        every = sum(self._counts.values()) - len(self._settled)
        return max(0, every) if sink is None else self._counts[sink]

    def sinks(self) -> dict[str, int]:
        """Return the sinks of which rows wait, and how many."""
        return {name: count for name, count in sorted(self._counts.items()) if count}

    @property
    def size(self) -> int:
        """Bytes of all that it holds. Any thread may ask."""
        return self._size

    # -------------------------------------------------------------------- begin and end

    def close(self, clean: bool) -> None:
        """Let go of the file. It is removed, if nothing waits in it.

        Parameters
        ----------
        clean
            Whether the run has ended, so that its notes are removed. They stay if not, as if it
            had been killed.
        """
        empty = False
        execute = self._connection.execute
        files.give_up_reserve(self.path)
        try:
            if clean:
                with suppress(OSError, sqlite3.Error), schema.transaction(self._connection):
                    execute("DELETE FROM notes")
                    execute("UPDATE runs SET over = 1 WHERE id = ?", (self._run,))
                    execute(_FORGET_RUNS)
            with suppress(sqlite3.Error, OSError):
                self._check_there()
                rows = execute("SELECT 1 FROM spans UNION ALL SELECT 1 FROM notes LIMIT 1")
                empty = rows.fetchone() is None
        finally:
            with suppress(sqlite3.Error):
                execute(f"PRAGMA user_version={schema.VERSION}")
            with suppress(sqlite3.Error):
                # What is in the log goes into the file, and the log is removed.
                self._connection.close()
            with suppress(OSError):
                # Where the mark could not be taken back: nothing was lost with the log.
                files.beside(self.path, "-wal").touch(files.MODE)
            if empty:
                files.remove(self.path)
            self._lock.release(remove=empty)

    def _recover(self, run: Run | None, now_ns: int) -> None:
        """Take over what earlier runs left, and begin this one."""
        execute = self._connection.execute
        with schema.transaction(self._connection):
            execute(f"PRAGMA user_version={schema.VERSION | schema.LOGGED}")
            self.recovered = execute(_TAKE_OVER).rowcount
            execute("DELETE FROM notes")
            execute("UPDATE runs SET over = 1 WHERE NOT over")
            execute(_FORGET_RUNS)
            if run is not None:
                times = _fitting(run.started_ns), _fitting(now_ns)
                cursor = execute(
                    "INSERT INTO runs (instance, resource, scope, started_ns, alive_ns, over) "
                    "VALUES (?, ?, ?, ?, ?, 0)",
                    (run.instance_id, *run.origin, *times),
                )
                self._run = cursor.lastrowid or 0
        with suppress(sqlite3.Error):
            # The mark has to be in the file itself.
            execute("PRAGMA wal_checkpoint")
        for number, *parts in execute("SELECT id, resource, scope FROM runs WHERE over"):
            if all(isinstance(part, bytes) for part in parts):
                self._origins[number] = Origin(*parts)
        names = schema.sinks(self._connection)
        self._sinks = {name: number for number, name in names.items()}
        for sink, count in execute("SELECT sink, count(*) FROM spans GROUP BY sink").fetchall():
            if sink in names:
                self._counts[names[sink]] = count
            else:
                # Nobody would ever ask for them.
                rows = execute("SELECT id FROM spans WHERE sink IS ?", (sink,))
                self._damaged.update(row for (row,) in rows)
        self._size = self._used()


_NOTE: Final = (
    "INSERT INTO notes (sink, ids, body) VALUES (?, ?, ?) "
    "ON CONFLICT (sink, ids) DO UPDATE SET body = excluded.body"
)
_SPAN: Final = "INSERT INTO spans (sink, run, end_ns, body) VALUES (?, ?, ?, ?)"
_DROP_NOTE: Final = "DELETE FROM notes WHERE id = (SELECT min(id) FROM notes)"
#: One run at a time has the file, so that all notes are of the last one.
_TAKE_OVER: Final = (
    "INSERT INTO spans (sink, run, end_ns, body) SELECT sink, last.id, last.alive_ns, body "
    "FROM notes, (SELECT id, alive_ns FROM runs WHERE NOT over ORDER BY id DESC LIMIT 1) AS last "
    "ORDER BY notes.id"
)


def _key(ids: Ids) -> bytes:
    return b"%032x%016x" % ids


def _pieces(rows: Sequence[int]) -> Iterator[Sequence[int]]:
    for begin in range(0, len(rows), _AT_ONCE):
        yield rows[begin : begin + _AT_ONCE]


def _fitting(time_ns: int) -> int:
    """Return a time that SQLite can hold."""
    return max(0, min(time_ns, 2**63 - 1))


def rows_limit(max_bytes: int) -> int:
    """Return how many of the bytes that are allowed are for rows.

    The log has the others, and what is written before there is room for it.
    """
    rest = max_bytes - (2 * schema.logged_pages(max_bytes) + _OTHERS) * schema.PAGE
    return rest * _PIECE // (_PIECE + 1)

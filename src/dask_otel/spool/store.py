"""The spool's store: what is written to it, what waits in it, and what a killed run left there.

One table holds finished spans, in the order in which they came, and a note of each open one: the
span as it would be exported if its scheduler died now. When the next run opens the file, the notes
of earlier runs count as finished, and end at their run's last sign of life. Nothing is rewritten
for that, so that there is nothing in which a kill could leave it half done.

Each call of `Store.write` is one transaction. What is in memory changes after it alone.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from dask_otel.core.records import Origin, SpanRecord
from dask_otel.spool import encoding, files, log, schema
from dask_otel.spool.change import Change, rows_limit
from dask_otel.spool.lock import Lock
from dask_otel.spool.problems import SpoolError, as_os_error
from dask_otel.spool.state import Ids, State

__all__ = ["Row", "Run", "SpoolError", "Store", "Written"]


@dataclass(frozen=True, slots=True)
class Run:
    """Who writes: one life of a bridge."""

    #: Dask's id of the scheduler.
    instance_id: str
    #: Attributes of the resource of what it exports.
    resource: Mapping[str, Any]
    #: Of the bridge.
    version: str
    started_ns: int


class Row(NamedTuple):
    """A finished span that waits."""

    id: int
    #: With its origin, where it is of an earlier run.
    record: SpanRecord


class Written(NamedTuple):
    """What became of a write."""

    #: Of the finished records, in their order. One that could not be encoded has an id and no row.
    ids: tuple[int, ...]
    #: How many finished rows were dropped because the spool is full.
    dropped: int
    #: Their ids: some may be among `ids`, others may be in somebody's memory.
    gone: tuple[int, ...] = ()
    #: How many rows of the file could not be read, and were dropped.
    unreadable: int = 0
    #: Those of `ids` that have no row.
    absent: tuple[int, ...] = ()


class _Earlier(NamedTuple):
    """A run that is over."""

    origin: Origin
    alive_ns: int


_Encoded: TypeAlias = "tuple[str, Ids, bytes | None]"


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
        breathe: Callable[[], None],
    ) -> None:
        self.path = path
        #: Notes of lost runs that became finished rows when it was opened.
        self.recovered = 0
        self._lock = lock
        self._connection = connection
        self._state = State(connection, None if max_bytes is None else rows_limit(max_bytes))
        self._breathe = breathe
        self._stat = os.stat(path)
        self._earlier: dict[int, _Earlier] = {}
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
        breathe
            Called between two records: encoding and decoding keep Python's lock.

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
            store = cls(path, lock, connection, max_bytes, breathe)
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
        finished: Sequence[tuple[str, SpanRecord]] = (),
        noted: Sequence[tuple[str, SpanRecord]] = (),
        over: Sequence[Ids] = (),
        settled: Sequence[int] = (),
        alive_ns: int,
    ) -> Written:
        """Write all of it in one transaction, or nothing.

        Parameters
        ----------
        finished
            Spans that are over, each with the key of its sink: they wait from now on, and replace
            their notes.
        noted
            Spans that are open, as they would be exported if the process ended now; each replaces
            the earlier note of the same sink and ids.
        over
            (trace id, span id) of notes to be removed without a span.
        settled
            Ids of rows that wait no more.
        alive_ns
            The present time: the run's sign of life.

        Raises
        ------
        OSError
            If the disk makes trouble: full, read-only, broken, or the file was removed. Nothing
            has changed then, but that what is settled waits no more: it is removed if possible.
        """
        self._check_there()
        ended = self._encoded(finished)
        done = {(sink, ids) for sink, ids, _ in ended}
        ids_over = {(int(trace), span) for trace, span in over}
        notes = {
            (sink, ids): body
            for sink, ids, body in self._encoded(noted)
            if (sink, ids) not in done and ids not in ids_over
        }
        self._know_sinks([*finished, *noted])
        self._settled.update(settled)
        change = Change(self._state)
        try:
            with schema.transaction(self._connection):
                change.settle([*self._settled, *self._damaged])
                for ids in ids_over:
                    change.forget(ids, None)
                for (sink, ids), body in notes.items():
                    change.note(sink, ids, body)
                for sink, ids, body in ended:
                    change.forget(ids, sink)
                    change.finish(sink, body)
                change.flush()
                self._connection.execute(
                    "UPDATE runs SET alive_ns = ? WHERE id = ?",
                    (_fitting(alive_ns), self._state.run),
                )
                size = self._state.used()
        except OSError:
            # What has arrived needs no room for what comes.
            if not self._remove_settled() or ended or notes or ids_over:
                raise
            return Written(ids=(), dropped=0)
        unreadable = len(self._damaged)
        self._damaged.clear()
        self._settled.clear()
        self._size = size
        change.take_effect()
        return Written(
            ids=tuple(change.ids),
            dropped=len(change.gone),
            gone=tuple(change.gone),
            unreadable=unreadable,
            absent=tuple(change.absent),
        )

    def _remove_settled(self) -> bool:
        """Remove what is settled where there is no room for more; whether that was possible."""
        files.give_up_reserve(self.path)
        change = Change(self._state)
        with suppress(OSError):
            with schema.transaction(self._connection):
                change.settle(self._settled)
            change.take_effect()
            self._settled.clear()
        return not self._settled

    def _encoded(self, records: Iterable[tuple[str, SpanRecord]]) -> list[_Encoded]:
        encoded: list[_Encoded] = []
        for sink, record in records:
            self._breathe()
            try:
                body = encoding.encode(record)
            except (TypeError, ValueError, RecursionError, OverflowError):
                # It goes its way from memory; the others are not to suffer.
                body = None
            encoded.append((sink, (int(record.trace_id), record.span_id), body))
        return encoded

    def _know_sinks(self, records: Iterable[tuple[str, SpanRecord]]) -> None:
        for name in {sink for sink, _ in records} - self._state.sinks.keys():
            with schema.transaction(self._connection):
                self._connection.execute("INSERT INTO sinks (name) VALUES (?)", (name,))
                (key,) = self._connection.execute("SELECT last_insert_rowid()").fetchone()
            self._state.sinks[name] = key

    def _check_there(self) -> None:
        """Raise OSError where somebody has removed the file: what is written would be nowhere."""
        if not os.path.samestat(os.stat(self.path), self._stat):
            raise FileNotFoundError(2, "the spool was replaced by another file", str(self.path))

    # --------------------------------------------------------------------------- reading

    def waiting(self, sink: str, after: int, limit: int) -> list[Row]:
        """Return finished rows of a sink with higher ids than `after`, the lowest first.

        Rows that can't be read are left out. The next write removes and counts them.
        """
        rows: list[Row] = []
        key = self._state.sinks.get(sink)
        if key is None or not self._state.counts[sink]:
            return rows
        while len(rows) < limit:
            found = self._select(
                "SELECT id, run, open, body FROM spans "
                "WHERE sink = ? AND id > ? AND NOT (open AND run = ?) ORDER BY id LIMIT ?",
                (key, after, self._state.run, limit - len(rows)),
            )
            if not found:
                break
            for row, run, is_open, body in found:
                self._breathe()
                after = row
                try:
                    rows.append(Row(row, self._decoded(run, is_open, body)))
                except ValueError:
                    self._damaged.add(row)
        return rows

    def _decoded(self, run: int, is_open: int, body: bytes) -> SpanRecord:
        if run == self._state.run:
            return encoding.decode(body)
        earlier = self._earlier.get(run)
        if earlier is None:
            raise ValueError("of no known run")
        record = encoding.decode(body, earlier.origin)
        if is_open and record.end_ns < earlier.alive_ns:
            record = replace(record, end_ns=earlier.alive_ns)
        return record

    def _select(self, statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            raise as_os_error(error) from error

    def count(self, sink: str | None = None) -> int:
        """Return how many finished rows wait, for one sink or for all. Any thread may ask."""
        every = sum(self._state.counts.copy().values()) - len(self._settled)
        return max(0, every) if sink is None else self._state.counts[sink]

    def sinks(self) -> dict[str, int]:
        """Return the sinks of which rows wait, and how many."""
        return {name: count for name, count in sorted(self._state.counts.items()) if count}

    @property
    def open_notes(self) -> int:
        """How many notes of open spans this run has."""
        return sum(len(rows) for rows in self._state.notes.values())

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
        files.give_up_reserve(self.path)
        try:
            if clean:
                with suppress(OSError, sqlite3.Error), schema.transaction(self._connection):
                    run = (self._state.run,)
                    self._connection.execute("DELETE FROM spans WHERE open AND run = ?", run)
                    self._connection.execute("UPDATE runs SET over = 1 WHERE id = ?", run)
                    self._connection.execute(_FORGET_RUNS)
            with suppress(sqlite3.Error, OSError):
                self._check_there()
                rows = self._connection.execute("SELECT 1 FROM spans LIMIT 1").fetchone()
                empty = rows is None
        finally:
            with suppress(sqlite3.Error):
                self._connection.execute(f"PRAGMA user_version={schema.VERSION}")
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
        connection = self._connection
        with schema.transaction(connection):
            connection.execute(f"PRAGMA user_version={schema.VERSION | schema.LOGGED}")
            (recovered,) = connection.execute(
                "SELECT count(*) FROM spans WHERE open AND run IN "
                "(SELECT id FROM runs WHERE NOT over)"
            ).fetchone()
            connection.execute("UPDATE runs SET over = 1 WHERE NOT over")
            connection.execute(_FORGET_RUNS)
            if run is not None:
                cursor = connection.execute(
                    "INSERT INTO runs (instance, version, resource, started_ns, alive_ns, over) "
                    "VALUES (?, ?, ?, ?, ?, 0)",
                    (
                        run.instance_id,
                        run.version,
                        encoding.encode_attributes(run.resource),
                        _fitting(run.started_ns),
                        _fitting(now_ns),
                    ),
                )
                self._state.run = cursor.lastrowid or 0
        with suppress(sqlite3.Error):
            # The mark has to be in the file itself.
            connection.execute("PRAGMA wal_checkpoint")
        self.recovered = recovered
        for key, version, resource, alive_ns in connection.execute(
            "SELECT id, version, resource, alive_ns FROM runs WHERE over"
        ):
            with suppress(ValueError):
                origin = Origin(encoding.decode_attributes(resource), str(version))
                self._earlier[key] = _Earlier(origin, encoding.whole(alive_ns))
        names = schema.sinks(connection)
        self._state.sinks = {name: key for key, name in names.items()}
        for key, count in connection.execute("SELECT sink, count(*) FROM spans GROUP BY sink"):
            if key in names:
                self._state.counts[names[key]] = count
            else:
                # Nobody would ever ask for them.
                rows = connection.execute("SELECT id FROM spans WHERE sink IS ?", (key,))
                self._damaged.update(row for (row,) in rows)
        (last,) = connection.execute("SELECT max(id) FROM spans").fetchone()
        self._state.next = 1 + (last or 0)
        self._size = self._state.used()


#: Runs of which nothing waits any more. A new one has no rows yet.
_FORGET_RUNS: Final = "DELETE FROM runs WHERE over AND id NOT IN (SELECT run FROM spans)"


def _fitting(time_ns: int) -> int:
    """Return a time that SQLite can hold."""
    return max(0, min(time_ns, 2**63 - 1))

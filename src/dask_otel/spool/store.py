"""The spool's store: one table of spans, as the bytes that are sent.

A row is a finished span, or the note of an open one (`ids` is set): the span that would be exported
if its scheduler died now. Notes of earlier runs are sent like finished spans; they end at their
run's last sign of life. So nothing is changed or repaired after a kill.

Each write is one transaction. Whenever the process is killed, SQLite's rollback journal makes it
complete or undone. Nothing is forced to the disk (``synchronous=OFF``): written bytes belong to the
kernel, and survive the process. The journal stays allocated, so that even on a full disk rows that
were sent can be removed.

A journal does not name its file, and SQLite would undo another spool's write in this one. So an
interrupted write is first undone in a copy, and the spool's identity compared (`undone`).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from urllib.parse import quote
from zlib import crc32

from dask_otel.core.records import Origin, Row
from dask_otel.spool import files, lock
from dask_otel.spool.files import SpoolError

#: The version of the tables.
VERSION: Final = 2
#: "dOTs", the application's number in SQLite's header.
APPLICATION: Final = 0x644F5473
_MAGIC: Final = b"SQLite format 3\0"
#: A journal's first bytes; then the number of records, a nonce, and the pages that the file had.
_JOURNAL_MAGIC: Final = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
PAGE: Final = 4096
#: Bytes of the journal: allocated at the start, and kept after a large transaction.
JOURNAL: Final = 1 << 16
#: Rows to remove at once on a full disk: the journal has room for their pages.
_FEW: Final = 8
#: Rows to drop at once to make room.
_DROPPED: Final = 64
#: Bytes of a row besides its body.
_ROW: Final = 48
#: Seconds to wait for a reader (``dask-otel spool``), which reads briefly each time.
_BUSY: Final = 5.0
#: The view's name is the spool's identity: it is in the file's first page.
_TABLES: Final = f"""
    PRAGMA application_id = {APPLICATION};
    PRAGMA user_version = {VERSION};
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        resource BLOB NOT NULL,
        scope BLOB NOT NULL,
        started_ns INTEGER NOT NULL,
        alive_ns INTEGER NOT NULL,
        alive_again INTEGER
    );
    CREATE TABLE rows (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run INTEGER NOT NULL,
        sink TEXT NOT NULL,
        ids BLOB,
        body BLOB NOT NULL,
        crc INTEGER
    );
    CREATE UNIQUE INDEX notes ON rows (run, ids, sink) WHERE ids IS NOT NULL;
    CREATE VIEW "%s" AS SELECT 1;
"""
#: The condition for rows to send; the parameter is the present run.
_WAITS: Final = "(ids IS NULL OR run != ?)"

#: The identity of a noted span; only the writer interprets it.
Ids: TypeAlias = bytes
#: A sink's key, the identity of a noted open span (None for a finished one), and the bytes.
Encoded: TypeAlias = tuple[str, "Ids | None", bytes]
#: Checks a span's bytes, and sets its end to a time if that is later; None if damaged.
Reread: TypeAlias = Callable[[bytes, int, Origin], "bytes | None"]


class _Damaged(OSError):
    """A file is damaged, rather than the disk full or the file in use."""


_connections: set[sqlite3.Connection] = set()


class Store:
    """An open spool. Made by `open`; for the thread that opened it.

    Methods raise OSError for problems with the disk.
    """

    #: The last waiting row's number; the number of waiting rows; of those that earlier runs left
    #: open; bytes in use.
    last = count = recovered = size = 0

    def __init__(
        self,
        path: Path,
        descriptor: int,
        connection: sqlite3.Connection,
        max_bytes: int | None,
        reread: Reread,
    ) -> None:
        self.path = path
        self._reread = reread
        self._lock = descriptor
        self._connection = connection
        self._execute = connection.execute
        self._limit = float("inf") if max_bytes is None else rows_limit(max_bytes)
        self._stat = os.stat(path)
        #: Number of the present run; 0 (no run's number) for a reader.
        self._run = 0
        self._origins: dict[int, tuple[Origin, int]] = {}

    def __repr__(self) -> str:
        return f"<Store {self.path}: {self.count} waiting, {self.size} bytes>"

    @classmethod
    def open(
        cls,
        path: Path,
        max_bytes: int | None,
        origin: Origin | None,
        now_ns: int,
        reread: Reread,
    ) -> Store:
        """Open a spool, and make it if it is missing.

        Parameters
        ----------
        path
            Absolute; see `dask_otel.spool.files.place`.
        max_bytes
            Approximate limit of the file; None for no limit.
        origin
            Resource and scope of the run that writes; None to read and settle only.
        now_ns
            The present time: the run's first sign of life.
        reread
            Checks the bytes of earlier runs.

        Raises
        ------
        SpoolError
            If it is unusable: in use, no spool, not ours, of a later version, damaged, no folder,
            beside the journal of another file.
        OSError
            If the disk fails.
        """
        if not files.check(path) and origin is None:
            raise SpoolError(f"there is no {path}")
        with ExitStack() as undo:
            descriptor = lock.take(path)
            undo.callback(lock.release, path, descriptor)
            try:
                check_header(path)
                files.make(path)
                copy = files.beside(path, files.COPY)
                # That of a process which was killed while it undid a write.
                files.remove(copy)
                if interrupted(path):
                    with undone(path, copy):
                        pass
                connection = connect(path)
                undo.callback(disconnect, connection)
                store = cls(path, descriptor, connection, max_bytes, reread)
                store._prepare(origin, now_ns)
            except _Damaged as error:
                raise SpoolError(
                    f"{path} is damaged ({error}). A kill does not cause this: check the disk. "
                    "Move the file away, and a new one is made"
                ) from error
            undo.pop_all()
        return store

    def _prepare(self, origin: Origin | None, now_ns: int) -> None:
        execute = self._execute
        with _as_os_error():
            # Rows written into a damaged table may never be found again.
            _check(self._connection)
            if not _number(self._connection, "user_version"):
                execute(f"PRAGMA page_size = {PAGE}")
                tables = _TABLES % os.urandom(16).hex()
                self._connection.executescript(f"BEGIN IMMEDIATE; {tables} COMMIT;")
            # The journal keeps its first bytes, even after a larger transaction.
            execute("PRAGMA journal_mode = PERSIST")
            execute(f"PRAGMA journal_size_limit = {JOURNAL}")
        with self._transaction():
            execute("DELETE FROM runs WHERE id NOT IN (SELECT run FROM rows)")
            for number, resource, scope, alive_ns, again in execute(
                "SELECT id, resource, scope, alive_ns, alive_again FROM runs"
            ):
                known = alive_ns if again == alive_ns else 0
                self._origins[number] = Origin(resource, scope), known
            self.count, self.recovered, self.last = execute(
                "SELECT count(*), count(ids), ifnull(max(id), 0) FROM rows"
            ).fetchone()
            if origin is not None:
                cursor = execute(
                    "INSERT INTO runs (resource, scope, started_ns, alive_ns, alive_again) "
                    "VALUES (?, ?, ?, ?, ?)",
                    (*origin, now_ns, now_ns, now_ns),
                )
                self._run = cursor.lastrowid or 0
                self._origins[self._run] = origin, now_ns
            self.size = self._used()
        path = files.beside(self.path, "-journal")
        with suppress(OSError):
            files.make(path)
            with path.open("ab") as journal:
                journal.write(bytes(max(0, JOURNAL - journal.tell())))

    # --------------------------------------------------------------------------- writing

    def write(
        self,
        rows: Sequence[Encoded] = (),
        *,
        over: Sequence[Ids] = (),
        settled: Sequence[int] = (),
        fed: Mapping[str, int] = MappingProxyType({}),
        alive_ns: int,
    ) -> tuple[int, Sequence[Encoded]]:
        """Write everything in one transaction, or nothing.

        Parameters
        ----------
        rows
            Finished spans, and notes of open spans; a note replaces the previous one of its span.
        over
            Spans whose notes are removed first.
        settled
            Numbers of rows to remove.
        fed
            By sink: the number of the last row that its queue has got. These rows are not dropped.
        alive_ns
            The present time: the run's sign of life.

        Returns
        -------
        dropped
            How many waiting rows were dropped.
        left_out
            Rows of this write that had no room.

        Raises
        ------
        OSError
            If the disk is full, read-only or broken, or the file was removed. Then nothing has
            changed, except that settled rows are removed if possible.
        """
        if not os.path.samestat(os.stat(self.path), self._stat):
            raise FileNotFoundError(2, "the spool was replaced by another file", str(self.path))
        try:
            return self._write(rows, over, settled, fed, alive_ns)
        except OSError:
            for begin in range(0, len(settled), _FEW):
                self._write((), (), settled[begin : begin + _FEW], fed, alive_ns)
            if rows or over or not settled:
                raise
            return 0, ()

    def _write(
        self,
        rows: Sequence[Encoded],
        over: Sequence[Ids],
        settled: Sequence[int],
        fed: Mapping[str, int],
        alive_ns: int,
    ) -> tuple[int, Sequence[Encoded]]:
        run, last = self._run, self.last
        with self._transaction() as execute:
            deleted = self._connection.executemany(
                "DELETE FROM rows WHERE id = ?", [(number,) for number in settled]
            )
            count = self.count - max(0, deleted.rowcount)
            for ids in over:
                execute("DELETE FROM rows WHERE run = ? AND ids = ?", (run, ids))
            kept = _newest(rows, self._limit / 8)
            dropped = self._make_room(sum(map(_size, kept)), fed)
            kept = _newest(kept, self._limit - self._used())
            for row in kept:
                cursor = execute(
                    "INSERT OR REPLACE INTO rows (run, sink, ids, body, crc) "
                    "VALUES (?, ?, ?, ?, ?)",
                    (run, *row, _crc(self._origins[run][0], *row[1:])),
                )
                if row[1] is None:
                    count, last = count + 1, cursor.lastrowid or 0
            # No numbers (?1): Python 3.12.0 to 3.12.3 takes them for names, and warns.
            alive = "UPDATE runs SET alive_ns = ?, alive_again = ? WHERE id = ?"
            execute(alive, (alive_ns, alive_ns, run))
            size = self._used()
        self.count, self.last, self.size = count - dropped, last, size
        return dropped, rows[: len(rows) - len(kept)]

    def _make_room(self, needed: int, fed: Mapping[str, int]) -> int:
        """Drop the oldest rows; if there are none, the oldest notes. Return the number of rows."""
        which = _WAITS + " AND NOT (sink = ? AND id <= ?)" * len(fed)
        dropped = self._drop_oldest(needed, which, [self._run, *chain(*fed.items())])
        notes = f"NOT {_WAITS} AND NOT EXISTS (SELECT 1 FROM rows WHERE {_WAITS})"
        self._drop_oldest(needed, notes, [self._run, self._run])
        return dropped

    def _drop_oldest(self, needed: int, which: str, values: Sequence[Any]) -> int:
        oldest = f"SELECT id FROM rows WHERE {which} ORDER BY id LIMIT {_DROPPED}"
        dropped, found = 0, 1
        while found and self._used() + needed > self._limit:
            found = self._execute(f"DELETE FROM rows WHERE id IN ({oldest})", values).rowcount
            dropped += found
        return dropped

    def _used(self) -> int:
        free = _number(self._connection, "freelist_count")
        return (_number(self._connection, "page_count") - free) * PAGE

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        with _as_os_error():
            try:
                self._execute("BEGIN IMMEDIATE")
                # This changes nothing, and makes the first page the first one in the journal.
                self._execute(f"PRAGMA user_version = {VERSION}")
                yield self._execute
                self._execute("COMMIT")
            except BaseException:
                # An error, too, if SQLite has done so by itself.
                with suppress(sqlite3.Error):
                    self._execute("ROLLBACK")
                raise

    # --------------------------------------------------------------------------- reading

    def waiting(self, sink: str, after: int, limit: int) -> list[Row]:
        """Return a sink's waiting rows with numbers above `after`, the lowest first.

        The body of a damaged row is None.
        """
        with _as_os_error():
            found = self._execute(
                "SELECT id, run, ids, body, crc FROM rows "
                f"WHERE id > ? AND sink = ? AND {_WAITS} ORDER BY id LIMIT ?",
                (after, sink, self._run, limit),
            ).fetchall()
        # A damaged file may return other numbers, and would be read for ever.
        return [self._row(*row) for row in found if row[0] > after]

    def _row(self, number: int, run: int, ids: Ids | None, body: bytes, crc: int | None) -> Row:
        origin, alive_ns = self._origins.get(run, (None, 0))
        if origin is None or crc != _crc(origin, ids, body):
            return Row(None, None, number)
        if run == self._run:
            return Row(body, None, number)
        return Row(self._reread(body, 0 if ids is None else alive_ns, origin), origin, number)

    def adopt(self, sinks: Sequence[str]) -> None:
        """Give the rows of sinks that are not in `sinks` to the first of them."""
        marks = ",".join("?" * len(sinks))
        with self._transaction() as execute:
            execute(f"UPDATE rows SET sink = ? WHERE sink NOT IN ({marks})", (sinks[0], *sinks))

    # -------------------------------------------------------------------------- the end

    def close(self, clean: bool) -> None:
        """Close the file, and remove it if it is empty.

        Parameters
        ----------
        clean
            Whether the run has ended: its notes are removed. Else they stay, as after a kill.
        """
        empty = False
        try:
            with suppress(OSError), self._transaction() as execute:
                if clean:
                    execute("DELETE FROM rows WHERE run = ? AND ids IS NOT NULL", (self._run,))
                there = os.path.samestat(os.stat(self.path), self._stat)
                empty = there and execute("SELECT 1 FROM rows").fetchone() is None
            with suppress(sqlite3.Error):
                # This removes the journal.
                self._execute("PRAGMA journal_mode = DELETE")
        finally:
            disconnect(self._connection)
            if empty:
                with suppress(OSError):
                    files.remove(self.path)
            lock.release(self.path, self._lock)


def check_header(path: Path) -> None:
    """Raise SpoolError for a file that is no spool, or whose content SQLite would destroy.

    A missing or empty file can become a spool.
    """
    try:
        header, journal, log = (_begin(path, suffix) for suffix in ("", "-journal", "-wal"))
    except OSError as error:
        raise SpoolError(f"{path} can't be read: {error.strerror}") from error
    number = int.from_bytes(header[68:72], "big")
    if header and (not header.startswith(_MAGIC) or number != APPLICATION):
        raise SpoolError(
            f"{path} is no spool of dask-otel, and was not changed. Set otel.spool.path to a "
            "file that does not exist yet"
        )
    # A process that was killed at its start leaves a journal of a file without pages.
    of_pages = not journal.startswith(_JOURNAL_MAGIC) or any(journal[16:20])
    if journal and of_pages and not header and path.exists():
        raise SpoolError(
            f"{path} is empty, and {path}-journal is not: something other than dask-otel removed "
            "the spool's content. Restore the file, or move the journal away to begin a new spool"
        )
    if log and header[18:20] == b"\1\1":
        raise SpoolError(
            f"{path}-wal is not from this spool, and SQLite would write it into the spool. Move it "
            "away; nothing was changed"
        )


def _begin(path: Path, suffix: str, length: int = PAGE) -> bytes:
    """Return a file's first bytes, by default a page, or less; nothing if it is missing."""
    with suppress(FileNotFoundError), files.beside(path, suffix).open("rb") as file:
        return file.read(length)
    return b""


def interrupted(path: Path) -> bool:
    """Whether a write was not completed; SQLite undoes it at the next access."""
    return _begin(path, "-journal")[:1] > b"\0"


@contextmanager
def undone(path: Path, copy: Path) -> Iterator[sqlite3.Connection]:
    """Connect to a copy of a spool in which the interrupted write is undone; at the end, remove it.

    Raises
    ------
    SpoolError
        If the journal is another file's, or one of the two is damaged.
    OSError
        If the copy can't be made.
    """
    with ExitStack() as stack:
        stack.callback(files.remove, copy)
        for suffix in ("", "-journal"):
            files.make(files.beside(copy, suffix))
            shutil.copyfile(files.beside(path, suffix), files.beside(copy, suffix))
        page, journal = _begin(copy, ""), _begin(copy, "-journal", JOURNAL)
        try:
            connection = connect(copy)
            stack.callback(disconnect, connection)
            with _as_os_error():
                if not _is_before(page, _begin(copy, ""), journal):
                    raise _Damaged("it is another file's")
                _check(connection)
        except _Damaged as error:
            raise SpoolError(
                f"the last write to {path} was interrupted, and {path}-journal can't undo it "
                f"({error}). Nothing was changed. Put the spool's own journal there; or move this "
                "one away, and the spool is read as it is"
            ) from error
        yield connection


def _is_before(page: bytes, earlier: bytes, journal: bytes) -> bool:
    """Whether a journal of a spool with this first page can have left the earlier one."""
    writes = int.from_bytes(page[24:28], "big") - int.from_bytes(earlier[24:28], "big")
    records = journal[int.from_bytes(journal[20:24], "big") :]
    return (
        writes in (0, 1)
        # The number of pages at the begin of the write.
        and int.from_bytes(earlier[28:32], "big") == int.from_bytes(journal[16:20], "big")
        # The schema, with the identity: it stays, except while a spool is made or updated.
        and (page[60:64] != earlier[60:64] or page[100:] == earlier[100:])
        # A journal without the first page would leave it as it is; a new one has no page at first.
        and (not earlier or b"\0\0\0\1".startswith(records[:4]))
    )


def _check(connection: sqlite3.Connection) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        # It has several lines.
        raise sqlite3.DatabaseError(" ".join(found.split()))


def connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """Connect to a spool's file; with the mode ``"ro"``, SQLite never changes it.

    Raises
    ------
    SpoolError
        If a later version wrote it.
    OSError, sqlite3.Error
        If it can't be read.
    """
    uri = f"file:{quote(str(path))}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY)
    _connections.add(connection)
    try:
        with _as_os_error():
            # Some builds overwrite removed rows, which fails on a full disk. And write spans to no
            # other file.
            connection.executescript("""
                PRAGMA synchronous = OFF;
                PRAGMA secure_delete = OFF;
                PRAGMA temp_store = MEMORY;
                PRAGMA trusted_schema = OFF;
            """)
            version = _number(connection, "user_version")
        if version > VERSION:
            raise SpoolError(
                f"{path} was written by a later version of dask-otel (its tables have version "
                f"{version}, this one knows {VERSION}): use that version, or another path"
            )
    except BaseException:
        disconnect(connection)
        raise
    return connection


def disconnect(connection: sqlite3.Connection) -> None:
    """Close a connection of `connect`."""
    _connections.discard(connection)
    connection.close()


def _after_fork() -> None:
    """Never close the parent's connections: SQLite would roll back the parent's transaction."""
    for connection in _connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise OSError(f"SQLite says: {error}") from error
    except (sqlite3.Error, UnicodeError) as error:
        # SQLite's message can quote a damaged schema, which is no text.
        raise _Damaged(f"SQLite says: {error}") from error


def _crc(origin: Origin, ids: Ids | None, body: bytes) -> int:
    """Return the checksum of a row; a damaged one can have values of any type."""
    return crc32(body if isinstance(body, bytes) else b"", crc32(repr((origin, ids)).encode()))


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def _newest(rows: Sequence[Encoded], room: float) -> Sequence[Encoded]:
    """Return the last rows that fit."""
    for index in range(len(rows) - 1, -1, -1):
        room -= _size(rows[index])
        if room < 0:
            return rows[index + 1 :]
    return rows


def _size(row: Encoded) -> int:
    return len(row[2]) + _ROW


def rows_limit(max_bytes: int) -> int:
    """Return the bytes available for rows; the others are for the journal."""
    return max_bytes * 7 // 8 - JOURNAL

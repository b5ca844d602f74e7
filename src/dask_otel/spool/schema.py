"""The tables of a spool, and how its file is opened.

Why SQLite may leave out every ``fsync`` (``synchronous=OFF``): the spool is for a process that is
killed, not for a machine that loses its power. What a process has written is the kernel's, and
stays when that process is killed at any moment. The write-ahead log gives whole transactions then:
one that has no end in the log is passed over when the file is opened next, which takes no repair.

A new file gets its tables in one transaction, with the number that marks it as a spool: who is
killed before leaves an empty file, which is made anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from dask_otel.spool import children, files
from dask_otel.spool.problems import SpoolError, as_os_error

VERSION: Final = 1
#: Added to the version in the file while there is a log beside it.
LOGGED: Final = 1 << 16
#: Seconds to wait for a reader (``dask-otel spool show``) that is in the way for a moment.
_BUSY: Final = 2.0
#: Pages of the write-ahead log before they go into the file: 4 MB at most.
_MOST_LOGGED: Final = 1000
#: Of the bytes that are allowed, the part of the log; half of it may be one transaction.
_LOG_SHARE: Final = 8
PAGE: Final = 4096

_TABLES: Final = (
    """
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        instance TEXT NOT NULL,
        resource BLOB NOT NULL,
        scope BLOB NOT NULL,
        started_ns INTEGER NOT NULL,
        alive_ns INTEGER NOT NULL,
        over INTEGER NOT NULL
    )
    """,
    "CREATE TABLE sinks (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    # No number is used twice: a lane may still have it. `end_ns`: of a span that was open, when its
    # run was last known to live; else 0.
    """
    CREATE TABLE spans (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        sink INTEGER NOT NULL,
        run INTEGER NOT NULL,
        end_ns INTEGER NOT NULL,
        body BLOB NOT NULL
    )
    """,
    "CREATE INDEX spans_of_sink ON spans (sink, id)",
    # Of the run that is not over.
    """
    CREATE TABLE notes (
        id INTEGER PRIMARY KEY,
        sink INTEGER NOT NULL,
        ids BLOB NOT NULL,
        body BLOB NOT NULL,
        UNIQUE (sink, ids)
    )
    """,
)


def connect(path: Path, max_bytes: int | None) -> sqlite3.Connection:
    """Open a spool that is there, or an empty file that becomes one.

    Parameters
    ----------
    max_bytes
        What the file may become with its log; None for one that is only emptied.

    Raises
    ------
    SpoolError
        If it is no spool, of a later version, or damaged.
    OSError
        If the disk makes trouble.
    """
    connection = None
    try:
        connection = children.connect(_uri(path, "rw"), _BUSY)
        _prepare(connection, path, max_bytes)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise unusable(path, error) from error
        raise
    return connection


def connect_to_read(path: Path, still: bool) -> sqlite3.Connection:
    """Open a spool that another process may have.

    Parameters
    ----------
    still
        Whether nobody writes to it, and all of it is in the file.

    Raises
    ------
    SpoolError
        If it is no spool, of a later version, or can't be read.
    """
    connection = None
    try:
        connection = children.connect(_uri(path, "ro&immutable=1" if still else "ro"), _BUSY)
        check_version(connection, path)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise SpoolError(f"{path} can't be read: {error}") from error
        raise
    return connection


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Raise SpoolError for a spool that a later version of this package has written."""
    found = number(connection, "user_version") & ~LOGGED
    if found > VERSION:
        raise SpoolError(
            f"{path} was written by a later version of dask-otel (its tables have version {found}, "
            f"this one knows {VERSION}): use that version, or another path"
        )


def number(connection: sqlite3.Connection, pragma: str) -> int:
    """Return what SQLite says of itself."""
    found = connection.execute(f"PRAGMA {pragma}").fetchone()
    return 0 if found is None else int(found[0])


def sinks(connection: sqlite3.Connection) -> dict[int, str]:
    """Return the exporters' names by id, but for damaged ones."""
    rows = connection.execute("SELECT id, name FROM sinks")
    return {key: name for key, name in rows if isinstance(name, str)}


def logged_pages(max_bytes: int) -> int:
    """Return after how many pages the log goes into the file."""
    return max(16, min(_MOST_LOGGED, max_bytes // _LOG_SHARE // PAGE // 2))


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Enter a transaction, which is rolled back where anything is raised.

    Raises
    ------
    OSError
        For what SQLite raises.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException as error:
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise as_os_error(error) from error
        raise


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path))}?mode={mode}"


def _prepare(connection: sqlite3.Connection, path: Path, max_bytes: int | None) -> None:
    # See the module's docstring.
    connection.execute("PRAGMA synchronous=OFF")
    # Some builds write zeros over what is removed, for which a full disk has no room; see the docs.
    connection.execute("PRAGMA secure_delete=OFF")
    # Nothing of a span goes into another file.
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.execute("PRAGMA trusted_schema=OFF")
    check_version(connection, path)
    if number(connection, "application_id") != files.APPLICATION:
        _make_tables(connection)
    # Before the log: what is in it counts from now on.
    connection.execute("PRAGMA journal_mode=WAL")
    if max_bytes is not None:
        pages = logged_pages(max_bytes)
        connection.execute(f"PRAGMA wal_autocheckpoint={pages}")
        connection.execute(f"PRAGMA journal_size_limit={pages * PAGE}")


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA page_size={PAGE}")
    with transaction(connection):
        connection.execute(f"PRAGMA application_id={files.APPLICATION}")
        connection.execute(f"PRAGMA user_version={VERSION}")
        for table in _TABLES:
            connection.execute(table)


def unusable(path: Path, error: sqlite3.Error) -> Exception:
    """Return why a spool can't be opened, for a person."""
    if isinstance(error, sqlite3.OperationalError):
        return as_os_error(error)
    return SpoolError(
        f"{path} is damaged ({error}), which a killed process does not do to it. Move it away; a "
        "new one is made"
    )

"""Lists a spool's content as text for a terminal, even while a scheduler uses it."""

from __future__ import annotations

import shlex
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from dask_otel import semconv
from dask_otel._otel.sdk.encode import resource_of, span_name
from dask_otel.core.records import Origin
from dask_otel.report import words
from dask_otel.spool import files, lock, store

#: Limit of both lists: the last runs, and the names with the most waiting spans.
_MOST: Final = 20
_LONGEST: Final = 40
#: Rows per read, so that the scheduler that uses the spool waits only for these.
_ROWS: Final = 500


def listing(path: Path) -> Iterator[str]:
    """Yield the lines of a list of a spool's content, without changing the spool.

    Raises
    ------
    SpoolError
        If the spool does not exist or cannot be read.
    """
    if not files.check(path):
        raise files.SpoolError(f"there is no {path}")
    store.check_header(path)
    holder = lock.holder(path)
    runs: list[tuple[Any, ...]] = []
    live: int | None = None
    waiting: Counter[tuple[str, str]] = Counter()
    by_run: Counter[tuple[int, bool]] = Counter()
    # A process that was killed at its start leaves an empty file.
    if path.stat().st_size:
        try:
            with ExitStack() as stack:
                if holder is None and store.interrupted(path):
                    folder = Path(stack.enter_context(TemporaryDirectory()))
                    connection = stack.enter_context(store.undone(path, folder / path.name))
                else:
                    connection = store.connect(path, "ro")
                    stack.callback(store.disconnect, connection)
                connection.text_factory = lambda text: text.decode(errors="replace")
                runs = connection.execute(
                    "SELECT id, resource, scope, started_ns, alive_ns FROM runs ORDER BY id"
                ).fetchall()
                live = runs[-1][0] if runs and holder is not None else None
                for number, sink, noted, body in _rows(connection):
                    by_run[number, bool(noted)] += 1
                    if not noted or number != live:
                        waiting[sink, span_name(body) or "(damaged)"] += 1
        except (sqlite3.Error, UnicodeError) as error:
            raise files.SpoolError(f"{path} can't be read: {error}") from error
    total = waiting.total()
    yield _clean(path, 4096)
    yield (
        f"  {files.disk_use(path) / 1e6:,.2f} MB on the disk, {words.counted(total, 'span')} "
        "waiting"
    )
    if holder is not None:
        count = 0 if live is None else by_run[live, True]
        yield f"  {holder} uses it and sends them; {words.counted(count, 'span')} open"
    elif total:
        yield "  no scheduler uses it; the next one with this path sends them, or you do, with"
        yield f"  dask-otel spool --send {shlex.quote(_clean(path, 4096))}"
    if runs:
        yield "\nlast runs"
    for run, *origin, started_ns, alive_ns in runs[-_MOST:]:
        resource = resource_of(Origin(*origin))
        yield (
            f"  {_clean(resource.get(semconv.CLUSTER_NAME, '?'))} "
            f"({_clean(resource.get(semconv.SERVICE_INSTANCE_ID, '?'), 60)})"
        )
        is_open = by_run[run, True]
        yield (
            f"    {_when(started_ns)} to {_when(alive_ns)}: {by_run[run, False]:,} waiting, "
            f"{is_open:,} {'lost' if is_open and run != live else 'open'}"
        )
    if total:
        yield "\nwaiting"
    yield from (
        f"{spans:>8,}  {_clean(name, 200)}  ({_clean(sink)})"
        for (sink, name), spans in waiting.most_common(_MOST)
    )


def _rows(connection: sqlite3.Connection) -> Iterator[tuple[int, str, bool, bytes]]:
    last, after = 0, -1
    # A damaged file may return the same numbers again: the loop must end.
    while last > after:
        after = last
        for number, *row in connection.execute(
            "SELECT id, run, sink, ids IS NOT NULL, body FROM rows WHERE id > ? ORDER BY id "
            "LIMIT ?",
            (after, _ROWS),
        ).fetchall():
            last = number
            yield tuple(row)


def _when(time_ns: Any) -> str:
    return words.when(time_ns if isinstance(time_ns, int) else None)


def _clean(text: Any, longest: int = _LONGEST) -> str:
    """Return a text without terminal control characters."""
    return words.cut(words.one_line(str(text), "�"), longest)

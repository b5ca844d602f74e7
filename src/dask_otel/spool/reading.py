"""What is in a spool, for a person; also while a scheduler has it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dask_otel.core.records import Origin
from dask_otel.spool import files, lock, log, schema
from dask_otel.spool.problems import SpoolError


@dataclass(slots=True)
class RunSummary:
    """One run that has rows in a spool, or that goes on."""

    instance_id: str
    #: With the bytes of its resource.
    origin: Origin
    started_ns: int
    alive_ns: int
    #: Whether it has ended, or somebody found that it was lost.
    over: bool
    waiting: int = 0
    #: Notes of open spans. Of a run that is lost, they wait like the others.
    noted: int = 0


@dataclass(slots=True)
class Summary:
    """What is in a spool."""

    path: Path
    #: Bytes on the disk, with what SQLite keeps beside the file.
    size: int
    #: Who has it now, in words; None if nobody has.
    holder: str | None
    runs: list[RunSummary] = field(default_factory=list)
    #: Spans that wait, by exporter, and by exporter and name.
    sinks: Counter[str] = field(default_factory=Counter)
    names: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Rows that can't be read.
    unreadable: int = 0

    @property
    def waiting(self) -> int:
        """How many spans wait, without those that a running scheduler has open."""
        return sum(self.sinks.values())

    @property
    def noted(self) -> int:
        """How many spans a running scheduler has open."""
        return sum(run.noted for run in self.runs if self.goes_on(run))

    def goes_on(self, run: RunSummary) -> bool:
        """Whether a run has not ended."""
        return self.holder is not None and not run.over


def summarize(path: Path, name_of: Callable[[Any], str | None]) -> Summary:
    """Return what is in a spool. Nothing of it is changed.

    Parameters
    ----------
    path
        Of the spool.
    name_of
        Returns the name of the span that some bytes hold; None where they are damaged.

    Raises
    ------
    SpoolError
        If there is none, or it can't be read.
    """
    if not files.check(path):
        raise SpoolError(f"there is no {path}")
    found = Summary(path, files.disk_use(path), lock.holder(path))
    if found.holder is None:
        log.check(path, lambda: None)
    if not path.stat().st_size:
        return found
    # Nobody writes: so SQLite need not make a log of its own, which would stay.
    still = found.holder is None and not files.content(files.beside(path, "-wal"), 1)
    connection = schema.connect_to_read(path, still)
    try:
        connection.execute("BEGIN")
        _read(connection, found, name_of)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # A damaged file also spoils the text of SQLite's own messages.
        raise SpoolError(f"{path} can't be read: {error}") from error
    finally:
        connection.close()
    return found


def _read(
    connection: sqlite3.Connection, found: Summary, name_of: Callable[[Any], str | None]
) -> None:
    runs: dict[int, RunSummary] = {}
    for key, instance, resource, scope, started_ns, alive_ns, over in connection.execute(
        "SELECT id, instance, resource, scope, started_ns, alive_ns, over FROM runs ORDER BY id"
    ):
        times = _whole(started_ns), _whole(alive_ns)
        runs[key] = RunSummary(str(instance), Origin(resource, scope), *times, bool(over))
    found.runs = list(runs.values())
    sinks = schema.sinks(connection)
    # Notes are of the run that has not ended.
    last = next((key for key, run in reversed(runs.items()) if not run.over), None)
    rows = "SELECT sink, run, end_ns, body FROM spans UNION ALL SELECT sink, ?, 1, body FROM notes"
    for sink, key, is_open, body in connection.execute(rows, (last,)):
        run = runs.get(key)
        name = name_of(body)
        if run is None or sink not in sinks or name is None:
            found.unreadable += 1
            continue
        if is_open:
            run.noted += 1
        else:
            run.waiting += 1
        if not (is_open and found.goes_on(run)):
            found.sinks[sinks[sink]] += 1
            found.names[sinks[sink], name] += 1


def _whole(value: Any) -> int:
    """Return the number in a column; 0 where it is damaged and something else."""
    return value if isinstance(value, int) else 0

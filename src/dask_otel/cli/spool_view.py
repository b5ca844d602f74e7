"""Lists a spool's content as text for a terminal, even while a scheduler uses it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dask_otel import semconv
from dask_otel._otel.sdk.encode import resource_of, span_name
from dask_otel.core.records import Origin
from dask_otel.report import words
from dask_otel.spool import files, lock, store

#: Most names in the list, those with the most queued spans; most runs, the last ones.
_MOST_NAMES: Final = 20
_MOST_RUNS: Final = 20
_LONGEST: Final = 40
#: Rows per read, so that the scheduler that uses the spool waits only for these.
_ROWS: Final = 500


def listing(path: Path, width: int) -> str:
    """Return a list of a spool's content, without changing the spool.

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
        connection = store.connect(path)
        connection.text_factory = lambda text: text.decode(errors="replace")
        try:
            runs = connection.execute("SELECT * FROM runs ORDER BY id").fetchall()
            live = runs[-1][0] if runs and holder is not None else None
            for run, sink, is_open, body in _rows(connection):
                by_run[run, bool(is_open)] += 1
                if not is_open or run != live:
                    waiting[sink, span_name(body) or "(damaged)"] += 1
        except sqlite3.Error as error:
            raise files.SpoolError(f"{path} can't be read: {error}") from error
        finally:
            store.disconnect(connection)
    total = waiting.total()
    size = files.disk_use(path) / 1e6
    lines = [
        _clean(str(path), 4096),
        f"  {size:,.2f} MB on the disk, {words.counted(total, 'span')} to be sent",
    ]
    if holder is not None:
        count = words.counted(0 if live is None else by_run[live, True], "open span")
        lines.append(f"  {holder} has it and sends them; it has {count}")
    elif total:
        lines.append("  no scheduler uses it; the next one with this path sends them, as does")
        lines.append(f"  dask-otel spool --send {_clean(str(path), 4096)}")
    return "\n".join([*lines, *_runs(runs, by_run, live, width), *_names(waiting, width)])


def _rows(connection: sqlite3.Connection) -> Iterator[tuple[int, str, bool, bytes]]:
    last, after = 0, -1
    # In a damaged file, the numbers may not increase.
    while last > after:
        after = last
        for number, *row in connection.execute(
            "SELECT id, run, sink, ids IS NOT NULL, body FROM rows WHERE id > ? ORDER BY id "
            "LIMIT ?",
            (after, _ROWS),
        ).fetchall():
            last = number
            yield tuple(row)


def _runs(
    runs: list[tuple[Any, ...]], counts: Counter[tuple[int, bool]], live: int | None, width: int
) -> Iterator[str]:
    if not runs:
        return
    table = [("run of", "instance", "started", "last sign of life", "waiting", "open")]
    for run, *origin, started_ns, alive_ns in runs[-_MOST_RUNS:]:
        resource = resource_of(Origin(*origin))
        is_open = counts[run, True]
        table.append(
            (
                _clean(resource.get(semconv.CLUSTER_NAME, "?")),
                _clean(resource.get(semconv.SERVICE_INSTANCE_ID, "?"), 60),
                _when(started_ns),
                _when(alive_ns),
                f"{counts[run, False]:,}",
                f"{is_open:,}" + (" lost" if is_open and run != live else ""),
            )
        )
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    yield ""
    for row in table:
        cells = zip(row, "<<<<>>", widths, strict=True)
        line = "  ".join(f"{cell:{side}{size}}" for cell, side, size in cells)
        yield line[:width].rstrip()
    if len(runs) > _MOST_RUNS:
        yield f"and {len(runs) - _MOST_RUNS:,} earlier runs"


def _names(waiting: Counter[tuple[str, str]], width: int) -> Iterator[str]:
    if not waiting:
        return
    several = len({sink for sink, _ in waiting}) > 1
    listed = waiting.most_common(_MOST_NAMES)
    lines = [
        (count, _clean(name, 200) + (f"  ({_clean(sink)})" if several else ""))
        for (sink, name), count in listed
    ]
    if more := len(waiting) - len(listed):
        rest = waiting.total() - sum(count for _, count in listed)
        lines.append((rest, f"of {words.counted(more, 'other name')}"))
    size = max(len(f"{count:,}") for count, _ in lines)
    yield ""
    yield "waiting, by name" + (" and exporter" if several else "")
    for count, text in lines:
        yield f"  {count:>{size},}  {text}"[:width].rstrip()


def _when(time_ns: Any) -> str:
    return words.when(time_ns if isinstance(time_ns, int) else None)


def _clean(text: Any, longest: int = _LONGEST) -> str:
    """Return a text without terminal control characters."""
    return words.cut(words.one_line(str(text), "�"), longest)

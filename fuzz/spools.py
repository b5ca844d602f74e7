"""A spool with a damaged file or row.

What can't be used is refused in words, and what can't be read is left out and counted: nothing else
than `SpoolError` and `OSError` comes out, and what is right beside a damaged row is there.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from dask_otel.cli.spool_view import as_text
from dask_otel.core.records import Event, Link, SpanRecord
from dask_otel.core.trace import Trace
from dask_otel.spool import encoding
from dask_otel.spool.reading import summarize
from dask_otel.spool.store import Run, SpoolError, Store
from fuzz.checks import T_NS, check
from fuzz.data import Data
from fuzz.process import folder, readable

_SINK: Final = "otlp"
_BYTES: Final = 10_000_000
#: The columns of a row that can be damaged.
_COLUMNS: Final = {
    "runs": ("instance", "version", "resource", "started_ns", "alive_ns", "over"),
    "sinks": ("name",),
    "spans": ("sink", "run", "open", "body"),
}


def _record(number: int) -> SpanRecord:
    return SpanRecord(
        trace_id=Trace(number, "root"),
        span_id=number,
        parent_span_id=7,
        name=f"span {number}",
        kind="server",
        start_ns=T_NS,
        end_ns=T_NS + number,
        attributes={"text": "a", "number": 1.5, "array": ("b", 2)},
        events=(Event("exception", T_NS, {"exception.type": "ValueError"}),),
        links=(Link(5, 6, {"why": "c"}),),
        error="d",
        root_name="root",
    )


def _run(name: str) -> Run:
    return Run(name, {"service.instance.id": name, "service.name": "dask-scheduler"}, "1", T_NS)


@cache
def _template() -> bytes:
    """Return a file with three spans that wait, of a run that is lost, and the note of a fourth."""
    path = Path(folder().name) / "template.db"
    store = Store.open(path, _BYTES, _run("lost"), T_NS)
    store.write(
        finished=[(_SINK, _record(number)) for number in (1, 2, 3)],
        noted=[(_SINK, _record(4))],
        alive_ns=T_NS + 10,
    )
    store.close(clean=False)
    return path.read_bytes()


def _spoiled_bytes(data: Data, path: Path) -> None:
    """Write a file with bytes that were not written."""
    content = bytearray(_template())
    for _ in range(data.integer(1, 6)):
        at = data.integer(0, 65535) % len(content)
        if data.flag():
            # In the header of the file.
            at %= 512
        content[at : at + data.integer(1, 4)] = bytes(data.many(data.byte, 4))
    if not data.integer(0, 3):
        del content[data.integer(0, 65535) % len(content) :]
    path.write_bytes(content)


def _spoiled_row(data: Data, path: Path) -> frozenset[int]:
    """Write a file in which a value of one row is another; returns the spans that are right."""
    path.write_bytes(_template())
    table = data.choice(sorted(_COLUMNS))
    column = data.choice(_COLUMNS[table])
    value: Any = data.plain(0)
    if data.flag():
        value = str(value).encode("utf-8", "replace") if data.flag() else data.rest()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = str(value)
    with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.Error, UnicodeError):
        connection.execute(
            f"UPDATE {table} SET {column} = ? WHERE id = (SELECT max(id) FROM {table})", (value,)
        )
        connection.commit()
    # The note is the first one; of all there is one run and one exporter.
    return frozenset({1, 2, 4} if table == "spans" else ())


def _used(path: Path, right: frozenset[int]) -> None:
    """Use a file as a spool."""
    with suppress(SpoolError, OSError):
        text = as_text(summarize(path), 100)
        text.encode()
        check(len(text) < 20_000, "a view is bounded", len(text))
    with suppress(SpoolError, OSError):
        store = Store.open(path, _BYTES, _run("next"), T_NS + 20)
        try:
            _sent(store, right)
        finally:
            store.close(clean=True)


def _sent(store: Store, right: frozenset[int]) -> None:
    found: list[SpanRecord] = []
    for sink in store.sinks():
        rows = store.waiting(sink, 0, 100)
        found += [row.record for row in rows]
        for row in rows:
            readable().make(row.record)
    known = {record.span_id: record.name for record in found}
    check(
        all(known.get(number) == f"span {number}" for number in right),
        "what is right beside a damaged row is sent",
        known,
    )
    written = store.write(finished=[(_SINK, _record(9))], alive_ns=T_NS + 30)
    check(len(written.ids) == 1, "it can be written to", written)
    after = [row.record.span_id for row in store.waiting(_SINK, written.ids[0] - 1, 100)]
    check(9 in after, "what is written waits", after)


def spool(data: Data) -> None:
    """Any file and any row: refused, or what can be read of it."""
    kind = data.integer(0, 3)
    if kind == 0:
        body = data.rest()
        with suppress(ValueError):
            encoding.name_of(body)
        with suppress(ValueError):
            encoding.decode_attributes(body)
        with suppress(ValueError):
            readable().make(encoding.decode(body))
        return
    path = Path(folder().name) / "spool.db"
    right: frozenset[int] = frozenset()
    if kind == 1:
        _spoiled_bytes(data, path)
    else:
        right = _spoiled_row(data, path)
    path.chmod(0o600)
    try:
        _used(path, right)
    finally:
        for left in path.parent.glob("spool.db*"):
            left.unlink()

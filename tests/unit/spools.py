"""Spools for tests: rows for them, and what is in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from dask_otel._otel.sdk.encode import Encoder, reread
from dask_otel.core.records import Origin, Row, SpanRecord
from dask_otel.spool.store import VERSION, Encoded, Store

BYTES = 10_000_000
OTLP = "otlp"
ENCODER = Encoder({}, "1")


def body(number: int, end: int = 10, text: str = "") -> bytes:
    """Return a span."""
    attributes = {"text": text}
    return ENCODER.span(
        SpanRecord(
            number, number, None, f"span {number}", "server", 5, end, attributes, (), (), None, "r"
        )
    )


def spans(*numbers: int, sink: str = OTLP, **options: Any) -> list[Encoded]:
    """Return rows of spans that have ended."""
    return [(sink, None, body(number, **options)) for number in numbers]


def notes(*numbers: int, sink: str = OTLP, **options: Any) -> list[Encoded]:
    """Return rows of spans that are open."""
    return [(sink, ids_of(number), body(number, **options)) for number in numbers]


def ids_of(number: int) -> bytes:
    """Return which span a note is of."""
    return b"%d" % number


def origin_of(name: str) -> Origin:
    """Return the resource and scope of a run."""
    return Encoder({"service.instance.id": name}, f"version {name}").origin


def opened(path: Path, run: str | None = "a", now: int = 1, max_bytes: int = BYTES) -> Store:
    """Open a spool for a run; None only reads and settles."""
    return Store.open(path, max_bytes, run and origin_of(run), now, reread)  # type: ignore[arg-type]


@contextmanager
def closing_clean(store: Store) -> Iterator[Store]:
    """Close a store at the end of a block, as a run that ends in order does."""
    try:
        yield store
    finally:
        store.close(clean=True)


def left(path: Path, *rows: Encoded, alive: int = 2, clean: bool = False, run: str = "a") -> None:
    """Let a run leave some rows, mostly as if it had been killed."""
    store = opened(path, run)
    store.write(rows, alive_ns=alive)
    store.close(clean)


def cut_short(
    path: Path, sql: str = f"PRAGMA user_version = {VERSION}; DELETE FROM rows WHERE id % 2"
) -> None:
    """Leave a spool's file and journal as if its process were killed in a transaction."""
    journal = path.with_name(path.name + "-journal")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # It writes into the file before the end of the transaction.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = 1")
        connection.executescript(f"BEGIN; {sql}")
        contents = path.read_bytes(), journal.read_bytes()
        connection.execute("ROLLBACK")
    for each, content in zip((path, journal), contents, strict=True):
        each.write_bytes(content)
    assert journal.read_bytes()[:1] > b"\0"


def waiting(store: Store, sink: str = OTLP, after: int = 0, limit: int = 10**6) -> list[Row]:
    """Return the rows that wait, without damaged ones."""
    return [row for row in store.waiting(sink, after, limit) if row.body is not None]


def ids(store: Store) -> list[int]:
    """Return the numbers of the rows that wait."""
    return [row.number for row in waiting(store)]


def span_of(row: Row) -> Span:
    """Return the span in a row."""
    return Span.FromString(row.body)


def numbers(store: Store, sink: str = OTLP, after: int = 0, limit: int = 10**6) -> list[int]:
    """Return which spans wait."""
    rows = waiting(store, sink, after, limit)
    return [int.from_bytes(span_of(row).span_id, "big") for row in rows]


def ends(store: Store) -> list[tuple[int, int]]:
    """Return which spans wait, and when they end."""
    rows = [span_of(row) for row in waiting(store)]
    return [(int.from_bytes(span.span_id, "big"), span.end_time_unix_nano) for span in rows]


def noted(store: Store) -> int:
    """Return how many open spans of the present run are noted."""
    (found,) = store._connection.execute("SELECT count(ids) FROM rows WHERE run = ?", (store._run,))
    return int(found[0])

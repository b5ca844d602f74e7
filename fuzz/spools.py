"""A spool with a damaged file or row.

A file that can't be used is refused in words, and a row that can't be read is left out: nothing but
`OSError` comes out, and the right rows beside a damaged one are there.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from dask_otel._otel.sdk.encode import Encoder, reread, resource_of, span_name
from dask_otel.cli.spool_view import listing
from dask_otel.core.records import Event, Link, Origin, Row, SpanRecord
from dask_otel.spool.store import Encoded, Store
from fuzz.checks import T_NS, check
from fuzz.data import Data
from fuzz.process import folder

_SINK: Final = "otlp"
_BYTES: Final = 10_000_000
#: The columns of a row that can be damaged.
_COLUMNS: Final = {
    "runs": ("resource", "scope", "started_ns", "alive_ns", "alive_again"),
    "rows": ("run", "sink", "ids", "body", "crc"),
}


def _encoded(number: int, ids: bytes | None = None) -> Encoded:
    record = SpanRecord(
        trace_id=number,
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
    )
    return _SINK, ids, Encoder({}, "1").span(record)


def _run(name: str) -> Origin:
    resource = {"service.instance.id": name, "service.name": "dask-scheduler"}
    return Encoder(resource, "1").origin


@cache
def _template() -> bytes:
    """Return a file with three spans that wait, of a run that is lost, and the note of a fourth."""
    path = Path(folder().name) / "template.db"
    store = Store.open(path, _BYTES, _run("lost"), T_NS, reread)
    store.write([_encoded(4, b"4"), *map(_encoded, (1, 2, 3))], alive_ns=T_NS + 10)
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
    # Of all there is one run and one exporter.
    return frozenset((4, 1, 2) if table == "rows" else ())


def _used(path: Path, right: frozenset[int]) -> None:
    """Use a file as a spool."""
    with suppress(OSError):
        text = "\n".join(listing(path))
        text.encode()
        check(len(text) < 20_000, "a view is bounded", len(text))
    with suppress(OSError):
        store = Store.open(path, _BYTES, _run("next"), T_NS + 20, reread)
        try:
            _sent(store, right)
        finally:
            store.close(clean=True)


def _sent(store: Store, right: frozenset[int]) -> None:
    store.adopt([_SINK])
    known = _read(Encoder({}, "1").request(_waiting(store, 0)))
    check(
        all(known.get(number) == f"span {number}" for number in right),
        "what is right beside a damaged row is sent",
        known,
    )
    before = store.last
    store.write([_encoded(9)], alive_ns=T_NS + 30)
    after = _waiting(store, before)
    check(9 in _read(Encoder({}, "1").request(after)), "what is written waits", after)


def _waiting(store: Store, after: int) -> list[Row]:
    return [row for row in store.waiting(_SINK, after, 100) if row.body is not None]


def _read(request: bytes) -> dict[int, str]:
    """Return the spans of a request, which any server can read."""
    return {
        int.from_bytes(span.span_id, "big"): span.name
        for resource in ExportTraceServiceRequest.FromString(request).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }


def spool(data: Data) -> None:
    """Any file and any row: refused, or what can be read of it."""
    kind = data.integer(0, 3)
    if kind == 0:
        body = data.rest()
        span_name(body)
        resource_of(Origin(body, body))
        found = reread(body, data.integer(0, 2**62), _run("lost"))
        check(found is None or len(_read(Encoder({}, "1").request([Row(found)]))) == 1, "a span")
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

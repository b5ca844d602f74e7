"""What is killed: a process that writes to a spool, and tells over a pipe what it does.

It is forked from one that has imported everything, so that hundreds of them take seconds. Before
each write it tells what it will write, and after it that it has: whoever kills it knows which of
the two states the file must be in.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from dask_otel._otel.sdk.encode import Encoder, reread
from dask_otel.core.records import SpanRecord
from dask_otel.spool.store import Encoded, Run, Store

SINKS = ("otlp", "zipkin")
#: Large enough that nothing is dropped, small enough that the log goes into the file often.
MAX_BYTES = 64_000_000
START = 1_700_000_000_000_000_000
_ENCODER = Encoder({}, "1")
#: Rows that may wait, and notes that there may be.
_MOST_WAITING = 400
_MOST_OPEN = 120


def text(number: int, length: int) -> str:
    """Return a text that only this span has."""
    return (f"{number}/" * (length // 2 + 1))[:length]


def encoded(sink: str, number: int, length: int, version: int, end: int) -> Encoded:
    """Return a span that can be told from all others, and from its other versions."""
    record = SpanRecord(
        trace_id=number << 64 | 1,
        span_id=number,
        parent_span_id=None,
        name=f"span {number}",
        kind="server",
        start_ns=START + number,
        end_ns=end,
        attributes={"text": text(number, length), "version": version},
        events=(),
        links=(),
        error=None,
        root_name="root",
    )
    return sink, (number << 64 | 1, number), _ENCODER.span(record)


class Writer:
    """Writes at random, for as long as it lives."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._random = random.Random(task["seed"])
        self._next = task["first"]
        self._clock = task["clock"]
        self._task = task
        #: Open spans: (sink, number) to how often it was noted.
        self._open: dict[tuple[str, int], int] = {}
        #: Rows that wait: (sink, number) by row.
        self._rows: dict[int, tuple[str, int]] = {}
        tell("opening", pid=os.getpid())
        origin = Encoder({"service.instance.id": task["run"]}, "1").origin
        run = Run(task["run"], origin, self._clock)
        self._store = Store.open(Path(task["path"]), MAX_BYTES, run, self._clock, reread)
        tell("opened", recovered=self._store.recovered)
        # Tells where a transaction begins and ends, too.
        self._store._connection.set_trace_callback(_tell_of_transactions)  # noqa: SLF001
        for sink in SINKS:
            for row in self._store.waiting(sink, 0, 1_000_000):
                span_id = Span.FromString(row.body).span_id
                self._rows[row.number] = (sink, int.from_bytes(span_id, "big"))

    def work(self) -> None:
        """Write until somebody kills it, or it is to close."""
        for _ in range(self._task["writes"]):
            self._write()
        clean = self._task["clean"]
        over = [number for _, number in self._open] if clean else []
        tell("try", finished=[], noted=[], over=over, settled=[], alive=None)
        self._store.close(clean)
        tell("done", closed=True)

    def _write(self) -> None:
        chance = self._random
        self._clock += chance.randrange(1, 1_000_000)
        size = chance.choice((1, 3, 10, 60))
        over = [key for key in self._open if chance.random() < 0.02]
        left = [key for key in self._open if key not in over]
        ended = chance.sample(left, min(len(left), chance.randrange(size + 1)))
        again = chance.sample(left, min(len(left), chance.randrange(size + 1)))
        noted = [(key, self._open[key] + 1) for key in again if key not in ended]
        if len(self._open) < _MOST_OPEN:
            noted += [((sink, self._number()), 0) for sink in self._sinks(chance.randrange(size))]
        finished = ended + [(sink, self._number()) for sink in self._sinks(chance.randrange(size))]
        most = len(self._rows) if len(self._rows) > _MOST_WAITING else size
        settled = chance.sample(
            sorted(self._rows), min(len(self._rows), chance.randrange(most + 1))
        )
        ends = [(sink, number, self._length(), 1000, self._clock) for sink, number in finished]
        notes = [(*key, self._length(), version, self._clock) for key, version in noted]
        tell(
            "try",
            finished=ends,
            noted=notes,
            over=[number for _, number in over],
            settled=[self._rows[row] for row in settled],
            alive=self._clock,
        )
        written = self._store.write(
            finished=[encoded(*end) for end in ends],
            noted=[encoded(*note) for note in notes],
            # As the trace id is the number's.
            over=[(number << 64 | 1, number) for _, number in over],
            settled=settled,
            alive_ns=self._clock,
        )
        tell("done", dropped=len(written.gone))
        for key in [*over, *finished]:
            self._open.pop(key, None)
        self._open.update(noted)
        for row in settled:
            del self._rows[row]
        self._rows.update(enumerate(finished, written.first))

    def _number(self) -> int:
        self._next += 1
        return int(self._next)

    def _sinks(self, count: int) -> list[str]:
        return [self._random.choice(SINKS) for _ in range(count)]

    def _length(self) -> int:
        return self._random.choice((0, 10, 300, 3000, 30_000))


def _tell_of_transactions(statement: str) -> None:
    if statement.startswith(("BEGIN", "COMMIT")):
        tell(statement.split()[0])


def tell(what: str, **more: Any) -> None:
    """Tell it in one piece, now."""
    data = json.dumps({"what": what, **more}).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def serve() -> None:
    """Fork a writer for each line, and say how it ended."""
    for line in sys.stdin:
        task = json.loads(line)
        child = os.fork()
        if child == 0:
            Writer(task).work()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        tell("ended", status=status)


if __name__ == "__main__":
    serve()

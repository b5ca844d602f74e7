"""A process that writes to the spool is killed at random moments, and its file is compared.

The process draws each write from random numbers and reports it through a pipe before it begins it,
and each stage of it. A write that was begun and not finished may be in the file as a whole, or not
at all.

``python -m chaos.spool_kills FOLDER TIMES SEED`` forks its writers from a process without threads.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from chaos.scenario import HTTP, scenario
from dask_otel._otel.sdk.encode import Encoder, reread, resource_of
from dask_otel.core.records import Row, SpanRecord
from dask_otel.spool import files
from dask_otel.spool.store import Encoded, Store

if TYPE_CHECKING:
    from chaos.world import World

_FORK = multiprocessing.get_context("fork")
_ENCODER = Encoder({}, "1")
KILLS = 200
SINKS = ("otlp", "zipkin")
#: Large enough that nothing is dropped, small enough that the log goes into the file often.
_MAX_BYTES = 64_000_000
_START = 1_700_000_000_000_000_000
#: Rows that may wait, and notes that there may be.
_MOST_WAITING, _MOST_OPEN = 400, 120
#: A writer reports that it is there, each write when it begins, the begin and the end of each
#: transaction, and that the write is done.
_HERE, _BEGIN, _COMMIT, _DONE = "here", "BEGIN", "COMMIT", "done"
#: Longest time to the kill, in seconds: from the begin of a write, and of its stages.
_LATEST = {"": 0.01, _BEGIN: 0.004, _COMMIT: 0.0015}

#: Sink and number of a span.
Key = tuple[str, int]


class Span(NamedTuple):
    """What must be in the file of one span."""

    length: int
    version: int
    end: int
    run: str


class Write(NamedTuple):
    """One write: spans that ended, notes of open ones, notes to remove, rows that were sent."""

    finished: dict[Key, Span]
    noted: dict[Key, Span]
    over: list[Key]
    settled: list[Key]
    alive: int


@dataclass
class Account:
    """What the file must hold, after the writes that are done."""

    finished: dict[Key, Span] = field(default_factory=dict)
    #: Notes of the present run.
    open: dict[Key, Span] = field(default_factory=dict)
    alive: int = _START
    #: Highest number of a span.
    number: int = 0

    def draw(self, chance: random.Random, run: str) -> Write:
        """Draw the next write."""
        now = self.alive + chance.randrange(1, 1_000_000)
        size = chance.choice((1, 3, 10, 60))
        numbers = iter(range(self.number + 1, self.number + 2 * size))

        def some(keys: list[Key], most: int) -> list[Key]:
            return chance.sample(keys, min(len(keys), chance.randrange(most + 1)))

        def new() -> list[Key]:
            return [(chance.choice(SINKS), next(numbers)) for _ in range(chance.randrange(size))]

        def span(version: int) -> Span:
            return Span(chance.choice((0, 10, 300, 3000, 30_000)), version, now, run)

        over = [key for key in self.open if chance.random() < 0.02]
        left = [key for key in self.open if key not in over]
        ended, again = some(left, size), some(left, size)
        noted = {key: self.open[key].version + 1 for key in again if key not in ended}
        noted |= dict.fromkeys(new() if len(self.open) < _MOST_OPEN else (), 0)
        waiting = list(self.finished)
        return Write(
            {key: span(1000) for key in ended + new()},
            {key: span(version) for key, version in noted.items()},
            over,
            some(waiting, len(waiting) if len(waiting) > _MOST_WAITING else size),
            now,
        )

    def apply(self, write: Write) -> None:
        """Book a write."""
        assert not write.finished.keys() & self.finished.keys()
        for key in write.settled:
            del self.finished[key]
        for key in (*write.over, *write.finished):
            self.open.pop(key, None)
        self.finished |= write.finished
        self.open |= write.noted
        self.alive = write.alive
        self.number = max(number for _, number in (*self.open, *self.finished, ("", self.number)))

    def lost(self) -> Account:
        """Return the account after this run: its notes are spans that end at its last write."""
        ended = {k: span._replace(end=max(span.end, self.alive)) for k, span in self.open.items()}
        assert not ended.keys() & self.finished.keys()
        return Account(self.finished | ended, {}, self.alive, self.number)


def _text(number: int, length: int) -> str:
    """Return a text that only this span has."""
    return (f"{number}/" * (length // 2 + 1))[:length]


def _ids(key: Key) -> bytes:
    return b"%d" % key[1]


def _encoded(key: Key, span: Span, is_open: bool = False) -> Encoded:
    sink, number = key
    attributes = {"text": _text(number, span.length), "version": span.version}
    record = SpanRecord(
        number << 64 | 1, number, None, f"span {number}", "server", _START + number, span.end,
        attributes, (), (), None, "root",
    )  # fmt: skip
    return sink, _ids(key) if is_open else None, _ENCODER.span(record)


def _decoded(row: Row) -> tuple[int, OtlpSpan]:
    """Return the number of a span, and the span."""
    span = OtlpSpan.FromString(row.body)
    return int.from_bytes(span.span_id, "big"), span


def _write(
    path: Path, account: Account, run: str, writes: int, chance: random.Random, pipe: Connection
) -> None:
    """Make so many writes, and close the spool; report each write and its stages."""
    pipe.send(_HERE)
    origin = Encoder({"service.instance.id": run}, "1").origin
    store = Store.open(path, _MAX_BYTES, origin, account.alive, reread)
    rows = {
        (sink, _decoded(row)[0]): row.number
        for sink in SINKS
        for row in store.waiting(sink, 0, 10**9)
    }
    store._connection.set_trace_callback(  # noqa: SLF001 - where a transaction begins and ends
        lambda statement: pipe.send(statement.split()[0].strip(";"))
    )
    for _ in range(writes):
        write = account.draw(chance, run)
        pipe.send(write)
        noted = [_encoded(*item, is_open=True) for item in write.noted.items()]
        written = store.write(
            [*noted, *(_encoded(*item) for item in write.finished.items())],
            over=[_ids(key) for key in (*write.over, *write.finished)],
            settled=[rows.pop(key) for key in write.settled],
            alive_ns=write.alive,
        )
        assert written == (0, []), written
        pipe.send(_DONE)
        first = store.last - len(write.finished) + 1
        rows.update({key: first + at for at, key in enumerate(write.finished)})
        account.apply(write)
    clean = chance.random() < 0.5
    # A clean close removes the notes.
    pipe.send(Write({}, {}, list(account.open) if clean else [], [], account.alive))
    store.close(clean)
    pipe.send(_DONE)


class Killer:
    """Kills writers of one spool, one after the other, and looks at the file after each."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.path = folder / "spool.db"
        self.seen: Counter[str] = Counter(whole=0, nothing=0)
        self._random = random.Random(seed)
        self._account = Account()

    def kill_one(self) -> None:
        """Start a writer, kill it, and compare its file with the account."""
        chance = self._random
        # While it opens the spool, while it closes, or at its last write.
        when = chance.choices(("opening", "closing", "writing"), (2, 1, 5))[0]
        writes = chance.randrange(1, 40)
        begun = {"opening": 0, "closing": writes + 1, "writing": writes}[when]
        stage = chance.choice(tuple(_LATEST)) if when == "writing" else ""
        reading, writing = _FORK.Pipe(duplex=False)
        own = random.Random(chance.randrange(2**32))
        run = f"run {self.seen['kills']}"
        writer = _FORK.Process(
            target=_write, args=(self.path, self._account, run, writes, own, writing)
        )
        writer.start()
        writing.close()
        said: list[str | Write] = [reading.recv()]
        while len(_writes(said)) < begun or (stage and said[-1] != stage):
            said.append(reading.recv())
        time.sleep(chance.uniform(0, _LATEST[stage]))
        writer.kill()
        with suppress(EOFError):
            while True:
                said.append(reading.recv())
        writer.join()
        assert writer.exitcode in (0, -signal.SIGKILL), "the writer failed"
        self._compare(_writes(said), said.count(_DONE))
        self.seen.update(("kills", when))

    def _compare(self, writes: list[Write], done: int) -> None:
        """Compare the file with the account; the writes that are done are booked."""
        for write in writes[:done]:
            self._account.apply(write)
            self.seen.update(writes=1, finished=len(write.finished))
        self.seen["biggest"] = max(self.seen["biggest"], files.disk_use(self.path))
        found = self._found()
        for tried in writes[done:]:
            after = deepcopy(self._account)
            after.apply(tried)
            if after.lost().finished != self._account.lost().finished:
                whole = found == after.lost().finished
                self._account = after if whole else self._account
                self.seen["whole" if whole else "nothing"] += 1
        wanted = self._account.lost()
        differing = {
            key: (wanted.finished.get(key), found.get(key))
            for key in found.keys() | wanted.finished.keys()
            if wanted.finished.get(key) != found.get(key)
        }
        assert not differing, f"{len(differing)} of {len(found)}: {list(differing.items())[:5]}"
        self.seen["recovered"] += len(self._account.open)
        self._account = wanted

    def _found(self) -> dict[Key, Span]:
        """Return the spans that the next run would send.

        From a copy, so that the next writer finds the file as the killed one left it.
        """
        if not self.path.exists():
            return {}
        copy = self.path.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir(mode=0o700)
        for file in (self.path, files.beside(self.path, "-journal")):
            with suppress(FileNotFoundError):
                shutil.copy(file, copy)
        path = copy / self.path.name
        found: dict[Key, Span] = {}
        store = Store.open(path, None, None, 0, reread)
        rows = [(sink, row) for sink in SINKS for row in store.waiting(sink, 0, 10**9)]
        for sink, row in rows:
            number, span = _decoded(row)
            attributes = {one.key: one.value for one in span.attributes}
            written, key = attributes["text"].string_value, (sink, number)
            assert row.origin is not None
            run = resource_of(row.origin)["service.instance.id"]
            version = attributes["version"].int_value
            found[key] = Span(len(written), version, span.end_time_unix_nano, run)
            assert written == _text(number, len(written)), key
            assert int.from_bytes(span.trace_id, "big") == number << 64 | 1, key
            assert span.start_time_unix_nano == _START + number, key
        assert store.count == len(rows) == len(found), (store.count, len(rows), len(found))
        store.close(clean=False)
        with closing(sqlite3.connect(path)) as connection:
            whole = connection.execute("PRAGMA integrity_check").fetchall()
        assert whole == [("ok",)], whole
        return found


def _writes(said: list[str | Write]) -> list[Write]:
    return [one for one in said if isinstance(one, Write)]


def kills(folder: Path, times: int, seed: int) -> Counter[str]:
    """Kill so many writers; raises AssertionError where the file is not as it must be."""
    done = subprocess.run(
        [sys.executable, "-m", "chaos.spool_kills", str(folder), str(times), str(seed)],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-2000:]}"
    return Counter(json.loads(done.stdout))


@scenario(
    "spool-kills",
    section="The spool",
    fault=f"A process that writes to the spool is killed (SIGKILL) {KILLS} times at random "
    "moments: in transactions, while it opens the file and takes over what the one before left, "
    "while it closes it",
    promise="Each span whose write was confirmed is there once, with its ids and its last content; "
    "what was open ends at the last sign of life; a write is there as a whole or not at all; "
    "SQLite's check finds nothing, and nothing is ever repaired",
    protocols=(HTTP,),
)
def _spool_kills(world: World) -> str:
    seen = kills(world.folder, KILLS, random.randrange(2**32))
    return (
        f"{seen['kills']} kills ({seen['opening']} while opening, {seen['writing']} while writing, "
        f"{seen['closing']} while closing); {seen['writes']} writes, {seen['finished']} finished "
        f"spans and {seen['recovered']} open ones, all as written; of writes cut short "
        f"{seen['whole']} were there as a whole, {seen['nothing']} not at all; the file had up to "
        f"{seen['biggest'] / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    killer = Killer(Path(sys.argv[1]), int(sys.argv[3]))
    for _ in range(int(sys.argv[2])):
        killer.kill_one()
    print(json.dumps(killer.seen))

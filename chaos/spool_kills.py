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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.unit.spools import ENCODER, OTLP, ids_of, opened, span_of, waiting

from chaos.scenario import HTTP, scenario
from dask_otel._otel.sdk.encode import resource_of
from dask_otel.core.records import SpanRecord
from dask_otel.spool.store import Encoded

if TYPE_CHECKING:
    from chaos.world import World

_FORK = multiprocessing.get_context("fork")
KILLS = 200
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


class Span(NamedTuple):
    """What must be in the file of one span."""

    length: int
    version: int
    end: int
    run: str


class Write(NamedTuple):
    """One write: spans that ended, notes of open ones, notes to remove, rows that were sent.

    Spans are known by their numbers.
    """

    finished: dict[int, Span]
    noted: dict[int, Span]
    over: list[int]
    settled: list[int]
    alive: int


class Account(NamedTuple):
    """What the file must hold, after the writes that are done."""

    finished: dict[int, Span]
    #: Notes of the present run.
    open: dict[int, Span]
    alive: int
    #: Highest number of a span.
    number: int

    def draw(self, chance: random.Random, run: str) -> Write:
        """Draw the next write."""
        now = self.alive + chance.randrange(1, 1_000_000)
        size = chance.choice((1, 3, 10, 60))

        def some(numbers: list[int], most: int) -> list[int]:
            return chance.sample(numbers, min(len(numbers), chance.randrange(most + 1)))

        def span(version: int) -> Span:
            return Span(chance.choice((0, 10, 300, 3000, 30_000)), version, now, run)

        over = [number for number in self.open if chance.random() < 0.02]
        left = [number for number in self.open if number not in over]
        ended, again = some(left, size), some(left, size)
        new = range(self.number + 1, self.number + 1 + chance.randrange(2 * size))
        begun = [number for number in new if number % 2 and len(self.open) < _MOST_OPEN]
        noted = {number: self.open[number].version + 1 for number in again if number not in ended}
        sent = list(self.finished)
        return Write(
            {number: span(1000) for number in [*ended, *new] if number not in begun},
            {
                number: span(version)
                for number, version in (noted | dict.fromkeys(begun, 0)).items()
            },
            over,
            some(sent, len(sent) if len(sent) > _MOST_WAITING else size),
            now,
        )

    def after(self, write: Write) -> Account:
        """Return what the file must hold after another write."""
        ended = self.finished | write.finished
        noted = self.open | write.noted
        gone = {*write.over, *write.finished}
        return Account(
            {number: one for number, one in ended.items() if number not in write.settled},
            {number: one for number, one in noted.items() if number not in gone},
            write.alive,
            max((self.number, *write.finished, *write.noted)),
        )

    def lost(self) -> Account:
        """Return the account after this run: its notes are spans that end at its last write."""
        ended = {n: span._replace(end=max(span.end, self.alive)) for n, span in self.open.items()}
        return Account(self.finished | ended, {}, self.alive, self.number)


def _text(number: int, length: int) -> str:
    """Return a text that only this span has."""
    return (f"{number}/" * (length // 2 + 1))[:length]


def _encoded(number: int, span: Span, is_open: bool = False) -> Encoded:
    attributes = {"text": _text(number, span.length), "version": span.version}
    record = SpanRecord(
        number << 64 | 1, number, None, f"span {number}", "server", _START + number, span.end,
        attributes, (), (), None, "root",
    )  # fmt: skip
    return OTLP, ids_of(number) if is_open else None, ENCODER.span(record)


def _write(
    path: Path, account: Account, run: str, writes: int, seed: int, pipe: Connection
) -> None:
    """Make so many writes, and close the spool; report each write and its stages."""
    pipe.send(_HERE)
    chance = random.Random(seed)
    store = opened(path, run, account.alive, _MAX_BYTES)
    rows = {int.from_bytes(span_of(row).span_id, "big"): row.number for row in waiting(store)}
    store._connection.set_trace_callback(  # noqa: SLF001 - where a transaction begins and ends
        lambda statement: pipe.send(statement.split()[0].strip(";"))
    )
    for _ in range(writes):
        write = account.draw(chance, run)
        pipe.send(write)
        noted = [_encoded(*item, is_open=True) for item in write.noted.items()]
        written = store.write(
            [*noted, *(_encoded(*item) for item in write.finished.items())],
            over=[ids_of(number) for number in (*write.over, *write.finished)],
            settled=[rows.pop(number) for number in write.settled],
            alive_ns=write.alive,
        )
        assert written == (0, []), written
        pipe.send(_DONE)
        first = store.last - len(write.finished) + 1
        rows.update({number: first + at for at, number in enumerate(write.finished)})
        account = account.after(write)
    clean = chance.random() < 0.5
    # A clean close removes the notes.
    pipe.send(Write({}, {}, list(account.open) if clean else [], [], account.alive))
    store.close(clean)
    pipe.send(_DONE)


class Killer:
    """Kills writers of one spool, one after the other, and looks at the file after each."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.path, self._copy = folder / "spool" / "spool.db", folder / "copy"
        self.path.parent.mkdir(mode=0o700)
        self.seen: Counter[str] = Counter(whole=0, nothing=0)
        self._random = random.Random(seed)
        self._account = Account({}, {}, _START, 0)

    def kill_one(self) -> None:
        """Start a writer, kill it, and compare its file with the account."""
        chance = self._random
        writes = chance.randrange(1, 40)
        # While it opens the spool, at its last write, or while it closes.
        (begun,) = chance.choices((0, writes, writes + 1), (2, 5, 1))
        stage = chance.choice(tuple(_LATEST)) if begun == writes else ""
        reading, writing = _FORK.Pipe(duplex=False)
        run, seed = f"run {self.seen['kills']}", chance.randrange(2**32)
        arguments = self.path, self._account, run, writes, seed, writing
        writer = _FORK.Process(target=_write, args=arguments)
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
        self.seen["kills"] += 1

    def _compare(self, writes: list[Write], done: int) -> None:
        """Compare the file with the account; the writes that are done are booked."""
        account, found = self._account, self._found()
        for write in writes[:done]:
            account = account.after(write)
            self.seen.update(writes=1, finished=len(write.finished))
        accounts = [account, *map(account.after, writes[done:])]
        right = [one for one in accounts if one.lost().finished == found]
        wanted = account.lost().finished
        wrong = [(number, wanted.get(number), found.get(number)) for number in wanted | found
                 if wanted.get(number) != found.get(number)]  # fmt: skip
        assert right, f"{len(wrong)} of {len(found)}: {wrong[:5]}"
        if len(right) < len(accounts):
            self.seen["nothing" if account in right else "whole"] += 1
        self.seen["recovered"] += len(right[-1].open)
        self._account = right[-1].lost()

    def _found(self) -> dict[int, Span]:
        """Return the spans that the next run would send.

        From a copy, so that the next writer finds the file as the killed one left it.
        """
        if not self.path.exists():
            return {}
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.path.parent, self._copy)
        path = self._copy / self.path.name
        found: dict[int, Span] = {}
        store = opened(path, None, 0)
        for row in waiting(store):
            span = span_of(row)
            number = int.from_bytes(span.span_id, "big")
            attributes = {one.key: one.value for one in span.attributes}
            written, version = attributes["text"].string_value, attributes["version"].int_value
            assert row.origin is not None
            run = resource_of(row.origin)["service.instance.id"]
            found[number] = Span(len(written), version, span.end_time_unix_nano, run)
            assert written == _text(number, len(written)), number
            assert int.from_bytes(span.trace_id, "big") == number << 64 | 1, number
            assert span.start_time_unix_nano == _START + number, number
        assert store.count == len(found), (store.count, len(found))
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
        f"{seen['kills']} kills; {seen['writes']} writes, {seen['finished']} finished spans and "
        f"{seen['recovered']} open ones, all as written; of writes cut short {seen['whole']} were "
        f"there as a whole, {seen['nothing']} not at all"
    )


if __name__ == "__main__":
    killer = Killer(Path(sys.argv[1]), int(sys.argv[3]))
    for _ in range(int(sys.argv[2])):
        killer.kill_one()
    print(json.dumps(killer.seen))

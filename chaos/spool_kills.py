"""A process that writes to the spool is killed at random moments, and what it leaves is counted.

The account is kept on this side, of what the process has told; the file must agree with it row by
row. Of a write that was begun and not said to be done, all or nothing may be there.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from chaos.scenario import HTTP, scenario
from chaos.spool_writer import SINKS, START, text

if TYPE_CHECKING:
    from chaos.world import World
from dask_otel._otel.sdk.encode import reread, resource_of
from dask_otel.spool import files
from dask_otel.spool.store import Store

#: Seconds for what a writer tells; a machine can be busy.
_PATIENCE = 60.0
#: What a writer tells of a transaction.
_STAGES = ("BEGIN", "COMMIT")
#: Seconds after which it is killed at most, once it has told what comes now.
_LATEST = {"encoding": 0.01, "BEGIN": 0.004, "COMMIT": 0.0015}
KILLS = 200

Key = tuple[str, int]


class Span(NamedTuple):
    """What must be in the file of one span."""

    length: int
    version: int
    end: int
    run: str


@dataclass
class Account:
    """What the file must hold, by what was told."""

    finished: dict[Key, Span] = field(default_factory=dict)
    #: Of the present run.
    open: dict[Key, Span] = field(default_factory=dict)
    alive: int = 0

    def apply(self, write: dict[str, Any], run: str) -> None:
        """Take note of a write."""
        for sink, number in write["settled"]:
            del self.finished[sink, number]
        for number in write["over"]:
            for sink in SINKS:
                self.open.pop((sink, number), None)
        for sink, number, *rest in write["finished"]:
            self.open.pop((sink, number), None)
            assert (sink, number) not in self.finished, (sink, number)
            self.finished[sink, number] = Span(*rest, run)
        for sink, number, *rest in write["noted"]:
            self.open[sink, number] = Span(*rest, run)
        if write["alive"] is not None:
            self.alive = write["alive"]

    def lost(self) -> None:
        """Take note that the run is over: its notes are spans that end at its last sign of life."""
        for key, span in self.open.items():
            assert key not in self.finished, key
            self.finished[key] = span._replace(end=max(span.end, self.alive))
        self.open = {}


@dataclass
class Seen:
    """What came of all kills."""

    kills: int = 0
    opening: int = 0
    closing: int = 0
    writing: int = 0
    #: Writes that were begun and not said to be done: all of it was there, or nothing.
    whole: int = 0
    nothing: int = 0
    writes: int = 0
    finished: int = 0
    recovered: int = 0
    biggest_log: int = 0


class Killer:
    """Kills writers of one spool, one after the other, and looks at the file after each.

    Parameters
    ----------
    folder
        For the spool, and a copy of it.
    seed
        Of all that is random here.
    server
        What forks writers.
    """

    def __init__(self, folder: Path, seed: int, server: subprocess.Popen[bytes]) -> None:
        self.path = folder / "spool.db"
        self.seen = Seen()
        self._copy = folder / "copy"
        self._random = random.Random(seed)
        self._server = server
        self._account = Account()
        self._clock = START
        self._first = 0
        self._buffer = b""
        #: How many notes the next one to open it finds; more than one number where nobody told.
        self._notes: set[int] = {0}

    def kill_one(self) -> None:
        """Start a writer, kill it, and look at what it left."""
        chance = self._random
        run = f"run {self.seen.kills}"
        # While it opens the spool, at its n-th write, or while it closes.
        when = chance.choices(("opening", "closing", "writing"), (2, 1, 5))[0]
        writes = chance.randrange(1, 40)
        task = {
            "path": str(self.path),
            "run": run,
            "seed": chance.randrange(2**32),
            "first": self._first,
            "clock": self._clock,
            "writes": writes if when == "closing" else 10**9,
            "clean": chance.random() < 0.5,
        }
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(task).encode() + b"\n")
        self._server.stdin.flush()
        opening = self._next()
        assert opening["what"] == "opening", opening
        tried = self._follow(run, when, writes)
        stage = chance.choice(("encoding", *_STAGES)) if when == "writing" else "encoding"
        if stage != "encoding":
            # Not all kills are to come before the transaction.
            while self._next()["what"] != stage:
                pass
        time.sleep(chance.uniform(0, _LATEST[stage]))
        with suppress(ProcessLookupError):
            # One that closes may be over.
            os.kill(opening["pid"], signal.SIGKILL)
        self._to_the_end(run, tried)
        self.seen.kills += 1
        setattr(self.seen, when, getattr(self.seen, when) + 1)

    def _follow(self, run: str, when: str, writes: int) -> dict[str, Any] | None:
        """Follow a writer to where it is to be killed; return the write that is begun."""
        if when == "opening":
            return None
        self._opened(self._next())
        # A writer that closes begins one write more: its close.
        for number in range(writes + 1):
            tried = self._next_of_writes()
            assert tried["what"] == "try", tried
            if number == writes or (when == "writing" and number == writes - 1):
                return tried
            self._done(self._next_of_writes(), tried, run)
        raise AssertionError("not reached")

    def _to_the_end(self, run: str, tried: dict[str, Any] | None) -> None:
        """Read what it had told before it was killed, and compare the file with that."""
        opened = tried is not None
        while (told := self._next())["what"] != "ended":
            if told["what"] == "opened":
                self._opened(told)
                opened = True
            elif told["what"] == "try":
                tried = told
            elif told["what"] == "done":
                assert tried is not None
                self._done(told, tried, run)
                tried = None
        self._compare(run, tried, opened)
        self.seen.recovered += len(self._account.open)
        self._account.lost()

    def _opened(self, told: dict[str, Any]) -> None:
        assert told["what"] == "opened", told
        # Nobody told, if the one before was killed in the middle of it: then it may be done.
        assert told["recovered"] in self._notes, (told, self._notes)
        self._notes = {0}

    def _done(self, told: dict[str, Any], tried: dict[str, Any], run: str) -> None:
        assert told["what"] == "done", told
        assert not told.get("dropped"), told
        self._account.apply(tried, run)
        self._took_part(tried)
        self.seen.writes += 1
        self.seen.finished += len(tried["finished"])

    def _took_part(self, tried: dict[str, Any]) -> None:
        numbers = [number for _, number, *_ in (*tried["finished"], *tried["noted"])]
        self._first = max([self._first, *numbers])
        self._clock = max(self._clock, tried["alive"] or 0)

    def _compare(self, run: str, tried: dict[str, Any] | None, opened: bool) -> None:
        log = files.beside(self.path, "-wal")
        if log.exists():
            self.seen.biggest_log = max(self.seen.biggest_log, log.stat().st_size)
        candidates = [self._account]
        if tried is not None:
            self._took_part(tried)
            candidates.append(deepcopy(self._account))
            candidates[1].apply(tried, run)
        wanted = []
        for one in candidates:
            over = deepcopy(one)
            over.lost()
            wanted.append(over.finished)
        found, recovered, in_place = self._found()
        if found not in wanted:
            raise AssertionError(_difference(wanted[0], found))
        if tried is not None and wanted[0] != wanted[1]:
            if found == wanted[1]:
                self._account = candidates[1]
                self.seen.whole += 1
            else:
                self.seen.nothing += 1
        # Who was killed while it took notes over has done so, or has not.
        notes = {len(self._account.open)} if opened else {0} | self._notes
        assert recovered in notes, (recovered, notes)
        self._notes = {0} if in_place else notes

    def _found(self) -> tuple[dict[Key, Span], int, bool]:
        """Return what is in the file, as the next run would send it; and how many notes of it.

        Mostly of a copy, so that the next writer finds what the killed one left, and not what was
        made of it here.
        """
        path = self.path
        if not path.exists():
            return {}, 0, True
        in_place = self._random.random() < 0.2
        if not in_place:
            shutil.rmtree(self._copy, ignore_errors=True)
            self._copy.mkdir(mode=0o700)
            path = self._copy / self.path.name
            # Not the index of the log: SQLite makes that anew where nobody has the file.
            for suffix in ("", "-wal", "-journal"):
                source = files.beside(self.path, suffix)
                if source.exists():
                    shutil.copy(source, files.beside(path, suffix))
        found: dict[Key, Span] = {}
        store = Store.open(path, None, None, 0, reread)
        try:
            for sink in SINKS:
                for row in store.waiting(sink, 0, 10**9):
                    span = OtlpSpan.FromString(row.body)
                    number = int.from_bytes(span.span_id, "big")
                    key = (sink, number)
                    assert key not in found, f"{key} is there twice"
                    attributes = {one.key: one.value for one in span.attributes}
                    written = attributes["text"].string_value
                    assert written == text(number, len(written)), key
                    assert int.from_bytes(span.trace_id, "big") == number << 64 | 1, key
                    assert span.start_time_unix_nano == START + number, key
                    assert row.origin is not None
                    found[key] = Span(
                        len(written),
                        attributes["version"].int_value,
                        span.end_time_unix_nano,
                        resource_of(row.origin)["service.instance.id"],
                    )
            recovered = store.recovered
            assert store.count() == len(found), (store.count(), len(found))
        finally:
            store.close(clean=False)
        if path.exists():
            with sqlite3.connect(path) as connection:
                whole = connection.execute("PRAGMA integrity_check").fetchall()
            connection.close()
            assert whole == [("ok",)], whole
        return found, recovered, in_place

    def _next_of_writes(self) -> dict[str, Any]:
        while (told := self._next())["what"] in _STAGES:
            pass
        return told

    def _next(self) -> dict[str, Any]:
        """Return what is told next."""
        assert self._server.stdout is not None
        descriptor = self._server.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], _PATIENCE)
            assert ready, "the writer says nothing"
            more = os.read(descriptor, 1 << 20)
            assert more, "whoever forks writers has ended"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            told: dict[str, Any] = json.loads(line)
        except ValueError:
            # A line that was cut by the kill, with the next one behind it.
            start = line.rindex(b'{"what": "ended"')
            told = json.loads(line[start:])
        return told


def _difference(wanted: dict[Key, Span], found: dict[Key, Span]) -> str:
    missing = sorted(wanted.keys() - found.keys())
    more = sorted(found.keys() - wanted.keys())
    other = sorted(key for key in wanted.keys() & found.keys() if wanted[key] != found[key])
    return (
        f"{len(missing)} of {len(wanted)} are missing {missing[:3]}, {len(more)} too many "
        f"{more[:3]}, {len(other)} are not as told "
        f"{[(key, wanted[key], found[key]) for key in other[:3]]}"
    )


@contextmanager
def forking() -> Iterator[subprocess.Popen[bytes]]:
    """Start what forks writers."""
    with subprocess.Popen(
        [sys.executable, "-m", "chaos.spool_writer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    ) as server:
        try:
            yield server
        finally:
            server.kill()


def kills(folder: Path, times: int, seed: int) -> Seen:
    """Kill so many writers; raises AssertionError where the file is not as told."""
    with forking() as server:
        killer = Killer(folder, seed, server)
        for _ in range(times):
            try:
                killer.kill_one()
            except Exception as error:
                raise AssertionError(
                    f"kill {killer.seen.kills + 1} of seed {seed}: {error!r}"
                ) from error
        return killer.seen


@scenario(
    "spool-kills",
    section="The spool",
    fault=f"A process that writes to the spool is killed (SIGKILL) {KILLS} times at random "
    "moments: in transactions, while it opens the file and takes over what the one before left, "
    "while it closes it",
    promise="Each span that was said to be noted is there once, with its ids and as it was noted "
    "last; what was open ends at the last sign of life; a write is there as a whole or not at all; "
    "SQLite's check finds nothing, and nothing is ever repaired",
    protocols=(HTTP,),
)
def _spool_kills(world: World) -> str:
    seed = random.randrange(2**32)
    seen = kills(world.folder, KILLS, seed)
    return (
        f"{seen.kills} kills ({seen.opening} while opening, {seen.writing} while writing, "
        f"{seen.closing} while closing); {seen.writes} writes, {seen.finished} finished spans and "
        f"{seen.recovered} open ones, all as told; of writes cut short {seen.whole} were there as "
        f"a whole, {seen.nothing} not at all; the log had up to {seen.biggest_log / 1e6:.1f} MB"
    )

"""The spool's store: what waits in it, what is noted, what a run leaves to the next."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dask_otel.cli.spool_view import listing
from dask_otel.spool import lock
from dask_otel.spool.store import _TABLES, SpoolError
from tests.environment import REPOSITORY
from tests.unit.spools import (
    OTLP,
    body,
    closing_clean,
    cut_short,
    ends,
    ids,
    ids_of,
    left,
    noted,
    notes,
    numbers,
    opened,
    origin_of,
    spans,
    waiting,
)
from tests.waiting import ended


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


# ------------------------------------------------------------------------------ one run


def test_finished_spans_wait_in_their_order_until_they_are_settled(path: Path) -> None:
    with closing_clean(opened(path)) as store:
        store.write(spans(3, 1, 2), alive_ns=2)
        assert [(row.body, row.origin) for row in waiting(store, limit=1)] == [(body(3), None)]
        assert numbers(store) == [3, 1, 2]
        rows = ids(store)
        assert numbers(store, after=rows[0], limit=1) == [1]
        assert rows == sorted(rows)
        store.write(settled=rows[:2], alive_ns=3)
        assert (numbers(store), store.count) == ([2], 1)
        # Once more, and what was never there.
        store.write(settled=[*rows[:2], 10**9], alive_ns=3)
        assert store.count == 1
        store.write([*spans(4), *notes(5)], settled=rows, alive_ns=3)
        assert ids(store) == [rows[-1] + 1], "a number was used twice"
        store.write(settled=ids(store), alive_ns=3)
    assert list(path.parent.iterdir()) == [], "an empty spool leaves nothing on the disk"
    with closing_clean(opened(path, "b")) as store:
        assert (store.recovered, store.count) == (0, 0)


# --------------------------------------------------------------------------- many runs


@pytest.mark.parametrize("clean", [True, False])
def test_notes_are_sent_by_the_next_run_if_theirs_did_not_end_cleanly(
    path: Path, clean: bool
) -> None:
    store = opened(path)
    store.write([*notes(1, 2, 3, text="first"), *notes(1, sink="zipkin")], alive_ns=2)
    assert (numbers(store), store.count, noted(store)) == ([], 0, 4)
    # One ends, one is forgotten, one is noted anew; in one write, the last one counts.
    rows = [*notes(3, text="second"), *notes(3, 4, end=40, text="third"), *spans(1)]
    store.write(rows, over=[ids_of(1), ids_of(2)], alive_ns=20)
    assert (numbers(store), store.count, noted(store)) == ([1], 1, 2)
    store.close(clean)
    with closing_clean(opened(path, "b")) as store:
        # They end at the run's last sign of life, or as they say themselves.
        lost = [] if clean else [(3, 40), (4, 40)]
        assert sorted(ends(store)) == [(1, 10), *lost]
        assert (store.recovered, store.count) == (len(lost), 1 + len(lost))
        assert {row.origin for row in waiting(store)} == {origin_of("a")}
        bodies = {row.body for row in waiting(store)}
        assert bodies == {body(1), *(body(number, 40, "third") for number, _ in lost)}


def test_open_spans_of_several_lost_runs_end_with_their_own(path: Path) -> None:
    left(path, *notes(1, end=7), alive=20)
    left(path, *notes(2, end=7), alive=60, run="b")
    # Of a run that comes back: its bridge was taken off and put on again.
    left(path, *spans(3), *notes(1, end=7), alive=70)
    with closing_clean(opened(path, "c", now=99)) as store:
        assert ends(store) == [(1, 20), (2, 60), (3, 10), (1, 70)]
        assert [row.origin for row in waiting(store)] == [origin_of(run) for run in "abaa"]


def test_runs_that_have_left_nothing_are_forgotten(path: Path) -> None:
    left(path, *spans(1), clean=True)
    with closing_clean(opened(path, "b")) as store:
        store.write(spans(2), settled=ids(store), alive_ns=2)
    left(path, run="c")
    opened(path, None).close(clean=True)
    with closing(sqlite3.connect(path)) as connection:
        (found,) = connection.execute("SELECT resource FROM runs")
    assert found == (origin_of("b").resource,)


# ------------------------------------------------------------------------------ bounds


def on_disk(path: Path) -> int:
    return sum(each.stat().st_size for each in path.parent.iterdir())


def test_the_oldest_are_dropped_from_a_full_spool(path: Path) -> None:
    most = 1_000_000
    with closing_clean(opened(path, max_bytes=most)) as store:
        store.write(notes(1, 2, 3), alive_ns=2)
        gone = 0
        for begin in range(10, 3000, 10):
            some = spans(*range(begin, begin + 10), text="x" * 1000)
            dropped, left_out = store.write(some, alive_ns=2)
            assert not left_out
            gone += dropped
            assert max(store.size, on_disk(path)) <= most
            assert store.count == begin - gone
        # The newest, without a gap; all others were reported.
        assert numbers(store) == list(range(10, 3000))[-store.count :]
        assert 300 < store.count < 900
        # Notes stay as long as there is anything else.
        assert noted(store) == 3
        # A row that is larger than a part of the spool is left out, with those before it.
        rows = [*spans(1), *spans(2, text="x" * 3_000_000), *spans(3000)]
        assert store.write(rows, alive_ns=2)[1] == rows[:2]
        assert numbers(store)[-2:] == [2999, 3000]


def test_rows_in_a_queue_are_not_dropped_nor_notes_for_them(path: Path) -> None:
    with closing_clean(opened(path, max_bytes=1_000_000)) as store:
        for sink in (OTLP, "zipkin"):
            for first in range(2, 102, 10):
                some = spans(*range(first, first + 10), text="x" * 1000, sink=sink)
                store.write([*notes(1), *some], alive_ns=2)
        fed = {OTLP: ids(store)[49], "zipkin": 10**9}
        for first in range(1000, 2000, 10):
            store.write(spans(*range(first, first + 10), text="x" * 1000), fed=fed, alive_ns=2)
        assert numbers(store)[:50] == list(range(2, 52))
        assert numbers(store)[50:] == list(range(2000 - (store.count - 150), 2000))
        assert numbers(store, "zipkin") == list(range(2, 102))
        # All of it is in queues: there is no room.
        new, before = spans(2000, text="x" * 100_000), store.count
        fed = dict.fromkeys(fed, 10**9)
        assert store.write(new, fed=fed, alive_ns=2) == (0, new)
        assert (noted(store), store.count, store.size <= 1_000_000) == (1, before, True)


def test_notes_alone_are_bounded_as_well(path: Path) -> None:
    with closing_clean(opened(path, max_bytes=1_000_000)) as store:
        for first in range(1, 1500, 5):
            some = notes(*range(first, first + 5), text="x" * 1000)
            assert not store.write(some, alive_ns=2)[0]
            assert store.size <= 1_000_000
        assert 300 < noted(store) < 1500
        store.write(spans(1, 1499), over=[ids_of(1), ids_of(1499)], alive_ns=2)
        assert (numbers(store), store.count) == ([1, 1499], 2)


def test_room_of_settled_rows_is_used_again(path: Path) -> None:
    with closing_clean(opened(path, max_bytes=2_000_000)) as store:
        for begin in range(1, 4000, 100):
            some = range(begin, begin + 100)
            assert store.write(spans(*some, text="x" * 1000), alive_ns=2) == (0, [])
            store.write(settled=ids(store), alive_ns=2)
        assert on_disk(path) < 1_000_000


# --------------------------------------------------------------------------- the file


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_files_are_for_the_owner_alone(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = opened(path)
    finally:
        os.umask(before)
    store.write(spans(1), alive_ns=2)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes.pop("spool.db.lock") & 0o077 == 0
    assert modes == {"spool.db": 0o600, "spool.db-journal": 0o600}
    store.close(clean=True)
    path.chmod(0o664)
    for run in ("b", None):
        with closing_clean(opened(path, run)):
            files = [path, path.with_name("spool.db-journal")]
            assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}


def contents(path: Path) -> dict[str, tuple[bytes, float]]:
    """Return the files in the spool's folder, except the lock, and their times."""
    files = [each for each in path.parent.glob("*") if each.is_file()]
    return {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in files}


def refused(path: Path, words: str) -> None:
    """Check that neither the list nor a run takes the spool, or changes anything."""
    before = contents(path)
    for use in (lambda path: list(listing(path)), opened, lambda path: opened(path, None)):
        with pytest.raises(SpoolError, match=words):
            use(path)
        assert contents(path) == before


def spoil(path: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement, values)
        connection.commit()


NO_SPOOL = "is no spool of dask-otel, and was not changed"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_text("a letter " * 30), NO_SPOOL),
        (lambda path: path.write_text("a"), NO_SPOOL),
        (lambda path: spoil(path, "CREATE TABLE somebodys (x)"), NO_SPOOL),
        *(
            (
                lambda path, suffix=suffix: path.with_name(path.name + suffix).symlink_to("target"),
                "symbolic link",
            )
            for suffix in ("", "-wal", "-journal", ".lock")
        ),
        (lambda path: path.mkdir(), "no plain file"),
        (lambda path: path.touch(), "belongs to another user"),
        (lambda path: path.parent.rename(path.parent.with_name("moved")), "no folder"),
    ],
)
def test_what_is_no_spool_of_this_user_is_left_alone(
    path: Path, make: Callable[[Path], object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path.parent / "folder" / path.name
    path.parent.mkdir()
    make(path)
    if "another user" in words:
        me = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    before = contents(path)
    with pytest.raises(SpoolError, match=words):
        opened(path)
    assert contents(path) == before


def test_a_later_version_is_refused(path: Path) -> None:
    left(path, *spans(1))
    spoil(path, "PRAGMA user_version=99")
    refused(path, "written by a later version of dask-otel")


@pytest.mark.parametrize("begin", [100, 4096, 3 * 4096 + 8, 4 * 4096 + 8])
def test_a_damaged_file_is_refused(path: Path, begin: int) -> None:
    """A row that is written beside the damage may never be found again."""
    left(path, *spans(*range(1, 100), text="x" * 100), *notes(100, 101))
    content = bytearray(path.read_bytes())
    content[begin : begin + 400] = b"\xff" * 400
    path.write_bytes(content)
    with pytest.raises(SpoolError, match="is damaged"):
        opened(path)
    # It can be moved away, and another begun.
    path.rename(path.with_name("damaged"))
    opened(path).close(clean=True)


@pytest.mark.parametrize(
    ("statement", "value", "there"),
    [
        ("rows SET body = ? WHERE id = 2", b"\0", [(1, 10), (3, 9)]),
        # What can be read, and is not what was written.
        ("rows SET body = ? WHERE id = 2", body(7), [(1, 10), (3, 9)]),
        ("rows SET run = ? WHERE id = 2", 77, [(1, 10), (3, 9)]),
        ("rows SET crc = ? WHERE id = 2", 5, [(1, 10), (3, 9)]),
        ("rows SET ids = ? WHERE id = 3", b"9", [(1, 10), (2, 10)]),
        *(("runs SET resource = ?", v, []) for v in (b"\xff", origin_of("b").resource)),
        *(("runs SET started_ns = ?", v, [(1, 10), (2, 10), (3, 9)]) for v in ("a", b"", 1.5)),
        # What is not known of the last sign of life, the note itself knows.
        *(("runs SET alive_ns = ?", v, [(1, 10), (2, 10), (3, 7)]) for v in ("a", b"", 1.5)),
    ],
)
def test_a_damaged_row_costs_itself_alone(
    path: Path, statement: str, value: object, there: list[tuple[int, int]]
) -> None:
    left(path, *spans(1, 2), *notes(3, end=7), alive=9)
    spoil(path, f"UPDATE {statement}", value)
    assert "3 spans waiting" in "\n".join(listing(path))
    with closing_clean(opened(path, "b")) as store:
        assert [row.number for row in store.waiting(OTLP, 0, 9)] == [1, 2, 3]
        assert (ends(store), store.count) == (there, 3)


# ------------------------------------------------------------------ an interrupted write


def beside(path: Path) -> Path:
    return path.with_name(path.name + "-journal")


def test_an_interrupted_write_is_undone_and_a_listing_changes_nothing(path: Path) -> None:
    left(path, *spans(*range(1, 100), text="x" * 500), *notes(100))
    cut_short(path)
    before = contents(path)
    assert "100 spans waiting" in "\n".join(listing(path))
    assert contents(path) == before
    with closing_clean(opened(path, "b")) as store:
        assert numbers(store) == list(range(1, 101))
    assert set(contents(path)) == {"spool.db"}


@pytest.mark.parametrize("length", [512, 514, 516, 3000, 4616])
def test_a_write_may_be_cut_short_while_its_journal_is_begun(path: Path, length: int) -> None:
    """A new journal has its header, then its first record: the number of a page, and the page."""
    left(path, *spans(1), *notes(2))
    before = path.read_bytes()
    cut_short(path)
    path.write_bytes(before)
    beside(path).write_bytes(beside(path).read_bytes()[:length])
    assert "2 spans waiting" in "\n".join(listing(path))
    with closing_clean(opened(path, "b")) as store:
        assert numbers(store) == [1, 2]


def test_copies_of_a_process_that_was_killed_meanwhile_are_removed(path: Path) -> None:
    left(path, *spans(1))
    for suffix in ("-copy", "-copy-journal"):
        path.with_name(path.name + suffix).write_bytes(b"spans")
    left(path, *spans(2))
    assert set(contents(path)) == {"spool.db"}


def of_another_spool(path: Path, other: Path) -> None:
    left(other, *spans(*range(1, 31), text="y" * 500))
    cut_short(other)


def of_one_without_a_first_page(path: Path, other: Path) -> None:
    """It has as many pages, and no write of ours: the first page is not in the journal."""
    left(other, *spans(*range(2, 101), text="y" * 500))
    cut_short(other, "UPDATE rows SET sink = 'a'")
    assert path.stat().st_size == other.stat().st_size


def of_an_equal_one(path: Path, other: Path) -> None:
    """Everything but the identity is the same in both."""
    left(other, *spans(*range(1, 100), text="x" * 500))
    cut_short(other)


def of_its_own_past(path: Path, other: Path) -> None:
    other.write_bytes(path.read_bytes())
    cut_short(other)
    for _ in range(2):
        left(path, *spans(1))
    # One row more, and one run.
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM rows WHERE id >= 100")


@pytest.mark.parametrize(
    "make", [of_another_spool, of_one_without_a_first_page, of_an_equal_one, of_its_own_past]
)
def test_a_journal_that_is_not_of_this_spool_is_not_used(path: Path, make: Any) -> None:
    """SQLite would put the other spool's spans into this one, and its check would find nothing."""
    left(path, *spans(*range(1, 100), text="x" * 500))
    other = path.with_name("other.db")
    make(path, other)
    beside(path).write_bytes(beside(other).read_bytes())
    refused(path, r"db-journal can't undo it .* Nothing was changed")
    # As the message says.
    beside(path).unlink()
    with closing_clean(opened(path, "b")) as store:
        assert numbers(store) == list(range(1, 100))


def test_a_log_of_another_file_is_not_used(path: Path) -> None:
    """As a journal, if somebody has changed the other one's mode."""
    other = path.with_name("other.db")
    left(path, *spans(1))
    left(other, *spans(2))
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("UPDATE runs SET alive_ns = 9")
        connection.commit()
        path.with_name("spool.db-wal").write_bytes(other.with_name("other.db-wal").read_bytes())
    refused(path, "db-wal is not from this spool")


def test_a_file_that_was_emptied_is_not_taken_for_one_where_nothing_waits(path: Path) -> None:
    left(path, *spans(*range(1, 100), text="x" * 500))
    cut_short(path)
    for journal in (beside(path).read_bytes(), bytes(65536)):
        path.write_bytes(b"")
        beside(path).write_bytes(journal)
        refused(path, r"is empty, and .*-journal is not")
    # The file was moved away, as after a damage, and its journal was not.
    path.unlink()
    with closing_clean(opened(path)) as store:
        assert (store.count, store.recovered) == (0, 0)


def test_a_spool_whose_making_was_cut_short_is_made_anew(path: Path) -> None:
    path.touch()
    cut_short(path, _TABLES % "its identity")
    # It was killed before the journal's file had a page.
    path.write_bytes(b"")
    assert beside(path).read_bytes()[16:20] == bytes(4)
    assert "0 spans waiting" in "\n".join(listing(path))
    with closing_clean(opened(path)) as store:
        assert store.count == 0


# ------------------------------------------------------------------------ disk trouble

#: A process whose files may not grow for a while, and which forks.
_PROGRAM = """
import os, resource, sys
from pathlib import Path
from tests.unit.spools import *

path = Path(sys.argv[1])
store, written, failed = opened(path), [], 0
rows = spans(*range(1, 101), text="x" * 1000)
store.write(rows, alive_ns=2)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
# No file may become larger: both of SQLite's meet the limit in the middle of a write.
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
for number in range(101, 200):
    try:
        store.write(spans(number, text="x" * 5000), settled=[number - 100], alive_ns=2)
    except OSError:
        failed += 1
    else:
        written.append(number)
    # What has arrived is removed all the same.
    assert numbers(store) == [*range(number - 99, 101), *written], number
    assert store.count == len(numbers(store))
assert written and failed, (written, failed)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
store.write(spans(1000), alive_ns=2)
store.close(clean=False)
store = opened(path, "b")
assert numbers(store) == [100, *written, 1000]
assert store._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
store.write(spans(1), settled=ids(store), alive_ns=20)
store._connection.execute("BEGIN IMMEDIATE")
store._connection.execute("PRAGMA user_version = 2")
for number in range(1000, 3000):
    # More than SQLite keeps in memory: some of it is in the file already.
    row = (number, "x" * 4000)
    statement = "INSERT INTO rows (id, run, sink, body) VALUES (?, 2, 'otlp', ?)"
    store._connection.execute(statement, row)
child = os.fork()
if child == 0:
    # In the middle of a transaction of its parent's: it ends as any Python does.
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert store._connection.execute("SELECT count(*) FROM rows").fetchone() == (2001,)
store._connection.execute("DELETE FROM rows WHERE id > 999")
store._connection.execute("COMMIT")
store.write(spans(2), alive_ns=30)
assert numbers(store) == [1, 2]
print("done", flush=True)
child = os.fork()
if child == 0:
    # It outlives its parent.
    os.close(1)
    sys.stdin.read()
    sys.exit(0)
os.kill(os.getpid(), 9)
"""


def test_a_full_disk_loses_nothing_and_forked_children_do_no_harm_and_hold_nothing_up(
    path: Path,
) -> None:
    """The child that is left ends with its input."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", _PROGRAM, str(path)]
    with subprocess.Popen(command, cwd=REPOSITORY, text=True, **pipes) as forker:
        assert forker.stdout.readline() == "done\n"
        assert ended(forker) == -signal.SIGKILL
        with closing_clean(opened(path)) as store:
            assert numbers(store) == [1, 2]
            assert store._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_broken_disk_is_an_oserror_and_changes_nothing(path: Path) -> None:
    with closing_clean(opened(path)) as store:
        store.write([*notes(2), *spans(1)], alive_ns=2)
        store._connection.execute("PRAGMA query_only=1")
        for change in ({"rows": spans(3)}, {"settled": ids(store)}):
            with pytest.raises(OSError, match="SQLite says"):
                store.write(**change, alive_ns=3)
        assert (numbers(store), store.count, noted(store)) == ([1], 1, 1)
        store._connection.execute("PRAGMA query_only=0")


def test_a_file_that_was_removed_is_an_oserror(path: Path) -> None:
    store = opened(path)
    path.unlink()
    for make in (lambda: None, lambda: path.write_text("somebody's")):
        make()
        with pytest.raises(FileNotFoundError):
            store.write(spans(2), alive_ns=2)
    store.close(clean=True)
    assert path.read_text() == "somebody's"


def test_a_lock_that_cannot_be_had_leaves_no_open_file(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(lock, "_lock", Mock(side_effect=OSError(errno.ENOLCK, "No locks")))
    with pytest.raises(SpoolError, match=r"can't be locked .*No locks"):
        opened(path)
    assert len(os.listdir("/proc/self/fd")) == before

"""The spool's store: what waits in it, what is noted, what a run leaves to the next."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from dask_otel._otel.sdk.encode import Encoder, reread, span_name
from dask_otel.cli.spool_view import as_text
from dask_otel.core.records import Row, SpanRecord
from dask_otel.spool import lock, schema
from dask_otel.spool.reading import Summary
from dask_otel.spool.reading import summarize as summarized
from dask_otel.spool.store import Encoded, Run, SpoolError, Store

BYTES = 10_000_000
OTLP = "otlp"
ENCODER = Encoder({}, "1")


def body(number: int, end: int = 10, text: str = "") -> bytes:
    return ENCODER.span(
        SpanRecord(
            trace_id=number,
            span_id=number,
            parent_span_id=None,
            name=f"span {number}",
            kind="server",
            start_ns=5,
            end_ns=end,
            attributes={"text": text},
            events=(),
            links=(),
            error=None,
            root_name="root",
        )
    )


def spans(*numbers: int, sink: str = OTLP, **options: Any) -> list[Encoded]:
    return [(sink, (number, number), body(number, **options)) for number in numbers]


def run_of(name: str, started_ns: int = 1) -> Run:
    return Run(name, Encoder({"service.instance.id": name}, f"version {name}").origin, started_ns)


def opened(path: Path, run: str | None = "a", now: int = 1, max_bytes: int = BYTES) -> Store:
    given = None if run is None else run_of(run, now)
    return Store.open(path, max_bytes, given, now, reread)


def span_of(row: Row) -> Span:
    return Span.FromString(row.body)


def span_id(row: Row) -> int:
    return int.from_bytes(span_of(row).span_id, "big")


def waiting(store: Store, sink: str = OTLP, after: int = 0, limit: int = 10**6) -> list[Row]:
    return store.waiting(sink, after, limit)


def ids(store: Store) -> list[int]:
    return [row.number for row in waiting(store)]


def summarize(path: Path) -> Summary:
    return summarized(path, span_name)


def notes(store: Store) -> int:
    return summarize(store.path).noted


@contextmanager
def closing_clean(store: Store) -> Iterator[Store]:
    """Close a store at the end of a block, as a run that ends in order does."""
    try:
        yield store
    finally:
        store.close(clean=True)


def numbers(store: Store, sink: str = OTLP, after: int = 0, limit: int = 10**6) -> list[int]:
    return [span_id(row) for row in waiting(store, sink, after, limit)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


# ------------------------------------------------------------------------------ one run


def test_finished_spans_wait_in_their_order_until_they_are_settled(path: Path) -> None:
    with closing_clean(opened(path)) as store:
        store.write(finished=spans(3, 1, 2), alive_ns=2)
        assert numbers(store) == [3, 1, 2]
        rows = ids(store)
        assert numbers(store, after=rows[0], limit=1) == [1]
        assert rows == sorted(rows)
        store.write(settled=rows[:2], alive_ns=3)
        assert numbers(store) == [2]
        assert store.count() == store.count(OTLP) == 1
        # Once more, and what was never there.
        store.write(settled=[*rows[:2], 10**9], alive_ns=3)
        assert store.count() == 1


def test_rows_of_this_run_have_no_origin(path: Path) -> None:
    with closing_clean(opened(path)) as store:
        store.write(finished=spans(1), alive_ns=2)
        (found,) = waiting(store)
        assert (found.body, found.origin) == (body(1), None)


def test_ids_are_never_used_twice_in_a_run(path: Path) -> None:
    with closing_clean(opened(path)) as store:
        store.write(finished=spans(1, 2), alive_ns=2)
        first = ids(store)
        store.write(settled=first, alive_ns=2)
        store.write(finished=spans(3), alive_ns=2)
        assert ids(store)[0] > max(first)


def test_each_sink_has_its_own_rows(path: Path) -> None:
    with closing_clean(opened(path)) as store:
        store.write(finished=[*spans(1, 2), *spans(1, sink="zipkin")], alive_ns=2)
        assert numbers(store, "zipkin") == [1]
        assert store.sinks() == {"otlp": 2, "zipkin": 1}
        assert (store.count("zipkin"), store.count("other"), store.count()) == (1, 0, 3)
        assert numbers(store, "other") == []


def test_notes_are_not_sent_while_their_run_goes_on(path: Path) -> None:
    with closing_clean(opened(path)) as store:
        store.write(noted=spans(1, 2, 3), alive_ns=2)
        assert (numbers(store), store.count(), notes(store)) == ([], 0, 3)
        # One ends, one is forgotten.
        store.write(finished=spans(1), over=[(2, 2)], alive_ns=3)
        assert (numbers(store), notes(store)) == ([1], 1)


def test_who_is_not_clean_at_the_end_leaves_its_notes(path: Path) -> None:
    store = opened(path)
    store.write(noted=spans(1, end=7), finished=spans(2), alive_ns=20)
    store.close(clean=False)
    with closing_clean(opened(path, "b")) as store:
        assert store.recovered == 1
        rows = {span_id(row): row for row in waiting(store)}
        # It ends at the run's last sign of life.
        assert span_of(rows[1]).end_time_unix_nano == 20
        assert rows[2].body == body(2)
        assert rows[1].origin == rows[2].origin == run_of("a").origin
        assert store.count() == 2


def test_a_note_never_ends_before_what_it_says_itself(path: Path) -> None:
    store = opened(path)
    store.write(noted=spans(1, end=30), alive_ns=20)
    store.close(clean=False)
    with closing_clean(opened(path, "b")) as store:
        (note,) = waiting(store)
        assert note.body == body(1, end=30)


def test_a_note_replaces_the_one_before(path: Path) -> None:
    store = opened(path)
    store.write(noted=spans(1, text="first"), alive_ns=2)
    store.write(noted=spans(1, text="second"), alive_ns=2)
    # In one write, the last one counts.
    store.write(noted=[*spans(1, text="third"), *spans(1, text="fourth")], alive_ns=2)
    store.close(clean=False)
    with closing_clean(opened(path, "b")) as store:
        (note,) = waiting(store)
        assert note.body == body(1, text="fourth")


def test_what_ends_in_the_same_write_is_not_noted(path: Path) -> None:
    store = opened(path)
    store.write(noted=spans(1, 2, 3), finished=spans(1), over=[(2, 2)], alive_ns=2)
    store.close(clean=False)
    with closing_clean(opened(path, "b")) as store:
        assert store.recovered == 1
        assert sorted(numbers(store)) == [1, 3]


def test_notes_of_one_span_for_two_sinks_are_apart(path: Path) -> None:
    store = opened(path)
    store.write(noted=[*spans(1), *spans(1, sink="zipkin")], alive_ns=2)
    store.write(finished=spans(1), alive_ns=2)
    assert notes(store) == 1
    store.close(clean=False)
    with closing_clean(opened(path, "b")) as store:
        assert store.sinks() == {"otlp": 1, "zipkin": 1}


# --------------------------------------------------------------------------- many runs


def test_a_clean_end_leaves_what_waits_and_no_notes(path: Path) -> None:
    store = opened(path)
    store.write(noted=spans(1), finished=spans(2), alive_ns=2)
    store.close(clean=True)
    with closing_clean(opened(path, "b")) as store:
        assert (store.recovered, numbers(store)) == (0, [2])


def test_nothing_is_left_on_the_disk_where_nothing_waits(path: Path) -> None:
    store = opened(path)
    store.write(noted=spans(1), finished=spans(2), alive_ns=2)
    store.write(settled=ids(store), alive_ns=2)
    store.close(clean=True)
    assert list(path.parent.iterdir()) == []
    # Those who come later begin anew.
    with closing_clean(opened(path, "b")) as store:
        assert (store.recovered, store.count()) == (0, 0)


def test_notes_are_recovered_once(path: Path) -> None:
    store = opened(path)
    store.write(noted=spans(1, end=7), alive_ns=20)
    store.close(clean=False)
    store = opened(path, "b", now=50)
    assert store.recovered == 1
    store.write(noted=spans(2), alive_ns=60)
    store.close(clean=False)
    with closing_clean(opened(path, "c")) as store:
        assert store.recovered == 1
        found = waiting(store)
        ends = [(span_id(row), span_of(row).end_time_unix_nano) for row in found]
        assert ends == [(1, 20), (2, 60)]
        assert [row.origin for row in found] == [run_of("a").origin, run_of("b").origin]


def test_runs_of_which_nothing_waits_are_forgotten(path: Path) -> None:
    store = opened(path)
    store.write(finished=spans(1), alive_ns=2)
    written = ids(store)
    store.close(clean=True)
    store = opened(path, "b")
    store.write(settled=written, finished=spans(2), alive_ns=2)
    store.close(clean=True)
    opened(path, "c").close(clean=True)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT instance FROM runs").fetchall() == [("b",)]


def test_who_only_empties_it_sees_all_and_is_no_run(path: Path) -> None:
    store = opened(path)
    store.write(noted=spans(1), finished=spans(2), alive_ns=20)
    store.close(clean=False)
    with closing_clean(opened(path, None)) as store:
        assert store.recovered == 1
        # What was open comes after what had ended.
        assert numbers(store) == [2, 1]
        rows = ids(store)
        store.write(settled=rows[:1], alive_ns=99)
    with closing_clean(opened(path, None)) as store:
        assert numbers(store) == [1]
        store.write(settled=rows, alive_ns=99)
    assert not path.exists()


def test_the_same_instance_can_come_back(path: Path) -> None:
    """A bridge that is taken off and put on again."""
    store = opened(path)
    store.write(finished=spans(1), alive_ns=2)
    store.close(clean=True)
    with closing_clean(opened(path)) as store:
        (found,) = waiting(store)
        assert found.origin == run_of("a").origin
        store.write(finished=spans(2), alive_ns=2)
        assert numbers(store) == [1, 2]


# ------------------------------------------------------------------------------ bounds


def test_the_oldest_are_dropped_where_it_is_full(path: Path) -> None:
    most = 1_000_000
    with closing_clean(opened(path, max_bytes=most)) as store:
        store.write(noted=spans(1, 2, 3), alive_ns=2)
        dropped, written = 0, 0
        gone: set[int] = set()
        for begin in range(10, 3000, 10):
            some = range(begin, begin + 10)
            told = store.write(finished=spans(*some, text="x" * 1000), alive_ns=2)
            written += 10
            dropped += len(told.gone)
            gone.update(told.gone)
            assert store.size <= most
            assert on_disk(path) <= most
            assert store.count() == written - dropped
        assert 0 < dropped < written
        left = ids(store)
        # The newest, without a gap; all others were told to be gone.
        assert numbers(store) == list(range(10, 3000))[-len(left) :]
        assert len(gone) == dropped
        assert max(gone) == left[0] - 1
        assert len(left) > 300
        # Notes stay as long as there is anything else.
        assert notes(store) == 3


def test_a_span_that_is_larger_than_the_spool_costs_no_more_than_all(path: Path) -> None:
    with closing_clean(opened(path, max_bytes=1_000_000)) as store:
        store.write(noted=spans(1), finished=spans(2), alive_ns=2)
        told = store.write(finished=spans(3, text="x" * 3_000_000), alive_ns=2)
        assert len(told.gone) == 2
        assert store.count() == 0
        store.write(finished=spans(4), alive_ns=2)
        assert numbers(store) == [4]


def test_notes_alone_do_not_grow_beyond_the_bound_either(path: Path) -> None:
    with closing_clean(opened(path, max_bytes=1_000_000)) as store:
        for number in range(1, 1500):
            store.write(noted=spans(number, text="x" * 1000), alive_ns=2)
            assert store.size <= 1_000_000
        assert 300 < notes(store) < 1499
        store.write(finished=spans(1, 1499), alive_ns=2)
        assert numbers(store) == [1, 1499]


def test_room_that_was_settled_is_used_again(path: Path) -> None:
    with closing_clean(opened(path, max_bytes=2_000_000)) as store:
        for begin in range(1, 4000, 100):
            some = range(begin, begin + 100)
            told = store.write(finished=spans(*some, text="x" * 1000), alive_ns=2)
            assert not told.gone
            store.write(settled=ids(store), alive_ns=2)
        assert on_disk(path) < 2_000_000


# --------------------------------------------------------------------------- the file


def on_disk(path: Path) -> int:
    return sum(each.stat().st_size for each in path.parent.iterdir() if "-shm" not in each.name)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_files_are_for_the_owner_alone(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = opened(path)
    finally:
        os.umask(before)
    store.write(finished=spans(1), alive_ns=2)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    lock = modes.pop("spool.db.lock")
    assert lock & 0o077 == 0
    assert modes.keys() > {"spool.db"}
    assert set(modes.values()) == {0o600}
    store.close(clean=True)


def test_a_mode_that_somebody_changed_is_taken_back(path: Path) -> None:
    store = opened(path)
    store.write(finished=spans(1), alive_ns=2)
    store.close(clean=True)
    path.chmod(0o664)
    with closing_clean(opened(path, "b")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def _text(path: Path) -> None:
    path.write_text("a letter to somebody, which is longer than a header of SQLite's is. " * 3)


def _short(path: Path) -> None:
    path.write_bytes(b"a")


def _database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE somebodys (x)")
        connection.commit()


@pytest.mark.parametrize("make", [_text, _short, _database])
def test_a_file_that_is_no_spool_is_left_alone(path: Path, make: Any) -> None:
    make(path)
    before = (path.read_bytes(), path.stat())
    with pytest.raises(SpoolError, match="is no spool of dask-otel, and is left alone"):
        opened(path)
    assert (path.read_bytes(), path.stat().st_mode) == (before[0], before[1].st_mode)
    assert path.stat().st_mtime_ns == before[1].st_mtime_ns
    assert [each.name for each in path.parent.iterdir()] == ["spool.db"]


def test_an_empty_file_becomes_a_spool(path: Path) -> None:
    """It is what a kill leaves directly after the file was made."""
    path.touch()
    with closing_clean(opened(path)) as store:
        store.write(finished=spans(1), alive_ns=2)
        assert numbers(store) == [1]


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
def test_a_symbolic_link_is_refused(path: Path, suffix: str) -> None:
    target = path.with_name("target")
    path.with_name(path.name + suffix).symlink_to(target)
    with pytest.raises(SpoolError, match="a symbolic link"):
        opened(path)
    assert not target.exists()


def test_what_is_no_plain_file_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(SpoolError, match="no plain file"):
        opened(path)


def test_a_file_of_somebody_else_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(path).close(clean=False)
    path.touch()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(SpoolError, match="belongs to another user"):
        opened(path)


def test_a_missing_folder_is_not_made(path: Path) -> None:
    with pytest.raises(SpoolError, match=r"no folder .*missing"):
        opened(path.parent / "missing" / "spool.db")
    assert list(path.parent.iterdir()) == []


def test_a_later_version_is_refused_in_words(path: Path) -> None:
    store = opened(path)
    store.write(finished=spans(1), alive_ns=2)
    store.close(clean=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=99")
        connection.commit()
    with pytest.raises(SpoolError, match="written by a later version of dask-otel"):
        opened(path)


@pytest.mark.parametrize("begin", [100, 4096], ids=["the first page", "a table"])
def test_damage_is_said_in_words(path: Path, begin: int) -> None:
    store = opened(path)
    store.write(finished=spans(*range(1, 100), text="x" * 100), alive_ns=2)
    store.close(clean=True)
    content = bytearray(path.read_bytes())
    content[begin : begin + 7900] = b"\xff" * 7900
    path.write_bytes(content)
    with pytest.raises(SpoolError, match="is damaged"):
        opened(path)
    # It can be moved away, and another begun.
    path.rename(path.with_name("damaged"))
    opened(path).close(clean=True)


def test_a_row_that_can_not_be_read_costs_itself_alone(path: Path) -> None:
    store = opened(path)
    store.write(finished=spans(1, 2, 3), alive_ns=2)
    written = ids(store)
    store.close(clean=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE spans SET body = x'00' WHERE id = ?", (written[1],))
        connection.commit()
    with closing_clean(opened(path, "b")) as store:
        assert numbers(store, limit=2) == [1, 3]
        assert store.count() == 3
        assert store.write(alive_ns=2).unreadable == 1
        assert store.count() == 2
        assert store.write(alive_ns=2).unreadable == 0


def spoil(path: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(statement, values).rowcount == 1
        connection.commit()


@pytest.mark.parametrize("value", ["soon", b"\0", float("inf"), 1.5])
@pytest.mark.parametrize("column", ["started_ns", "alive_ns"])
def test_a_time_of_a_run_that_is_damaged_hides_none_of_its_spans(
    path: Path, column: str, value: Any
) -> None:
    store = opened(path)
    store.write(finished=spans(1), noted=spans(2, end=7), alive_ns=9)
    store.close(clean=False)
    spoil(path, f"UPDATE runs SET {column} = ?", value)
    found = summarize(path)
    assert found.waiting == 2
    assert "?" in as_text(found, 100)
    with closing_clean(opened(path, "b")) as store:
        rows = waiting(store)
    ends = {span_id(row): span_of(row).end_time_unix_nano for row in rows}
    # What is not known of the last sign of life, the note itself knows.
    assert ends == {1: 10, 2: 9 if column == "started_ns" else 7}


def test_rows_of_an_exporter_whose_name_is_damaged_are_counted_and_removed(path: Path) -> None:
    store = opened(path)
    store.write(finished=[*spans(1), *spans(2, 3, sink="zipkin")], alive_ns=2)
    store.close(clean=True)
    spoil(path, "UPDATE sinks SET name = x'ff' WHERE name = 'zipkin'")
    assert (summarize(path).waiting, summarize(path).unreadable) == (1, 2)
    with closing_clean(opened(path, "b")) as store:
        assert store.sinks() == {OTLP: 1}
        assert numbers(store) == [1]
        assert store.write(alive_ns=2).unreadable == 2
        assert store.write(alive_ns=2).unreadable == 0
    assert summarize(path).unreadable == 0


# ------------------------------------------------------------------------ disk trouble


def test_a_full_disk_is_an_oserror_and_nothing_has_changed(path: Path) -> None:
    with closing_clean(opened(path)) as store:
        store.write(finished=spans(1), noted=spans(2), alive_ns=2)
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(OSError) as raised:
            store.write(finished=spans(2, 3, text="x" * 100_000), alive_ns=3)
        assert raised.value.errno in (errno.ENOSPC, errno.EIO)
        assert (numbers(store), store.count(), notes(store)) == ([1], 1, 1)
        store._connection.execute("PRAGMA max_page_count=1000000")
        store.write(finished=spans(2, 3, text="x" * 100_000), alive_ns=3)
        assert (numbers(store), notes(store)) == ([1, 2, 3], 0)


@contextmanager
def full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every transaction fail, but for one while the reserve has been given up."""
    transaction = schema.transaction
    reserve = path.with_name("spool.db-reserve")

    @contextmanager
    def full(connection: sqlite3.Connection) -> Iterator[None]:
        with transaction(connection):
            yield
            if reserve.exists():
                raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(schema, "transaction", full)
        yield


def test_on_a_full_disk_what_has_arrived_is_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing_clean(opened(path)) as store:
        store.write(finished=spans(1, 2, 3), alive_ns=2)
        rows = ids(store)
        with full_disk(path, monkeypatch), pytest.raises(OSError, match="full"):
            store.write(finished=spans(4), settled=rows[:2], alive_ns=3)
        assert (numbers(store), store.count()) == ([3], 1)
    with closing_clean(opened(path, "b")) as store:
        store.write(finished=spans(5), alive_ns=2)
        rows = ids(store)[1:]
        with full_disk(path, monkeypatch):
            # Nothing comes with it that would be lost.
            store.write(settled=rows, alive_ns=3)
        assert (numbers(store), store.count()) == ([3], 1)


def test_what_has_arrived_does_not_wait_where_it_can_not_be_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(path)
    store.write(finished=spans(1, 2, 3), alive_ns=2)
    rows = ids(store)
    path.with_name("spool.db-reserve").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(schema, "transaction", broken)
        for _ in range(2):
            with pytest.raises(OSError, match="broken"):
                store.write(settled=rows[:2], alive_ns=3)
            assert store.count() == 1
    # As soon as the disk works, it is removed, though nobody says it again.
    store.write(alive_ns=4)
    assert (numbers(store), store.count()) == ([3], 1)
    store.close(clean=True)


@contextmanager
def broken(connection: sqlite3.Connection) -> Iterator[None]:
    raise OSError(errno.EIO, "broken")
    yield


_CONFINED = """
import resource, sys
from pathlib import Path
from tests.unit.test_spool_store import numbers, opened, spans
path = Path(sys.argv[1])
store = opened(path)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
# No file may become larger: SQLite's log and its own meet the limit in the middle of a write.
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
written, failed = [], 0
for number in range(1, 100):
    try:
        store.write(finished=spans(number, text="x" * 5000), alive_ns=2)
    except OSError:
        failed += 1
    else:
        written.append(number)
    assert numbers(store) == written
    assert store.count() == len(written)
assert written and failed, (written, failed)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
store.write(finished=spans(1000), alive_ns=2)
store.close(clean=False)
store = opened(path, "b")
assert numbers(store) == [*written, 1000]
assert store._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
print("all there", flush=True)
"""


def test_writes_that_the_system_refuses_cost_nothing_of_the_others(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CONFINED, str(path)],
        capture_output=True,
        cwd=Path(__file__).parents[2],
        timeout=120,
        text=True,
        check=False,
    )
    assert done.stdout == "all there\n", done.stderr


def test_a_file_that_was_removed_is_an_oserror(path: Path) -> None:
    store = opened(path)
    store.write(finished=spans(1), alive_ns=2)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        store.write(finished=spans(2), alive_ns=2)
    path.write_text("somebody's")
    with pytest.raises(FileNotFoundError):
        store.write(finished=spans(2), alive_ns=2)
    store.close(clean=True)
    assert path.read_text() == "somebody's"


def test_a_folder_that_can_not_be_written_is_an_oserror(path: Path) -> None:
    if os.geteuid() == 0:
        # Nobody forbids root anything, but this.
        path = Path("/proc/spool.db")
    else:
        path.parent.chmod(0o500)
    with pytest.raises((OSError, SpoolError)):
        opened(path)


# ----------------------------------------------------------------- one at a time, and kills


def test_a_second_one_is_refused_in_the_same_process(path: Path) -> None:
    with closing_clean(opened(path)) as store:
        with pytest.raises(SpoolError, match=rf"is in use by process {os.getpid()}\."):
            opened(path, "b")
        with pytest.raises(SpoolError, match="is in use"):
            opened(path, None)
        store.write(finished=spans(1), alive_ns=2)
        assert numbers(store) == [1]
    with closing_clean(opened(path, "b")) as store:
        assert numbers(store) == [1]


_HOLDER = """
import sys, time
from pathlib import Path
from tests.unit.test_spool_store import opened, spans
store = opened(Path(sys.argv[1]), "killed")
store.write(finished=spans(1), noted=spans(2), alive_ns=20)
print("written", flush=True)
time.sleep(600)
"""


def test_a_killed_one_holds_nothing_up_and_loses_nothing(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_HOLDER), str(path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"written\n"
            with pytest.raises(SpoolError, match=f"in use by process {holder.pid}"):
                opened(path)
        finally:
            holder.send_signal(signal.SIGKILL)
        holder.wait(60)
    with closing_clean(opened(path)) as store:
        assert store.recovered == 1
        assert sorted(numbers(store)) == [1, 2]


_FORKER = """
import os, sys
from pathlib import Path
from tests.unit.test_spool_store import numbers, opened, spans
store = opened(Path(sys.argv[1]), "parent")
store.write(finished=spans(1), alive_ns=20)
store._connection.execute("BEGIN IMMEDIATE")
for number in range(1000, 3000):
    # More than SQLite keeps in memory: some of it is in the log, and in its shared index.
    row = (number, "x" * 4000)
    store._connection.execute("INSERT INTO spans VALUES (?, 1, 1, 0, ?)", row)
child = os.fork()
if child == 0:
    # In the middle of a transaction of its parent's: it ends as any Python does.
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert store._connection.execute("SELECT count(*) FROM spans").fetchone() == (2001,)
store._connection.execute("DELETE FROM spans WHERE id > 999")
store._connection.execute("COMMIT")
store.write(finished=spans(2), alive_ns=30)
assert numbers(store) == [1, 2]
print("forked", flush=True)
child = os.fork()
if child == 0:
    # It outlives its parent.
    os.close(1)
    sys.stdin.read()
    sys.exit(0)
os.kill(os.getpid(), 9)
"""


def test_forked_children_do_no_harm_and_hold_nothing_up(path: Path) -> None:
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_FORKER), str(path)],
        stdin=reading,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as forker:
        os.close(reading)
        try:
            assert forker.stdout is not None
            assert forker.stdout.read() == b"forked\n"
            assert forker.wait(60) == -signal.SIGKILL
            with closing_clean(opened(path)) as store:
                assert numbers(store) == [1, 2]
                whole = store._connection.execute("PRAGMA integrity_check").fetchall()
                assert whole == [("ok",)]
        finally:
            os.close(writing)


def test_what_waits_is_given_in_pieces_while_more_comes(path: Path) -> None:
    with closing_clean(opened(path)) as store:
        seen: list[int] = []
        after = 0
        for number in range(1, 50):
            store.write(finished=spans(2 * number, 2 * number + 1), alive_ns=2)
            for row in waiting(store, after=after, limit=3):
                after = row.number
                seen.append(span_id(row))
        assert seen == list(range(2, 100))


def test_a_lock_that_cannot_be_had_leaves_no_open_file(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    opened_here: list[int] = []
    closed: list[int] = []

    def open_it(where: Path, more: int, _real: Any = lock._open) -> int:
        opened_here.append(_real(where, more))
        return opened_here[-1]

    def close_it(descriptor: int, _real: Any = os.close) -> None:
        closed.append(descriptor)
        _real(descriptor)

    def no_locks(_: int) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_open", open_it)
    monkeypatch.setattr(lock, "_lock", no_locks)
    monkeypatch.setattr(os, "close", close_it)
    with pytest.raises(SpoolError, match="No locks available"):
        lock.Lock.take(path)
    assert len(opened_here) == 1
    assert opened_here[0] in closed

"""A log that is damaged or gone is refused, and nothing is deleted: its spans are nowhere else."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dask_otel.cli import main
from dask_otel.spool.store import SpoolError
from tests.unit.test_spool_store import opened, spans, summarize

_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.test_spool_store import ids, opened, spans
store = opened(Path(sys.argv[1]), max_bytes=int(sys.argv[2]))
for number in range(1, 1 + int(sys.argv[3])):
    store.write(finished=spans(number, text="x" * 1000), noted=spans(9999), alive_ns=2)
    if number % 10 and len(sys.argv) > 4:
        store.write(settled=ids(store)[-1:], alive_ns=2)
os.kill(os.getpid(), signal.SIGKILL)
"""
PARTS = ("", "-wal", "-shm")
FRAME = 24 + 4096


def kill(path: Path, count: int, *more: str, max_bytes: int = 10_000_000) -> None:
    arguments = [sys.executable, "-c", _KILLED, str(path), str(max_bytes), str(count), *more]
    done = subprocess.run(arguments, cwd=Path(__file__).parents[2], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool of which all spans are in the log, as a killed process left it."""
    path = tmp_path_factory.mktemp("killed", numbered=True) / "spool.db"
    kill(path, 20)
    return path


@pytest.fixture
def path(killed: Path, tmp_path: Path) -> Path:
    return copy(killed, tmp_path)


def copy(source: Path, folder: Path) -> Path:
    for part in PARTS:
        shutil.copy(f"{source}{part}", folder)
    return folder / source.name


def content(path: Path) -> dict[str, bytes]:
    files = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    return {name: held for name, held in files.items() if not name.endswith(".lock")}


def refused(path: Path) -> str:
    """Return in what words a spool is refused, which is left as it is."""
    before = content(path)
    with pytest.raises(SpoolError) as shown:
        summarize(path)
    with pytest.raises(SpoolError) as sent:
        opened(path, None)
    assert content(path) == before
    assert str(shown.value) == str(sent.value)
    return str(sent.value)


def waiting(path: Path) -> int:
    shown = summarize(path).waiting
    store = opened(path, None)
    try:
        assert store.count() == shown
        return shown
    finally:
        store.close(clean=True)


def log(path: Path) -> Path:
    return path.with_name("spool.db-wal")


@pytest.fixture(params=["with its index", "without its index"])
def index(request: pytest.FixtureRequest, path: Path) -> bool:
    with_index = request.param == "with its index"
    if not with_index:
        path.with_name("spool.db-shm").unlink()
    return with_index


@pytest.mark.usefixtures("index")
def test_what_a_killed_process_left_is_all_there(path: Path) -> None:
    assert waiting(path) == 21
    # In order from then on: nothing is in the log, and it is not missed.
    assert log(path).read_bytes() == b""
    log(path).unlink()
    assert waiting(path) == 21


def test_who_can_not_write_any_more_at_the_close_leaves_no_log_that_is_missed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "spool.db"
    store = opened(path)
    store.write(finished=spans(1, 2), alive_ns=2)
    store._connection.execute("PRAGMA wal_checkpoint")
    # As on a full disk: what is in the log goes into the file, but nothing more into the log.
    store._connection.execute("PRAGMA query_only=1")
    store.close(clean=False)
    assert waiting(path) == 2


@pytest.mark.usefixtures("index")
def test_no_bit_of_the_header_can_be_wrong(path: Path) -> None:
    whole = log(path).read_bytes()
    for bit in range(32 * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        log(path).write_bytes(damaged)
        assert "has a damaged log" in refused(path)
    log(path).write_bytes(whole)
    assert waiting(path) == 21


def test_nor_a_bit_of_a_frame(path: Path, index: bool) -> None:
    whole = log(path).read_bytes()
    chance = random.Random(1)
    # Which of the later frames counted, nothing but the index says.
    for _ in range(150):
        at = chance.randrange(32, len(whole) if index else 32 + FRAME)
        damaged = bytearray(whole)
        damaged[at] ^= 1 << chance.randrange(8)
        log(path).write_bytes(damaged)
        assert "has a damaged log" in refused(path), at


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("size", [1, 31, 32, 40, 32 + 24, 32 + FRAME - 1])
def test_a_log_without_a_whole_frame_is_refused(path: Path, size: int) -> None:
    log(path).write_bytes(log(path).read_bytes()[:size])
    assert "has a damaged log" in refused(path)


@pytest.mark.parametrize("less", [1, FRAME, 5 * FRAME])
def test_a_log_that_was_cut_is_refused_where_its_index_knows(path: Path, less: int) -> None:
    log(path).write_bytes(log(path).read_bytes()[:-less])
    assert "has a damaged log" in refused(path)


def test_an_empty_log_is_refused_where_its_index_knows(path: Path) -> None:
    log(path).write_bytes(b"")
    assert "has lost its log" in refused(path)


@pytest.mark.usefixtures("index")
def test_a_log_that_is_gone_is_missed(path: Path) -> None:
    log(path).unlink()
    assert "has lost its log" in refused(path)


@pytest.mark.parametrize("how", ["gone", "empty"])
def test_a_log_whose_file_is_gone_is_kept(path: Path, how: str) -> None:
    path.unlink()
    if how == "empty":
        path.touch()
    before = content(path)
    with pytest.raises(SpoolError, match="is empty or gone, though it has a log"):
        opened(path)
    assert content(path) == before


def test_the_way_out_is_the_one_that_is_told(path: Path) -> None:
    log(path).write_bytes(b"\1" * 5000)
    told = refused(path)
    assert told.endswith("move spool.db-wal and spool.db-shm away and make an empty spool.db-wal")
    for part in ("-wal", "-shm"):
        Path(f"{path}{part}").rename(f"{path}{part}.kept")
    log(path).touch()
    # The tables are in the file; the spans were in the log alone.
    assert waiting(path) == 0


@pytest.mark.parametrize("count", [1, 7, 60, 333])
def test_no_log_of_a_killed_process_is_taken_for_damaged(tmp_path: Path, count: int) -> None:
    """Also one that began anew over and over, with frames of before behind its end."""
    path = tmp_path / "spool.db"
    kill(path, count, "settle", max_bytes=1_500_000)
    assert waiting(copy_without_index(path)) == count // 10 + 1
    assert waiting(path) == count // 10 + 1


def copy_without_index(path: Path) -> Path:
    folder = path.parent / "copy"
    folder.mkdir()
    copied = copy(path, folder)
    copied.with_name("spool.db-shm").unlink()
    return copied


@pytest.mark.parametrize("command", ["show", "send"])
def test_the_commands_say_what_happened_and_what_to_do(
    path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = bytearray(log(path).read_bytes())
    damaged[20] ^= 4
    log(path).write_bytes(damaged)
    before = content(path)
    assert main(["spool", command, str(path)]) == 1
    out, err = capsys.readouterr()
    assert not out
    for words in ("has a damaged log (spool.db-wal)", "Nothing is changed or deleted", "Put back"):
        assert words in err
    assert content(path) == before

"""Lines into files: rotated, bounded, for the owner alone, and never half a line."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from dask_otel.pump.rotated import RotatedFile


def rotated(folder: Path, max_size: int = 1000, max_files: int = 3) -> RotatedFile:
    return RotatedFile(folder, "run-", "-traces.jsonl", max_size, max_files)


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def test_folders_are_made_for_the_first_line_and_lines_are_there_at_once(tmp_path: Path) -> None:
    file = rotated(tmp_path / "a" / "b")
    file.write([])
    file.close()
    assert list(tmp_path.iterdir()) == []
    file.write([b"1", b"2"])
    assert texts(tmp_path / "a" / "b") == {"run-0001-traces.jsonl": "1\n2\n"}
    file.close()
    file.close()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_files_are_for_the_owner_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    with closing(rotated(tmp_path)) as file:
        before = os.umask(umask)
        try:
            file.write([b"1"])
        finally:
            os.umask(before)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_full_file_is_followed_by_another_and_the_oldest_are_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(rotated(tmp_path, max_size=10, max_files=2)) as file:
        for number in range(8):
            file.write([b"%03d" % number])
    assert texts(tmp_path) == {
        "run-0003-traces.jsonl": "004\n005\n",
        "run-0004-traces.jsonl": "006\n007\n",
    }
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "run-0001-traces.jsonl" in record.getMessage()
    assert "otel.files.max-files" in record.getMessage()


def test_what_is_larger_than_a_file_gets_one_of_its_own(tmp_path: Path) -> None:
    with closing(rotated(tmp_path, max_size=10)) as file:
        file.write([b"1"])
        file.write([b"x" * 20, b"y"])
        file.write([b"2"])
    assert list(texts(tmp_path).values()) == ["1\n", "x" * 20 + "\ny\n", "2\n"]


def test_a_file_that_is_there_is_left_alone_also_a_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("theirs")
    (tmp_path / "run-0001-traces.jsonl").symlink_to(tmp_path / "secret")
    (tmp_path / "run-0002-traces.jsonl").write_text("theirs")
    with closing(rotated(tmp_path, max_size=1, max_files=1)) as file:
        file.write([b"1"])
        file.write([b"2"])
    assert texts(tmp_path) == {
        "run-0001-traces.jsonl": "theirs",
        "run-0002-traces.jsonl": "theirs",
        "run-0004-traces.jsonl": "2\n",
        "secret": "theirs",
    }


@pytest.mark.parametrize("whole", [True, False], ids=["folder", "file"])
def test_what_was_removed_is_made_again(tmp_path: Path, whole: bool) -> None:
    folder = tmp_path / "f"
    with closing(rotated(folder)) as file:
        file.write([b"1"])
        shutil.rmtree(folder) if whole else (folder / "run-0001-traces.jsonl").unlink()
        file.write([b"2"])
    assert texts(folder) == {"run-0002-traces.jsonl": "2\n"}


def test_a_folder_that_is_a_file_is_an_error_until_it_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.write_text("")
    with closing(rotated(folder)) as file:
        for _ in range(2):
            with pytest.raises(OSError, match=str(folder)):
                file.write([b"1"])
        folder.unlink()
        file.write([b"1"])
    assert texts(folder) == {"run-0001-traces.jsonl": "1\n"}


class FullDisk:
    """`os.write` on a disk with room for so many bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self._write = os.write
        monkeypatch.setattr("dask_otel.pump.rotated.os.write", self)

    def __call__(self, descriptor: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(descriptor, data[: self.room])
        self.room -= written
        return written


def test_half_a_line_on_a_full_disk_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch, 12)
    with closing(rotated(tmp_path)) as file:
        file.write([b"first"])
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                file.write([b"second line"])
            assert texts(tmp_path) == {"run-0001-traces.jsonl": "first\n"}
        disk.room = 1000
        file.write([b"second line"])
    assert texts(tmp_path) == {"run-0001-traces.jsonl": "first\nsecond line\n"}


def test_half_a_line_that_can_not_be_taken_back_is_the_last_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = FullDisk(monkeypatch, 10)
    with closing(rotated(tmp_path)) as file:
        file.write([b"first"])
        with monkeypatch.context() as context:
            context.setattr("dask_otel.pump.rotated.os.ftruncate", broken)
            for _ in range(20):
                with pytest.raises(OSError, match="No space left"):
                    file.write([b"second line"])
        disk.room = 1000
        file.write([b"second line"])
    # And the tries have left nothing behind that would push out what is there.
    assert list(texts(tmp_path).values()) == ["first\nseco", "second line\n"]


@pytest.mark.parametrize("full", [False, True])
def test_whole_lines_that_can_not_be_taken_back_are_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """Only the others are, into a new file. Where that can't be, all come again."""

    def broken(*_: object) -> None:
        disk.room = 0 if full else 1000
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = FullDisk(monkeypatch, 16)
    with closing(rotated(tmp_path)) as file:
        file.write([b"first"])
        lines = [b"second", b"third line", b"fourth"]
        with monkeypatch.context() as context:
            context.setattr("dask_otel.pump.rotated.os.ftruncate", broken)
            if full:
                with pytest.raises(OSError, match="No space left"):
                    file.write(lines)
            else:
                file.write(lines)
    began, rest = "first\nsecond\nthi", "third line\nfourth\n"
    assert list(texts(tmp_path).values()) == ([began] if full else [began, rest])


def test_what_was_written_survives_a_process_that_is_killed(tmp_path: Path) -> None:
    program = """
        import os, signal, sys
        from pathlib import Path
        from dask_otel.pump.rotated import RotatedFile

        file = RotatedFile(Path(sys.argv[1]), "run-", ".jsonl", 10**6, 3)
        file.write([b"1", b"2"])
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], check=False, timeout=60
    )
    assert done.returncode < 0
    assert texts(tmp_path) == {"run-0001.jsonl": "1\n2\n"}


def test_what_the_disk_finds_out_at_the_end_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr("dask_otel.pump.rotated.os.fsync", broken)
    with closing(rotated(tmp_path)) as file:
        file.write([b"1"])
    assert "run-0001-traces.jsonl may be incomplete" in caplog.text

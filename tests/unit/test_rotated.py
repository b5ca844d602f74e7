"""Lines into files: rotated, bounded, for the owner alone, and never half a line."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from dask_otel.pump import rotated as module
from dask_otel.pump.rotated import RotatedFile, obstacle


@contextmanager
def rotated(folder: Path, max_size: int = 1000, max_files: int = 3) -> Iterator[RotatedFile]:
    with closing(RotatedFile(folder, "run-", "-traces.jsonl", max_size, max_files)) as file:
        yield file


def texts(folder: Path) -> dict[str, str]:
    """Return the files, by number where they are ours."""
    return {
        re.sub(r"run-000(\d)-traces.jsonl", r"\1", path.name): path.read_text()
        for path in sorted(folder.iterdir())
    }


def test_folders_are_made_for_the_first_line_and_lines_are_there_at_once(tmp_path: Path) -> None:
    """They would survive a kill: nothing of them is in this process any more."""
    with rotated(tmp_path / "a" / "b") as file:
        file.write([])
        file.close()
        assert list(tmp_path.iterdir()) == []
        file.write([b"1", b"2"])
        assert texts(tmp_path / "a" / "b") == {"1": "1\n2\n"}
        file.close()


def test_a_full_disk_is_an_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # `obstacle` closes it.
    monkeypatch.setattr(
        module,
        "TemporaryFile",
        lambda **_: Path("/dev/full").open("wb"),  # noqa: SIM115
    )
    assert obstacle(tmp_path) == f"{os.strerror(errno.ENOSPC)}: {tmp_path}"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_files_are_for_the_owner_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with rotated(tmp_path) as file:
            file.write([b"1"])
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o600]


@pytest.mark.parametrize(
    ("writes", "max_files", "expected", "removed"),
    [
        (
            [[b"%03d" % number] for number in range(8)],
            2,
            {"3": "004\n005\n", "4": "006\n007\n"},
            ["run-0001-traces.jsonl", "otel.files.max-files"],
        ),
        # A request that is larger than a file gets one of its own.
        (
            [[b"1"], [b"x" * 20, b"y"], [b"2"]],
            3,
            {"1": "1\n", "2": "x" * 20 + "\ny\n", "3": "2\n"},
            [],
        ),
    ],
)
def test_a_full_file_is_followed_by_another_and_the_oldest_are_removed(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    writes: list[list[bytes]],
    max_files: int,
    expected: dict[str, str],
    removed: list[str],
) -> None:
    with rotated(tmp_path, max_size=10, max_files=max_files) as file:
        for lines in writes:
            file.write(lines)
    assert texts(tmp_path) == expected
    assert [record.levelname for record in caplog.records] == ["WARNING"] * bool(removed)
    assert [piece for piece in removed if piece not in caplog.text] == []


def test_a_file_that_is_there_is_left_alone_also_a_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("theirs")
    (tmp_path / "run-0001-traces.jsonl").symlink_to(tmp_path / "secret")
    (tmp_path / "run-0002-traces.jsonl").write_text("theirs")
    with rotated(tmp_path, max_size=1, max_files=1) as file:
        for line in (b"1", b"2"):
            file.write([line])
    assert texts(tmp_path) == {"1": "theirs", "2": "theirs", "4": "2\n", "secret": "theirs"}


@pytest.mark.parametrize("whole", [True, False], ids=["folder", "file"])
def test_what_was_removed_is_made_again(tmp_path: Path, whole: bool) -> None:
    folder = tmp_path / "f"
    with rotated(folder) as file:
        file.write([b"1"])
        shutil.rmtree(folder) if whole else (folder / "run-0001-traces.jsonl").unlink()
        file.write([b"2"])
    assert texts(folder) == {"2": "2\n"}


def test_a_folder_that_is_a_file_is_an_error_until_it_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.write_text("")
    with rotated(folder) as file:
        for _ in range(2):
            with pytest.raises(OSError, match=str(folder)):
                file.write([b"1"])
        folder.unlink()
        file.write([b"1"])
    assert texts(folder) == {"1": "1\n"}


BROKEN = Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO)))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A disk with room for so many bytes."""
    made, write = SimpleNamespace(room=12), os.write

    def limited(descriptor: int, data: bytes) -> int:
        if not made.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[: made.room])
        made.room -= written
        return written

    monkeypatch.setattr("dask_otel.pump.rotated.os.write", limited)
    return made


@pytest.mark.parametrize(
    ("max_size", "stuck", "before", "after"),
    [
        (10**6, False, "first\n", ["first\nsecond line\n"]),
        # Where it can't be taken back, it is the last of its file.
        (10**6, True, "first\nsecond", ["first\nsecond", "second line\n"]),
        # It is longer than a file may be.
        (8, False, "first\n", ["first\n", "second line\n"]),
    ],
)
def test_half_a_line_on_a_full_disk_is_taken_back(
    tmp_path: Path,
    disk: SimpleNamespace,
    max_size: int,
    stuck: bool,
    before: str,
    after: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with rotated(tmp_path, max_size=max_size) as file:
        file.write([b"first"])
        if stuck:
            monkeypatch.setattr("dask_otel.pump.rotated.os.ftruncate", BROKEN)
        for _ in range(20):
            with pytest.raises(OSError, match="No space left"):
                file.write([b"second line"])
            assert texts(tmp_path)["1"] == before
            # The tries push out nothing.
            assert len(texts(tmp_path)) <= 2
        disk.room = 1000
        file.write([b"second line"])
    assert list(texts(tmp_path).values()) == after


def test_what_the_disk_finds_out_at_the_end_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dask_otel.pump.rotated.os.fsync", BROKEN)
    with rotated(tmp_path) as file:
        file.write([b"1"])
    assert "run-0001-traces.jsonl may be incomplete" in caplog.text

"""The spool's file and those beside it: whose they may be, and how they are made.

Names, keys and tracebacks can hold data: files are for their owner alone. A file that is no spool
is never opened by SQLite, which would write to it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from dask_otel.spool.problems import SpoolError

#: "dOTs", where SQLite's header has the application's number.
APPLICATION: Final = 0x644F5473
MODE: Final = 0o600
#: What is beside the file: SQLite's, which take over its mode, and room on the disk that is given
#: up where there is no other, so that what has arrived can be removed.
_BESIDE: Final = ("-wal", "-shm", "-journal", "-reserve")
RESERVE: Final = 1 << 16
_MAGIC: Final = b"SQLite format 3\0"
HEADER: Final = 100
_APPLICATION_AT: Final = slice(68, 72)
_CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)


def place(path: str) -> Path:
    """Return the path that a setting or an argument means.

    Raises
    ------
    SpoolError
        If there is no such user, or no present folder.
    """
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise SpoolError(f"{path}: {error}") from error


def beside(path: Path, suffix: str) -> Path:
    """Return the name of a file that goes with the spool's."""
    return path.with_name(path.name + suffix)


def check(path: Path) -> bool:
    """Return whether the file is there; it may be used then.

    Raises
    ------
    SpoolError
        If it may not, or could not be made.
    """
    if not path.parent.is_dir():
        raise SpoolError(
            f"{path} can't be the spool: there is no folder {path.parent}. It is not made here: "
            "it may be a volume that is missing"
        )
    for suffix in _BESIDE:
        _check_owner(beside(path, suffix))
    if not _check_owner(path):
        return False
    header = content(path, HEADER)
    if header and (
        not header.startswith(_MAGIC)
        or int.from_bytes(header[_APPLICATION_AT], "big") != APPLICATION
    ):
        raise SpoolError(
            f"{path} is no spool of dask-otel, and is left alone. Name a file that is not there"
        )
    return True


def make(path: Path) -> None:
    """Make an empty file for the owner alone.

    Raises
    ------
    OSError
        If there is one, or none can be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _CLOEXEC | _NOFOLLOW
    os.close(os.open(path, flags, MODE))
    keep_private(path)


def reserve(path: Path) -> None:
    """Take room on the disk, if there is any."""
    room = beside(path, "-reserve")
    with suppress(OSError):
        room.write_bytes(bytes(RESERVE))
        keep_private(room)


def give_up_reserve(path: Path) -> None:
    """Give the room back."""
    with suppress(OSError):
        beside(path, "-reserve").unlink()


def keep_private(path: Path) -> None:
    """Give a file its mode: umasks change it, and so does Kubernetes with ``fsGroup``."""
    with suppress(OSError):
        os.chmod(path, MODE)


def remove(path: Path) -> None:
    """Remove a spool that holds nothing, once SQLite has let go of it."""
    for each in (*(beside(path, suffix) for suffix in _BESIDE), path):
        with suppress(OSError):
            each.unlink()


def disk_use(path: Path) -> int:
    """Return the bytes of the spool and of what SQLite keeps beside it."""
    total = 0
    for each in (path, *(beside(path, suffix) for suffix in _BESIDE)):
        with suppress(OSError):
            total += each.stat().st_size
    return total


def _check_owner(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SpoolError(f"{path} can't be the spool: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no plain file"
        raise SpoolError(f"{path} can't be the spool: it is {kind}")
    if hasattr(os, "geteuid") and found.st_uid != os.geteuid():
        raise SpoolError(f"{path} can't be the spool: it belongs to another user")
    return True


def content(path: Path, size: int = -1) -> bytes | None:
    """Return what a file begins with, or all of it; None where there is none.

    Raises
    ------
    SpoolError
        If it can't be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _CLOEXEC | _NOFOLLOW)
        with open(descriptor, "rb") as file:
            return file.read(size)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SpoolError(f"{path} can't be read: {error.strerror}") from error

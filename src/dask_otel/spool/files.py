"""The spool's file: its owner, its creation, its size. And files that are replaced as a whole.

Names, keys and tracebacks can hold data, so only the owner may read the files.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Final

MODE: Final = 0o600
FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
#: The copy that is checked before an interrupted write is undone.
COPY: Final = "-copy"
#: SQLite's files beside the spool's (the next two exist only if another program made them), and the
#: copy with its journal.
_BESIDE: Final = ("-journal", "-wal", "-shm", COPY, f"{COPY}-journal")


class SpoolError(OSError):
    """A file can't be the spool; the message names it, the reason, and what to do."""


def place(path: str) -> Path:
    """Return the path that a setting or an argument names.

    Raises
    ------
    SpoolError
        If there is no such user, or no current folder.
    """
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise SpoolError(f"{path}: {error}") from error


def beside(path: Path, suffix: str) -> Path:
    """Return the name of a file beside the spool's."""
    return path.with_name(path.name + suffix)


def check(path: Path) -> bool:
    """Return whether the file exists.

    Raises
    ------
    SpoolError
        If its folder is missing, or if it is a link, not a plain file, or another user's.
    """
    if not path.parent.is_dir():
        raise SpoolError(
            f"{path} can't be the spool: there is no folder {path.parent}. It is not "
            "created: it may be an unmounted volume"
        )
    return [_check_owner(each) for each in (*_others(path), path)][-1]


def _others(path: Path) -> list[Path]:
    return [beside(path, suffix) for suffix in _BESIDE]


def _check_owner(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SpoolError(f"{path} can't be the spool: {error.strerror}") from error
    problems = {
        "it is a symbolic link": stat.S_ISLNK(found.st_mode),
        "it is no plain file": not stat.S_ISREG(found.st_mode),
        "it belongs to another user": hasattr(os, "geteuid") and found.st_uid != os.geteuid(),
    }
    for problem in (why for why, is_so in problems.items() if is_so):
        raise SpoolError(f"{path} can't be the spool: {problem}")
    return True


def make(path: Path) -> None:
    """Make the file if it is missing; only its owner may read it."""
    os.close(os.open(path, FLAGS, MODE))
    with suppress(OSError):
        # Umasks change the mode, and so does Kubernetes with `fsGroup`.
        os.chmod(path, MODE)


def replace(path: Path, data: bytes) -> None:
    """Write any file as a whole or not at all, for its owner alone; make its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, new = mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(new, path)
    except OSError:
        os.unlink(new)
        raise


def remove(path: Path) -> None:
    """Remove an empty spool, or the files beside one that is missing."""
    for each in (*_others(path), path):
        each.unlink(missing_ok=True)


def disk_use(path: Path) -> int:
    """Return the size of the file and of the files beside it, in bytes."""
    return sum(each.stat().st_size for each in (path, *_others(path)) if each.exists())

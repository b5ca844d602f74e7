"""One process at a time has a spool: a lock that the kernel frees, also after ``kill -9``.

It is on a file of its own beside the spool (``flock``), and not SQLite's. SQLite's locks belong to
the process: they would not keep two schedulers of one process apart, and a reader
(``dask-otel spool show``) would be locked out. A forked child would hold this one on after its
parent's end, so it lets go of it at once.
"""

from __future__ import annotations

import os
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

from dask_otel.spool import files
from dask_otel.spool.problems import SpoolError

#: Locks that somebody else takes away while they are taken.
_TRIES: Final = 100

_held: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """The lock of one spool. Made by `take`.

    Parameters
    ----------
    path
        Of the lock's own file.
    descriptor
        Open, and locked.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        _held.add(self)

    @classmethod
    def take(cls, spool: Path) -> Lock:
        """Return the lock of a spool, without waiting.

        Raises
        ------
        SpoolError
            If somebody has it, or there can be none.
        """
        path = files.beside(spool, ".lock")
        for _ in range(_TRIES):
            try:
                descriptor = _open(path)
            except OSError as error:
                raise SpoolError(f"{spool} can't be locked: {path}: {error.strerror}") from error
            try:
                _lock(descriptor)
            except OSError as error:
                holder = _holder(path)
                os.close(descriptor)
                if not (isinstance(error, BlockingIOError) or sys.platform == "win32"):
                    raise SpoolError(
                        f"{spool} can't be locked: {error.strerror}. It has to be on a local disk"
                    ) from error
                raise SpoolError(
                    f"{spool} is in use{holder}. One scheduler can have it at a time: give each a "
                    "path of its own"
                ) from error
            if _is(path, descriptor):
                with suppress(OSError):
                    os.ftruncate(descriptor, 0)
                    os.lseek(descriptor, 0, os.SEEK_SET)
                    os.write(descriptor, str(os.getpid()).encode())
                return cls(path, descriptor)
            # Whoever had it has removed it meanwhile.
            os.close(descriptor)
        raise SpoolError(f"{spool} can't be locked: {path} is removed again and again")

    def release(self, remove: bool = False) -> None:
        """Let go of it.

        Parameters
        ----------
        remove
            Whether to remove its file, too.
        """
        if remove:
            # While it is locked: whoever waits for it sees that it is another one.
            with suppress(OSError):
                self._path.unlink()
        self.let_go()

    def let_go(self) -> None:
        """Close the descriptor. In a forked child, that leaves the parent's lock alone."""
        _held.discard(self)
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    return os.open(path, flags, files.MODE)


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def _holder(path: Path) -> str:
    """Return who has it, as far as that is known: on another machine, the number says nothing."""
    try:
        number = int(path.read_text()[:20])
    except (OSError, ValueError):
        return ""
    return f" by process {number}"


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        # A byte behind the number, which others may read.
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _after_fork() -> None:
        for lock in list(_held):
            lock.let_go()

    os.register_at_fork(after_in_child=_after_fork)

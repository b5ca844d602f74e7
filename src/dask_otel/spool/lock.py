"""One process at a time has a spool: a lock that the kernel frees, also after ``kill -9``.

It is on a file of its own beside the spool (``flock``), and not SQLite's. SQLite's locks belong to
the process: they would not keep two schedulers of one process apart, and a reader
(``dask-otel spool show``) would be locked out. A forked child would hold this one on after its
parent's end, so it lets go of it at once.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

from dask_otel.spool import files
from dask_otel.spool.problems import SpoolError

#: Somebody who looks whether it is held has it for a moment; one that ends, for a little longer.
_TRIES: Final = 10
_PAUSE: Final = 0.05

_held: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """The lock of one spool. Made by `take`.

    Parameters
    ----------
    path
        Of the lock's own file.
    descriptor
        Of that file, open.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        _held.add(self)

    @classmethod
    def take(cls, spool: Path) -> Lock:
        """Return the lock of a spool, within half a second.

        Raises
        ------
        SpoolError
            If somebody has it, or there can be none.
        """
        path = files.beside(spool, ".lock")
        for _ in range(_TRIES):
            try:
                lock = cls(path, _open(path, os.O_CREAT))
                if lock._taken():
                    return lock
                lock.let_go()
            except OSError as error:
                raise SpoolError(
                    f"{spool} can't be locked ({path}: {error.strerror}). It has to be on a local "
                    "disk, where this user may write"
                ) from error
            time.sleep(_PAUSE)
        raise SpoolError(
            f"{spool} is in use{_by(path)}. One scheduler can have it at a time: give each a path "
            "of its own"
        )

    def _taken(self) -> bool:
        descriptor = self._descriptor
        # Whoever had it may have removed it meanwhile: it is another file's then.
        if not (_lock(descriptor) and _is(self._path, descriptor)):
            return False
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, str(os.getpid()).encode())
        return True

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


def holder(spool: Path) -> str | None:
    """Return in words who has a spool, such as "process 4711"; None if nobody has."""
    path = files.beside(spool, ".lock")
    try:
        descriptor = _open(path, 0)
    except OSError:
        return None
    try:
        if _lock(descriptor):
            return None
        return _by(path).removeprefix(" by ") or "somebody"
    finally:
        os.close(descriptor)


def _open(path: Path, more: int) -> int:
    flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    return os.open(path, flags | more, files.MODE)


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def _by(path: Path) -> str:
    """Return by whom it is held, as far as that is known."""
    try:
        number = int(path.read_text()[:20])
    except (OSError, ValueError):
        return ""
    return f" by process {number}"


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> bool:
        """Return whether it could be locked."""
        # A byte behind the number, which others may read.
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        """Return whether it could be locked."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _after_fork() -> None:
        for lock in list(_held):
            lock.let_go()

    os.register_at_fork(after_in_child=_after_fork)

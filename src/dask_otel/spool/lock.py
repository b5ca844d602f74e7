"""One process at a time has a spool: a lock that the kernel frees, also after ``kill -9``.

It is on a file of its own beside the spool. SQLite's locks would neither keep two schedulers of one
process apart nor let ``dask-otel spool`` read meanwhile. A forked child releases its copy at once,
since it may outlive its parent.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from dask_otel.spool import files
from dask_otel.spool.files import SpoolError

#: A reader has the lock for a moment, and a process that ends a little longer.
_TRIES: Final = 10
_PAUSE: Final = 0.05

_held: set[int] = set()


def take(spool: Path) -> int:
    """Return a descriptor that has the lock of a spool, within half a second.

    Raises
    ------
    SpoolError
        If another process has it, or the file can't be locked.
    """
    path = files.beside(spool, ".lock")
    for _ in range(_TRIES):
        try:
            descriptor = _try(path, files.FLAGS)
        except OSError as error:
            raise SpoolError(
                f"{spool} can't be locked ({path}: {error.strerror}). It has to be on a local "
                "disk, where this user may write"
            ) from error
        if descriptor is not None:
            _held.add(descriptor)
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
            return descriptor
        time.sleep(_PAUSE)
    raise SpoolError(
        f"{spool} is in use by {_holder(path)}. One scheduler can have it at a time: give each a "
        "path of its own"
    )


def release(spool: Path, descriptor: int) -> None:
    """Remove the lock's file, then release it: who waits for it sees that it is another one."""
    with suppress(OSError):
        files.beside(spool, ".lock").unlink()
    _held.discard(descriptor)
    os.close(descriptor)


def holder(spool: Path) -> str | None:
    """Return the process that has a spool, such as "process 4711"; None if none has."""
    path = files.beside(spool, ".lock")
    try:
        descriptor = _try(path, files.FLAGS & ~os.O_CREAT)
    except OSError:
        return None
    if descriptor is None:
        return _holder(path)
    os.close(descriptor)
    return None


def _try(path: Path, flags: int) -> int | None:
    """Return a descriptor that has the lock; None if another one has it."""
    descriptor = os.open(path, flags, files.MODE)
    taken = False
    try:
        # The process that had it may have removed the file meanwhile: then it is another one.
        taken = _lock(descriptor) and os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        pass
    finally:
        if not taken:
            os.close(descriptor)
    return descriptor if taken else None


def _holder(path: Path) -> str:
    with suppress(OSError, ValueError):
        return f"process {int(path.read_text()[:20])}"
    return "another process"


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> bool:
        # A byte behind the number, which others may read.
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _after_fork() -> None:
        while _held:
            os.close(_held.pop())

    os.register_at_fork(after_in_child=_after_fork)

"""The spool's lock: one process at a time has a spool. The kernel frees it even after ``kill -9``.

It is on its own file beside the spool. SQLite's locks would neither separate two schedulers of one
process nor let ``dask-otel spool`` read meanwhile. A forked child releases its copy at once, since
it may outlive its parent.
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

#: A reader has the lock for a moment, an ending process a little longer.
_TRIES: Final = 10
_PAUSE: Final = 0.05

_held: set[int] = set()


def take(spool: Path) -> int:
    """Lock a spool within half a second; return the lock's descriptor.

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
    """Remove the lock's file, then release it: a waiting process notices the new file."""
    with suppress(OSError):
        files.beside(spool, ".lock").unlink()
    _held.discard(descriptor)
    os.close(descriptor)


def holder(spool: Path) -> str | None:
    """Return the process that has a spool, such as "process 4711"; None if it is free."""
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
    """Return the lock's descriptor; None if another process has the lock."""
    descriptor = os.open(path, flags, files.MODE)
    taken = False
    try:
        # The previous process may have removed the file meanwhile; then the path is another file.
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
        # Lock a byte behind the process number, so that others may read that.
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

"""Rotated files of lines: bounded in number, and never with half a line.

Names are numbered and never reused: no file is renamed while somebody reads it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from errno import ENOTDIR
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from dask_otel._log import logger
from dask_otel.pump.thread import promptly

#: For the owner alone: names, keys and tracebacks can hold data.
_MODE: Final = 0o600
_FLAGS: Final = (
    os.O_WRONLY
    | os.O_APPEND
    | os.O_CREAT
    # An existing file belongs to another process.
    | os.O_EXCL
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


def obstacle(folder: Path) -> str:
    """Make a folder; return why it is not writable, or an empty string if it is.

    A file system that does not answer is an obstacle, too.
    """
    try:
        promptly(partial(_make, folder))
        with promptly(lambda: TemporaryFile(dir=folder)) as file:
            file.write(b"\n")
    except OSError as error:
        return f"{error.strerror or error}: {error.filename or folder}"
    return ""


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        # The original error says only that the path exists.
        raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), str(folder)) from None


class RotatedFile:
    """Writes lines. A written line has left the process, so that a kill loses none of them.

    Makes no file or folder before the first line. For one thread.

    Parameters
    ----------
    folder
        The files' folder; made if it is missing.
    prefix, suffix
        The parts of the files' names before and after the number.
    max_size
        Bytes after which a new file begins.
    max_files
        Limit of this run's files; the oldest are removed.
    end
        Written after each line.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str,
        suffix: str,
        max_size: int,
        max_files: int,
        end: bytes = b"\n",
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._suffix = suffix
        self._max_size = max_size
        self._max_files = max_files
        self._end = end
        self._number = 0
        self._descriptor: int | None = None
        self._size = 0
        #: The last one is the present file.
        self._paths: deque[Path] = deque()
        self._told = False

    def __repr__(self) -> str:
        return f"<RotatedFile {self._prefix}{self._number:04}{self._suffix}, {self._size} bytes>"

    @property
    def is_first(self) -> bool:
        """Whether all lines are in one file."""
        return self._number <= 1

    def write(self, lines: Sequence[bytes]) -> None:
        """Write some lines, all or none of them.

        Raises
        ------
        OSError
            If they could not be written; the caller may retry.
        """
        if not lines:
            return
        data = self._end.join(lines) + self._end
        descriptor = self._present(len(data))
        written = 0
        try:
            while written < len(data):
                written += os.write(descriptor, memoryview(data)[written:])
        except OSError:
            if written:
                self._take_back(descriptor)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Flush the file to the disk, and close it."""
        descriptor = self._descriptor
        if descriptor is None:
            return
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some file systems detect errors only now.
            logger.warning("dask-otel: %s may be incomplete: %s", self._paths[-1], error)
        finally:
            self._let_go(descriptor)

    def _present(self, size: int) -> int:
        """Return the descriptor of a file with room for `size` bytes."""
        if self._descriptor is not None:
            if self._size and self._size + size > self._max_size:
                self.close()
            elif self._moved(self._descriptor):
                # The file or its folder was removed: writing would go nowhere.
                self._let_go(self._descriptor)
        return self._open() if self._descriptor is None else self._descriptor

    def _moved(self, descriptor: int) -> bool:
        try:
            return not os.path.samestat(os.stat(self._paths[-1]), os.fstat(descriptor))
        except FileNotFoundError:
            return True

    def _open(self) -> int:
        _make(self._folder)
        for number in count(self._number + 1):
            path = self._folder / f"{self._prefix}{number:04}{self._suffix}"
            with suppress(FileExistsError):
                descriptor = os.open(path, _FLAGS, _MODE)
                break
        self._number = number
        with suppress(OSError):
            # A umask may have removed the owner's permissions; some file systems have none.
            os.chmod(path, _MODE)
        self._descriptor, self._size = descriptor, 0
        self._paths.append(path)
        while len(self._paths) > self._max_files:
            oldest = self._paths.popleft()
            if not self._told:
                self._told = True
                logger.warning(
                    "dask-otel removes the oldest of its files, %s first: there are more than "
                    "otel.files.max-files (%d). This is logged once.",
                    oldest,
                    self._max_files,
                )
            with suppress(OSError):
                oldest.unlink()
        return descriptor

    def _take_back(self, descriptor: int) -> None:
        """Undo a partial write. If the disk is broken, half a line stays, as the file's end."""
        try:
            os.ftruncate(descriptor, self._size)
        except OSError:
            self._let_go(descriptor)

    def _let_go(self, descriptor: int) -> None:
        self._descriptor = None
        with suppress(OSError):
            os.close(descriptor)

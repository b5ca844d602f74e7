"""Lines into files that are rotated, bounded in number, and never left with half a line.

Names are numbered and never used twice: a file that somebody reads is not renamed under them.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from errno import ENOTDIR
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

logger = logging.getLogger("distributed.dask_otel")

#: For the owner alone: names, keys and tracebacks can hold data.
_MODE: Final = 0o600
_FLAGS: Final = (
    os.O_WRONLY
    | os.O_APPEND
    | os.O_CREAT
    # A file that is there belongs to somebody else.
    | os.O_EXCL
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
#: Names that are tried when others are taken.
_MOST_TAKEN: Final = 10_000


def obstacle(folder: Path) -> str:
    """Make a folder; return why nothing can be written into it, empty if it can."""
    try:
        _make(folder)
        with TemporaryFile(dir=folder) as file:
            file.write(b"\n")
    except OSError as error:
        return f"{error.strerror or error}: {error.filename or folder}"
    return ""


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        # It says no more than that something is there.
        raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), str(folder)) from None


class RotatedFile:
    """Takes lines. What is written has left the process: a killed one loses nothing of it.

    Nothing is touched before the first line. For one thread.

    Parameters
    ----------
    folder
        Where the files are; made where it is missing.
    prefix, suffix
        What stands before and after the number in the files' names.
    max_size
        Bytes after which a new file begins.
    max_files
        Files that are kept of this run; the oldest are removed.
    """

    def __init__(
        self, folder: Path, prefix: str, suffix: str, max_size: int, max_files: int
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._suffix = suffix
        self._max_size = max_size
        self._max_files = max_files
        self._number = 0
        self._descriptor: int | None = None
        self._size = 0
        #: The present file is the last one.
        self._paths: deque[Path] = deque()
        self._told = False

    @property
    def is_first(self) -> bool:
        """Whether all that was written is in one file."""
        return self._number <= 1

    def write(self, lines: Sequence[bytes]) -> None:
        """Write some lines, all or none of them.

        Raises
        ------
        OSError
            If they could not be written; they can be given again.
        """
        if not lines:
            return
        data = b"\n".join(lines) + b"\n"
        descriptor = self._present(len(data))
        written = 0
        try:
            while written < len(data):
                written += os.write(descriptor, memoryview(data)[written:])
        except OSError:
            whole = data.count(b"\n", 0, written)
            if self._took_back() or not whole:
                raise
            # They stay where they are: only the others are still to be written, elsewhere. If
            # they can't be, all come again, and readers see those twice.
            self.write(lines[whole:])
            return
        self._size += len(data)

    def close(self) -> None:
        """Flush what was written to the disk, and let go of the file."""
        descriptor = self._descriptor
        if descriptor is None:
            return
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Some file systems find out only now.
            logger.warning("dask-otel: %s may not be whole on the disk: %s", self._paths[-1], error)
        finally:
            self._let_go()

    def _present(self, size: int) -> int:
        """Return the descriptor of a file that has room for so many bytes."""
        if self._descriptor is not None:
            if self._size and self._size + size > self._max_size:
                self.close()
            elif self._moved(self._descriptor):
                # Somebody has removed it, or its folder: what is written would be nowhere.
                self._let_go()
        return self._open() if self._descriptor is None else self._descriptor

    def _moved(self, descriptor: int) -> bool:
        try:
            return not os.path.samestat(os.stat(self._paths[-1]), os.fstat(descriptor))
        except FileNotFoundError:
            return True

    def _open(self) -> int:
        _make(self._folder)
        for _ in range(_MOST_TAKEN):
            self._number += 1
            path = self._folder / f"{self._prefix}{self._number:04}{self._suffix}"
            try:
                descriptor = os.open(path, _FLAGS, _MODE)
            except FileExistsError:
                continue
            except OSError:
                self._number -= 1
                raise
            break
        else:
            raise FileExistsError(f"{path} and the {_MOST_TAKEN} before it are there")
        with suppress(OSError):
            # A umask may have taken the owner's rights; some file systems have none.
            os.chmod(path, _MODE)
        self._descriptor, self._size = descriptor, 0
        self._paths.append(path)
        self._remove_oldest()
        return descriptor

    def _remove_oldest(self) -> None:
        while len(self._paths) > self._max_files:
            oldest = self._paths.popleft()
            if not self._told:
                self._told = True
                logger.warning(
                    "dask-otel removes the oldest of its files, %s first: there are more than "
                    "otel.files.max-files (%d). It is said once.",
                    oldest,
                    self._max_files,
                )
            with suppress(OSError):
                oldest.unlink()

    def _took_back(self) -> bool:
        """Undo what was written of lines that could not be written as a whole, if that works."""
        descriptor = self._descriptor
        if descriptor is None:
            return False
        try:
            os.ftruncate(descriptor, self._size)
        except OSError:
            # A broken disk: half a line may stay, and nothing comes after it.
            self._let_go()
            if self._size:
                return False
            # Or each try would leave one, and push out those that hold something.
            try:
                self._paths.pop().unlink()
            except OSError:
                return False
        return True

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

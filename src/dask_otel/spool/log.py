"""Whether the log that a killed process left is whole.

SQLite takes a log that it can't read for an empty one, and deletes it when the file is closed: for
SQLite that is a transaction without an end, for us these are spans that are nowhere else. So
nothing is opened before this has been looked at, and nothing is written here.

What must be in the log is known from three things. The index of the log (``-shm``), which outlives
a kill, has the number of its frames that count, and how many of them are in the file already. The
checksums say how many frames can be read. And a mark in the file's header says that there is a log
at all (`schema.mark`): it comes to the file after the log does, and goes before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dask_otel.spool import files, schema
from dask_otel.spool.problems import SpoolError

#: Where the file's header has the number of `schema.mark`.
_MARK: Final = slice(60, 64)
#: The log's header: magic, version, size of a page, sequence, two salts, two checksums.
_HEADER: Final = struct.Struct(">8I")
_MAGIC: Final = 0x377F0682
_SALTS: Final = slice(16, 24)
#: Before each page: its number, the file's pages after a commit (else 0), salts, checksums.
_FRAME: Final = struct.Struct(">6I")
_FRAME_SALTS: Final = slice(8, 16)
#: The index begins with a header, and a copy of it; then, how many frames are in the file.
_INDEX: Final = 48
_IS_MADE_AT: Final = 12
_FRAMES_AT: Final = 16
_INDEX_SALTS: Final = slice(32, 40)


def check(path: Path, breathe: Callable[[], None]) -> None:
    """Raise SpoolError where spans were in a log that can't be read, or is gone.

    Parameters
    ----------
    path
        Of the spool, which nobody has open.
    breathe
        Called after each page.
    """
    log = files.content(files.beside(path, "-wal"))
    header = files.content(path, files.HEADER) or b""
    if not header:
        if log:
            raise _lost(path, "is empty or gone, though it has a log")
        return
    index = files.content(files.beside(path, "-shm"), 2 * _INDEX + 4) or b""
    frames = None
    if index[:_INDEX] == index[_INDEX:-4] and index[_IS_MADE_AT : _IS_MADE_AT + 1] == b"\1":
        (frames,) = struct.unpack_from("=I", index, _FRAMES_AT)
        if frames <= struct.unpack_from("=I", index, 2 * _INDEX)[0]:
            return
    if not log:
        marked = int.from_bytes(header[_MARK], "big") & schema.LOGGED
        if frames or (log is None and marked):
            raise _lost(path, "has lost its log")
        return
    found = _readable_frames(log, breathe)
    if frames is not None and index[_INDEX_SALTS] != log[_SALTS]:
        found = 0
    if found < (frames or 1):
        raise _lost(path, "has a damaged log")


def _readable_frames(log: bytes, breathe: Callable[[], None]) -> int:
    """Return up to which frame the log can be read; 0 if that is not up to its last commit."""
    if len(log) < _HEADER.size:
        return 0
    magic, _, size, *_, first, second = _HEADER.unpack_from(log)
    order = ">" if magic & 1 else "<"
    sums = _sums(order, log[:24], 0, 0)
    if magic & ~1 != _MAGIC or sums != (first, second):
        return 0
    found, whole = 0, True
    for number, at in enumerate(range(_HEADER.size, len(log), _FRAME.size + size), 1):
        breathe()
        frame = log[at : at + _FRAME.size + size]
        if len(frame) < _FRAME.size + size or frame[_FRAME_SALTS] != log[_SALTS]:
            # The rest of what was there before the log began anew, or of a write that was cut off.
            whole = False
            continue
        _, commit, *_, first, second = _FRAME.unpack_from(frame)
        if whole:
            sums = _sums(order, frame[_FRAME.size :], *_sums(order, frame[:8], *sums))
            whole = sums == (first, second)
            if whole and commit:
                found = number
        elif commit:
            return 0
    return found


def _sums(order: str, content: bytes, first: int, second: int) -> tuple[int, int]:
    """Return SQLite's checksums, continued over more bytes."""
    words = iter(struct.unpack(f"{order}{len(content) // 4}I", content))
    for word, next_word in zip(words, words, strict=True):
        first = (first + word + second) & 0xFFFFFFFF
        second = (second + next_word + first) & 0xFFFFFFFF
    return first, second


def _lost(path: Path, what: str) -> SpoolError:
    log, index = files.beside(path, "-wal").name, files.beside(path, "-shm").name
    return SpoolError(
        f"{path} {what} ({log}): spans that were in it alone would be lost. Nothing is changed or "
        f"deleted. Put back {path.name}, {log} and {index} if you have them; or move all three "
        f"away, and a new one is made. To go on with {path.name} alone, move {log} and {index} "
        f"away and make an empty {log}"
    )

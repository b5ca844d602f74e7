"""Whether the log that a killed process left is whole.

SQLite takes a log that it can't read for an empty one, and deletes it when the file is closed: for
SQLite that is a transaction without an end, for us these are spans that are nowhere else. So
nothing is opened before this has been looked at, and nothing is written here.

What must be in the log is known from three things. The index of the log (``-shm``), which outlives
a kill, has the number of its frames that count, and how many of them are in the file already. The
checksums say how many frames can be read. And a mark in the file's header says that there is a log
at all (`schema.LOGGED`): it comes to the file after the log does, and goes before it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import unpack, unpack_from

from dask_otel.spool import files, schema
from dask_otel.spool.problems import SpoolError


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
    header = files.content(path, files.HEADER)
    # A header of 48 bytes, a copy of it, and how many frames are in the file.
    index = files.content(files.beside(path, "-shm"), 100) or b""
    frames = 0
    if index[:48] == index[48:96] and index[12:13] == b"\1":
        frames, moved = unpack_from("=16xI76xI", index)
        if frames <= moved and header:
            return
    what = ""
    if not header:
        what = "is empty or gone, though it has a log" if log else ""
    elif not log:
        # Whoever could not take the mark back has left an empty log.
        marked = log is None and int.from_bytes(header[60:64], "big") & schema.LOGGED
        what = "has lost its log" if frames or marked else ""
    elif _frames(log, breathe) < frames or (frames and index[32:40] != log[16:24]):
        what = "has a damaged log"
    if what:
        wal, shm = files.beside(path, "-wal").name, files.beside(path, "-shm").name
        raise SpoolError(
            f"{path} {what} ({wal}): spans that were in it alone would be lost. Nothing is changed "
            f"or deleted. Put back {path.name}, {wal} and {shm} if you have them; or move all "
            f"three away, and a new one is made. To go on with {path.name} alone, move {wal} and "
            f"{shm} away and make an empty {wal}"
        )


def _frames(log: bytes, breathe: Callable[[], None]) -> int:
    """Return how many frames of a log can be read, from the first on; -1 for none.

    It begins with magic, version, size of a page, sequence, two salts, and checksums. A frame has a
    page's number, the file's pages after a commit, salts, checksums, and the page.
    """
    header = log[:32].ljust(32, b"\0")
    magic, _, size, *_, first, second = unpack(">8I", header)
    order = ">" if magic & 1 else "<"
    sums = _sums(order, header[:24], (0, 0))
    frames = range(32, len(log) - size - 23, 24 + size) if sums == (first, second) else ()
    read = 0
    for at in frames:
        breathe()
        sums = _sums(order, log[at : at + 8] + log[at + 24 : at + 24 + size], sums)
        # Others are of before the log began anew, or of a write that was cut off.
        if log[at + 8 : at + 16] != log[16:24] or sums != unpack_from(">2I", log, at + 16):
            break
        read += 1
    return read or -1


def _sums(order: str, content: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    """Return SQLite's checksums, continued over more bytes."""
    first, second = sums
    words = iter(unpack(f"{order}{len(content) // 4}I", content))
    for word, next_word in zip(words, words, strict=True):
        first = (first + word + second) & 0xFFFFFFFF
        second = (second + next_word + first) & 0xFFFFFFFF
    return first, second

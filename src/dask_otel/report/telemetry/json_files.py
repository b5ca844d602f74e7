"""Reads JSON values from files and directories: lines or one document, compressed or not.

A truncated or foreign file is read as far as possible; the rest is counted as skipped.
Memory is bounded by `LONGEST` and by the values that the reader keeps.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final, cast

from dask_otel.core.graph import SUFFIX
from dask_otel.core.profiles import pprof
from dask_otel.report.telemetry.model import Skipped

#: Most bytes of one line, or of a document over several lines.
LONGEST: Final = 128 * 2**20
#: Most bytes of one file after decompression; a larger one is not ours.
MOST: Final = 16 * 2**30

#: The end of the name of a summary, which `dask-otel history` writes beside the files.
SUMMARY: Final = "-summary.json"
#: The ends of the names of files beside telemetry that are not read here.
OTHERS: Final = (SUFFIX, pprof.SUFFIX)
#: The message about a file that can't be read to its end.
BROKEN: Final = "file that ends in an error"

_ERRORS = (OSError, EOFError, zlib.error)


def find(paths: Iterable[str | Path]) -> list[Path]:
    """Return the files; those of a directory, by name.

    Raises
    ------
    FileNotFoundError
        If a path does not exist, or a directory has nothing to read.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"there is no {path}")
        files = [path]
        if path.is_dir():
            files = sorted(one for one in path.iterdir() if is_json(one.name) and one.is_file())
        if not files:
            raise FileNotFoundError(f"no file of JSON in {path}")
        found += files
    return [path for path in dict.fromkeys(found) if not path.name.endswith(OTHERS)]


def is_json(name: str) -> bool:
    """Return whether a file may be telemetry, by its name."""
    # Including rotated files: traces.jsonl.1, traces-2.jsonl.gz.
    suffixes = Path(name).suffixes
    return any(one.startswith(".json") for one in suffixes) and not name.endswith((SUMMARY, SUFFIX))


def values(path: Path, skipped: Skipped) -> Iterator[Any]:
    """Yield every JSON value of a file."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with cast("IO[bytes]", gzip.open(path) if packed else path.open("rb")) as file:
            if parse(file.readline(LONGEST + 1)) is None:
                # One document over many lines, or a broken first line.
                file.seek(0)
                document = file.read(LONGEST + 1)
                value = parse(document) if len(document) <= LONGEST else None
                if value is not None:
                    yield value
                    return
            file.seek(0)
            yield from _values(file, path, skipped)
    except _ERRORS as error:
        skipped.add(BROKEN, f"{path.name}: {error}")


def _values(file: IO[bytes], path: Path, skipped: Skipped) -> Iterator[Any]:
    read = 0
    for number, line in enumerate(_lines(file), 1):
        read += len(line)
        value = parse(line) if len(line) <= LONGEST else None
        if read > MOST:
            skipped.add("rest of a file that is too long", path.name)
            return
        if value is not None:
            yield value
        elif line.strip():
            broken = "line that is no JSON" if line.endswith(b"\n") else "line that was cut off"
            broken = "line that is too long" if len(line) > LONGEST else broken
            skipped.add(broken, f"{path.name}:{number}")


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file; of an overlong line, its beginning."""
    while line := file.readline(LONGEST + 1):
        yield line
        while len(line) > LONGEST and not line.endswith(b"\n"):
            line = file.readline(LONGEST + 1)


def parse(data: bytes | str) -> Any:
    """Return a JSON object or array; None for anything else, or if it is nested too deeply."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        # ValueError: not JSON, not UTF-8, or a number of thousands of digits.
        return None
    return value if isinstance(value, (dict, list)) else None

"""Files at addresses that fsspec opens: copied to this machine for as long as they are read."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any
from urllib.parse import unquote

import fsspec

from dask_otel.report import words
from dask_otel.report.telemetry import json_files


def is_remote(path: str | Path) -> bool:
    """Return whether a path is an address, such as ``s3://bucket/runs``."""
    return "://" in str(path)


@contextmanager
def _asked(address: str) -> Iterator[None]:
    """Turn whatever a file system raises into an OSError."""
    try:
        yield
    except Exception as error:
        reason = words.one_line(str(error) or type(error).__name__, " ")
        raise OSError(f"can't read {address}: {reason}") from error


def _opened(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it."""
    system, path = fsspec.core.url_to_fs(address)
    if address.startswith("file:") and not (system.exists(path) or system.glob(path)):
        # As a browser or `Path.as_uri` writes it.
        system, path = fsspec.core.url_to_fs(unquote(address))
    return system, path


def listed(address: str) -> list[tuple[str, str, int]]:
    """Return folder, name and size of all files below an address.

    Raises
    ------
    OSError
        If it can't be listed.
    """
    with _asked(address):
        system, top = _opened(address)
        found = system.find(top, detail=True)
        if not found:
            raise FileNotFoundError("there is nothing")
        return [
            (*posixpath.split(system.unstrip_protocol(path)), int(info.get("size") or 0))
            for path, info in sorted(found.items())
        ]


@contextmanager
def copied(paths: Iterable[str | Path]) -> Iterator[list[str | Path]]:
    """Replace addresses by copies of their files, which exist inside the ``with`` block.

    A folder stands for its files of JSON, its graph logs and its profiles; ``*`` is a pattern.

    Raises
    ------
    OSError
        If there is nothing at an address, or it can't be read.
    """
    with TemporaryDirectory(prefix="dask-otel-") as folder:
        result: list[str | Path] = []
        for path in paths:
            result += _copies(path, Path(folder)) if is_remote(path) else [path]
        yield result


def _copies(path: str | Path, folder: Path) -> Iterator[Path]:
    with _asked(str(path)):
        system, name = _opened(str(path))
        found = [name] if system.exists(name) else []
        if "*" in name or system.isdir(name):
            found = [
                one
                for one in system.glob(name if "*" in name else f"{name.rstrip('/')}/*")
                if json_files.is_json(posixpath.basename(one)) or one.endswith(json_files.OTHERS)
            ]
        for one in found:
            # Files of several folders can have the same name.
            target = Path(mkdtemp(dir=folder), posixpath.basename(one))
            system.get_file(one, str(target))
            yield target
        if not found:
            raise FileNotFoundError("there is nothing")

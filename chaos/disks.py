"""Disks that are full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chaos.scenario import CannotRun


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Give a disk of one megabyte."""
    disk = folder / "disk"
    disk.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)],
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise CannotRun("a small disk needs mount") from error
    if done.returncode:
        raise CannotRun("a small disk needs the right to mount one")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Fill a disk; returns the file to remove for room."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return ballast

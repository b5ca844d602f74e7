"""A disk that is full, and has room again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import eventually

from chaos.scenario import CannotRun
from chaos.world import PATIENCE, World


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """Give a disk of eight megabytes, which is more than a scenario writes."""
    disk = folder / "disk"
    disk.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)],
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


@contextmanager
def full_disk(world: World, variable: str, file: str = "") -> Iterator[tuple[Path, str]]:
    """Give a disk which was full while a scheduler worked that writes there, and what arrived.

    The scheduler has ended. `variable` names the path that it writes to, the disk or a file on it.
    """
    with _small_disk(world.folder) as disk:
        # Each span has a name of its own, and is compared with Dask's by it.
        world.begin(3, {variable: str(disk / file), "DASK_OTEL__METRICS__MAX_NAMES": "5000"})
        ballast = disk / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as filling:
            while filling.write(bytes(4096)):
                pass
        # The last page of a file may have had room for some.
        eventually(lambda: world.work(5) or world.logged("WARNING"), PATIENCE, "a warning")
        world.work(5)
        # Another destination goes on.
        world.all_arrived()
        ballast.unlink()
        eventually(lambda: world.work(1) or world.logged("INFO", " again"), PATIENCE, "its end")
        world.work(2)
        arrived = world.all_arrived()
        world.one_message_each()
        world.close()
        world.scheduler.terminate(60)
        yield disk, arrived

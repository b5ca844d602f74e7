"""Real scheduler and worker processes, and a client."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from distributed import Client

ROOT = Path(__file__).parent.parent


def environment(more: Mapping[str, str], *first: str) -> dict[str, str]:
    """Return the environment of a process that can import the benchmarks, after some folders."""
    paths = [*first, str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | dict(more)


def start_scheduler(
    folder: str, *args: str, more: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a scheduler; return it with its address when it listens."""
    log = Path(folder) / f"scheduler-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", "0"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--dashboard-address", "127.0.0.1:0", *args],
            stdout=out, stderr=out, env=environment(more),
        )  # fmt: skip
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = re.search(r"Scheduler at:\s+(\S+)", log.read_text())
        if found:
            return process, found.group(1)
        time.sleep(0.005)
    process.kill()
    raise RuntimeError(log.read_text())


@contextlib.contextmanager
def cluster(
    more: Mapping[str, str],
    workers: int = 2,
    *args: str,
    worker_environment: Mapping[str, str] | None = None,
) -> Iterator[Client]:
    """Give a client of a fresh cluster whose scheduler was started with these arguments."""
    with tempfile.TemporaryDirectory() as folder:
        scheduler, address = start_scheduler(folder, *args, more=more)
        processes = [scheduler]
        for _ in range(workers):
            command = [sys.executable, "-m", "dask", "worker", address, "--nthreads", "1"]
            processes.append(
                subprocess.Popen(
                    [*command, "--no-nanny", "--no-dashboard", "--local-directory", folder],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    env=worker_environment or environment({}),
                )
            )  # fmt: skip
        try:
            with Client(address, timeout=30) as client:
                client.wait_for_workers(workers, timeout=60)
                yield client
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()

"""Real ``dask scheduler`` and ``dask worker`` processes, as a person starts them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import eventually


class Process:
    """A Dask process, with its output in a file."""

    def __init__(self, log: Path, *args: str, env: Mapping[str, str]) -> None:
        self.log = log
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "DASK_"))}
        with log.open("wb") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "dask", *args],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**inherited, **env},
            )

    @property
    def output(self) -> str:
        """What the process has written so far."""
        return self.log.read_text(errors="replace")

    def terminate(self, timeout: float = 20.0) -> int:
        """Ask the process to end, as an operator would, and return its exit code."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(timeout)

    def kill(self) -> None:
        """End the process at once."""
        self.popen.kill()
        self.popen.wait(10)


def _address(process: Process) -> str | None:
    assert process.popen.poll() is None, process.output
    found = re.search(r"Scheduler at:\s+(\S+)", process.output)
    return found.group(1) if found else None


class Cluster:
    """A scheduler process and its workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Process] = []
        self.address = ""

    def start_scheduler(self, *args: str, env: Mapping[str, str] | None = None) -> Process:
        """Start the scheduler and wait until it listens."""
        scheduler = self._start(
            "scheduler", "scheduler", "--host", "127.0.0.1", "--port", "0",
            "--dashboard-address", "127.0.0.1:0", *args, env=env,
        )  # fmt: skip
        self.address = eventually(lambda: _address(scheduler), 60, "the scheduler's address")
        return scheduler

    def start_worker(
        self, name: str = "w", nthreads: int = 2, env: Mapping[str, str] | None = None
    ) -> Process:
        """Start one worker, without a nanny."""
        return self._start(
            f"worker-{name}", "worker", self.address, "--nthreads", str(nthreads), "--name", name,
            "--no-nanny", "--no-dashboard", "--memory-limit", "0",
            "--local-directory", str(self.folder), env=env,
        )  # fmt: skip

    def _start(self, log: str, *args: str, env: Mapping[str, str] | None) -> Process:
        process = Process(self.folder / f"{log}.log", *args, env=env or {})
        self.processes.append(process)
        return process


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Give a cluster to build up; whatever it started is ended, whatever happens."""
    made = Cluster(folder)
    try:
        yield made
    finally:
        for process in reversed(made.processes):
            if process.popen.poll() is None:
                process.kill()

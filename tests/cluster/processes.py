"""Real ``dask scheduler`` and ``dask worker`` processes, as a person starts them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client

from tests import receiver
from tests.cluster import proof
from tests.cluster.forked import EARLY, Forked
from tests.environment import inherited
from tests.waiting import ended, eventually


class Process:
    """A Dask process, with its output in a file.

    Parameters
    ----------
    log
        That file.
    args
        Of ``dask``.
    env
        Variables.
    within
        A command that gets Dask's as its last arguments, and becomes it.
    forked
        Whether its libraries may be imported already: its start is not what is tested.
    """

    def __init__(
        self,
        log: Path,
        *args: str,
        env: Mapping[str, str],
        within: Sequence[str] = (),
        forked: bool = False,
    ) -> None:
        self.log = log
        module, environment = f"distributed.cli.dask_{args[0]}", {**inherited(), **env}
        self.popen: Forked | subprocess.Popen[bytes]
        with log.open("wb") as out:
            if forked and not EARLY & env.keys():
                self.popen = Forked(str(log), module, args[1:], environment)
                return
            self.popen = subprocess.Popen(
                [*within, sys.executable, "-m", module, *args[1:]],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    @property
    def output(self) -> str:
        """What the process has written so far."""
        return self.log.read_text(errors="replace")

    def terminate(self) -> int:
        """Ask the process to end, as an operator would, and return its exit code."""
        self.popen.send_signal(signal.SIGTERM)
        return ended(self.popen)

    def kill(self) -> None:
        """End the process at once."""
        self.popen.kill()
        ended(self.popen)


class SchedulerProcess(Process):
    """A scheduler, which proves before its end that all it knows was exported."""

    address = ""

    def __init__(self, log: Path, *args: str, env: Mapping[str, str], **options: Any) -> None:
        super().__init__(log, *args, env=env, **options)
        self._received = receiver.RUNNING.get(env.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""))

    def terminate(self) -> int:
        """Prove the numbers, then ask the process to end."""
        self.prove()
        return super().terminate()

    def prove(self) -> None:
        """Wait until all that the scheduler knows was exported, and check the exports."""
        received = self._received
        if received is None or proof.current.unreconciled is not None:
            return
        with Client(self.address, set_as_default=False) as client:

            def proven() -> bool:
                proof.prove(received, client.run_on_scheduler(proof.truth))
                return True

            eventually(proven, what="all that the scheduler knows was exported")


def _address(process: Process) -> str | None:
    assert process.popen.poll() is None, process.output
    found = re.search(r"Scheduler at:\s+(\S+)", process.output)
    return found.group(1) if found else None


class Cluster:
    """A scheduler process and its workers."""

    def __init__(self, folder: Path, forked: bool = False) -> None:
        self.folder = folder
        self.forked = forked
        self.processes: list[Process] = []
        self.address = ""
        self.scheduler: SchedulerProcess | None = None

    def start_scheduler(
        self, *args: str, env: Mapping[str, str] | None = None, within: Sequence[str] = ()
    ) -> SchedulerProcess:
        """Start the scheduler and wait until it listens."""
        scheduler = self.scheduler = SchedulerProcess(
            self.folder / "scheduler.log", "scheduler", "--host", "127.0.0.1", "--port", "0",
            "--no-dashboard", "--dashboard-address", "127.0.0.1:0", *args,
            env=env or {}, within=within, forked=self.forked,
        )  # fmt: skip
        self.processes.append(scheduler)
        address = eventually(lambda: _address(scheduler), what="the scheduler's address")
        self.address = scheduler.address = address
        return scheduler

    def start_worker(
        self,
        name: str = "w",
        *args: str,
        nthreads: int = 2,
        nanny: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start one worker, below a nanny or without one."""
        how = ("--nworkers", "1") if nanny else ("--no-nanny",)
        process = Process(
            self.folder / f"worker-{name}.log", "worker", self.address,
            "--nthreads", str(nthreads), "--name", name, *how, "--no-dashboard",
            "--memory-limit", "0", "--local-directory", str(self.folder), *args, env=env or {},
            forked=self.forked,
        )  # fmt: skip
        self.processes.append(process)
        return process


def ran(script: Path, *args: str, folder: Path, **variables: str) -> str:
    """Run a script in a process of its own, which must end well; return what it has written."""
    log = folder / "script.log"
    process = Forked(str(log), str(script), args, inherited(**variables))
    assert ended(process) == 0, log.read_text()
    return log.read_text()


@contextmanager
def cluster(folder: Path, forked: bool = False) -> Iterator[Cluster]:
    """Give a cluster to build up; whatever it started is ended, whatever happens.

    At the end of a test that passes, all that a running scheduler knows must have been exported.
    """
    made = Cluster(folder, forked)
    try:
        yield made
        if made.scheduler is not None and made.scheduler.popen.poll() is None:
            made.scheduler.prove()
    finally:
        for process in reversed(made.processes):
            if process.popen.poll() is None:
                process.kill()

"""Server processes that tests start: free ports, readiness, a log, and a certain end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

START_SECONDS = 60.0
STOP_SECONDS = 10.0
LOG_TAIL_LINES = 40

#: Runs a command that the kernel stops when this process dies, even by SIGKILL. A small process
#: in between, because `preexec_fn` is unsafe where threads run, and exporters have threads. The
#: check of the parent closes the gap between fork and prctl.
_LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that wanted this server is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerError(Exception):
    """A server did not start, or died; the text ends with its log.

    No `AssertionError`: `eventually` would go on asking a dead server.
    """


def eventually(
    probe: Callable[[], T], *, timeout: float = 20.0, interval: float = 0.1, what: str = ""
) -> T:
    """The first true result of `probe`, which is asked again every `interval` seconds.

    An `AssertionError` of the probe counts as not yet; the last one is raised at the end.
    """
    deadline = time.monotonic() + timeout
    while True:
        error: AssertionError | None = None
        try:
            result = probe()
        except AssertionError as failed:
            error = failed
        else:
            if result:
                return result
        if time.monotonic() >= deadline:
            raise error or AssertionError(f"not within {timeout} s: {what or probe}")
        time.sleep(interval)


def free_ports(count: int) -> list[int]:
    """Free loopback ports, all different: every socket is open until the last one is found."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]


def answers_ok(url: str) -> bool:
    """Whether a GET of `url` is answered with a 2xx status; no answer counts as no."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(200 <= response.status < 300)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@dataclass
class Server:
    """One running server and how to reach it.

    Parameters
    ----------
    name:
        For messages and the name of the log.
    command, environment:
        What to run, and what to add to this process's environment.
    folder:
        Its working folder; the log is written there.
    ready:
        The URL that answers 2xx once it serves.
    """

    name: str
    command: Sequence[str]
    folder: Path
    ready: str
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        """Start it and wait until its own health API says that it serves.

        Raises
        ------
        ServerError
            If it ended or was not ready in time; it is stopped then.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*launcher, *self.command],
                cwd=self.folder,
                env=os.environ | dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            eventually(self._is_ready, timeout=START_SECONDS, what=f"{self.name} is not ready")
        except BaseException as error:
            self.stop()
            if isinstance(error, AssertionError):
                raise ServerError(f"{error}\n{self.log_tail()}") from None
            raise

    def _is_ready(self) -> bool:
        if not self.is_running():
            status = self.process.returncode if self.process else None
            raise ServerError(f"{self.name} ended with status {status}\n{self.log_tail()}")
        return answers_ok(self.ready)

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        """Ask it to end, and end it if it does not. Safe to call again."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def log_tail(self) -> str:
        """The end of its log, as a test report shows it."""
        if not self.log.exists():
            return f"--- {self.name} has no log"
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"--- {self.log}, last lines:", *lines[-LOG_TAIL_LINES:]])


def start_on_free_ports(make: Callable[[], T], start: Callable[[T], None], attempts: int = 3) -> T:
    """Make and start something again, with other ports, where one was taken in between."""
    for attempt in range(attempts):
        made = make()
        try:
            start(made)
        except ServerError as error:
            if "address already in use" not in str(error) or attempt == attempts - 1:
                raise
        else:
            return made
    raise AssertionError("unreachable")

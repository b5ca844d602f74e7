"""Server processes that tests start: ports, readiness, a log, and a certain end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import eventually

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


#: Sockets of `reserved_ports`: open, so that no other process gets their ports.
_reserved: list[socket.socket] = []


def bound(port: int = 0) -> socket.socket:
    """Return a socket at a loopback port, a free one by default, that does not listen yet.

    The port refuses connections, and a server can listen at it: Linux gives a port that is bound
    here, and not listened at, to nobody who does not ask for it.
    """
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


def reserved_ports(count: int) -> list[int]:
    """Loopback ports for this process and its servers alone, until this process ends."""
    made = [bound() for _ in range(count)]
    _reserved.extend(made)
    return [item.getsockname()[1] for item in made]


@dataclass
class Server:
    """One server: what to run, and the URL that answers 2xx once it serves."""

    name: str
    command: Sequence[str]
    #: Its working folder; the log is written there.
    folder: Path
    ready: str
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has written so far."""
        path = self.folder / f"{self.name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start it and wait until its own health API says that it serves."""
        self.folder.mkdir(parents=True, exist_ok=True)
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*launcher, *self.command],
                cwd=self.folder,
                env=os.environ | dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            eventually(self._is_ready, what=f"{self.name} is not ready")
        except BaseException as error:
            self.stop()
            if isinstance(error, AssertionError):
                raise ServerError(f"{error}\n{self.log_tail()}") from None
            raise

    def _is_ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise ServerError(f"{self.name} ended: {self.process.returncode}\n{self.log_tail()}")
        with suppress(OSError), urllib.request.urlopen(self.ready, timeout=5):
            return True
        return False

    def stop(self, kill: bool = False) -> None:
        """Ask it to end, and end it at once if it does not, or by `kill`. Safe to call again."""
        if self.process is not None and self.process.poll() is None:
            if not kill:
                self.process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(STOP_SECONDS)
            self.process.kill()
            self.process.wait()

    def log_tail(self) -> str:
        """The end of its log, as a test report shows it."""
        lines = self.log.splitlines()[-LOG_TAIL_LINES:]
        return "\n".join([f"--- the log of {self.name}, last lines:", *lines])

"""Servers end with the test that started them, whatever happens to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .processes import Server, eventually, free_ports

#: Any program that serves HTTP will do here: it is the harness that is tested.
HTTP_SERVER = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1"]


def _http_server(folder: Path) -> Server:
    (port,) = free_ports(1)
    return Server("http", [*HTTP_SERVER, str(port)], folder, f"http://127.0.0.1:{port}/")


def _runs(pid: int) -> bool:
    """Whether the process is there; one that ended and waits for its parent is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux only")
def test_a_killed_test_process_takes_its_servers_along(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from backends.test_processes import _http_server
server = _http_server(Path(sys.argv[1]))
server.start()
print(server.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": tests},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    pid = int(done.stdout)
    eventually(lambda: not _runs(pid), what=f"process {pid} still runs")

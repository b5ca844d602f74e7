"""The scripts of deploy/ do what they say, run as they are.

SLURM is a stand-in that runs a job at once, on this machine; SSH is real, served on loopback.
Coiled needs an account: `tests/contract` checks what can be checked of that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from dask_otel import read_report
from tests import environment
from tests.receiver import receiver

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("about recipes; what they export is what any bridge does"),
]

DEPLOY = Path(__file__).parents[2] / "deploy"
NEEDS = "needs the dependency group `deploy`"

#: What SLURM's commands do, as far as dask-jobqueue asks them.
SBATCH = """\
#!{python}
import subprocess, sys
script = open(sys.argv[1]).read()
job = subprocess.Popen(
    ["bash", "-c", script], start_new_session=True, stdin=subprocess.DEVNULL,
    stdout=open({log!r}, "ab"), stderr=subprocess.STDOUT,
)
open({jobs!r}, "a").write(str(job.pid) + "\\n")
print("Submitted batch job", job.pid)
"""
SCANCEL = """\
#!{python}
import os, signal, sys
os.killpg(int(sys.argv[1]), signal.SIGTERM)
"""


def run(script: Path, *arguments: str, **variables: str) -> str:
    """Run a recipe as a person does, and return what it says."""
    # A busy machine may take longer for the last export than the default.
    variables = {"DASK_OTEL__CLOSE_TIMEOUT": "60s", **variables}
    return environment.run(str(script), *arguments, **variables).stdout


@contextmanager
def slurm(folder: Path) -> Iterator[str]:
    """A PATH with SLURM's commands; jobs that are left at the end are ended."""
    commands, jobs = folder / "bin", folder / "jobs"
    commands.mkdir()
    jobs.touch()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        filled = text.format(python=sys.executable, log=str(folder / "job.log"), jobs=str(jobs))
        (commands / name).write_text(filled, encoding="utf-8")
        (commands / name).chmod(0o755)
    try:
        yield f"{commands}{os.pathsep}{os.environ['PATH']}"
    finally:
        for job in jobs.read_text(encoding="utf-8").split():
            with suppress(ProcessLookupError):
                os.killpg(int(job), signal.SIGKILL)


@pytest.mark.skipif(find_spec("dask_jobqueue") is None, reason=NEEDS)
def test_a_batch_system_leaves_files(tmp_path: Path) -> None:
    telemetry = tmp_path / "telemetry"
    with slurm(tmp_path) as path:
        said = run(
            DEPLOY / "jobqueue" / "slurm_cluster.py",
            str(telemetry),
            PATH=path,
            DASK_JOBQUEUE__SLURM__INTERFACE="lo",
        )
    assert said == "6\n", (tmp_path / "job.log").read_text(encoding="utf-8")
    (left,) = read_report(telemetry).runs
    assert {"nightly", "sum tasks"} <= {one.name for one in left.spans}
    assert "dask.span.duration" in left.metrics.series


@contextmanager
def ssh(home: Path) -> Iterator[None]:
    """A home folder with which ``head`` and ``node`` are this machine."""
    folder = home / ".ssh"
    folder.mkdir()
    public = folder / "host.pub"
    command = [sys.executable, str(Path(__file__).with_name("ssh_server.py")), str(public)]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        key = public.read_text(encoding="utf-8").strip()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}\n", encoding="utf-8")
        config = f"Host head node\n  HostName 127.0.0.1\n  Port {port}\n  User dask\n"
        (folder / "config").write_text(config, encoding="utf-8")
        yield
    finally:
        # The end of its input ends it, and the commands that it runs.
        try:
            server.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()


@pytest.mark.skipif(find_spec("asyncssh") is None, reason=NEEDS)
def test_machines_that_one_can_log_in_to(tmp_path: Path) -> None:
    with receiver() as received, ssh(tmp_path):
        said = run(
            DEPLOY / "ssh" / "ssh_cluster.py",
            "head",
            "node",
            HOME=str(tmp_path),
            OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint,
        )
        assert said == "6\n"
        # All of it is there when the script has ended: nothing is waited for.
        assert {"nightly", "sum tasks"} <= {one.name for one in received.spans}
        assert {one.resource["dask.cluster.name"] for one in received.spans} == {"ssh"}
        assert any(one.metric == "dask.span.duration" for one in received.points)

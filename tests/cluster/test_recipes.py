"""The scripts of deploy/ and examples/ do what they say, run as they are, in this process.

SLURM and SSH are stand-ins that run what they get at once, on this machine; a command that comes by
SSH has none of the caller's variables. Coiled needs an account: `tests/contract` checks what can be
checked of that.
"""

from __future__ import annotations

import ast
import asyncio
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest

from dask_otel import read_report
from tests.cluster.forked import DASHBOARD
from tests.receiver import receiver

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("about recipes; what they export is what any bridge does"),
    # The dashboard's may be somebody's.
    pytest.mark.filterwarnings("ignore:Port"),
]

DEPLOY = Path(__file__).parents[2] / "deploy"
EXAMPLES = Path(__file__).parents[2] / "examples"
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
#: What a site sets. A page of the worker's own would cost more than all else.
SITE = {
    "jobqueue__slurm__interface": "lo",
    "jobqueue__slurm__worker_extra_args": ["--no-dashboard"],
}
SCANCEL = """\
#!{python}
import os, signal, sys
os.killpg(int(sys.argv[1]), signal.SIGTERM)
"""


class Ssh:
    """The part of asyncssh that Dask's SSHCluster uses: the module, and a connection."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    async def connect(self, address: str, **options: Any) -> Ssh:
        return self

    def close(self) -> None:
        pass

    async def run(self, command: str) -> Any:
        return SimpleNamespace(exit_status=0, stdout="Linux")

    async def create_process(self, command: str) -> Any:
        # A login has a shell, and no variable of the one who calls.
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command}"], env={"PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.processes.append(process)
        assert process.stderr is not None
        said = SimpleNamespace(readline=partial(asyncio.to_thread, process.stderr.readline))
        return SimpleNamespace(stderr=said, kill=process.kill)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a recipe as a person does, in this process, which has Dask; return what it says."""

    def run(script: Path, *arguments: str, **config: Any) -> str:
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        monkeypatch.setitem(sys.modules, DASHBOARD, None)
        # What it configures is gone afterwards. A busy machine may take longer for the last export
        # than the default.
        own = {"distributed": deepcopy(dask.config.get("distributed")), "otel": {}}
        with dask.config.set(own), dask.config.set(otel__close_timeout="60s", **config):
            runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out

    return run


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


# One process of the tests starts the server that forks workers.
@pytest.mark.xdist_group("processes")
def test_a_local_cluster_leaves_files_and_says_what_it_waited_for(
    tmp_path: Path, run: Callable[..., str]
) -> None:
    telemetry = tmp_path / "telemetry"
    said = run(EXAMPLES / "local_cluster.py", str(telemetry)).splitlines()
    total = sum(n * (n - 1) // 2 for n in range(0, 800_000, 100_000))
    assert said[:2] == [f"sum: {total}", "tasks: 9"]
    (left,) = read_report(telemetry).runs
    (root,) = [one for one in left.of_type("span") if one.full_name == "example"]
    assert root.attributes["customer"] == "acme"
    # What it printed is what was exported.
    assert float(said[2].partition(" ")[0]) == pytest.approx(root.seconds, abs=0.006)
    parts = [float(line.split()[1]) for line in said[3:]]
    assert sum(parts) == pytest.approx(root.seconds, abs=0.005 * (len(parts) + 1))


def test_the_cells_of_the_notebooks_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one kernel, one notebook after the other; they show what their cells end with.

    What a cell defines reaches another process; once, and one process of it, is enough.
    """
    nbclient, nbformat = (pytest.importorskip(name) for name in ("nbclient", "nbformat"))
    monkeypatch.setenv("DASK_OTEL__CLOSE_TIMEOUT", "60s")
    # That one shares no import.
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD", "spawn")
    paths = (EXAMPLES / f"{name}.ipynb" for name in ("performance_report", "notebook"))
    made, more = (nbformat.read(path, as_version=4) for path in paths)
    for notebook, workers in ((made, "n_workers=1"), (more, "n_workers=2, processes=False")):
        (cell,) = [one for one in notebook.cells if "n_workers=2" in one.source]
        cell.source = cell.source.replace("n_workers=2", workers)
    made.cells += more.cells
    nbclient.NotebookClient(made, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = ([*cell.outputs] for cell in made.cells if cell.cell_type == "code")
    *_, (total,), (numbers,), shown = outputs
    assert (tmp_path / "run.html").stat().st_size > 100_000
    assert total.data["text/plain"] == "2470"
    # The duration, the idle time, and the parts, which add up to the duration.
    duration, idle, parts = numbers.text.split(maxsplit=2)
    assert float(idle) >= 0
    assert sum(ast.literal_eval(parts).values()) == pytest.approx(float(duration))
    assert shown[-1].data["text/html"].startswith("<")


@pytest.mark.skipif(find_spec("dask_jobqueue") is None, reason=NEEDS)
def test_a_batch_system_leaves_files(
    tmp_path: Path, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = tmp_path / "telemetry"
    # The job's one worker shares no import.
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD", "spawn")
    with slurm(tmp_path) as path:
        monkeypatch.setenv("PATH", path)
        script = DEPLOY / "jobqueue" / "slurm_cluster.py"
        said = run(script, str(telemetry), **SITE)
    assert said == "6\n", (tmp_path / "job.log").read_text(encoding="utf-8")
    (left,) = read_report(telemetry).runs
    assert {"nightly", "sum tasks"} <= {one.name for one in left.spans}
    assert "dask.span.duration" in left.metrics.series


def test_machines_that_one_can_log_in_to(
    run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = Ssh()
    monkeypatch.setitem(sys.modules, "asyncssh", ssh)
    with receiver() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.endpoint)
        script = DEPLOY / "ssh" / "ssh_cluster.py"
        # The node's one worker shares no import.
        method = "spawn"
        said = run(script, "head", "node", distributed__worker__multiprocessing_method=method)
        assert said == "6\n"
        # All of it is there when the script has ended: nothing is waited for.
        assert {"nightly", "sum tasks"} <= {one.name for one in received.spans}
        assert {one.resource["dask.cluster.name"] for one in received.spans} == {"ssh"}
        assert any(one.metric == "dask.span.duration" for one in received.points)
    for process in ssh.processes:
        process.communicate()

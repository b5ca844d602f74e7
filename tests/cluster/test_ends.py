"""The most ordinary ends of a script: its run has succeeded, and results of it are still held."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, span

from dask_otel.report.telemetry.reader import Reader
from tests.cluster.ending import inc
from tests.cluster.processes import cluster
from tests.environment import inherited
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("the script's process has ended, and with it Dask's own numbers"),
]


def asked(command: str, folder: Path) -> Any:
    """What a command says of the files in a folder."""
    ran = subprocess.run(
        [sys.executable, "-m", "dask_otel", *command.split(), str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env=inherited(),
    )
    return json.loads(ran.stdout) if "--json" in command else ran.stdout


def runs(folder: Path) -> list[tuple[str, str, int]]:
    """Name, result and tasks of each run in the history."""
    return [(r["name"], r["result"], r["tasks"]) for r in asked("history --json", folder)["runs"]]


def assert_success(folder: Path) -> None:
    """The run has the result that its script got, once, and nothing speaks of its work as lost."""
    assert runs(folder) == [("job", "success", 41)]
    assert asked("report --json", folder)["runs"][0]["tasks"] == {"memory": 41.0}
    text = asked("report --text", folder)
    for wrong in ("incomplete", "OOM", "SchedulerClosed", "died", "computes again", "runs again"):
        assert wrong not in text


def ended(way: str, folder: Path) -> None:
    """Run the script until its end."""
    env = {
        "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": "dask_otel.preload",
        "DASK_OTEL__FILES__PATH": str(folder),
        "DASK_OTEL__SPANS__LINGER": "100ms" if way == "late" else "10s",
    }
    command = [sys.executable, "-m", "tests.cluster.ending", way, str(folder)]
    ran = subprocess.run(command, env={**inherited(), **env}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("way", ["cluster closes", "script ends", "shutdown", "published", "late"])
def test_a_run_that_succeeded_stays_a_success(tmp_path: Path, way: str) -> None:
    ended(way, tmp_path)
    assert_success(tmp_path)


def test_a_task_that_is_unfinished_beside_them_decides(tmp_path: Path) -> None:
    ended("a task is unfinished", tmp_path)
    assert runs(tmp_path) == [("job", "error, incomplete", 42)]


def test_results_that_are_computed_again_are_work(tmp_path: Path) -> None:
    ended("one worker is lost", tmp_path)
    assert runs(tmp_path) == [("job", "success", 41)]
    reader = Reader()
    reader.read([tmp_path])
    (run,) = reader.runs()
    (root,) = run.roots()
    assert root.number("dask.task.recomputed.count")


@pytest.mark.parametrize("killed", [False, True])
def test_workers_that_leave_before_their_scheduler(tmp_path: Path, killed: bool) -> None:
    """As pods do; with a spool, also if the scheduler is killed after them."""
    files = tmp_path / "files"
    files.mkdir()
    env = {
        "DASK_OTEL__FILES__PATH": str(files),
        "DASK_OTEL__SPANS__LINGER": "100ms",
        "DASK_OTEL__SPOOL__PATH": str(tmp_path / "spool.db"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
    }
    with cluster(tmp_path) as dask:
        scheduler = dask.start_scheduler("--preload", "dask_otel.preload", env=env)
        # One: a second one could compute lost results again before it leaves, too.
        worker = dask.start_worker("a")
        with Client(dask.address) as client:
            client.wait_for_workers(1)
            with span("job"):
                held = client.map(inc, range(40))
                assert client.submit(sum, held).result() == 820
            eventually(lambda: any("job" in f.read_text() for f in files.glob("*-traces.jsonl")))
            worker.terminate()
            eventually(lambda: not client.scheduler_info()["workers"], what="no worker is left")
            if killed:
                scheduler.kill()
            else:
                scheduler.terminate()
    listed = asked("spool", tmp_path / "spool.db")
    assert listed.count("job") == 1, listed
    assert "lost" not in listed
    if not killed:
        assert_success(files)

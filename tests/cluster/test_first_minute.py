"""The commands and programs of the README and the quickstart, run as they stand there."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import dask
import pytest

from dask_otel import read_report
from tests.cluster.processes import ran
from tests.environment import REPOSITORY, inherited
from tests.receiver import receiver
from tests.waiting import ended, eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("runs what the page says; what comes out is looked at, not added up"),
]

README, QUICKSTART = (
    (REPOSITORY / page).read_text(encoding="utf-8") for page in ("README.md", "docs/quickstart.md")
)
#: What an installation puts on the path.
COMMANDS = {"python": "", "dask": "-m dask", "dask-otel": "-m dask_otel"}
#: Nobody's ports.
OWN_PORTS = "--host 127.0.0.1 --port 0 --no-dashboard --dashboard-address 127.0.0.1:0"
#: A machine that stalls for seconds has neither two runs of a program nor half of one.
PATIENT = {"DASK_OTEL__SPANS__LINGER": "60s", "DASK_OTEL__CLOSE_TIMEOUT": "60s"}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def block(page: str, language: str, part: str) -> str:
    (found,) = [one for one in blocks(page, language) if part in one]
    return found


@pytest.fixture
def newcomer(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has just installed the package."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, arguments in COMMANDS.items():
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        command.chmod(0o755)
    environ = inherited()
    # As Dask starts its workers by default.
    del environ["DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"]
    return {
        **environ,
        "PATH": f"{folder}{os.pathsep}{environ['PATH']}",
        # Neither the configuration nor the folder of whoever runs the tests.
        "DASK_CONFIG": str(tmp_path / "config"),
        "PYTHONPATH": str(REPOSITORY / "src"),
        # The dashboard's port may be somebody's.
        "PYTHONWARNINGS": "ignore:Port",
    }


def run(shell: str, folder: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(
        ["sh", "-e"], input=shell, cwd=folder, env=environ, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing listens" not in done.stderr
    return done.stdout


def test_the_first_program_leaves_its_run_in_files_and_is_one_trace(
    tmp_path: Path, newcomer: dict[str, str]
) -> None:
    """With the variables of two steps of the quickstart at once, and a thousandth of the work."""
    pytest.importorskip("bokeh")  # of dask-otel[report], as the page installs it
    program = block(QUICKSTART, "python", "first run")
    assert program.count("1_000_000") == 1
    program = program.replace("1_000_000", "1_000").replace("n_workers=2", "n_workers=1")
    (tmp_path / "first.py").write_text(program)
    server, files = (block(QUICKSTART, "bash", part) for part in ("=quickstart", "FILES__PATH"))
    # In a test there is nobody to look at it.
    shell = server.replace("python first.py\n", "") + files.replace(" --open", "")
    with receiver("grpc") as got:
        # Only the port is another one: that of the page may be taken on this machine.
        shell = shell.replace("http://localhost:4317", got.endpoint)
        total = sum(n * (n - 1) // 2 for n in range(0, 20_000, 1_000))
        assert run(shell, tmp_path, newcomer | PATIENT).startswith(f"{total}\n")
        spans = [span for span in got.spans if span.type == "span"]
    names = ["first run", "first run/add up", "first run/load"]
    assert (
        sorted(span.path for span in spans),
        len({(span.trace_id, span.resource["service.name"]) for span in spans}),
    ) == (names, 1)
    (one,) = read_report(tmp_path / "telemetry").runs
    assert sorted(span.full_name for span in one.of_type("span")) == names
    assert one.metrics.series
    assert (tmp_path / "report.html").stat().st_size > 100_000


#: Runs programs of a folder there, one after the other, and keeps what they print.
BOTH = """
import contextlib, os, runpy, sys
os.chdir(sys.argv[1])
with open("printed", "w") as printed, contextlib.redirect_stdout(printed):
    for name in "12":
        runpy.run_path(name, run_name="__main__")
"""


@pytest.mark.xdist_group("forked")
def test_programs_print_what_the_pages_say(tmp_path: Path) -> None:
    """That it works with processes, and what a report is made of, is shown by the first program."""
    # The second one configures the process.
    for name, page, part in (("1", QUICKSTART, "span_metrics"), ("2", README, "LocalCluster")):
        program = block(page, "python", part).replace("n_workers=2", "processes=False, n_workers=2")
        (tmp_path / name).write_text(program)
    both = tmp_path / "both.py"
    both.write_text(BOTH)
    ran(both, str(tmp_path), folder=tmp_path, DASK_CONFIG=str(tmp_path / "config"))
    printed = (tmp_path / "printed").read_text()
    assert re.fullmatch(r"success 3 \d+\.\d+\n45\n", printed)
    (one,) = read_report(tmp_path / "telemetry").runs
    assert {span.full_name for span in one.of_type("span")} == {"first run"}


def test_the_scheduler_s_command(tmp_path: Path, newcomer: dict[str, str]) -> None:
    """With the variables of an endpoint; and from the client, where a bridge runs already."""
    endpoint = block(README, "bash", "OTEL_EXPORTER_OTLP_ENDPOINT")
    shell = f"{endpoint}exec {block(README, 'bash', 'dask scheduler').strip()} {OWN_PORTS}"
    path = tmp_path / "scheduler.log"
    with path.open("w") as log:
        process = subprocess.Popen(
            ["sh", "-ec", shell], cwd=tmp_path, env=newcomer, stdout=log, stderr=log
        )
    try:

        def started() -> re.Match[str] | None:
            text = path.read_text(encoding="utf-8")
            assert process.poll() is None, text
            return re.search(
                r"Scheduler at: +(\S+)(?s:.*)distributed\.dask_otel - \w+ - (.*)$", text, re.M
            )

        address, said = eventually(started, what="the bridge says that it runs").groups()
        assert said == (
            "dask-otel exports this scheduler's spans and metrics: "
            "http://collector:4318 (OTLP over HTTP)"
        )
        register = block(README, "python", "register")
        (tmp_path / "register.py").write_text(register.replace("tcp://scheduler:8786", address))
        # It is told that its endpoint is not used.
        with pytest.warns(UserWarning, match=r"otel\.environment\.OTEL_EXPORTER_OTLP_ENDPOINT"):
            found = runpy.run_path(str(tmp_path / "register.py"))
        with found["client"] as client:
            # By value: the scheduler has no tests.
            there = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins))
            assert there.count("dask-otel") == 1
    finally:
        process.terminate()
        ended(process)


def test_the_variable_and_the_configuration_file_load_the_bridge(
    tmp_path: Path, newcomer: dict[str, str]
) -> None:
    exported = run(f"{block(README, 'bash', 'SCHEDULER__PRELOAD')}env", tmp_path, newcomer)
    variables = dict(re.findall(r"^(DASK_\w+)=(.*)$", exported, re.MULTILINE))
    (tmp_path / "otel.yaml").write_text(block(README, "yaml", "distributed:"))
    for found in (dask.config.collect_env(variables), *dask.config.collect_yaml([str(tmp_path)])):
        preload = dask.config.get("distributed.scheduler.preload", config=found)
        assert preload in ("dask_otel", ["dask_otel"])


def test_every_command_is_tried_or_known() -> None:
    """What needs the package index, or is tried elsewhere, is named here; nothing else is left."""
    tried = ["python first.py", "dask scheduler", "SCHEDULER__PRELOAD", "OTEL_EXPORTER_OTLP_END"]
    rest = [one for one in blocks(README, "bash") if not any(part in one for part in tried)]
    # `make dist` installs the wheel; `test_demo` runs the demo.
    assert rest == ['pip install "dask-otel[demo,report]"\ndask-otel demo\n']
    # One more in the README: `test_performance_report` runs it.
    assert [len(blocks(page, "python")) for page in (README, QUICKSTART)] == [3, 2]
    assert "```\n\n```\n" not in README

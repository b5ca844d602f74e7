"""What the README tells a newcomer to type, run as it stands there, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from distributed import Client

from tests.environment import inherited
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.unreconciled("runs what the page says; what comes out is looked at, not added up"),
]

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
#: What an installation puts on the path.
COMMANDS = {"python": "", "dask": "-m dask", "dask-otel": "-m dask_otel"}
#: Nobody's ports.
OWN_PORTS = "--host 127.0.0.1 --port 0 --dashboard-address 127.0.0.1:0"


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
        ["sh", "-e"], input=shell, cwd=folder, env=environ, capture_output=True, text=True,
        timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing listens" not in done.stderr
    return done.stdout


@contextmanager
def scheduler(shell: str, folder: Path, environ: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Run what starts a scheduler; give its address, and its log up to the bridge's first word."""
    path = folder / "scheduler.log"
    with path.open("w") as log:
        process = subprocess.Popen(
            ["sh", "-ec", shell], cwd=folder, env=environ, stdout=log, stderr=log
        )
    try:

        def started() -> re.Match[str] | None:
            text = path.read_text(encoding="utf-8")
            assert process.poll() is None, text
            return re.search(
                r"Scheduler at: +(\S+)(?s:.*)distributed\.dask_otel - \w+ - (.*)$", text, re.M
            )

        found = eventually(started, 60, "the bridge says that it runs")
        assert found is not None
        yield found[1], found[2]
    finally:
        process.terminate()
        process.wait(60)


def test_a_run_of_one_s_own_becomes_a_page(tmp_path: Path, newcomer: dict[str, str]) -> None:
    (tmp_path / "first.py").write_text(block(README, "python", "LocalCluster"))
    out = run(block(README, "bash", "python first.py"), tmp_path, newcomer)
    assert out.startswith("45\n")
    assert "first run" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_scheduler_s_command(tmp_path: Path, newcomer: dict[str, str]) -> None:
    """And the third way in: from the client, where a bridge runs already."""
    command = block(README, "bash", "dask scheduler").strip()
    with scheduler(f"exec {command} {OWN_PORTS}", tmp_path, newcomer) as (address, said):
        assert said.startswith("dask-otel")
        register = block(README, "python", "register")
        assert "tcp://scheduler:8786" in register
        (tmp_path / "register.py").write_text(register.replace("tcp://scheduler:8786", address))
        done = subprocess.run(
            [sys.executable, "register.py"], cwd=tmp_path, env=newcomer, capture_output=True,
            text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        # It is told that its endpoint is not used.
        assert "otel.environment.OTEL_EXPORTER_OTLP_ENDPOINT" in done.stderr
        with Client(address) as client:
            # By value: the scheduler has no tests.
            there = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins))
            assert there.count("dask-otel") == 1


@pytest.mark.parametrize("way", ["variable", "file"])
def test_the_variables_and_the_configuration_file(
    tmp_path: Path, newcomer: dict[str, str], way: str
) -> None:
    preload = ""
    if way == "variable":
        preload = block(README, "bash", "SCHEDULER__PRELOAD")
    else:
        config = tmp_path / "config"
        config.mkdir()
        (config / "otel.yaml").write_text(block(README, "yaml", "distributed:"))
    endpoint = block(README, "bash", "OTEL_EXPORTER_OTLP_ENDPOINT")
    shell = f"{preload}{endpoint}exec dask scheduler {OWN_PORTS}"
    with scheduler(shell, tmp_path, newcomer) as (_, said):
        assert said == (
            "dask-otel exports this scheduler's spans and metrics: "
            "http://collector:4318 (OTLP over HTTP)"
        )


def test_every_command_is_tried_or_known() -> None:
    """What needs the package index, or is tried elsewhere, is named here; nothing else is left."""
    tried = ["python first.py", "dask scheduler", "SCHEDULER__PRELOAD", "OTEL_EXPORTER_OTLP_END"]
    rest = [one for one in blocks(README, "bash") if not any(part in one for part in tried)]
    # `make dist` installs the wheel; `test_demo` runs the demo.
    assert rest == ['pip install "dask-otel[demo,report]"\ndask-otel demo\n']
    assert len(blocks(README, "python")) == 2
    assert "```\n\n```\n" not in README

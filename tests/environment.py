"""The environment of processes that tests start: nothing of the developer's own settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]
#: Nothing is exported.
OFF = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("METRICS", "TRACES", "LOGS")}

#: libyaml reads ten times as fast, where it is there: what tests read as they are collected, each
#: of their processes reads.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def inherited(**variables: str) -> dict[str, str]:
    """Return what this process passes on, without settings of OpenTelemetry or Dask, and more.

    Workers of a LocalCluster share one import of Dask.
    """
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "DASK_"))}
    return ours | {"DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver"} | variables


def set_variables(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    """Set variables of this process, until the end of the test."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def run(
    *arguments: str, within: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a new process, which must end well; return what it said."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=within,
        env=inherited(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def python(code: str, **variables: str) -> str:
    """Run code in a new process, away from any configuration; return what it printed."""
    return run("-c", code, **{"DASK_CONFIG": os.devnull, **variables}).stdout.strip()

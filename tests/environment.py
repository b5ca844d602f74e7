"""The environment of processes that tests start: nothing of the developer's own settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_INSTRUMENT = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"


def inherited(**variables: str) -> dict[str, str]:
    """Return what this process passes on, without settings of OpenTelemetry or Dask, and more."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "DASK_"))}
    return ours | variables


def python(code: str, **variables: str) -> str:
    """Run code in a new process, away from any configuration; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited(**{"DASK_CONFIG": os.devnull, **variables}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_instrumented(folder: Path, application: str, variables: Mapping[str, str]) -> list[str]:
    """Run an application by ``opentelemetry-instrument``; return the lines that it printed."""
    (folder / "app.py").write_text(application)
    done = subprocess.run(
        [sys.executable, "-c", _INSTRUMENT, sys.executable, "app.py"],
        cwd=folder,
        env={
            **inherited(OTEL_LOGS_EXPORTER="none"),
            # Its handler starts a thread at the end, which Python 3.12 does not let it.
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "logging",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.splitlines()

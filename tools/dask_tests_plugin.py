"""A plugin of pytest for `dask_tests.py`: records outcomes of tests, and threads that are left."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

#: Seconds that the bridge's threads have to end after the last test.
_PATIENCE = 15.0


_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """A phase of a test is over; what fails in one fails."""
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "skipped" if outcome == "skipped" else "passed"
    decided = _outcomes.get(report.nodeid) == "failed"
    if not decided and (report.when == "call" or outcome != "passed"):
        _outcomes[report.nodeid] = outcome


def pytest_sessionfinish() -> None:
    """Look for threads of the bridge that did not end with their schedulers; write the results."""
    deadline = time.monotonic() + _PATIENCE
    while (left := _threads()) and time.monotonic() < deadline:
        time.sleep(0.1)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found = {
        "tests": _outcomes,
        "cpu": round(sum(one.ru_utime + one.ru_stime for one in used), 1),
        "threads": left,
        "versions": {name: version(name) for name in ("dask", "distributed", "opentelemetry-sdk")},
    }
    Path(os.environ["DASK_TESTS_RESULT"]).write_text(json.dumps(found), encoding="utf-8")


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "dask-otel" in thread.name]

"""A plugin of pytest for `dask_tests.py`: records outcomes of tests, and threads that are left."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

#: Seconds that the bridge's threads have to end after the last test.
_PATIENCE = 15.0


def _write(**entry: Any) -> None:
    with open(os.environ["DASK_TESTS_RESULT"], "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def pytest_runtest_logreport(report: Any) -> None:
    """A phase of a test is over; what fails in one fails."""
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "skipped" if outcome == "skipped" else "passed"
    if report.when == "call" or outcome != "passed":
        _write(test=report.nodeid, outcome=outcome)


def pytest_sessionfinish() -> None:
    """Look for threads of the bridge that did not end with their schedulers."""
    deadline = time.monotonic() + _PATIENCE
    while (left := _threads()) and time.monotonic() < deadline:
        time.sleep(0.1)
    _write(threads=left)


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "dask-otel" in thread.name]

"""Processes of our own, for what neither this one's clocks nor its event loop may feel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import TIMEOUT_MAX, Timer
from typing import Any


@contextmanager
def started(module: str, seconds: float, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of ours in a process; it is killed at the end, or after some seconds.

    Its output comes through a pipe. The `options` are those of ``subprocess.Popen``.
    """
    with subprocess.Popen(
        # Ctrl-C comes here, and ends it below.
        [sys.executable, "-m", module], stdout=subprocess.PIPE, start_new_session=True, **options
    ) as process:  # fmt: skip
        timer = Timer(min(seconds, TIMEOUT_MAX), process.kill)
        try:
            timer.start()
            yield process
        finally:
            timer.cancel()
            process.kill()

"""Processes of Dask's commands, and of scripts, whose libraries are imported already.

They come from the fork server that workers of a LocalCluster come from, too; tests that start them
share it (`pytest.mark.xdist_group`). It imports nothing of ours: what a process imports of the
package, it imports itself.
"""

from __future__ import annotations

import atexit
import multiprocessing.context
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

import dask
from distributed import utils

#: What is read at the import of the libraries, or before it: with one of these, a process is new.
EARLY = {"PYTHONPATH", "DASK_LOGGING"}
#: What most of the CPU time of a start goes to.
LIBRARIES = (
    "distributed.cli.dask_scheduler",
    "distributed.cli.dask_worker",
    "google.protobuf.json_format",
    "grpc",
    "requests",
    "opentelemetry.sdk.resources",
    "opentelemetry.sdk.trace",
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
    "opentelemetry.proto.collector.logs.v1.logs_service_pb2",
    # Of modules that workers import for the functions of tests.
    "pytest",
    __name__,
)
#: Where it can't be imported, schedulers begin as without bokeh, whose import costs more than they.
DASHBOARD = "distributed.dashboard.scheduler"


def choose_libraries() -> None:
    """Let the server that this process may start import these.

    Dask would let it import pandas, and import it here, too.
    """
    utils._forkserver_preload_set = True
    multiprocessing.get_context("forkserver").set_forkserver_preload([*LIBRARIES])


class Forked(multiprocessing.context.ForkServerProcess):
    """What is used of a ``subprocess.Popen``, of ``python SCRIPT ARGS`` or ``-m MODULE ARGS``."""

    def __init__(self, log: str, module: str, args: Sequence[str], env: Mapping[str, str]) -> None:
        super().__init__(target=_become, args=(log, module, args, dict(env)))
        choose_libraries()
        self.start()

    def poll(self) -> int | None:
        """Return the exit code, if it has ended."""
        return self.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        assert self.pid is not None
        os.kill(self.pid, number)


def _become(log: str, module: str, args: Sequence[str], env: Mapping[str, str]) -> None:
    """Be as new: of what this process had from its server, only imports are left."""
    with open(log, "ab") as out:
        for number in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(out.fileno(), number)
    os.environ.clear()
    os.environ.update(env)
    dask.config.refresh()
    choose_libraries()
    sys.modules[DASHBOARD] = None  # type: ignore[assignment]
    sys.argv = [module, *args]
    try:
        if module.endswith(".py"):
            runpy.run_path(module, run_name="__main__")
        else:
            import_module(module).main()
    finally:
        atexit._run_exitfuncs()

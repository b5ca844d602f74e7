"""Real scheduler and worker processes with a client, and functions in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from distributed import Client, span, wait
from tests.cluster import processes
from tests.waiting import eventually

ROOT = Path(__file__).parent.parent


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that can import the benchmarks."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | dict(more)


def run_apart(
    call: Callable[..., Any],
    *arguments: Any,
    more: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
) -> Any:
    """Return a function's result from a process of its own, within a command if one is given.

    Arguments and result are data that JSON knows.

    Raises
    ------
    RuntimeError
        If it failed.
    """
    named = call.__module__, call.__name__, json.dumps(arguments)
    done = subprocess.run(
        [*within, sys.executable, "-m", "benchmarks.cluster", *named],
        env=environment(more or {}), capture_output=True, text=True, timeout=3600,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def answer(found: Any) -> None:
    """End the process of `run_apart` with a result, without waiting for simulated workers."""
    print(json.dumps(found), flush=True)
    os._exit(0)


@contextlib.contextmanager
def cluster(
    more: Mapping[str, str],
    workers: int = 2,
    *args: str,
    within: Sequence[str] = (),
) -> Iterator[Client]:
    """Give a client of a fresh cluster whose scheduler was started with these arguments."""
    with tempfile.TemporaryDirectory() as folder, processes.cluster(Path(folder)) as built:
        built.start_scheduler(*args, env=environment(more), within=within)
        for number in range(workers):
            built.start_worker(f"w{number}", nthreads=1, env=environment({}))
        with Client(built.address, timeout=90) as client:
            client.wait_for_workers(workers, timeout=90)
            yield client


def _inc(x: int) -> int:
    return x + 1


def many_tasks(client: Client, count: int) -> None:
    """Run tasks of one group in one span."""
    with span("benchmark"):
        futures = client.map(_inc, range(count), key=f"inc-{uuid.uuid4().hex}")
    wait(futures)


def until(client: Client, check: Callable[..., bool]) -> None:
    """Wait until something holds on the scheduler."""
    eventually(lambda: client.run_on_scheduler(check), 60, check.__name__)


if __name__ == "__main__":
    made = getattr(import_module(sys.argv[1]), sys.argv[2])(*json.loads(sys.argv[3]))
    answer(asyncio.run(made) if asyncio.iscoroutine(made) else made)

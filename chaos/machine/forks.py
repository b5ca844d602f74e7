"""Forks of processes that have the bridge's threads, and exporters that are at work."""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from tests.environment import inherited

from chaos.machine import forked
from chaos.machine.forked import waited_for
from chaos.scenario import scenario
from chaos.world import PRELOAD, QUICK, World

_SECTION = "Processes"
#: Children of each kind.
_CHILDREN = 10
#: Seconds that a child may take to end.
_SOON = 15.0
#: What came of one child: its kind, its exit code (None if it hung), seconds.
_Child = tuple[str, int | None, float]


def _as_a_child() -> None:
    logging.getLogger("distributed.dask_otel").info("a message of a forked child")
    gc.collect()


def _forked() -> int:
    """Fork; the child does what children do, and ends as Python does."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _as_a_child()
        atexit._run_exitfuncs()  # noqa: SLF001 (there is no other way)
        code = 0
    finally:
        # Not up the stack, which is that of the scheduler's event loop.
        os._exit(code)


async def fork_on_the_scheduler(count: int) -> list[_Child]:
    """Fork a scheduler's process in all ways. Runs on it (``Client.run_on_scheduler``)."""
    warnings.simplefilter("ignore", DeprecationWarning)
    found: list[_Child] = []
    for _ in range(count):
        # On the event loop, in another thread, and as Python's own library does it.
        pids = {"event loop": _forked(), "thread": await asyncio.to_thread(_forked)}
        process = multiprocessing.get_context("fork").Process(target=_as_a_child)
        process.start()
        pids["multiprocessing"] = process.pid or 0
        for kind, pid in pids.items():
            code, seconds = await asyncio.to_thread(waited_for, pid)
            found.append((kind, code, seconds))
    return found


def _judged(children: list[_Child], soon: float = _SOON) -> float:
    """Check how children ended; returns the seconds of the slowest."""
    for kind, code, seconds in children:
        assert code == 0, f"a child ({kind}) {'hung' if code is None else f'ended with {code}'}"
        assert seconds < soon, f"a child ({kind}) took {seconds:.1f} s to end"
    return max(seconds for _, _, seconds in children)


_ONCE = (
    "Each child ends by itself and sends nothing; the parent goes on: each span and each "
    "increment arrives once, no other comes, nothing is raised"
)


@scenario(
    "fork-scheduler",
    section=_SECTION,
    fault="The scheduler's process is forked again and again under load: on its event loop, in "
    "another thread, by `multiprocessing`; the children log, collect garbage, and run the "
    "functions registered for their exit",
    promise=_ONCE,
)
def _fork_scheduler(world: World) -> str:
    world.start()
    world.work(3)
    with world.under_way(100, seconds=0.1):
        children = world.client.run_on_scheduler(fork_on_the_scheduler, _CHILDREN)
        slowest = _judged(children)
    world.work(3)
    arrived = world.all_arrived()
    world.clean_log()
    return f"{arrived}; {len(children)} children have ended, the slowest after {slowest:.1f} s"


def _script(world: World, env: Mapping[str, str]) -> list[_Child]:
    with (world.folder / "script.log").open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-m", "chaos.machine.forked"],
            env=inherited(**env),
            stdout=subprocess.PIPE,
            stderr=log,
            check=False,
            timeout=600,
        )
    assert done.returncode == 0, f"the script ended with {done.returncode}"
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return [tuple(child) for child in found]


@scenario(
    "fork-script",
    section=_SECTION,
    fault="A script with a `LocalCluster` in its own process forks, by `multiprocessing` and by "
    "`os.fork` with `sys.exit` in the child",
    promise=_ONCE + "; a child takes no longer to end than without the bridge",
)
def _fork_script(world: World) -> str:
    bare = _judged(_script(world, {}), forked.LIMIT)
    children = _script(
        world,
        {
            **QUICK,
            "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": repr([PRELOAD[1]]),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{world.gate.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": world.protocol,
        },
    )
    # Python's own end of a cluster that is not there takes its time, with and without.
    slowest = _judged(children, bare + _SOON)
    numbers = range(2 * forked.SPANS)
    world.submitted = {f"work {number}": forked.TASKS for number in numbers}
    world.all_spans_arrived()
    world.nothing_came_twice()
    tasks = round(sum(world.collector.last("dask.task.finished").values()))
    assert tasks == sum(world.submitted.values()), f"{tasks} tasks are counted"
    return (
        f"{len(numbers)} of {len(numbers)} spans, {tasks} of {tasks} tasks; {len(children)} "
        f"children have ended, the slowest after {slowest:.1f} s ({bare:.1f} s without the bridge)"
    )

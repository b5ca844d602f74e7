"""Forks of a process that has the bridge's threads, and exporters that are at work."""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import multiprocessing
import time
import warnings
from multiprocessing.process import BaseProcess

from chaos.scenario import scenario
from chaos.world import World

_FORK = multiprocessing.get_context("fork")
#: Children of each kind.
_CHILDREN = 10
#: Seconds that a child may take to end; else it hangs.
_SOON = 15.0
#: What came of one child: its kind, its exit code (negative if it hung), seconds.
_Child = tuple[str, int | None, float]


def _as_a_child() -> None:
    logging.getLogger("distributed.dask_otel").info("a message of a forked child")
    gc.collect()
    # As Python does at its end, beside what `multiprocessing` does of it.
    atexit._run_exitfuncs()  # noqa: SLF001


def _forked() -> BaseProcess:
    """Fork; the child does what children do, and ends."""
    process = _FORK.Process(target=_as_a_child)
    process.start()
    return process


async def fork_on_the_scheduler(count: int) -> list[_Child]:
    """Fork a scheduler's process in all ways. Runs on it (``Client.run_on_scheduler``)."""
    warnings.simplefilter("ignore", DeprecationWarning)
    found: list[_Child] = []
    for _ in range(count):
        children = {"event loop": _forked(), "thread": await asyncio.to_thread(_forked)}
        for kind, child in children.items():
            began = time.monotonic()
            await asyncio.to_thread(child.join, _SOON)
            child.kill()
            await asyncio.to_thread(child.join)
            found.append((kind, child.exitcode, time.monotonic() - began))
    return found


@scenario(
    "fork-scheduler",
    section="Processes",
    fault="The scheduler's process is forked again and again under load, on its event loop and in "
    "another thread; the children log, collect garbage, and run the functions registered for their "
    "exit and for that of threads",
    promise="Each child ends by itself and sends nothing; the parent goes on: each span and each "
    "increment arrives once, no other comes, nothing is raised",
)
def _fork_scheduler(world: World) -> str:
    world.start()
    world.work(3)
    with world.under_way(100, seconds=0.1):
        children = world.client.run_on_scheduler(fork_on_the_scheduler, _CHILDREN)
    for kind, code, _ in children:
        assert code == 0, f"a child ({kind}) ended with {code}"
    slowest = max(seconds for _, _, seconds in children)
    world.work(3)
    arrived = world.all_arrived()
    world.clean_log()
    return f"{arrived}; {len(children)} children have ended, the slowest after {slowest:.1f} s"

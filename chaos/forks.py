"""Forks of a process that has the bridge's threads, and exporters that are at work."""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import multiprocessing
import time
import warnings

from chaos.scenario import scenario
from chaos.world import World

#: Children, and the seconds that one may take to end; else it hangs.
_CHILDREN, _SOON = 20, 15.0


def _as_a_child() -> None:
    logging.getLogger("distributed.dask_otel").info("a message of a forked child")
    gc.collect()
    # As Python does at its end, beside what `multiprocessing` does of it.
    atexit._run_exitfuncs()  # noqa: SLF001


async def fork_on_the_scheduler(count: int) -> list[tuple[int | None, float]]:
    """Fork a scheduler's process, and return the exit code and the seconds of each child.

    Runs on it (``Client.run_on_scheduler``). The code is negative if a child hung.
    """
    warnings.simplefilter("ignore", DeprecationWarning)
    found = []
    for _ in range(count):
        began = time.monotonic()
        child = multiprocessing.get_context("fork").Process(target=_as_a_child)
        child.start()
        await asyncio.to_thread(child.join, _SOON)
        child.kill()
        await asyncio.to_thread(child.join)
        found.append((child.exitcode, time.monotonic() - began))
    return found


@scenario(
    "fork-scheduler",
    section="Processes",
    fault="The scheduler's process is forked again and again under load; the children log, "
    "collect garbage, and run the functions registered for their exit and for that of threads",
    promise="Each child ends by itself and sends nothing; the parent goes on: each span and each "
    "increment arrives once, no other comes, nothing is raised",
)
def _fork_scheduler(world: World) -> str:
    world.start()
    world.work(3)
    with world.under_way(100, seconds=0.1):
        children = world.client.run_on_scheduler(fork_on_the_scheduler, _CHILDREN)
    for code, _ in children:
        assert code == 0, f"a child ended with {code}"
    slowest = max(seconds for _, seconds in children)
    world.work(3)
    arrived = world.all_arrived()
    world.clean_log()
    return f"{arrived}; {len(children)} children have ended, the slowest after {slowest:.1f} s"

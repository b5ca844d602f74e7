"""Forks of a process that has the bridge's threads, and exporters that are at work."""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import multiprocessing
import os
import threading
import time
import warnings

from chaos.scenario import scenario
from chaos.world import World

#: Children of each kind.
_CHILDREN = 10
#: Seconds that a child may take to end; else it hangs.
_SOON = 15.0
#: What came of one child: its kind, its exit code (None if it hung), seconds.
_Child = tuple[str, int | None, float]


def _as_a_child() -> None:
    logging.getLogger("distributed.dask_otel").info("a message of a forked child")
    gc.collect()


def _forked() -> int:
    """Fork; the child does what children do, and ends as Python does."""
    main = threading.current_thread() is threading.main_thread()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _as_a_child()
        # As Python does at its end; there is no other way.
        if main:
            threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
        code = 0
    finally:
        # Not up the stack, which is that of the scheduler's event loop.
        os._exit(code)


def _waited_for(pid: int) -> tuple[int | None, float]:
    """Wait for a child; return its exit code, None if it had to be killed, and the seconds."""
    began = time.monotonic()
    while time.monotonic() - began < _SOON:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), time.monotonic() - began
        time.sleep(0.02)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return None, _SOON


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
            code, seconds = await asyncio.to_thread(_waited_for, pid)
            found.append((kind, code, seconds))
    return found


@scenario(
    "fork-scheduler",
    section="Processes",
    fault="The scheduler's process is forked again and again under load: on its event loop, in "
    "another thread, by `multiprocessing`; the children log, collect garbage, and run the "
    "functions registered for their exit and for that of threads",
    promise="Each child ends by itself and sends nothing; the parent goes on: each span and each "
    "increment arrives once, no other comes, nothing is raised",
)
def _fork_scheduler(world: World) -> str:
    world.start()
    world.work(3)
    with world.under_way(100, seconds=0.1):
        children = world.client.run_on_scheduler(fork_on_the_scheduler, _CHILDREN)
    for kind, code, _ in children:
        assert code == 0, f"a child ({kind}) {'hung' if code is None else f'ended with {code}'}"
    slowest = max(seconds for _, _, seconds in children)
    world.work(3)
    arrived = world.all_arrived()
    world.clean_log()
    return f"{arrived}; {len(children)} children have ended, the slowest after {slowest:.1f} s"

"""A scheduler whose memory is limited, while the queue of what waits for the collector grows."""

from __future__ import annotations

import gc
import logging
import resource
import time
from pathlib import Path
from typing import Any

from distributed import span
from tests.waiting import eventually

from chaos.scenario import HTTP, progress, scenario
from chaos.world import PATIENCE, World
from chaos.world import world as another_world

_SECTION = "The machine"
_MIB = 2**20
#: Failing tasks of a span: as many as are shown with their stack traces.
_FAILING = 16
#: Spans of a step, and steps.
_SPANS, _STEPS = 6, 12
#: Records that the queue holds, and the step from which on it is full.
_QUEUE, _FULL = 512, 6
#: Calls between a task and its error, two lines each: some 30 KiB of traceback.
_DEPTH = 150
#: Bytes that the limit leaves free.
_LEFT = _MIB // 2


def _ping(depth: int, message: str) -> None:
    # In turns with `_pong`, or Python would shorten the traceback.
    if not depth:
        raise ValueError(message)
    _pong(depth - 1, message)


def _pong(depth: int, message: str) -> None:
    _ping(depth, message)


def _fails(x: int) -> None:
    _ping(_DEPTH, f"{x} " * 1000)


def _fail(world: World, spans: int) -> None:
    """Compute spans as large as they come: all of their tasks fail, deep in a recursion."""
    for _ in range(spans):
        name = f"work {len(world.submitted)}"
        with span(name):
            keys = [(f"fail-{name.replace(' ', '')}x", index) for index in range(_FAILING)]
            futures = world.client.map(_fails, range(_FAILING), key=keys)
        world.submitted[name] = _FAILING
        world.wait(futures)
        del futures


def status(world: World, what: str) -> int:
    """Return bytes of the scheduler's process: ``VmRSS``, ``VmSize``."""
    for line in Path(f"/proc/{world.pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"the scheduler has ended: {world.scheduler.output[-600:]}")


def _grown(world: World) -> list[int]:
    """Fill the queue, and go on; returns the resident bytes after each step."""
    sizes = []
    for step in range(_STEPS):
        _fail(world, _SPANS)
        sizes.append(status(world, "VmRSS"))
        progress(f"{(step + 1) * _SPANS} spans, {sizes[-1] / _MIB:.0f} MiB")
    return sizes


def _without(folder: Path) -> list[int]:
    """Return what the same work takes with the bridge switched off."""
    (folder / "without").mkdir()
    with another_world(folder / "without", HTTP) as bare:
        bare.start({"OTEL_SDK_DISABLED": "true", **_ENV})
        _fail(bare, 2)
        return [status(bare, "VmRSS"), *_grown(bare)]


#: All threads have one heap, and none has a reserve that no limit knows of; what is large is asked
#: of the system.
_ENV = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "OTEL_BSP_MAX_QUEUE_SIZE": str(_QUEUE),
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(_QUEUE),
    "OTEL_EXPORTER_OTLP_TIMEOUT": "10",
}


def make_room(dask_scheduler: Any) -> None:
    """Leave gaps in the memory of a scheduler: small objects have room, and large ones none.

    Runs on the scheduler (``Client.run_on_scheduler``).
    """
    gaps = [bytes(size) for _ in range(6000) for size in (100, 300, 500, 2000, 9000)]
    # What stays keeps the rest from being given back to the system.
    dask_scheduler.chaos = gaps[::7]
    del gaps
    gc.collect()
    logging.getLogger("distributed.dask_otel").setLevel(logging.DEBUG)


@scenario(
    "memory-limit",
    section=_SECTION,
    fault="The collector is away while 72 spans end, each with 16 long stack traces; with its "
    "queue of 512 records full, the scheduler reaches its memory limit (`RLIMIT_AS`), and the "
    "collector comes back",
    promise="Memory is bounded: the bridge takes what `OTEL_BSP_MAX_QUEUE_SIZE` "
    "allows, and no more however long it lasts. An export for which there is no memory fails as "
    "any other does, and the scheduler runs on. Each record arrives once or is counted as lost; "
    "the counters lose nothing",
    protocols=(HTTP,),
    loses=True,
)
def _memory_limit(world: World) -> str:
    progress("without the bridge")
    bare = _without(world.folder)
    progress("with the bridge")
    world.gate.mode = "pass"
    world.start(_ENV)
    _fail(world, 2)
    world.all_arrived()
    before = status(world, "VmRSS")
    arrived = len(world.collector.spans)
    world.gate.mode = "closed"
    sizes = _grown(world)
    ours = (sizes[-1] - before) - (bare[-1] - bare[0])
    later = (sizes[-1] - sizes[_FULL]) - (bare[-1] - bare[_FULL + 1])
    assert later < 16 * _MIB, f"it grows by {later / _MIB:.0f} MiB beyond the full queue"
    # A record with its stack trace (8 KiB) exists as Dask told of it, twice as long at most.
    bound = _QUEUE * 3 * 8192 + 16 * _MIB
    assert ours < bound, f"the bridge takes {ours / _MIB:.0f} MiB, of {bound / _MIB:.0f} MiB"

    world.client.run_on_scheduler(make_room)
    free = resource.prlimit(world.pid, resource.RLIMIT_AS)
    resource.prlimit(world.pid, resource.RLIMIT_AS, (status(world, "VmSize") + _LEFT, free[1]))
    world.gate.mode = "pass"
    starved = lambda: world.scheduler.output.count("MemoryError")  # noqa: E731
    try:
        eventually(starved, PATIENCE, "there was no memory for an export")
        # The scheduler runs on meanwhile.
        world.work(3)
        time.sleep(5)
    finally:
        resource.prlimit(world.pid, resource.RLIMIT_AS, free)
    _fail(world, 2)
    lost = 0

    def reconciled() -> bool:
        nonlocal lost
        lost = sum(world.dropped(reason, "traces") for reason in ("queue_full", "untranslatable"))
        records = len(world.collector.spans) - arrived
        # A span, its group, and its tasks; those of `work` have one task.
        expected = (_STEPS * _SPANS + 2) * (2 + _FAILING) + 3 * 3
        assert records + lost == expected, f"{records} and {lost} of {expected}"
        return True

    eventually(reconciled, PATIENCE, "each record has arrived or is counted as lost")
    assert world.copies() == 0
    tasks = world.all_tasks_counted()
    return (
        f"{ours / _MIB:.0f} MiB more than without the bridge with a full queue, "
        f"{later / _MIB:+.0f} MiB more after twice as many spans; at the limit {starved()} "
        f"times no memory, and the scheduler works on; {lost} records are counted as lost, all "
        f"others came once; {tasks} of {tasks} tasks are counted"
    )

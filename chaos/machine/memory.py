"""A scheduler whose memory is limited, while the queue of what waits for the collector grows."""

from __future__ import annotations

import resource

from chaos.collectors import arrived_or_lost
from chaos.scenario import HTTP, progress, scenario
from chaos.world import World
from chaos.world import world as another_world

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
_LEFT = 128 * _MIB
_ENV = {
    # One heap for all threads: each other one would reserve 64 MiB of the limit for itself.
    "MALLOC_ARENA_MAX": "1",
    "OTEL_BSP_MAX_QUEUE_SIZE": str(_QUEUE),
    "OTEL_EXPORTER_OTLP_TIMEOUT": "10",
    # Tasks on the path are exported, too: their number depends on times.
    "DASK_OTEL__SPANS__PATH": "False",
}


def _ping(depth: int, message: str) -> None:
    # In turns with `_pong`, or Python would shorten the traceback.
    if not depth:
        raise ValueError(message)
    _pong(depth - 1, message)


def _pong(depth: int, message: str) -> None:
    _ping(depth, message)


def _fails(x: int, seconds: float) -> None:
    _ping(_DEPTH, f"{x} " * 1000)


def _fail(world: World, spans: int) -> None:
    """Compute spans as large as they come: all of their tasks fail, deep in a recursion."""
    for _ in range(spans):
        world.wait(world.submit(_FAILING, call=_fails)[1])


def _grown(world: World) -> list[int]:
    """Fill the queue, and go on; returns the resident bytes before, and after each step."""
    _fail(world, 2)
    sizes = [world.memory()]
    for step in range(_STEPS):
        _fail(world, _SPANS)
        sizes.append(world.memory())
        progress(f"{(step + 1) * _SPANS} spans, {sizes[-1] / _MIB:.0f} MiB")
    return sizes


@scenario(
    "memory-limit",
    section="The machine",
    fault="The scheduler has 128 MiB left (`RLIMIT_AS`), the collector is away while 72 spans end, "
    "each with 16 long stack traces, and the queue holds 512 records",
    promise="Memory is bounded: the queue drops what does not fit, and the bridge takes no more "
    "however long it lasts. Each record arrives once or is counted as lost; the counters lose "
    "nothing; the scheduler runs on",
    protocols=(HTTP,),
    loses=True,
)
def _memory_limit(world: World) -> str:
    progress("without the bridge")
    with another_world(world.folder / "without", HTTP) as disabled:
        disabled.start({"OTEL_SDK_DISABLED": "true", **_ENV})
        bare = _grown(disabled)
    progress("with the bridge")
    world.start(_ENV)
    _fail(world, 2)
    world.all_arrived()
    arrived = len(world.collector.spans)
    world.gate.mode = "closed"
    limit = world.memory("VmSize") + _LEFT
    resource.prlimit(world.pid, resource.RLIMIT_AS, (limit, limit))
    sizes = _grown(world)
    ours, later = (
        (sizes[-1] - sizes[first]) - (bare[-1] - bare[first]) for first in (0, _FULL + 1)
    )
    assert later < 16 * _MIB, f"it grows by {later / _MIB:.0f} MiB beyond the full queue"
    # A record with its stack trace (8 KiB) is at most twice as long in the queue.
    bound = _QUEUE * 3 * 8192 + 16 * _MIB
    assert ours < bound, f"the bridge takes {ours / _MIB:.0f} MiB, of {bound / _MIB:.0f} MiB"

    world.gate.mode = "pass"
    world.work(3)
    # A span, its group, and its tasks; of those of `work` the slowest task alone.
    sent = (2 + _STEPS * _SPANS) * (2 + _FAILING) + 3 * 3
    lost = arrived_or_lost(world, arrived, sent)
    tasks = world.all_tasks_counted()
    world.one_message_each()
    return (
        f"{max(0.0, ours / _MIB):.0f} MiB more than without the bridge, {later / _MIB:+.0f} MiB of "
        f"it after the queue was full; {lost} records are "
        f"counted as `queue_full`, all others came once; {tasks} of {tasks} tasks are counted"
    )

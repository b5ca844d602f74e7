"""A scheduler whose memory is limited, while the queue of what waits for the collector grows."""

from __future__ import annotations

import resource
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
#: Bytes that the limit leaves free, and requests for which there is no memory.
_LEFT, _STARVED = 128 * _MIB, 3


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
        name = f"failing {len(world.submitted)}"
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


_ENV = {
    # One heap for all threads: each other one would reserve 64 MiB of the limit for itself.
    "MALLOC_ARENA_MAX": "1",
    "OTEL_BSP_MAX_QUEUE_SIZE": str(_QUEUE),
    "OTEL_EXPORTER_OTLP_TIMEOUT": "10",
}


def starve(times: int, dask_scheduler: Any) -> None:
    """Let there be no memory for the next requests of spans.

    Runs on the scheduler (``Client.run_on_scheduler``).
    """
    from opentelemetry.exporter.otlp.proto.http import trace_exporter

    encode, left = trace_exporter.encode_spans, [times]

    def starved(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise MemoryError
        return encode(*args, **kwargs)

    trace_exporter.encode_spans = starved
    dask_scheduler.chaos = left


def left_to_starve(dask_scheduler: Any) -> int:
    """Return for how many requests there will be no memory. Runs on the scheduler."""
    return int(dask_scheduler.chaos[0])


@scenario(
    "memory-limit",
    section=_SECTION,
    fault="The scheduler has 128 MiB left (`RLIMIT_AS`), the collector is away while 72 spans end, "
    "each with 16 long stack traces, and the queue holds 512 records; when the collector is back, "
    "there is no memory for the first requests (`MemoryError` where they are encoded)",
    promise="Memory is bounded: the queue gives way, and the bridge takes no more however long it "
    "lasts. A request for which there is no memory is tried again as any other that fails. Each "
    "record arrives once or is counted as lost; the counters lose nothing; the scheduler runs on",
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
    limit = status(world, "VmSize") + _LEFT
    resource.prlimit(world.pid, resource.RLIMIT_AS, (limit, limit))
    world.gate.mode = "closed"
    sizes = _grown(world)
    ours = (sizes[-1] - before) - (bare[-1] - bare[0])
    later = (sizes[-1] - sizes[_FULL]) - (bare[-1] - bare[_FULL + 1])
    assert later < 16 * _MIB, f"it grows by {later / _MIB:.0f} MiB beyond the full queue"
    # A record with its stack trace (8 KiB) exists as Dask told of it, twice as long at most.
    bound = _QUEUE * 3 * 8192 + 16 * _MIB
    assert ours < bound, f"the bridge takes {ours / _MIB:.0f} MiB, of {bound / _MIB:.0f} MiB"

    world.client.run_on_scheduler(starve, _STARVED)
    world.gate.mode = "pass"
    eventually(
        lambda: not world.client.run_on_scheduler(left_to_starve),
        PATIENCE,
        "there was no memory for requests",
    )
    world.work(3)
    lost = 0

    def reconciled() -> bool:
        nonlocal lost
        lost = world.dropped("queue_full", "traces")
        records = len(world.collector.spans) - arrived
        # A span, its group, and its tasks; of those of `work` the slowest task alone.
        expected = _STEPS * _SPANS * (2 + _FAILING) + 3 * 3
        assert records + lost == expected, f"{records} and {lost} of {expected}"
        return True

    eventually(reconciled, PATIENCE, "each record has arrived or is counted as lost")
    world.nothing_came_twice()
    tasks = world.all_tasks_counted()
    world.one_message_each()
    return (
        f"{max(0.0, ours / _MIB):.0f} MiB more than without the bridge, {later / _MIB:+.0f} MiB of "
        f"it after the queue was full; {_STARVED} requests found no memory; {lost} records are "
        f"counted as `queue_full`, all others came once; {tasks} of {tasks} tasks are counted"
    )

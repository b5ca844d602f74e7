"""Reads facts from Dask's objects, as plain values."""

from __future__ import annotations

import pickletools
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import islice, pairwise
from math import inf, isfinite
from operator import itemgetter
from typing import Any, Final

from distributed.metrics import time
from distributed.scheduler import (
    MemoryState,
    Scheduler,
    TaskGroup,
    TaskState,
    WorkerState,
    heartbeat_interval,
)
from distributed.spans import Span

from dask_otel.core.life.clock_offsets import ClockOffsets
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import NO_SUMS, GroupFacts
from dask_otel.core.trace import Trace

#: Task states with work left.
UNFINISHED: Final = frozenset({"waiting", "no-worker", "queued", "processing"})

#: Most workers whose facts the doctor gets one by one.
MOST_WORKERS: Final = 500

#: The counted states: all except ``forgotten``, in which no task stays.
STATES: Final = (*sorted(UNFINISHED), "released", "memory", "erred")

_DEFINITION: Final = re.compile(r"\s*(?:async\s+)?def\s+(\w+)")


def group_sums(group: TaskGroup, before: GroupFacts = NO_SUMS) -> GroupFacts:
    """Return a TaskGroup's sums of all work after `before`."""
    durations = {
        action: seconds - before.durations.get(action, 0.0)
        for action, seconds in group.all_durations.items()
    }
    return GroupFacts(
        output_bytes=max(0, group.nbytes_total - before.output_bytes),
        durations={action: seconds for action, seconds in durations.items() if seconds > 0},
        types=tuple(group._types),
    )


def unfinished(group: TaskGroup) -> int:
    """Return the number of a group's tasks with work left."""
    return sum(group.states[state] for state in UNFINISHED)


def restriction(task: TaskState) -> str:
    """Return by what a task is restricted to some workers; empty if any may run it."""
    if task.resource_restrictions:
        return "resources"
    return "workers" if task.worker_restrictions or task.host_restrictions else ""


def ancestors(dask_span: Span) -> list[Span]:
    """Return the ancestors of a Dask span, root first."""
    above: list[Span] = []
    while (dask_span := dask_span.parent) is not None:
        above.insert(0, dask_span)
    return above


def root_of(dask_span: Span) -> Span:
    """Return the root of a Dask span's tree."""
    return (*ancestors(dask_span), dask_span)[0]


def trace_of(dask_span: Span, lifecycle: Lifecycle) -> Trace | None:
    """Return the trace of a span's first generation; None if the bridge has forgotten it."""
    root = root_of(dask_span)
    return lifecycle.generations.trace_of(dask_span.id, root.id, root.name[0])


def collection_types(dask_span: Span) -> tuple[str, ...]:
    """Return the distinct types of the collections that a span computed."""
    metadata = dask_span.metadata or {}
    types = (collection.get("type") for collection in metadata.get("collections", ()))
    # One entry per submission: the list grows while the span is in use.
    return tuple(dict.fromkeys(str(name) for name in types if name))


def code(dask_span: Span) -> tuple[str, int, str | None] | None:
    """Return (file, line, function) of the innermost frame of the first submission."""
    for frame in (frames[-1] for frames in dask_span._code if frames):
        function = _DEFINITION.match(frame.code)
        return str(frame.filename), int(frame.lineno_frame), function and function[1]
    return None


def pickled_class(pickled: object) -> str | None:
    """Return the class name of an exception that the scheduler pickled, without unpickling."""
    if not isinstance(pickled, bytes):
        return None
    strings: list[str] = []
    for opcode, argument, _ in pickletools.genops(pickled):
        # Dask lets tblib pickle Python's own classes: as arguments of a function of that module.
        if opcode.name == "STACK_GLOBAL" and "tblib.pickling_support" not in strings[-2:]:
            return strings[-1] if strings else None
        if isinstance(argument, str):
            strings.append(argument)
    return None


def measured(value: object) -> float | None:
    """Return a number that a worker reported; None if it is not a finite number.

    Workers can report any value: users may replace the functions of their metrics.
    """
    try:
        return value if isinstance(value, (int, float)) and isfinite(value) else None
    except OverflowError:
        return None


def memory_of(ws: WorkerState) -> MemoryState | None:
    """Return a worker's report of its memory; None without one, or if it has no valid numbers."""
    try:
        memory = ws.memory if "memory" in ws.metrics else None
    except Exception:
        return None
    # `MemoryState` does not check the spilled bytes.
    return None if memory is None or measured(memory.spilled) is None else memory


def reported(ws: WorkerState, group: str, name: str) -> float | None:
    """Return a number in a group of a worker's report; None if it is not there."""
    found = ws.metrics.get(group)
    return measured(found.get(name)) if isinstance(found, Mapping) else None


def workers_condition(scheduler: Scheduler, clocks: ClockOffsets | None) -> dict[str, Any]:
    """Return the number of workers, their heartbeat interval and clocks, for the doctor.

    `clocks` are the bridge's estimates; None without a bridge.
    """
    now = time()
    workers = scheduler.workers
    return {
        "count": len(workers),
        "heartbeat_interval": float(heartbeat_interval(len(workers))),
        "workers": [
            {
                "address": state.address,
                "name": str(state.name),
                "last_seen_age": max(0.0, now - state.last_seen),
                "clock": None if clocks is None else list(clocks.bounds(state.address)),
            }
            for state in list(workers.values())[:MOST_WORKERS]
        ],
    }


def thread_seconds(scheduler: Scheduler, start: float, stop: float) -> float:
    """Return the integral of ``total_nthreads`` over the interval."""
    history = scheduler.total_nthreads_history
    first = max(0, bisect_right(history, start, key=itemgetter(0)) - 1)
    steps = [*islice(history, first, None), (inf, 0)]
    parts = (
        max(0.0, min(until, stop) - max(since, start)) * threads
        for (since, threads), (until, _) in pairwise(steps)
    )
    return float(sum(parts))


def run_times(startstops: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """Return when a run began and stopped computing, or zeros; earlier runs can be before it."""
    started = stopped = 0.0
    for startstop in startstops:
        if startstop["action"] == "compute":
            started, stopped = startstop["start"], startstop["stop"]
    return started, stopped

"""Finished spans for tests: what ended, with changes."""

from __future__ import annotations

from dataclasses import replace

from dask_otel.core import identity
from dask_otel.core.records import (
    Failure,
    FinishedGroup,
    FinishedSpan,
    FinishedTask,
    SpanIdentity,
    TaskCounts,
    TaskRun,
)

T = 1_700_000_000.0
T_NS = 1_700_000_000 * 10**9


def make_identity(**changes) -> SpanIdentity:
    who = SpanIdentity(
        dask_id="root",
        root_id="root",
        tags=("workflow",),
        generation=1,
        trace_id=identity.trace_id("root"),
        span_id=identity.span_id("root"),
        parent_span_id=None,
    )
    return replace(who, **changes)


def make_group(**changes) -> FinishedGroup:
    group = FinishedGroup(
        name="load-123",
        prefix="load",
        ordinal=1,
        start=T + 2,
        stop=T + 6,
        counts=TaskCounts(tasks=3, memory=3),
        output_bytes=300,
        durations={"compute": 6.5, "transfer": 1},
        types=("numpy.ndarray",),
    )
    return replace(group, **changes)


def make_span(**changes) -> FinishedSpan:
    finished = FinishedSpan(
        identity=make_identity(),
        start=T,
        stop=T + 10,
        first_start=T + 2.5,
        result="success",
        complete=True,
        counts=TaskCounts(tasks=3, memory=3),
        output_bytes=300,
        group_count=1,
        worker_count=2,
        thread_count=4,
        active_cpu=40,
        dask_idle=33.5,
        idle=33.25,
        capacity=39.75,
        activities={"thread-cpu": 6, "disk-read": 0.5},
    )
    return replace(finished, **changes)


def make_failure(text="KeyError('b')", **changes) -> Failure:
    failure = Failure(
        time=T + 5,
        key="load-1",
        prefix="load",
        worker="tcp://w:1",
        worker_name="w-1",
        text=text,
        traceback='  File "a.py", line 1, in load\n    return table["b"]\n',
    )
    return replace(failure, **changes)


def make_task(failure: Failure | None = None, group: str = "load-123", **changes) -> FinishedTask:
    run = TaskRun(2.0, 7, "load-1", "w-1", T + 3, T + 5, 1, 0.5, 100, "numpy.ndarray")
    prefix = changes.pop("prefix", "load")
    return FinishedTask(run._replace(failure=failure, **changes), group, prefix, 1)

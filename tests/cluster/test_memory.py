"""What the adapter keeps after the export: nothing of Dask's, and no more than a bounded table."""

from __future__ import annotations

import gc
import operator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest
from distributed import span, wait
from distributed.scheduler import TaskGroup, TaskState, WorkerState
from distributed.spans import Span

from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel.core.life.open_span import Limits, OpenSpan
from dask_otel.core.life.progress import SPARE
from tests.cluster.observed import Observed, observed
from tests.waiting import eventually

pytestmark = pytest.mark.cluster


def kept(adapter: SchedulerAdapter) -> list[Any]:
    """Every object that the adapter keeps alive, apart from the scheduler itself."""
    lifecycle = adapter.lifecycle
    seen: dict[int, Any] = {}
    stack = [
        lifecycle.open,
        lifecycle.reports,
        lifecycle.finished,
        lifecycle.generations,
        lifecycle._settling,
        lifecycle._lingering,
        lifecycle._long,
        lifecycle.progress,
        adapter.blocks.blocks._holding,
        adapter.blocks.blocks._waiting,
        adapter.spans.groups,
        adapter.tasks.assigned,
        adapter.spans.requested,
    ]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType | MethodType):
            continue
        seen[id(item)] = item
        stack += gc.get_referents(item)
    return list(seen.values())


def dasks(objects: list[Any]) -> list[Any]:
    return [x for x in objects if isinstance(x, Span | TaskGroup | TaskState | WorkerState)]


def test_nothing_of_dasks_is_kept_after_the_export() -> None:
    with observed() as o:
        with o.held():
            with span("root"), span("child"):
                good = o.client.map(operator.neg, range(10))
                bad = o.client.submit(operator.truediv, 1, 0)
            wait([*good, bad])
            o.client.sync(check_that_there_is_something_to_find, o)
        o.quiet()
        objects = kept(o.adapter)
        assert dasks(objects) == []
        assert not [x for x in objects if isinstance(x, OpenSpan)]


async def check_that_there_is_something_to_find(o: Observed) -> None:
    assert {type(x) for x in dasks(kept(o.adapter))} >= {TaskGroup}


def test_many_short_spans_leave_a_bounded_table_and_nothing_else() -> None:
    with observed(Limits(linger=0.0, settle_timeout=30.0, remember=20)) as o:
        sizes = []
        for batch in range(4):
            for number in range(50):
                with span(f"span-{batch}-{number}"):
                    key = f"f{batch}x{number}-{'a' * 32}"
                    o.client.submit(operator.neg, number, key=key).result()
            eventually(lambda: not o.cluster.scheduler.tasks)
            o.quiet()
            o.exported.clear()
            o.observer.increments.clear()
            # Lines of spans that ended wait for their turn, too; see LongSpans for their bound.
            lines = o.adapter.lifecycle._long._due
            assert len(lines) <= SPARE + 50
            lines.clear()
            sizes.append(len(kept(o.adapter)))
        assert len(o.adapter.lifecycle.generations._exported) == 20
        assert max(sizes[1:]) <= sizes[0] + 5, sizes

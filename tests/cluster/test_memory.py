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
from dask_otel.core.life.open_span import OpenSpan
from tests.cluster.observed import Observed

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
        adapter.task_events.assigned,
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


def test_nothing_of_dasks_is_kept_after_the_export(o: Observed) -> None:
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

"""Reads the results in memory and their keepers, in short steps: `dask_otel.held`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, Final

from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskGroup, TaskState
from distributed.spans import Span

from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.present import MOST, Present
from dask_otel.core.holdings import Holdings, Keeper
from dask_otel.core.text import line_name, line_text

#: Most results that one question looks at, those of the fullest workers first; a worker's copy of
#: another worker's result counts here, too.
MOST_RESULTS: Final = 100_000
#: Results after which the event loop has its turn.
STEP: Final = 100

#: Dask keeps what no client keeps by clients of its own: their kinds, by the first word of the id.
_KINDS: Final = {"published": "data set", "variable": "variable", "queue": "queue"}


async def held(adapter: SchedulerAdapter, asked: str | None) -> dict[str, Any] | None:
    """Return the results in memory and their keepers: of all spans, or of some and those below.

    Parameters
    ----------
    asked
        The id of a span, or the full name of some; None for all.

    Returns
    -------
    answer
        Plain data with clean text, see `dask_otel._wire.Held`; None if there is no such span.
    """
    scheduler = adapter.scheduler
    groups: Collection[TaskGroup] = scheduler.task_groups.values()
    title = ""
    if asked is not None:
        if (span := Present(adapter).named(asked)) is None:
            return None
        title = line_name(span.name)
        if span.id == asked:
            groups = [group for one in span.traverse_spans() for group in one.groups]
        else:
            # Each run has a span of its own, and an earlier one may keep the most.
            depth = len(span.name)
            groups = [one for one in groups if _tags(scheduler, one)[:depth] == span.name]
    wanted = {*groups}
    names: dict[TaskGroup, tuple[str, str]] = {}
    found = Holdings()
    for number, task in enumerate(_in_memory(scheduler), 1):
        group = task.group
        # It may have left memory, and groups may have come, since the last step.
        if task.state == "memory" and (group in wanted or asked is None):
            if group not in names:
                names[group] = _names(scheduler, group)
            found.add(*names[group], max(0, task.nbytes), _keepers(task))
        if not number % STEP:
            await asyncio.sleep(0)
    # Others may have left memory, or come, since the first step.
    known = sum(group.states["memory"] for group in groups)
    now = time()
    submitted = {
        name: _last_submission(scheduler, name) for name in found.clients & scheduler.clients.keys()
    }
    seconds = {name: now - when for name, when in submitted.items() if when is not None}
    return {"span": title, "known": max(known, found.results), **found.answer(seconds)}


def _names(scheduler: Scheduler, group: TaskGroup) -> tuple[str, str]:
    """Return the full name of a group's span, empty if it has none, and its prefix."""
    tags = _tags(scheduler, group)
    return line_name(tags) if tags else "", line_text(group.prefix.name)


def _tags(scheduler: Scheduler, group: TaskGroup) -> tuple[str, ...]:
    """Return the tags of a group's span and of those above it; none without a span."""
    span: Span | None = scheduler.extensions["spans"].spans.get(group.span_id)
    return () if span is None else span.name


def _in_memory(scheduler: Scheduler) -> Iterator[TaskState]:
    """Yield each result once, those of the fullest workers first."""
    seen: set[TaskState] = set()
    room = MOST_RESULTS
    for ws in sorted(scheduler.workers.values(), key=lambda ws: -ws.nbytes):
        there = list(islice(ws.has_what, room))
        room -= len(there)
        for task in there:
            if task not in seen:
                seen.add(task)
                yield task


def _keepers(task: TaskState) -> Iterator[Keeper]:
    """Yield what keeps a result in memory."""
    for client in task.who_wants or ():
        kind, _, name = client.client_key.partition("-")
        if kind in _KINDS:
            yield _KINDS[kind], name, None
        else:
            yield ("actor" if task.actor else "client"), client.client_key, None
    waiter = next(iter(task.waiters or ()), None)
    if waiter is not None:
        yield "tasks", waiter.prefix.name, waiter.key
    elif not task.who_wants:
        yield "nothing", "", None


def _last_submission(scheduler: Scheduler, client: str) -> float | None:
    """Return when a client last submitted a graph, from the last events that Dask keeps of it."""
    events = islice(reversed(scheduler.get_events(client)), MOST)
    graphs = (
        float(when)
        for when, event in events
        if isinstance(event, dict) and event.get("action") == "update-graph"
    )
    return next(graphs, None)

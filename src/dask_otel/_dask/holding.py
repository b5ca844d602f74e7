"""Reads what is in memory now and what keeps it there, in short steps: `dask_otel.held`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from distributed.metrics import time

from dask_otel._dask.present import MOST, Present
from dask_otel.core.holdings import Holdings, Keeper
from dask_otel.core.text import Sanitizer, line_text, span_path

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskGroup, TaskState
    from distributed.spans import Span

    from dask_otel._dask.adapter import SchedulerAdapter

#: Most results that one question looks at, those of the fullest workers first; a worker's copy of
#: another worker's result counts here, too.
MOST_RESULTS: Final = 100_000
#: Results and groups after which the event loop has its turn.
STEP: Final = 200

#: The kinds of the clients by which Dask keeps what no client keeps, by their prefix.
_KINDS: Final = {"published-": "data set", "variable-": "variable", "queue-": "queue"}


async def held(adapter: SchedulerAdapter, asked: str | None) -> dict[str, Any] | None:
    """Return what is in memory, of all spans or of one with those below it.

    Parameters
    ----------
    asked
        The id or full name of a span; None for all.

    Returns
    -------
    answer
        Plain data with clean text, see `dask_otel._wire.Held`; None if there is no such span.
    """
    scheduler = adapter.scheduler
    groups: Iterable[TaskGroup] = scheduler.task_groups.values()
    title = ""
    if asked is not None:
        if (span := Present(adapter).named(asked)) is None:
            return None
        title = line_text(span_path(span.name, Sanitizer()))
        groups = chain.from_iterable(one.groups for one in span.traverse_spans())
    names: dict[TaskGroup, tuple[str, str]] = {}
    known = 0
    for number, group in enumerate(list(groups), 1):
        if group.states["memory"]:
            known += group.states["memory"]
            names[group] = _names(scheduler, group)
        if not number % STEP:
            await asyncio.sleep(0)
    found = Holdings()
    for number, task in enumerate(_in_memory(scheduler), 1):
        # It may have left the memory, or a group may have come into it, since the last step.
        if task.state == "memory" and (task.group in names or asked is None):
            of_group = names.get(task.group) or _names(scheduler, task.group)
            found.add(*of_group, max(0, task.nbytes), _keepers(task))
        if not number % STEP:
            await asyncio.sleep(0)
    now = time()
    submitted = {name: _last_submission(scheduler, name) for name in found.clients()}
    seconds = {name: now - when for name, when in submitted.items() if when is not None}
    return {"span": title, "known": max(known, found.results), **found.answer(seconds)}


def _names(scheduler: Scheduler, group: TaskGroup) -> tuple[str, str]:
    """Return the full name of a group's span, empty if it has none, and its prefix."""
    span: Span | None = scheduler.extensions["spans"].spans.get(group.span_id)
    name = "" if span is None else line_text(span_path(span.name, Sanitizer()))
    return name, line_text(group.prefix.name)


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
        name = client.client_key
        for prefix, kind in _KINDS.items():
            if name.startswith(prefix):
                yield kind, name.removeprefix(prefix), None
                break
        else:
            yield ("actor" if task.actor else "client"), name, None
    waiter = next(iter(task.waiters or ()), None)
    if waiter is not None:
        yield "tasks", waiter.prefix.name, waiter.key
    elif not task.who_wants:
        yield "nothing", "", None


def _last_submission(scheduler: Scheduler, client: str) -> float | None:
    """Return when a client last submitted a graph, from the last events that Dask keeps of it."""
    if client not in scheduler.clients:
        return None
    for when, event in islice(reversed(scheduler.get_events(client)), MOST):
        if isinstance(event, dict) and event.get("action") == "update-graph":
            return float(when)
    return None

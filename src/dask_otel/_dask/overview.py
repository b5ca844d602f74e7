"""Reads what the page beside Dask's dashboard shows: open spans, and the last ones that ended.

All numbers are those of `dask_otel.why` and `dask_otel.span_metrics`. Nothing is kept between two
questions.
"""

from __future__ import annotations

import asyncio
from heapq import nsmallest
from itertools import islice
from typing import Any, Final

from distributed.metrics import time
from distributed.spans import Span

from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.present import Present
from dask_otel._dask.settled import SettledSpans
from dask_otel.core.text import line_name

#: Most open spans, and most ended ones.
SHOWN: Final = 20
#: Spans of a tree that has ended from which on it is not read: each takes 0.1 ms.
LARGE: Final = 100


async def overview(adapter: SchedulerAdapter, settled: SettledSpans) -> dict[str, Any]:
    """Return the present state of a scheduler as plain data, in short steps: one for each span."""
    scheduler, lifecycle = adapter.scheduler, adapter.lifecycle
    spans = adapter.spans.extension.spans
    opened = [one for one in lifecycle.open.values() if one.parent is None]
    # Those that work, the last begun first.
    first = nsmallest(SHOWN, opened, key=lambda one: (not one.busy, -one.start))
    at_work: list[dict[str, Any]] = []
    ended = []
    for one in first:
        # It may have ended since.
        if lifecycle.open.get(one.identity.dask_id) is one:
            found = Present(adapter).span(spans[one.identity.dask_id])
            at_work.append(
                {
                    "path": None,
                    "diagnosis": (),
                    **found,
                    "id": one.identity.dask_id,
                    "seconds": time() - one.start,
                }
            )
        await asyncio.sleep(0)
    # Those that have ended meanwhile are among the last ones.
    at_work = [one for one in at_work if one["id"] in lifecycle.open]
    more = sum(one.parent is None for one in lifecycle.open.values()) - len(at_work)
    for span_id in lifecycle.generations.last_roots(SHOWN):
        # One can have new work since, or be forgotten.
        known = span_id in spans and adapter.summary(span_id) is not None
        if known and span_id not in lifecycle.open:
            last = lifecycle.generations.earliest_start(span_id)
            ended.append({**_ended(settled, spans[span_id]), "ended": last})
        await asyncio.sleep(0)
    return {
        "scheduler": scheduler.address,
        "workers": len(scheduler.workers),
        "threads": scheduler.total_nthreads,
        "time": time(),
        "open": at_work,
        "more": more,
        "ended": ended,
    }


def _ended(settled: SettledSpans, span: Span) -> dict[str, Any]:
    """Return the facts of a root that has ended; of one with many spans, its name alone."""
    row = {"id": span.id, "name": line_name(span.name), "start": span.enqueued}
    if len([*islice(span.traverse_spans(), LARGE)]) == LARGE:
        return row
    found = settled.read(span)
    took = sum((found["path"] or {}).values()) or found["stop"] - found["enqueued"]
    return {
        **row,
        "result": found["result"],
        "stop": found["stop"],
        "counts": found["counts"],
        "seconds": took,
    }

"""What goes on at present, for somebody who looks: open spans, threads, seconds, workers.

Asked once a second, of a cluster of any size: it looks at so many spans, groups and workers at
most, and says how many it left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from distributed.metrics import time

from dask_otel._dask.facts import measured
from dask_otel._wire import Present, PresentSpan, PresentWorker
from dask_otel.core.life.open_span import OpenSpan, Phase
from dask_otel.core.records import TaskCounts

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

    from dask_otel._dask.adapter import SchedulerAdapter

#: Spans that are looked at to find those that are shown, and task groups that are added up.
_LOOKED_AT: Final = 2000
#: What can be asked for.
_MOST: Final = 200
#: Activities that are told apart, the longest first.
_MOST_ACTIVITIES: Final = 40
#: Characters of a name.
_LONGEST: Final = 200


def present(adapter: SchedulerAdapter, spans: int, workers: int) -> Present:
    """Return what goes on.

    Parameters
    ----------
    adapter
        Of the scheduler in question.
    spans, workers
        How many of them, at most.
    """
    now = time()
    open_spans = adapter.lifecycle.open
    chosen = _chosen(open_spans.values(), max(0, min(spans, _MOST)))
    described = list(_described(chosen, now, adapter))
    scheduler = adapter.scheduler
    shown = list(islice(scheduler.workers.values(), max(0, min(workers, _MOST))))
    seconds = adapter.time.totals()
    return Present(
        time=now,
        since=adapter.time.since,
        threads=scheduler.total_nthreads,
        free=adapter.time.free_threads,
        seconds=_longest(seconds.activities),
        idle=seconds.idle,
        unused=seconds.unused,
        lost=seconds.lost,
        capacity=seconds.capacity,
        excess=seconds.excess,
        spans=tuple(described),
        more_spans=len(open_spans) - len(described),
        workers=tuple(_worker(ws, now) for ws in shown),
        more_workers=len(scheduler.workers) - len(shown),
    )


def _chosen(spans: Iterable[OpenSpan], most: int) -> list[OpenSpan]:
    """Return spans with what is above them: those that have work of their own first."""
    looked_at = list(islice(spans, _LOOKED_AT))
    looked_at.sort(key=lambda span: (not span.unfinished, span.phase is not Phase.OPEN))
    chosen: dict[OpenSpan, None] = {}
    for span in looked_at:
        line: list[OpenSpan] = []
        above: OpenSpan | None = span
        while above is not None and above not in chosen:
            line.append(above)
            above = above.parent
        if len(chosen) + len(line) <= most:
            chosen.update(dict.fromkeys(reversed(line)))
    return list(chosen)


def _described(
    spans: Iterable[OpenSpan], now: float, adapter: SchedulerAdapter
) -> Iterator[PresentSpan]:
    groups = 0
    for span in spans:
        groups += len(span.groups)
        # Beyond the limit the numbers are not known: a part of them would be wrong.
        counts = _counts(span) if groups <= _LOOKED_AT else None
        idle, _ = adapter.time.span_totals(span)
        parent = span.parent
        yield PresentSpan(
            id=span.identity.dask_id,
            parent=None if parent is None else parent.identity.dask_id,
            name=str(span.identity.tags[-1] if span.identity.tags else "default")[:_LONGEST],
            phase=span.phase.value,
            age=max(0.0, now - span.start),
            unfinished=span.unfinished,
            tasks=None if counts is None else counts.tasks,
            failed=None if counts is None else counts.erred,
            busy=span.execute_seconds,
            idle=idle,
        )


def _counts(span: OpenSpan) -> TaskCounts:
    counts = TaskCounts()
    for group in span.groups:
        counts.add(group.counts)
    return counts


def _longest(activities: dict[str, float]) -> dict[str, float]:
    """Return the longest activities, and the sum of the others."""
    if len(activities) <= _MOST_ACTIVITIES:
        return activities
    ordered = sorted(activities.items(), key=lambda item: -item[1])
    kept = dict(ordered[:_MOST_ACTIVITIES])
    rest = sum(seconds for _, seconds in ordered[_MOST_ACTIVITIES:])
    kept["other"] = kept.get("other", 0.0) + rest
    return kept


def _worker(ws: WorkerState, now: float) -> PresentWorker:
    metrics = ws.metrics
    cpu = measured(metrics.get("cpu"))
    return PresentWorker(
        name=str(ws.name)[:_LONGEST],
        threads=ws.nthreads,
        executing=len(ws.executing),
        processing=len(ws.processing),
        memory=metrics.get("memory") if type(metrics.get("memory")) is int else None,
        memory_limit=ws.memory_limit or None,
        cpu=None if cpu is None else cpu / 100,
        seen=max(0.0, now - ws.last_seen),
    )

"""What cost a span its time so far, from what the scheduler knows of it now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, cast

from distributed.scheduler import Scheduler, TaskGroup
from distributed.spans import Span

from dask_otel._dask.facts import group_sums, thread_seconds
from dask_otel.core.diagnosis import diagnose
from dask_otel.core.diagnosis.facts import Facts, RootFacts, SpanFacts, link_of
from dask_otel.core.life.open_span import Group
from dask_otel.core.life.summaries import SpanSummary, total
from dask_otel.core.path.chain import on_path
from dask_otel.core.path.step import LongStep
from dask_otel.core.records import TaskRun
from dask_otel.core.sums import summed
from dask_otel.core.text import line_name, line_text
from dask_otel.semconv import PATH_PARTS


def diagnosis(
    scheduler: Scheduler,
    spans: Sequence[Span],
    summaries: Sequence[SpanSummary | None],
    parts: Iterable[float],
    steps: Iterable[LongStep] = (),
    until: float = 0.0,
) -> tuple[dict[str, Any], ...]:
    """Return the diagnoses of a span, as plain data.

    What only exports have is unknown here: blocked event loops, transfers, events of workers.

    Parameters
    ----------
    spans, summaries
        The span, and those below it; the summary of each, None if it is unknown.
    parts
        The seconds of its path by `semconv.PATH_PARTS`.
    steps, until
        The longest steps of its own tasks on the path, and the end of the path.
    """
    name = line_name(spans[0].name)
    whole = total(summaries)
    bounds = dict(zip(PATH_PARTS, parts, strict=True))
    span = SpanFacts(name, name, parts=bounds, tasks=whole.counts.tasks)
    took = span.seconds = sum(span.parts.values())
    start = spans[0].enqueued
    span.queue = max(0.0, whole.first_start - start)
    threads = thread_seconds(scheduler, start, start + took) / (took or 1.0)
    for one in spans:
        for key, value in one._cumulative_worker_metrics.items():
            if len(key) == 4 and (key[0], key[3]) == ("execute", "seconds"):
                work, activity = span.work.setdefault(line_text(key[1]), {}), str(key[2])
                work[activity] = work.get(activity, 0.0) + value
    counts = whole.counts
    again = {"error": max(0, counts.retried - counts.lost), "worker_lost": counts.lost}
    root = RootFacts(
        name,
        took,
        span.parts,
        whole.counts.tasks,
        threads,
        summed(span.work.values()),
        whole.idle,
        summaries[0].elsewhere if summaries[0] else 0.0,
        # Those that were not lost with their worker had failed.
        retries={why: count for why, count in again.items() if count},
        cancelled=counts.cancelled,
    )
    for step, own in on_path(steps, until):
        group: Group = step.group
        prefix = line_text(group.prefix)
        if group.restriction:
            span.restrictions[prefix] = group.restriction
        own_parts = {part: took for part, took in zip(PATH_PARTS, own, strict=False) if took}
        sums = group_sums(cast("TaskGroup", group.source), group.before)
        known = group.name, group.tasks, group.memory, sums.durations.get("compute", 0.0)
        span.links.append(link_of(prefix, own_parts, *known, queued=TaskRun(*step.run).queued))
    facts = Facts(took, {name: root}, [span], failed=whole.counts.erred)
    return tuple(asdict(one) for one in diagnose(facts))

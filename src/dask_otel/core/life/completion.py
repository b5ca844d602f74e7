"""Makes the record of a finished span from an open one, and adds it to its parent."""

from __future__ import annotations

from collections.abc import Mapping

from dask_otel.core.life.computing import slow_workers
from dask_otel.core.life.ledger import Ledger
from dask_otel.core.life.open_span import Below, Cluster, Group, GroupFacts, Limits, OpenSpan
from dask_otel.core.life.task_runs import finish_tasks
from dask_otel.core.path.chain import path_of
from dask_otel.core.records import (
    FinishedGroup,
    FinishedSpan,
    Result,
    TaskCounts,
)

#: The result of a tree is its worst one.
SEVERITY: Mapping[Result, int] = {
    "success": 0,
    "cancellation": 1,
    "unknown": 2,
    "error": 3,
    "failure": 4,
}


def worst(*results: Result) -> Result:
    """Return the result of a tree with these results."""
    return max(results, key=SEVERITY.__getitem__)


def finish(
    span: OpenSpan,
    cluster: Cluster,
    limits: Limits,
    complete: bool,
    cut_off: Result = "error",
    elsewhere: float | None = None,
    memory: Ledger | None = None,
) -> FinishedSpan:
    """Return the record of a span's generation, and add it to its parent's sums.

    Parameters
    ----------
    span
        A span without open spans below it.
    cluster
        Has Dask's own sums.
    limits
        Caps on the group spans.
    complete
        False if its own work was cut off.
    cut_off
        The result of a span that was cut off, unless a worse one is known.
    elsewhere
        What other spans' tasks computed meanwhile.
    memory
        The results in memory, if they are followed.
    """
    below = span.below or Below()
    groups, facts, ordinals = _finish_groups(span, cluster, memory)
    kept = sorted(groups, key=lambda g: g.start - g.stop)[: limits.max_groups]
    counts = TaskCounts.of(*span.groups)
    known = complete and not counts.lost
    computed = sum([one.durations.get("compute", 0.0) for one in facts]) if known else None
    complete = complete and below.complete
    result = worst(_own_result(counts, complete, cut_off), below.result)
    failures = tuple(f for f in (span.failed or {}).values() if f is not None)
    dropped_failures = counts.erred - len(failures)
    counts.add(below.counts)
    stop = max(span.last_stop, below.stop, span.start)
    active_cpu, threads = cluster.threads(span.start, stop)
    described = cluster.span_facts(span)
    path, links = (path_of(span, stop) if complete else None) or (None, ())
    execute = span.execute_seconds + below.execute_seconds
    workers = below.workers | span.ran_on
    if path is not None and execute and active_cpu:
        # Seceded tasks run beside the threads: then it is no bound.
        took = stop - span.start
        path = path._replace(threads_bound=min(took, execute * took / active_cpu))
    tasks, dropped_tasks = finish_tasks(span, ordinals, limits.tasks, links, stop)
    finished = FinishedSpan(
        identity=span.identity,
        start=span.start,
        stop=stop,
        first_start=earliest(span.first_start, below.start) or None,
        result=result,
        complete=complete,
        counts=counts,
        output_bytes=below.output_bytes + sum(f.output_bytes for f in facts),
        group_count=below.groups + len(span.groups),
        worker_count=len(workers),
        thread_count=threads,
        active_cpu=active_cpu,
        dask_idle=max(0.0, active_cpu - execute),
        idle=described.idle,
        capacity=described.capacity,
        elsewhere=elsewhere,
        activities=span.activities,
        computed=computed,
        ran_on=frozenset(workers) if span.parent is None else None,
        seceded=span.seceded + below.seceded,
        path=path,
        memory=None if memory is None else memory.of_span(span),
        worker_peak=span.worker_peak,
        groups=tuple(kept) if limits.groups else (),
        dropped_groups=len(groups) - len(kept) if limits.groups else 0,
        tasks=tasks,
        dropped_tasks=dropped_tasks,
        failures=failures,
        dropped_failures=dropped_failures,
        tree_failure=failures[0] if failures else below.failure,
        retries=span.retries,
        dropped_retries=span.dropped_retries,
        collections=described.collections,
        code=described.code,
        requested=span.requested,
        late=span.late,
        attributes={**described.baggage, **(span.attributes or {})},
        callers=described.callers,
        graph=described.graph,
    )
    if span.parent is not None:
        _fold(finished, workers, execute, span.parent)
    return finished


def earliest(one: float, other: float) -> float:
    """Return the earlier of two times; 0.0 means none."""
    return min(one, other) if one and other else one or other


def _own_result(counts: TaskCounts, complete: bool, cut_off: Result) -> Result:
    if counts.erred:
        return "failure"
    if not complete:
        return cut_off
    return "cancellation" if counts.cancelled else "success"


def _finish_groups(
    span: OpenSpan, cluster: Cluster, memory: Ledger | None
) -> tuple[list[FinishedGroup], list[GroupFacts], dict[Group, int]]:
    """Return the groups to export, and the facts and ordinals of all groups."""
    finished, facts = [], []
    by_group: dict[Group, int] = {}
    ordinals: dict[str, int] = {}
    for group in span.groups:
        fact = cluster.group_facts(group)
        facts.append(fact)
        ordinal = ordinals[group.name] = ordinals.get(group.name, 0) + 1
        by_group[group] = ordinal
        # Nobody else says why tasks waited that no worker could run.
        if group.start or group.restriction:
            finished.append(
                FinishedGroup(
                    name=group.name,
                    prefix=group.prefix,
                    ordinal=ordinal,
                    start=group.start or span.start,
                    stop=group.stop or span.last_stop,
                    counts=TaskCounts.of(group),
                    output_bytes=fact.output_bytes,
                    durations=fact.durations,
                    types=fact.types,
                    restriction=group.restriction,
                    slow_workers=slow_workers(group, fact.durations.get("compute", 0.0)),
                    memory=None if memory is None else memory.of_group(group),
                )
            )
    return finished, facts, by_group


def _fold(finished: FinishedSpan, workers: set[str], execute: float, parent: OpenSpan) -> None:
    """Add a finished span to its parent's sums, and the workers and execute seconds of its tree."""
    into = parent.below
    if into is None:
        into = parent.below = Below()
    into.counts.add(finished.counts)
    into.output_bytes += finished.output_bytes
    into.groups += finished.group_count
    into.workers |= workers
    into.execute_seconds += execute
    into.seceded += finished.seceded
    into.start = earliest(into.start, finished.first_start or 0.0)
    into.stop = max(into.stop, finished.stop)
    into.result = worst(into.result, finished.result)
    into.complete = into.complete and finished.complete
    into.failure = into.failure or finished.tree_failure

"""Compares the ledger of results in memory with what Dask's tables had at each moment."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lab.memory import Memory, Part, of_spans

from dask_otel import semconv
from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.facts import ancestors
from dask_otel.core.life.ledger import MAX_AT_PEAK, Ledger
from dask_otel.core.metrics.batch import Batches
from dask_otel.core.records import FinishedSpan, SpanMemory

#: Of integrals: floats that are added up.
ROUNDING = 1e-6


def audit(adapter: SchedulerAdapter, truth: Memory) -> None:
    """At this moment, the ledger has the results that the scheduler's tasks are."""
    ledger = adapter.lifecycle.memory
    assert ledger is not None
    ledger.read()
    now, found = truth.now(), Counter[Part]()
    ids = {id(span): dask_id for dask_id, span in ledger._spans.items()}
    for group, one in ledger.holdings.items():
        span = ids[id(one.spans[0])] if one.spans else None
        found[span, group.prefix.name] += one.known.bytes
    assert +found == +now, (found - now, now - found)
    assert ledger.scattered.bytes == sum(n for (span, _), n in now.items() if span is None)
    assert ledger.held == now.total() - ledger.scattered.bytes
    for dask_id, sums in ledger._spans.items():
        own = of_spans(now, _tree(adapter, dask_id))
        assert sums.bytes == own.total(), (dask_id, sums.bytes, own)
        if sums.prefixes:
            assert +sums.prefixes == +own, (dask_id, sums.prefixes, own)


def left(ledger: Ledger, tasks: Iterable[Any]) -> list[Any]:
    """What the ledger has that no result in memory needs."""
    groups = {task.group for task in tasks if task.state == "memory"}
    holdings = [one for group, one in ledger.holdings.items() if group not in groups]
    known = ledger.holdings.values()
    sums = {id(part) for one in known for part in (one.series, *one.spans)}
    ending = {id(one) for one in ledger._ending}
    kept = [*ledger._spans.values(), *ledger._series.values()]
    return [*holdings, *[one for one in kept if id(one) not in sums | ending]]


def compare_series(
    adapter: SchedulerAdapter,
    truth: Memory,
    increments: Mapping[tuple[Any, ...], float],
    now: float,
) -> None:
    """What was exported is what there is, and what its integral is."""
    names = adapter.spans.extension.spans
    sizes, spent = Counter[Any](), defaultdict[Any, float](float)
    for (span, prefix), size in truth.now().items():
        if span is not None:
            sizes[names[span].name, prefix] += size
    for (span, prefix), value in truth.spent(0.0, now).items():
        if span is not None:
            spent[names[span].name, prefix] += value
    metrics = semconv.SPAN_MEMORY_USAGE.name, semconv.SPAN_MEMORY_TIME.name
    usage, time = ({k[1:]: v for k, v in increments.items() if k[0] == one} for one in metrics)
    assert {key: size for key, size in usage.items() if size} == +sizes
    for key in spent.keys() | time.keys():
        assert near(time.get(key, 0.0), spent.get(key, 0.0)), (key, time.get(key), spent.get(key))


def near(one: float, other: float) -> bool:
    return abs(one - other) <= ROUNDING * max(1.0, abs(one))


def compare_span(
    adapter: SchedulerAdapter,
    truth: Memory,
    one: FinishedSpan,
    life: tuple[float, float, float],
    readings: Collection[tuple[float, Counter[Part]]],
) -> None:
    """The figures of a generation are the truth's: the peak until its end, else of its work."""
    dask_id, (begun, done, ended) = one.identity.dask_id, life
    tree = _tree(adapter, dask_id)
    moments = [of_spans(sizes, tree) for _, sizes in truth.between(begun, ended)]
    # One of the moment in which it began, or ended, can be of another generation.
    read = [of_spans(sizes, tree) for when, sizes in readings if begun < when < ended]
    spent = sum(value for (span, _), value in truth.spent(begun, done).items() if span in tree)
    found = one.memory or SpanMemory(None, 0.0)
    assert near(found.byte_seconds, spent), (one.identity.tags, found, spent, life)
    peak = found.peak or 0
    assert peak >= max((sizes.total() for sizes in read), default=0), (found, read)
    at_peak = [sizes for sizes in [*moments, *read, Counter()] if sizes.total() == peak]
    assert at_peak, (found, moments)
    if dask_id == one.identity.root_id and found.peak:
        # Prefixes with the same size are in any order.
        sizes = [size for _, size in found.at_peak]
        assert any(
            sizes == sorted((+s).values(), reverse=True)[:MAX_AT_PEAK]
            and all(s[prefix] == size for prefix, size in found.at_peak)
            for s in at_peak
        ), (found, at_peak)


def _tree(adapter: SchedulerAdapter, dask_id: str) -> set[str]:
    known = adapter.spans.extension.spans
    return {
        one for one, span in known.items() if dask_id in (one, *[a.id for a in ancestors(span)])
    }


def audit_cluster(adapter: SchedulerAdapter) -> None:
    """The states of the cluster's memory are what Dask has, and their sum is the whole."""
    batches, scheduler = Batches(), adapter.scheduler
    for _ in adapter._workers.sample(batches, adapter.lifecycle.memory):
        pass
    levels = batches.open.levels
    found = {k[1]: v for k, v in levels.items() if k[0] == semconv.CLUSTER_MEMORY_USAGE.name}
    tasks = [task for task in scheduler.tasks.values() if task.who_has]
    copies = sum((len(task.who_has) - 1) * task.get_nbytes() for task in tasks)
    # A result can be on no worker: scattered to one that leaves. It can't be told from a copy less.
    lost = sum(
        task.get_nbytes()
        for task in scheduler.tasks.values()
        if task.state == "memory" and not task.who_has
    )
    assert found["replica"] == max(0, copies - lost), (found, copies, lost)
    workers = [ws for ws in scheduler.workers.values() if "memory" in ws.metrics]
    assert found["unmanaged_old"] == sum(ws.memory.unmanaged_old for ws in workers)
    assert found["unmanaged_recent"] == sum(ws.memory.unmanaged_recent for ws in workers)
    spilled = sum(ws.metrics["spilled_bytes"]["memory"] for ws in workers)
    assert levels[semconv.CLUSTER_MEMORY_SPILLED.name,] == spilled
    whole = sum(ws.metrics["memory"] for ws in workers) + spilled
    assert sum(found.values()) == whole, (found, whole)
    # Nothing is unaccounted for but what Dask itself cuts off in `MemoryState`, and results that no
    # worker has, beyond the copies of others.
    sized = [ws.nbytes - ws.metrics["spilled_bytes"]["memory"] for ws in workers]
    cut = sum(ws.memory.managed - size for ws, size in zip(workers, sized, strict=True))
    assert found["unaccounted"] == cut - max(0, lost - copies), (found, cut, lost, copies)

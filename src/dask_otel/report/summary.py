"""What the page says, as plain data: for scripts, and for the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask_otel import semconv
from dask_otel.report import findings, idle
from dask_otel.report.advice import advice, outcome_counts
from dask_otel.report.money import Cost, Price, bill
from dask_otel.report.seconds import SpanTime, cluster_time, span_times
from dask_otel.report.telemetry.model import Run, Skipped, Span, text

#: Goes up when something here is renamed or changes its meaning; not when something is added.
VERSION = 2


def summary(
    runs: Sequence[Run], skipped: Skipped, *, price: Price | None = None, tag: str = "team"
) -> dict[str, Any]:
    """Return everything as dicts and lists. Seconds are floats; null is what was not exported."""
    return {
        "version": VERSION,
        "skipped": dict(skipped.counts),
        "runs": [_run(run, price, tag) for run in runs],
    }


def _run(run: Run, price: Price | None, tag: str) -> dict[str, Any]:
    result: dict[str, Any] = {
        "cluster": run.cluster,
        "instance": run.instance,
        "distributed": text(run.resource.get(semconv.SERVICE_VERSION)) or None,
        "dask_otel": run.bridge or None,
        "start": _epoch(run.start_ns),
        "end": _epoch(run.end_ns),
        "tasks": outcome_counts(run),
        "repeated": findings.retries(run),
        "time": _cluster(run),
        "spans": [_span_time(entry) for entry in span_times(run)],
        "traces": [_span(span) for span in run.of_type("span")],
        "advice": [
            {
                "severity": one.severity,
                "title": one.title,
                "advice": one.advice,
                "alert": one.alert or None,
            }
            for one in advice(run)
        ],
        "failures": [dict(vars(failure)) for failure in findings.failures(run)],
        "slowest": [_task(task) for task in findings.slowest(run)],
        "workers": [dict(vars(worker)) for worker in findings.workers(run)],
        "idle": _idle(run),
    }
    if price is not None:
        result["cost"] = _cost(run, price, tag)
    return result


def _epoch(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9


def _cluster(run: Run) -> dict[str, Any] | None:
    cluster = cluster_time(run)
    if cluster is None:
        return None
    return {
        "activities": cluster.activities,
        "parts": cluster.parts(),
        "in_flight": cluster.in_flight,
        "capacity": cluster.capacity,
        "excess": cluster.excess,
        "remainder": cluster.remainder,
    }


def _span_time(entry: SpanTime) -> dict[str, Any]:
    return {
        "name": entry.name,
        "root": entry.root,
        "activities": entry.activities,
        "bytes": entry.bytes,
        "parts": entry.parts(),
        "idle": entry.idle,
        "capacity": entry.capacity,
        "from_metrics": entry.measured,
    }


def _span(span: Span) -> dict[str, Any]:
    return {
        "name": span.full_name,
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "start": span.start_ns / 1e9,
        "seconds": span.seconds,
        "waited": span.number(semconv.SPAN_QUEUE_TIME),
        "result": text(span.attributes.get(semconv.SPAN_RESULT)) or None,
        "unfinished": span.unfinished,
        "tasks": span.number(semconv.TASK_COUNT),
        "erred": span.number(semconv.TASK_OUTCOME_COUNT.format("erred")),
    }


def _task(task: Span) -> dict[str, Any]:
    return {
        "key": text(task.attributes.get(semconv.TASK_KEY)) or None,
        "prefix": text(task.attributes.get(semconv.TASK_PREFIX)) or None,
        "worker": text(task.attributes.get(semconv.WORKER_NAME)) or None,
        "seconds": task.seconds,
        "waited": task.number(semconv.TASK_QUEUE_TIME),
        "failed": task.failed,
    }


def _idle(run: Run) -> dict[str, Any] | None:
    why = idle.explain(run)
    return None if why is None else dict(vars(why))


def _cost(run: Run, price: Price, tag: str) -> dict[str, Any]:
    found = bill(run, tag)

    def entry(cost: Cost) -> dict[str, Any]:
        return {
            "name": cost.name,
            "capacity": cost.capacity,
            "cost": price.of(cost.capacity),
            "idle_cost": None if cost.idle is None else price.of(cost.idle),
        }

    return {
        "price": price.amount,
        "currency": price.currency or None,
        "capacity": None if found.capacity is None else price.of(found.capacity),
        "unused": None if found.unused is None else price.of(found.unused),
        "lost": None if found.lost is None else price.of(found.lost),
        "of_no_span": None if found.unassigned is None else price.of(found.unassigned),
        "roots": [entry(cost) for cost in found.roots],
        "tag": tag,
        "tags": [entry(cost) for cost in found.tags],
    }

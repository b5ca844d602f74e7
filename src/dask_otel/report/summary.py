"""The report as plain data, for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask_otel import semconv
from dask_otel.report.account import Account
from dask_otel.report.money import Bill, Price
from dask_otel.report.seconds import SpanTime, parts
from dask_otel.report.telemetry.model import Skipped, text

#: Increases when a key is renamed or changes its meaning, not when one is added.
VERSION = 3


def summary(accounts: Sequence[Account], skipped: Skipped) -> dict[str, Any]:
    """Return everything as dicts and lists. Seconds are floats; null means not exported."""
    return {
        "version": VERSION,
        "skipped": dict(skipped.counts),
        "runs": [_run(account) for account in accounts],
    }


def _run(account: Account) -> dict[str, Any]:
    session, cluster, path = account.session, account.cluster, account.path
    memory, bill, price = account.memory, account.bill, account.price
    known: dict[str, Any] = {
        "memory": memory
        and {
            "peak": memory.peak,
            "exported": memory.exported,
            "after": memory.after,
            "roots": [one._asdict() for one in memory.roots],
            "holders": [one._asdict() for one in memory.holders],
        },
        "work": [
            {"span": one.span, "unit": one.unit, **one.figures(price)} for one in account.work
        ],
        "cost": price and bill and _cost(bill, price, account.tag),
    }
    return {
        "cluster": session.cluster,
        "instance": session.instance,
        "distributed": text(session.resource.get(semconv.SERVICE_VERSION)) or None,
        "dask_otel": session.bridge or None,
        "start": _epoch(session.start_ns),
        "end": _epoch(session.end_ns),
        "tasks": account.outcomes,
        "repeated": account.repeated,
        "time": cluster
        and {
            "activities": cluster.activities,
            "parts": parts(cluster.activities),
            "in_flight": cluster.in_flight,
            "capacity": cluster.capacity,
            "excess": cluster.excess,
            "remainder": cluster.remainder,
        },
        "path": path
        and {
            "seconds": path.whole.seconds,
            "parts": path.whole.parts,
            "spans": [
                {
                    "name": entry.name,
                    "count": entry.count,
                    "seconds": entry.seconds,
                    "parts": entry.parts,
                    "tasks": entry.tasks,
                    "functions": {
                        prefix: {"tasks": count, "seconds": sum(parts.values())}
                        for prefix, (count, parts) in entry.functions.items()
                    },
                }
                for entry in path.names
            ],
        },
        "spans": [
            {
                "name": entry.name,
                "root": entry.root,
                "activities": entry.activities,
                "bytes": entry.bytes,
                "parts": entry.parts(),
                "idle": entry.idle,
                "capacity": entry.capacity,
                "from_metrics": entry.measured,
            }
            for entry in account.spans
        ],
        "traces": [
            {
                "name": span.full_name,
                "trace_id": span.trace_id,
                "span_id": span.span_id,
                "start": span.start_ns / 1e9,
                "seconds": span.lasted,
                "waited": span.number(semconv.SPAN_QUEUE_TIME),
                "result": span.text(semconv.SPAN_RESULT) or None,
                "unfinished": span.unfinished,
                "tasks": span.number(semconv.TASK_COUNT),
                "erred": span.number(semconv.TASK_OUTCOME_COUNT.format("erred")),
            }
            for span in session.of_type("span")
        ],
        "diagnosis": [{**vars(one), "span": one.span or None} for one in account.diagnoses],
        "events": [
            {
                "time": _epoch(log.time_ns),
                "name": log.name,
                "severity": log.level,
                "body": log.body or None,
                "attributes": log.attributes,
            }
            for log in session.logs
        ],
        "failures": [dict(vars(failure)) for failure in account.failures],
        "slowest": [
            {
                "key": task.text(semconv.TASK_KEY) or None,
                "prefix": task.text(semconv.TASK_PREFIX) or None,
                "worker": task.text(semconv.WORKER_NAME) or None,
                "seconds": task.seconds,
                "waited": task.number(semconv.TASK_QUEUE_TIME),
                "failed": task.failed,
            }
            for task in account.slowest
        ],
        "workers": [dict(vars(worker)) for worker in account.workers],
        **{name: value for name, value in known.items() if value},
    }


def _epoch(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9


def _cost(found: Bill, price: Price, tag: str) -> dict[str, Any]:
    def entry(one: SpanTime) -> dict[str, Any]:
        return {
            "name": one.name,
            "capacity": one.capacity,
            "memory_time": one.memory,
            "cost": price.of(one.capacity, one.memory),
            "idle_cost": price.of(one.idle),
        }

    return {
        "price": price.amount,
        "price_memory": price.memory or None,
        "currency": price.currency or None,
        "memory_time": found.memory,
        "capacity": price.of(found.capacity, found.memory),
        "unused": price.of(found.unused),
        "lost": price.of(found.lost),
        "of_no_span": price.of(found.unassigned, found.unassigned_memory),
        "excess": price.of(found.excess),
        "roots": [entry(one) for one in found.roots],
        "tag": tag,
        "tags": [entry(one) for one in found.tags],
    }

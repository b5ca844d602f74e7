"""What a scheduler remembers of its spans, as OTLP/JSON: for a report without any file.

Dask keeps its spans, with their groups and metrics, until it ends. What a bridge knew beyond that
went out with the export, and is not here: how tasks of the past ended but for failures that are
still there, single tasks, and how things went over time.

That can be thousands of spans: it is put together in small steps, and between them the event loop
goes on with what it has to do. What changes meanwhile may be told or not.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from distributed.metrics import time

from dask_otel import semconv
from dask_otel._dask.asked.present import present
from dask_otel._dask.facts import UNFINISHED
from dask_otel._version import __version__
from dask_otel.core import identity
from dask_otel.core.records import Failure
from dask_otel.core.text import Sanitizer, attribute_text, label_text, span_path
from dask_otel.core.traces import exceptions

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskGroup, TaskState
    from distributed.spans import Span

    from dask_otel._dask.adapter import SchedulerAdapter

#: What can be asked for; groups of one span; tasks that are looked at for failures, and failures.
_MOST: Final = 2000
_MOST_GROUPS: Final = 50
_MOST_TASKS: Final = 100_000
_MOST_FAILURES: Final = 100
_MESSAGE: Final = 1024
_SECONDS: Final = "seconds"
#: Seconds of work between two turns of the event loop.
_STEP: Final = 0.002


async def remembered(
    scheduler: Scheduler, adapter: SchedulerAdapter | None, spans: int, *, messages: bool
) -> dict[str, Any]:
    """Return requests of traces and metrics in one object.

    Parameters
    ----------
    scheduler
        Which is asked.
    adapter
        Of its bridge; without one, nothing is known of the cluster's time.
    spans
        How many at most: the youngest.
    messages
        Whether what exceptions said may be told.
    """
    every: dict[str, Span] = scheduler.extensions["spans"].spans
    chosen = nlargest(max(0, min(spans, _MOST)), every.values(), key=_enqueued)
    now = time()
    turns = _Turns()
    failures = await _failures(scheduler, chosen, turns, messages=messages)
    made: list[dict[str, Any]] = []
    for span in chosen:
        made.append(_span(span, now, failures.get(span.id, [])))
        for group in _groups(span, now):
            made.append(group)
            await turns.take()
        await turns.take()
    resource = {
        "attributes": _attributes(
            {
                semconv.SERVICE_INSTANCE_ID: scheduler.id,
                semconv.SERVICE_NAME: "dask-scheduler",
            }
        )
    }
    scope = {"name": semconv.SCOPE_NAME, "version": __version__}
    found: dict[str, Any] = {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": scope, "spans": made}]},
        ]
    }
    if adapter is not None:
        metrics = list(_metrics(adapter))
        found["resourceMetrics"] = [
            {"resource": resource, "scopeMetrics": [{"scope": scope, "metrics": metrics}]},
        ]
    return found


class _Turns:
    """Lets the event loop have its turn after each small step."""

    def __init__(self) -> None:
        self._until = perf_counter() + _STEP

    async def take(self) -> None:
        """Go on at once, or after the others where this has worked for long enough."""
        if perf_counter() >= self._until:
            await asyncio.sleep(0)
            self._until = perf_counter() + _STEP


# --------------------------------------------------------------------------------- spans


def _span(span: Span, now: float, events: list[dict[str, Any]]) -> dict[str, Any]:
    below = list(span.traverse_spans())
    groups = [group for one in below for group in one.groups]
    open_ = any(group.states[state] for group in groups for state in UNFINISHED)
    erred = sum(group.states["erred"] for group in groups)
    sanitizer = Sanitizer()
    root = _root(span)
    start = max((span.start or 0.0), 0.0)
    attributes: dict[str, Any] = {
        # What is not over is a sign of life: its end is not known.
        semconv.SPAN_TYPE: "progress" if open_ else "span",
        semconv.SPAN_ID: span.id,
        semconv.SPAN_ROOT_ID: root.id,
        semconv.SPAN_ROOT_NAME: span_path(root.name[:1], sanitizer),
        semconv.SPAN_NAME: span_path(span.name, sanitizer),
        semconv.SPAN_TAGS: [str(tag) for tag in span.name],
        semconv.TASK_COUNT: sum(sum(group.states.values()) for group in groups),
        semconv.TASK_OUTCOME_COUNT.format("erred"): erred,
    }
    if erred:
        attributes[semconv.SPAN_RESULT] = "failure"
    if start:
        attributes[semconv.SPAN_QUEUE_TIME] = max(0.0, start - span.enqueued)
    for activity, seconds in _activities(span).items():
        attributes[f"{semconv.SPAN_ACTIVITY_TIME}.{activity}"] = seconds
    own = f"{identity.span_id(span.id):016x}"
    parent = "" if span.parent is None else f"{identity.span_id(span.parent.id):016x}"
    return {
        # A sign of life is below the span that it is of.
        **_ids(root, identity.group_span_id(span.id, 1, "progress", 0) if open_ else int(own, 16)),
        **_times(span.enqueued, now if open_ else max(span.stop, span.enqueued)),
        "parentSpanId": own if open_ else parent,
        "name": str(span.name[-1]) if span.name else "default",
        "attributes": _attributes(attributes),
        "events": events,
        "status": {"code": 2} if erred else {},
    }


def _activities(span: Span) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in span._cumulative_worker_metrics.items():
        if len(key) == 4 and key[0] == "execute" and key[3] == _SECONDS:
            activity = str(key[2])
            found[activity] = found.get(activity, 0.0) + value
    return found


def _groups(span: Span, now: float) -> Iterator[dict[str, Any]]:
    # A copy: more may come while these are told.
    for ordinal, group in enumerate(list(islice(span.groups, _MOST_GROUPS))):
        if group.start > 0:
            yield _group(span, group, ordinal, now)


def _group(span: Span, group: TaskGroup, ordinal: int, now: float) -> dict[str, Any]:
    root = _root(span)
    prefix = group.prefix.name if group.prefix is not None else str(group.name)
    erred = group.states["erred"]
    attributes: dict[str, Any] = {
        semconv.SPAN_TYPE: "group",
        semconv.SPAN_ID: span.id,
        semconv.SPAN_ROOT_ID: root.id,
        semconv.TASK_GROUP_NAME: str(group.name),
        semconv.TASK_PREFIX: prefix,
        semconv.TASK_COUNT: sum(group.states.values()),
        semconv.TASK_OUTCOME_COUNT.format("erred"): erred,
        semconv.SPAN_OUTPUT_SIZE: max(0, group.nbytes_total),
    }
    for action, seconds in group.all_durations.items():
        attributes[f"{semconv.TASK_GROUP_DURATION}.{action}"] = float(seconds)
    return {
        **_ids(root, identity.group_span_id(span.id, 1, str(group.name), ordinal)),
        **_times(group.start, max(group.stop, group.start) or now),
        "parentSpanId": f"{identity.span_id(span.id):016x}",
        "name": f"{prefix} tasks",
        "attributes": _attributes(attributes),
        "status": {"code": 2} if erred else {},
    }


async def _failures(
    scheduler: Scheduler, spans: list[Span], turns: _Turns, *, messages: bool
) -> dict[str, list[dict[str, Any]]]:
    """Return what failed and is still there, by the id of its span, as events."""
    if not any(group.states["erred"] for span in spans for group in span.groups):
        return {}
    found: dict[str, list[dict[str, Any]]] = {}
    count = 0
    for task in list(islice(scheduler.tasks.values(), _MOST_TASKS)):
        await turns.take()
        # What failed because of another one says what that says.
        if task.state != "erred" or task.exception_blame is not task:
            continue
        span_id = task.group.span_id
        if span_id is not None:
            found.setdefault(span_id, []).append(_failure(task, messages=messages))
        count += 1
        if count >= _MOST_FAILURES:
            break
    return found


def _failure(task: TaskState, *, messages: bool) -> dict[str, Any]:
    sanitizer = Sanitizer()
    text = task.exception_text
    failure = Failure(0.0, str(task.key), "", None, text, None)
    attributes = {
        semconv.EXCEPTION_TYPE: exceptions.error_type(failure, sanitizer),
        semconv.TASK_KEY: attribute_text(identity.key_text(task.key), sanitizer),
    }
    if messages and text:
        words = exceptions.message(text)
        attributes[semconv.EXCEPTION_MESSAGE] = attribute_text(words, sanitizer, _MESSAGE)
    return {"name": semconv.EVENT_EXCEPTION, "attributes": _attributes(attributes)}


def _enqueued(span: Span) -> float:
    return float(span.enqueued)


def _root(span: Span) -> Span:
    while span.parent is not None:
        span = span.parent
    return span


# ------------------------------------------------------------------------------- metrics


def _metrics(adapter: SchedulerAdapter) -> Iterator[dict[str, Any]]:
    now = present(adapter, 0, 200)
    since, at = now.since, now.time
    # A user's activity can have one of these names, too.
    own = (("idle", now.idle), ("unused", now.unused), ("lost", now.lost))
    seconds = _sums((*now.seconds.items(), *own))
    yield _counter(
        semconv.CLUSTER_TIME,
        since,
        at,
        [({semconv.ACTIVITY: name}, value) for name, value in seconds.items()],
    )
    yield _counter(semconv.CLUSTER_CAPACITY_TIME, since, at, [({}, now.capacity)])
    yield _counter(semconv.CLUSTER_EXCESS_TIME, since, at, [({}, now.excess)])
    for metric, values in (
        (semconv.WORKER_THREAD_COUNT, [(one.name, one.threads) for one in now.workers]),
        (semconv.WORKER_MEMORY_USAGE, [(one.name, one.memory) for one in now.workers]),
        (semconv.WORKER_MEMORY_LIMIT, [(one.name, one.memory_limit) for one in now.workers]),
    ):
        points = [({semconv.WORKER_NAME: name}, value) for name, value in _sums(values).items()]
        made = _counter(metric, since, at, points)
        made["sum"]["isMonotonic"] = False
        yield made


def _sums(values: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """Return the sums of what has one name, as it is shown."""
    sums: dict[str, float] = defaultdict(float)
    for name, value in values:
        if value is not None:
            sums[label_text(name, Sanitizer())] += value
    return sums


def _counter(
    metric: semconv.Metric,
    since: float,
    now: float,
    points: list[tuple[dict[str, str], float]],
) -> dict[str, Any]:
    return {
        "name": metric.name,
        "unit": metric.unit,
        "sum": {
            "aggregationTemporality": 2,
            "isMonotonic": True,
            "dataPoints": [
                {
                    "startTimeUnixNano": _nanoseconds(since),
                    "timeUnixNano": _nanoseconds(now),
                    "asDouble": float(value),
                    "attributes": _attributes(labels),
                }
                for labels, value in points
            ],
        },
    }


# ---------------------------------------------------------------------------------- JSON


def _ids(root: Span, span_id: int) -> dict[str, str]:
    return {"traceId": f"{identity.trace_id(root.id):032x}", "spanId": f"{span_id:016x}"}


def _times(start: float, stop: float) -> dict[str, str]:
    return {"startTimeUnixNano": _nanoseconds(start), "endTimeUnixNano": _nanoseconds(stop)}


def _nanoseconds(seconds: float) -> str:
    return str(int(seconds * 1e9))


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": attribute_text(str(value), Sanitizer())}

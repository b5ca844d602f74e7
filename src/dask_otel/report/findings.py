"""What a person looks for first: what failed, what was slow, what waited for it, and who ran it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dask_otel import semconv
from dask_otel.report.telemetry.model import Event, Run, Span, text

#: A task is a straggler if it took this many times the average of its group, and this share of
#: its span's time.
_TIMES, _SHARE = 5.0, 0.3
_DURATION: Final = semconv.TASK_GROUP_DURATION + "."


@dataclass
class Failure:
    """Failures of one kind and message, with the first one's traceback."""

    kind: str
    message: str
    stacktrace: str
    span: str
    prefix: str
    key: str
    worker: str
    #: Whether the runs were repeated, so that it did not stand.
    repeated: bool
    count: int = 1


def failures(run: Run) -> list[Failure]:
    """Return what failed: for good, then what was repeated; the most frequent first.

    Spans tell of at most ``otel.spans.max-exceptions`` each, and of 32 runs that were repeated: a
    count is one of those.
    """
    found: dict[tuple[str, str, str, bool], Failure] = {}
    seen: set[tuple[str, str, int]] = set()
    names = span_names(run)
    for span in (*run.of_type("span"), *run.of_type("task")):
        owner = text(span.attributes.get(semconv.SPAN_ID))
        for event in span.events:
            if semconv.EXCEPTION_TYPE not in event.attributes:
                continue
            # A task says what its span says.
            key = text(event.attributes.get(semconv.TASK_KEY)) or text(
                span.attributes.get(semconv.TASK_KEY)
            )
            failure = _failure(event, span, names.get(owner, span.full_name), key)
            one = (owner, key, event.time_ns if failure.repeated else 0)
            if key and one in seen:
                continue
            seen.add(one)
            same = (failure.span, failure.kind, failure.message, failure.repeated)
            if same in found:
                found[same].count += 1
            else:
                found[same] = failure
    return sorted(found.values(), key=lambda failure: (failure.repeated, -failure.count))


def _failure(event: Event, span: Span, name: str, key: str) -> Failure:
    def of(attribute: str) -> str:
        return text(event.attributes.get(attribute)) or text(span.attributes.get(attribute))

    return Failure(
        kind=text(event.attributes.get(semconv.EXCEPTION_TYPE)),
        message=text(event.attributes.get(semconv.EXCEPTION_MESSAGE)),
        stacktrace=text(event.attributes.get(semconv.EXCEPTION_STACKTRACE)),
        span=name,
        prefix=of(semconv.TASK_PREFIX),
        key=key,
        worker=of(semconv.WORKER_NAME),
        repeated=event.name == semconv.EVENT_TASK_RETRIED,
    )


def span_names(run: Run) -> dict[str, str]:
    """Return the full names by Dask's ids of the spans."""
    return {
        text(span.attributes.get(semconv.SPAN_ID)): span.full_name for span in run.of_type("span")
    }


def slowest(run: Run, most: int = 20) -> list[Span]:
    """Return the runs of tasks that took longest, of those that have a span."""
    return sorted(run.of_type("task"), key=lambda task: -task.seconds)[:most]


@dataclass(frozen=True)
class Straggler:
    """A task for which its span waited, while the others of its group were done."""

    task: Span
    span: str
    average: float
    span_seconds: float


def stragglers(run: Run) -> Iterator[Straggler]:
    """Yield the longest task of each group that stands out, the longest first."""
    owners = {text(span.attributes.get(semconv.SPAN_ID)): span for span in run.of_type("span")}
    groups: dict[tuple[str, str], tuple[float, float]] = {}
    for group in run.of_type("group"):
        count = group.number(semconv.TASK_COUNT) or 0.0
        compute = group.number(_DURATION + "compute")
        if compute is not None and count > 1:
            key = (
                text(group.attributes.get(semconv.SPAN_ID)),
                text(group.attributes.get(semconv.TASK_GROUP_NAME)),
            )
            groups[key] = (count, compute)
    seen = set()
    for task in slowest(run, most=200):
        owner = text(task.attributes.get(semconv.SPAN_ID))
        key = (owner, text(task.attributes.get(semconv.TASK_GROUP_NAME)))
        span = owners.get(owner)
        if key in seen or key not in groups or span is None or not span.seconds:
            continue
        seen.add(key)
        count, compute = groups[key]
        others = max(0.0, compute - task.seconds) / (count - 1)
        if task.seconds > _TIMES * others and task.seconds > _SHARE * span.seconds:
            yield Straggler(task, span.full_name, others, span.seconds)


@dataclass
class Worker:
    """What is known of one worker. None is what was not exported."""

    name: str
    threads: float | None = None
    memory: float | None = None
    limit: float | None = None
    spilled: float | None = None
    tasks: int = 0
    failed: int = 0


def workers(run: Run) -> list[Worker]:
    """Return the workers by name: their largest figures, and how many task spans they ran."""
    found: dict[str, Worker] = {}

    def peak(name: str) -> Iterator[tuple[Worker, float]]:
        for series in run.metrics.of(name):
            worker = series.labels.get(semconv.WORKER_NAME, "")
            values = [value for _, value in series.history()]
            yield found.setdefault(worker, Worker(worker)), max(values, default=series.value)

    for worker, value in peak(semconv.WORKER_THREAD_COUNT.name):
        worker.threads = value
    for worker, value in peak(semconv.WORKER_MEMORY_USAGE.name):
        worker.memory = value
    for worker, value in peak(semconv.WORKER_MEMORY_LIMIT.name):
        worker.limit = value or None
    for worker, value in peak(semconv.WORKER_MEMORY_SPILLED.name):
        worker.spilled = value
    for task in run.of_type("task"):
        name = text(task.attributes.get(semconv.WORKER_NAME))
        if name:
            worker = found.setdefault(name, Worker(name))
            worker.tasks += 1
            worker.failed += task.failed
    return sorted(found.values(), key=lambda worker: (len(worker.name), worker.name))


def retries(run: Run) -> dict[str, float]:
    """Return how many runs were repeated, by reason; without those that asked for it."""
    counted = run.metrics.by(semconv.TASK_RETRIED.name, semconv.TASK_RETRY_REASON)
    return {reason: n for reason, n in counted.items() if n and reason != "rescheduled"}

"""The first facts to look at: failures, slow tasks, gaps without work, and workers."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from dask_otel import semconv
from dask_otel.core.events.narration import UNEXPECTED
from dask_otel.core.sums import known_sum
from dask_otel.report.telemetry.model import Event, Log, Session, Span, grouped, number, text

_OF_FAILURES: Final = (
    semconv.EXCEPTION_TYPE,
    semconv.EXCEPTION_MESSAGE,
    semconv.EXCEPTION_STACKTRACE,
    semconv.TASK_PREFIX,
    semconv.TASK_KEY,
    semconv.WORKER_NAME,
)
#: Of a task whose workers were lost too often.
_KILLED: Final = "KilledWorker"
#: Of a removed worker: any of these tasks or results was lost with it.
_LOST: Final = (semconv.TASK_COUNT, semconv.RESULT_LOST_COUNT, semconv.DATA_LOST_COUNT)
#: By log record, what it concerns: the task that logged it, or the worker that was lost.
_CONCERNED: Final = {
    semconv.WORKER_LOG: semconv.TASK_KEY,
    semconv.WORKER_REMOVED: semconv.WORKER_NAME,
}


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
    #: Whether the runs were repeated, so that the failure was not final.
    repeated: bool
    count: int = 0
    #: What was logged about it: by the task, or last by a worker that was lost.
    log: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """The failure on one line."""
        return _in_words(self.kind, self.message)


def message_of(event: Event) -> str:
    """Return an exception's type and message on one line."""
    kind, message = (event.attributes.get(key) for key in _OF_FAILURES[:2])
    return _in_words(text(kind), text(message))


def _in_words(kind: str, message: str) -> str:
    message = " ".join(message.split())
    # Some exceptions have only a repr, which begins with the type.
    if kind and message.startswith(f"{kind.rpartition('.')[2]}("):
        return message
    return ": ".join(filter(None, (kind, message))) or "failure"


def failures(session: Session) -> list[Failure]:
    """Return the failures: final ones, then repeated ones, each with the most frequent first.

    Only exported events are counted: a span has at most ``otel.spans.max-exceptions`` of each kind,
    and 32 of repeated runs.
    """
    found: dict[tuple[str, str, str, bool], Failure] = {}
    seen: set[tuple[str, str, int]] = set()
    names = span_names(session)
    for span in (*session.of_type("span"), *session.of_type("task")):
        owner = span.text(semconv.SPAN_ID)
        for event in (one for one in span.events if semconv.EXCEPTION_TYPE in one.attributes):
            own = {**span.attributes, **event.attributes}
            kind, message, stacktrace, prefix, key, worker = (
                text(own.get(one)) for one in _OF_FAILURES
            )
            name = names.get(owner, span.full_name)
            repeated = event.name == semconv.EVENT_TASK_RETRIED
            failure = Failure(kind, message, stacktrace, name, prefix, key, worker, repeated)
            # A task's events are in its span, too.
            one = (owner, failure.key, event.time_ns if failure.repeated else 0)
            if not failure.key or one not in seen:
                seen.add(one)
                same = (failure.span, failure.kind, failure.message, failure.repeated)
                found.setdefault(same, failure).count += 1
    logged = grouped(
        (log for log in session.logs if log.body),
        lambda log: (log.name, log.attributes.get(_CONCERNED.get(log.name, ""))),
    )
    for failure in found.values():
        logs = [*logged.get((semconv.WORKER_LOG, failure.key), ())] if failure.key else []
        if failure.kind == _KILLED:
            # A later worker of its name can have left in order.
            logs += filter(is_death, logged.get((semconv.WORKER_REMOVED, failure.worker), ()))
        failure.log = tuple(log.body for log in sorted(logs, key=lambda log: log.time_ns))
    return sorted(found.values(), key=lambda failure: (failure.repeated, -failure.count))


def is_death(log: Log) -> bool:
    """Return whether a worker crashed, or took tasks or results with it, without a request."""
    own = log.attributes
    in_order = own.get(semconv.WORKER_REMOVAL_EXPECTED) is True
    asked = own.get(semconv.WORKER_REMOVAL_REASON) == "requested"
    took = any(own.get(key) for key in _LOST)
    crashed = own.get(semconv.WORKER_REMOVAL_REASON) in UNEXPECTED
    return not (in_order or asked) and (crashed or took)


def span_names(session: Session) -> dict[str, str]:
    """Return the spans' full names by Dask span id."""
    return {span.text(semconv.SPAN_ID): span.full_name for span in session.of_type("span")}


def slowest(session: Session, most: int = 20) -> list[Span]:
    """Return the longest runs of tasks among those with a span."""
    return sorted(session.of_type("task"), key=lambda task: -task.seconds)[:most]


@dataclass
class Worker:
    """The figures of one worker. None if they were not exported."""

    name: str
    threads: float | None = None
    memory: float | None = None
    limit: float | None = None
    spilled: float | None = None
    tasks: int = 0
    failed: int = 0
    #: When its memory was the largest: seconds after the start of the run.
    memory_after: float | None = None

    def note(self, memory: float, after: float) -> None:
        """Note its memory at a time."""
        if memory > (self.memory or 0.0):
            self.memory, self.memory_after = memory, after


def workers(session: Session) -> list[Worker]:
    """Return the workers by name, with their largest figures and the number of their task spans.

    A short run has no figures of some; their events name them.
    """
    found: dict[str, Worker] = {}
    start = session.start_ns or 0
    for log in session.logs:
        if name := text(log.attributes.get(semconv.WORKER_NAME)):
            threads = number(log.attributes.get(semconv.WORKER_THREAD_COUNT.name))
            found.setdefault(name, Worker(name, threads))
    for metric, figure in (
        (semconv.WORKER_THREAD_COUNT, "threads"),
        (semconv.WORKER_MEMORY_USAGE, "memory"),
        (semconv.WORKER_MEMORY_LIMIT, "limit"),
        (semconv.WORKER_MEMORY_SPILLED, "spilled"),
    ):
        histories = session.metrics.histories(metric.name, semconv.WORKER_NAME)
        for name, history in histories.items():
            time, largest = max(history, key=itemgetter(1))
            worker = found.setdefault(name, Worker(name))
            # A worker that left has none. If it left before the first export, that is all.
            if largest or worker.memory:
                setattr(worker, figure, largest)
            if largest and figure == "memory":
                worker.memory_after = (time - start) / 1e9
    # Between two exports, more is known from heartbeats, and of one that is killed from its nanny.
    for span in session.of_type("span"):
        worker = found.get(span.text(semconv.SPAN_WORKER_PEAK_NAME), Worker(""))
        share, after = map(span.number, (semconv.SPAN_WORKER_PEAK, semconv.SPAN_WORKER_PEAK_TIME))
        worker.note(
            (share or 0.0) * (worker.limit or 0.0),
            (span.start_ns - start) / 1e9 + (after or 0.0),
        )
    for log in session.logs:
        if log.name == semconv.WORKER_REMOVED and is_death(log):
            worker = found.get(text(log.attributes.get(semconv.WORKER_NAME)), Worker(""))
            seen = (log.time_ns - start) / 1e9
            age = number(log.attributes.get(semconv.WORKER_LAST_SEEN_AGE.name)) or 0.0
            for key, after in (
                (semconv.WORKER_MEMORY_USAGE.name, seen - age),
                (semconv.WORKER_NANNY_MEMORY, seen),
            ):
                worker.note(number(log.attributes.get(key)) or 0.0, after)
    for task in session.of_type("task"):
        if name := task.text(semconv.WORKER_NAME):
            worker = found.setdefault(name, Worker(name))
            worker.tasks += 1
            worker.failed += task.failed
    return sorted(found.values(), key=lambda worker: (len(worker.name), worker.name))


def retries(session: Session) -> dict[str, float]:
    """Return the number of repeated runs by reason, without those that rescheduled themselves."""
    counted = session.metrics.by(semconv.TASK_RETRIED.name, semconv.TASK_RETRY_REASON)
    return {reason: n for reason, n in counted.items() if n and reason != "rescheduled"}


def outcome_counts(session: Session) -> dict[str, float]:
    """Return the number of tasks by their last outcome; from the roots if there are no metrics."""
    counted = session.metrics.by(semconv.TASK_FINISHED.name, semconv.TASK_OUTCOME)
    again = retries(session)
    # That a client retried, or whose result was lost.
    earlier = {"erred": again.get("client", 0.0), "memory": again.get("recomputed", 0.0)}
    counted = {one: max(0.0, n - earlier.get(one, 0.0)) for one, n in counted.items()}
    keys = {one: semconv.TASK_OUTCOME_COUNT.format(one) for one in ("memory", "erred", "cancelled")}
    roots = session.roots()
    sums = {one: known_sum(root.number(key) for root in roots) for one, key in keys.items()}
    return counted or {one: count for one, count in sums.items() if count is not None}

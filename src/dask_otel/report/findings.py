"""What a person looks for first: what failed, what was slow, what waited for it, and who ran it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dask_otel import semconv
from dask_otel.report.seconds import flow
from dask_otel.report.telemetry.model import Event, Run, Span, text
from dask_otel.report.telemetry.series import at

#: A task is a straggler if it took this many times the average of its group's others, and this
#: share of its span's time.
_STRAGGLES: Final = ((5.0, 0.3), (2.0, 0.5))
#: A gap is worth a word from so many seconds on.
_GAP: Final = 2.0
#: Of its own time, and in seconds: a wait for the first task that is worth a word.
_LATE: Final = (0.25, 0.1)
_OF_FAILURES: Final = (
    semconv.EXCEPTION_TYPE,
    semconv.EXCEPTION_MESSAGE,
    semconv.EXCEPTION_STACKTRACE,
    semconv.TASK_PREFIX,
    semconv.TASK_KEY,
    semconv.WORKER_NAME,
)
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
    count: int = 0

    @property
    def what(self) -> str:
        """What failed, on one line."""
        return _in_words(self.kind, self.message)


def message_of(event: Event) -> str:
    """Return what an exception says, on one line."""
    kind, message = (event.attributes.get(key) for key in _OF_FAILURES[:2])
    return _in_words(text(kind), text(message))


def _in_words(kind: str, message: str) -> str:
    message = " ".join(message.split())
    # Of some exceptions there is a repr alone, which begins with the type.
    if kind and message.startswith(f"{kind.rpartition('.')[2]}("):
        return message
    return ": ".join(filter(None, (kind, message))) or "failure"


def failures(run: Run) -> list[Failure]:
    """Return what failed: for good, then what was repeated; the most frequent first.

    A span has at most ``otel.spans.max-exceptions`` events of each kind, and 32 of runs that were
    repeated: only these are counted.
    """
    found: dict[tuple[str, str, str, bool], Failure] = {}
    seen: set[tuple[str, str, int]] = set()
    names = span_names(run)
    for span in (*run.of_type("span"), *run.of_type("task")):
        owner = span.text(semconv.SPAN_ID)
        for event in span.events:
            if semconv.EXCEPTION_TYPE not in event.attributes:
                continue
            failure = _failure(event, span, names.get(owner, span.full_name))
            # A task has the events of its span.
            one = (owner, failure.key, event.time_ns if failure.repeated else 0)
            if failure.key and one in seen:
                continue
            seen.add(one)
            same = (failure.span, failure.kind, failure.message, failure.repeated)
            found.setdefault(same, failure).count += 1
    return sorted(found.values(), key=lambda failure: (failure.repeated, -failure.count))


def _failure(event: Event, span: Span, name: str) -> Failure:
    attributes = {**span.attributes, **event.attributes}
    kind, message, stacktrace, prefix, key, worker = (
        text(attributes.get(one)) for one in _OF_FAILURES
    )
    repeated = event.name == semconv.EVENT_TASK_RETRIED
    return Failure(kind, message, stacktrace, name, prefix, key, worker, repeated)


def span_names(run: Run) -> dict[str, str]:
    """Return the full names by Dask's ids of the spans."""
    return {span.text(semconv.SPAN_ID): span.full_name for span in run.of_type("span")}


def late_starts(run: Run) -> dict[str, float]:
    """Return the spans whose first task began late, by full name, with the seconds.

    Mostly the first ones of fresh workers. A name of several spans is left out.
    """
    spans = run.of_type("span")
    found = {span.full_name: span.number(semconv.SPAN_QUEUE_TIME) or 0.0 for span in spans}
    times = Counter(span.full_name for span in spans)
    share, least = _LATE
    return {
        span.full_name: found[span.full_name]
        for span in spans
        if times[span.full_name] == 1 and found[span.full_name] >= max(least, share * span.seconds)
    }


def slowest(run: Run, most: int = 20) -> list[Span]:
    """Return the runs of tasks that took longest, of those that have a span."""
    return sorted(run.of_type("task"), key=lambda task: -task.seconds)[:most]


@dataclass(frozen=True)
class Straggler:
    """A task for which its span waited; `average` is that of the others of its group, if any."""

    task: Span
    span: str
    average: float | None
    span_seconds: float


def stragglers(run: Run) -> Iterator[Straggler]:
    """Yield the longest task of each group that stands out, the longest first."""
    owners = {span.text(semconv.SPAN_ID): span for span in run.of_type("span")}
    groups: dict[tuple[str, ...], tuple[float, float]] = {}
    for group in run.of_type("group"):
        count, compute = group.number(semconv.TASK_COUNT), group.number(_DURATION + "compute")
        if count and compute is not None:
            groups[_group_of(group)] = count, compute
    for task in slowest(run, most=200):
        key = _group_of(task)
        span = owners.get(key[0])
        # The first one is the longest of its group.
        count, compute = groups.pop(key, (0.0, 0.0))
        if not count or span is None or not span.seconds:
            continue
        others = max(0.0, compute - task.seconds) / (count - 1) if count > 1 else None
        capacity, idle = span.number(semconv.SPAN_CAPACITY), span.number(semconv.SPAN_IDLE)
        if others is None and capacity and idle is not None and idle < capacity / 2:
            continue  # Other spans had work for the threads meanwhile.
        if any(
            task.seconds > times * (others or 0.0) and task.seconds > share * span.seconds
            for times, share in _STRAGGLES
        ):
            yield Straggler(task, span.full_name, others, span.seconds)


def _group_of(span: Span) -> tuple[str, ...]:
    return span.text(semconv.SPAN_ID), span.text(semconv.TASK_GROUP_NAME)


@dataclass(frozen=True)
class Gap:
    """A time in which no task of the run ran, although there was a worker."""

    #: The span that was open; empty before the first task.
    span: str
    seconds: float
    #: Seconds since the run began. None where only the metrics tell: between tasks of one group.
    after: float | None
    #: Bytes by which the memory of the workers' processes grew.
    grown: float


def gaps(run: Run) -> list[Gap]:
    """Return the times without a task before the first one and between others, longest first.

    Tasks are known by their groups, from the first start to the last end. What lies inside of a
    group, and where groups were not exported, shows in the metrics alone: nobody had work.
    """
    groups = run.of_type("group")
    begin = run.start_ns
    if not groups or begin is None or any(span.unfinished for span in run.of_type("span")):
        return []
    first, last = groups[0].start_ns, max(group.end_ns for group in groups)
    known = flow(run)
    found = [_gap(run, begin, first, known.unused(begin, first))] if known else []
    until, inside = first, known.unused(first, last) if known else 0.0
    all_groups = sum(root.number(semconv.TASK_GROUP_COUNT) or 0.0 for root in run.roots())
    for group in groups if len(groups) >= all_groups else ():
        if group.start_ns > until:
            found.append(_gap(run, until, group.start_ns, (group.start_ns - until) / 1e9))
            inside -= found[-1].seconds
        until = max(until, group.end_ns)
    found.append(Gap(_open_span(run, first, last), inside, None, 0.0))
    return sorted((g for g in found if g.seconds >= _GAP), key=lambda gap: -gap.seconds)


def _gap(run: Run, begin: int, end: int, seconds: float) -> Gap:
    memory = [series.history() for series in run.metrics.of(semconv.WORKER_MEMORY_USAGE.name)]
    # A worker that is new has something in it from the beginning.
    grown = sum(max(0.0, at(one, end) - (at(one, begin) or one[0][1])) for one in memory)
    after = (begin - (run.start_ns or 0)) / 1e9
    return Gap(_open_span(run, begin, end), seconds, after, grown)


def _open_span(run: Run, begin: int, end: int) -> str:
    """Return the shortest span that was there before and after; empty where there is none."""
    times: dict[str, list[Span]] = {}
    for span in run.of_type("span"):
        times.setdefault(span.text(semconv.SPAN_ID), []).append(span)
    lasted = [(same[0], max(one.end_ns for one in same)) for same in times.values()]
    around = [
        (last - span.start_ns, span.full_name)
        for span, last in lasted
        if span.start_ns <= begin and last >= end
    ]
    return min(around, default=(0, ""))[1]


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

    for metric, figure in (
        (semconv.WORKER_THREAD_COUNT, "threads"),
        (semconv.WORKER_MEMORY_USAGE, "memory"),
        (semconv.WORKER_MEMORY_LIMIT, "limit"),
        (semconv.WORKER_MEMORY_SPILLED, "spilled"),
    ):
        for series in run.metrics.of(metric.name):
            name = series.labels.get(semconv.WORKER_NAME, "")
            largest = max((value for _, value in series.history()), default=series.value)
            setattr(found.setdefault(name, Worker(name)), figure, largest)
    for task in run.of_type("task"):
        name = task.text(semconv.WORKER_NAME)
        if name:
            worker = found.setdefault(name, Worker(name))
            worker.tasks += 1
            worker.failed += task.failed
    return sorted(found.values(), key=lambda worker: (len(worker.name), worker.name))


def retries(run: Run) -> dict[str, float]:
    """Return how many runs were repeated, by reason; without those that asked for it."""
    counted = run.metrics.by(semconv.TASK_RETRIED.name, semconv.TASK_RETRY_REASON)
    return {reason: n for reason, n in counted.items() if n and reason != "rescheduled"}

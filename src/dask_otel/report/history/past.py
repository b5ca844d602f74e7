"""The figures of one ended run, small enough to keep: a *run* is one root span that ended."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isclose
from typing import Any, Final, TypeAlias

from dask_otel import semconv
from dask_otel.core.sums import known_sum, summed
from dask_otel.report import words
from dask_otel.report.evidence import headlines
from dask_otel.report.money import Price
from dask_otel.report.path import waits
from dask_otel.report.seconds import IDLE, add, own_parts, span_activities, units
from dask_otel.report.telemetry.model import Session, Span, grouped, subtree, text, tree_of

#: The headings of `PastRun.cells`, and which of them are numbers.
HEADINGS: Final = ("time (UTC)", "name", "result", "duration", "tasks", "failed", "thread-hours",
                   "idle", "cost", "memory peak", "memory-time", "work", "distributed",
                   "dask-otel", "cluster")  # fmt: skip
NUMBERS: Final = frozenset(("duration", "tasks", "failed", "thread-hours", "idle", "cost",
                            "memory peak", "memory-time"))  # fmt: skip

#: Most functions and steps of a run; the smallest functions beyond it are in the rest.
_MOST: Final = 40
#: The computing of a function's tasks, if the telemetry does not divide it into activities.
RUNNING: Final = ""
COMPUTING: Final = ("thread-cpu", "thread-noncpu")
_COMPUTE: Final = f"{semconv.TASK_GROUP_DURATION}.compute"
_WORK: Final = {"tasks": semconv.TASK_COUNT, "bytes": semconv.SPAN_OUTPUT_SIZE}

#: The activities whose bytes are known by other words.
MOVED: Final = {"memory-read": "read from memory", "disk-write": "spilled"}

#: Seconds by function, then by activity or part of the path; the rest is under an empty name.
Terms: TypeAlias = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Step:
    """All spans of one name in a run: the root, or a span below it.

    `seconds` are the sum of their durations, and of the terms of `path` if that is known; `parts`
    are their own thread-seconds.
    """

    count: float
    seconds: float
    parts: dict[str, float]
    path: Terms


@dataclass(frozen=True)
class PastRun:
    """A root span and the spans below it. None if a figure was not exported.

    `thread_seconds` is the capacity that it used, with `idle_seconds`, and the sum of `parts`, by
    the title of the part, and of `functions`. `work` has the tasks of each function, and the
    bytes of their results. `moved` are the bytes of the run by activity; they are known if it was
    the only one of its name on its scheduler. `command` makes its report. `cause` is the kind and
    the title of the first diagnosis of the runs of its name there.
    """

    name: str
    cluster: str
    trace_id: str
    span_id: str
    start: float
    seconds: float
    result: str
    tasks: float | None
    failed: float | None
    output: float | None
    thread_seconds: float | None
    idle_seconds: float | None
    parts: dict[str, float]
    functions: Terms
    work: Terms
    moved: dict[str, float]
    steps: dict[str, Step]
    workers: float | None
    threads: float | None
    python: str
    distributed: str
    dask_otel: str
    command: str
    cause: str = ""
    #: What its tasks metered in units of their own; known like `moved`.
    units: dict[str, float] = field(default_factory=dict)
    #: The largest size of its results in memory, and the integral of that size.
    memory_peak: float | None = None
    memory_time: float | None = None

    @property
    def path(self) -> Terms:
        """What bounded the root span; empty if it is unknown."""
        return self.steps[self.name].path if self.name in self.steps else {}

    def cells(self, price: Price | None = None) -> dict[str, str]:
        """Return its figures in words, by heading; empty if they are unknown."""
        values = (
            words.when(round(self.start * 1e9)).removesuffix(" UTC"),
            words.one_line(self.name),
            words.one_line(self.result),
            words.seconds(self.seconds),
            words.whole(self.tasks),
            words.whole(self.failed),
            # At a price of 1, the cost is the number of hours.
            Price(1.0).text(self.thread_seconds),
            words.share(self.idle_seconds, self.thread_seconds),
            price.text(self.thread_seconds, self.memory_time) if price else "",
            words.size(self.memory_peak),
            words.byte_seconds(self.memory_time),
            ", ".join(self._work()),
            words.one_line(self.distributed),
            words.one_line(self.dask_otel),
            words.one_line(self.cluster),
        )
        return dict(zip(HEADINGS, values, strict=True))

    def _work(self) -> Iterator[str]:
        """Yield its units of work in words, with the rate."""
        for unit, count in self.units.items():
            rate = words.quantity(count / self.seconds) if self.seconds else ""
            yield f"{words.quantity(count)} {words.one_line(unit)}" + (
                f", {rate}/s" if rate else ""
            )


def past_run(entry: Mapping[str, Any]) -> PastRun:
    """Return a run from the plain data that `dataclasses.asdict` makes of it."""
    steps = {name: Step(**one) for name, one in entry["steps"].items()}
    return PastRun(**{**entry, "steps": steps})


def ended(session: Session, command: str) -> Iterator[PastRun]:
    """Yield the ended root spans of one scheduler, each with the spans below it."""
    _, below = tree_of(session.spans)
    roots = session.roots()
    count = Counter(root.full_name for root in roots)
    causes = headlines(session)
    for root in roots:
        if root.unfinished or is_backwards(root):
            continue
        tree = subtree([root], below)
        spans = [span for span in tree if span.type == "span"]
        capacity = known_sum(span.number(semconv.SPAN_CAPACITY) for span in spans)
        is_alone = count[root.full_name] == 1 and _is_measured(session, root.full_name, spans)
        alone = session if is_alone else Session("", "")
        functions, work = _functions(alone, root.full_name, tree, capacity)
        yield PastRun(
            name=root.full_name,
            cluster=session.cluster,
            trace_id=root.trace_id,
            span_id=root.span_id,
            start=root.start_ns / 1e9,
            seconds=root.seconds,
            result=root.result,
            # Of the whole tree; the seconds are each span's own.
            tasks=root.number(semconv.TASK_COUNT),
            failed=root.number(semconv.TASK_OUTCOME_COUNT.format("erred")),
            output=root.number(semconv.SPAN_OUTPUT_SIZE),
            thread_seconds=capacity,
            idle_seconds=known_sum(span.number(semconv.SPAN_IDLE) for span in spans),
            parts=_parts(spans),
            functions=functions,
            work=work,
            moved=_of_root(alone, root.full_name, semconv.SPAN_EXECUTE_IO, semconv.ACTIVITY),
            steps=_steps(spans, tree),
            workers=root.number(semconv.WORKER_COUNT),
            threads=root.number(semconv.THREAD_COUNT),
            python=text(session.resource.get(semconv.RUNTIME_VERSION)),
            distributed=text(session.resource.get(semconv.SERVICE_VERSION)),
            dask_otel=session.bridge,
            command=command,
            cause=causes[root.full_name],
            units={
                unit: count
                for (name, unit), count in units(alone, semconv.SPAN_ROOT_NAME).items()
                if name == root.full_name
            },
            memory_peak=root.number(semconv.SPAN_MEMORY_PEAK),
            memory_time=root.number(semconv.SPAN_MEMORY_SPENT),
        )


def is_backwards(root: Span) -> bool:
    """Return whether a span ended before it began, because the clock was set back."""
    # The reader moves such an end to the start; every span lasts at least 1 ns.
    return root.end_ns <= root.start_ns


def _parts(spans: Iterable[Span]) -> dict[str, float]:
    found = summed(map(own_parts, spans))
    return {part: seconds for part, seconds in found.items() if seconds}


def _is_measured(session: Session, name: str, spans: Iterable[Span]) -> bool:
    """Return whether a root's metrics agree with its spans, as far as both are there."""
    metered = _of_root(session, name, semconv.SPAN_EXECUTE_TIME, semconv.ACTIVITY)
    known = sum(sum(span_activities(span).values()) for span in spans)
    # Both are sums of the same seconds; else, the metrics are of other work, too, or of a part.
    return not known or isclose(sum(metered.values()), known)


def _of_root(session: Session, name: str, metric: semconv.Metric, *labels: str) -> dict[Any, float]:
    """Return a metric's sums over all spans of a root, by the values of one or more labels."""
    found = session.metrics.sums(metric.name, semconv.SPAN_ROOT_NAME, *labels)
    return {
        key[0] if len(key) == 1 else tuple(key): value
        for (root, *key), value in found.items()
        if root == name
    }


def _functions(
    session: Session, name: str, tree: Iterable[Span], capacity: float | None
) -> tuple[Terms, Terms]:
    """Return the thread-seconds of each function, whose sum is the capacity, and its work."""
    spans = [span for span in tree if span.type == "span"]
    activities = summed(map(span_activities, spans))
    of_groups = grouped(
        (one for one in tree if one.type == "group"), lambda one: one.text(semconv.TASK_PREFIX)
    )
    groups = {prefix: _sums(found, {RUNNING: _COMPUTE}) for prefix, found in of_groups.items()}
    work = {prefix: _sums(found, _WORK) for prefix, found in of_groups.items() if prefix}
    by_activity: Terms = {}
    executed = _of_root(
        session, name, semconv.SPAN_EXECUTE_TIME, semconv.TASK_PREFIX, semconv.ACTIVITY
    )
    for (prefix, label), seconds in executed.items():
        # As in the attributes of spans.
        activity = re.sub(r"[^A-Za-z0-9_-]", "_", label)
        known = activity in activities or capacity is None
        add(by_activity.setdefault(prefix, {}), activity if known else semconv.FOLDED, seconds)
    outcomes = _of_root(
        session, name, semconv.TASK_FINISHED, semconv.TASK_PREFIX, semconv.TASK_OUTCOME
    )
    # The seconds are those of tasks that ended.
    ended = summed({prefix: n * (how != "cancelled")} for (prefix, how), n in outcomes.items())
    for prefix, tasks in ended.items():
        work.setdefault(prefix, {})["tasks"] = tasks
    named = [(name, terms) for name, terms in (by_activity or groups).items() if name and terms]
    functions = dict(sorted(named, key=lambda item: -sum(item[1].values()))[:_MOST])
    if capacity is None:
        return functions, work
    idle = (span.number(semconv.SPAN_IDLE) or 0.0 for span in spans)
    whole: dict[str, float] = {**activities, IDLE: sum(idle)}
    if not by_activity:
        whole[RUNNING] = sum(whole.pop(one, 0.0) for one in COMPUTING)
    # What no activity has, which is nothing unless the files are incomplete.
    add(whole, "unknown", capacity - sum(whole.values()))
    return {**functions, "": _rest(whole, functions)}, work


def _sums(spans: Sequence[Span], keys: Mapping[str, str]) -> dict[str, float]:
    """Return the sums of some attributes by name, as far as they are there."""
    sums = {name: known_sum(span.number(key) for span in spans) for name, key in keys.items()}
    return {name: value for name, value in sums.items() if value is not None}


def _rest(whole: Mapping[str, float], terms: Terms) -> dict[str, float]:
    """Return what the terms leave of their sum."""
    taken = summed(terms.values())
    left = {key: whole.get(key, 0.0) - taken.get(key, 0.0) for key in {**whole, **taken}}
    return {name: seconds for name, seconds in left.items() if abs(seconds) > 1e-9}


def total(terms: Mapping[str, Mapping[str, float]]) -> float:
    """Return the sum of all terms."""
    return sum(value for one in terms.values() for value in one.values())


def _steps(spans: Sequence[Span], tree: Iterable[Span]) -> dict[str, Step]:
    """Return the spans by name, the root first, each with its path by function and part."""
    known = {one.name: one for one in waits(spans, (one for one in tree if one.type == "task"))}
    result: dict[str, Step] = {}
    for name, found in islice(grouped(spans, lambda span: span.full_name).items(), _MOST):
        seconds = sum(span.seconds for span in found)
        path: Terms = {}
        if name in known and (own := known[name]).seconds:
            path = {prefix: parts for prefix, (_, parts) in own.functions.items()}
            path[""] = _rest({**own.parts, "unknown": seconds - own.seconds}, path)
        result[name] = Step(len(found), seconds, _parts(found), path)
    return result

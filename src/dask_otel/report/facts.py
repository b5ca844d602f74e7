"""The facts of a run for its diagnoses, from its telemetry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from dask_otel import semconv
from dask_otel.core.diagnosis.facts import (
    Death,
    Facts,
    Link,
    RootFacts,
    SlowWorker,
    SpanFacts,
)
from dask_otel.report import words
from dask_otel.report.findings import failures, outcome_counts, span_names, workers
from dask_otel.report.path import link_parts, span_path
from dask_otel.report.seconds import add, span_activities
from dask_otel.report.telemetry.model import Log, Session, Span, grouped, text, tree_of
from dask_otel.report.telemetry.series import at

#: Of a removed worker: any of these tasks or results was lost with it.
_LOST: Final = (semconv.TASK_COUNT, semconv.RESULT_LOST_COUNT, semconv.DATA_LOST_COUNT)
_ORDERLY: Final = ("requested",)
#: The least share of the threads' time that others need to be looked for.
_HELD: Final = 0.05
_DURATION: Final = semconv.TASK_GROUP_DURATION + "."


def facts_of(session: Session) -> Facts:
    """Return the facts of a run."""
    spans, roots = session.of_type("span"), session.roots()
    names = span_names(session)
    found = _spans(session)
    _add_groups(session, names, found)
    by = session.metrics.by
    blocked = by(semconv.EVENT_LOOP_BLOCKED_TIME.name, semconv.PROCESS_ROLE)
    dropped = by(semconv.OTEL_DROPPED.name, semconv.OTEL_REASON)
    starved = session.metrics.total(semconv.EVENT_LOOP_STARVED_TIME.name)
    cpu = session.metrics.total(semconv.EVENT_LOOP_CPU_TIME.name)
    errors = failures(session)
    known = workers(session)
    counted = Counter(kind.what for kind in errors if kind.repeated)
    removed = [log for log in session.logs if log.name == semconv.WORKER_REMOVED]
    return Facts(
        seconds=sum(end - start for start, end in _joined(roots)) / 1e9,
        roots={root.name: root for root in _roots(session, roots)},
        spans=[*found.values()],
        before_first=_before(session, roots),
        blocked=blocked,
        starved=starved / cpu if starved and cpu else 0.0,
        workers=len(known),
        threads=max((worker.threads or 0.0 for worker in known), default=0.0) or _threads(session),
        cores=_cores(session),
        transfers=session.metrics.sums(
            semconv.CLUSTER_TRANSFER_TIME.name, semconv.IO_DIRECTION, semconv.ACTIVITY
        ),
        failed=int(max(outcome_counts(session).get("erred", 0.0), _final(errors))),
        exceptions=[one.kind or "unknown" for one in errors if not one.repeated],
        deaths=[_death(log) for log in removed if _is_death(log)],
        terminated=_named(session, semconv.WORKER_TERMINATED),
        pauses=_named(session, semconv.WORKER_PAUSED),
        causes=[what for what, _ in counted.most_common()],
        open=[span.full_name for span in spans if span.unfinished],
        dropped={why: count for why, count in dropped.items() if count > 0},
        merged=[
            (span.full_name, span.text(semconv.SPAN_REQUESTED_NAME))
            for span in spans
            if span.attributes.get(semconv.SPAN_COLLISION) is True
        ],
    )


def _threads(session: Session) -> float:
    """Return the most threads of a worker by their events: a short run has no levels."""
    known = (log.attributes.get(semconv.WORKER_THREAD_COUNT.name) for log in session.logs)
    return max((float(one) for one in known if isinstance(one, int)), default=0.0)


def _final(errors: Iterable[object]) -> int:
    return sum(getattr(one, "count", 0) for one in errors if not getattr(one, "repeated", True))


def _joined(spans: Iterable[Span]) -> list[tuple[int, int]]:
    """Return the times of spans, those that overlap as one."""
    found: list[tuple[int, int]] = []
    for span in spans:
        if found and span.start_ns <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], span.end_ns)
        else:
            found.append((span.start_ns, span.end_ns))
    return found


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> float:
    return max(0, min(one[1], other[1]) - max(one[0], other[0])) / 1e9


def _before(session: Session, roots: list[Span]) -> float:
    """Return the seconds from the first worker, and the first client, to the first root."""
    added = (semconv.WORKER_ADDED, semconv.CLIENT_ADDED)
    first = [next((log.time_ns for log in session.logs if log.name == one), None) for one in added]
    known = [time for time in first if time is not None]
    if len(known) < len(added) or not roots or any(span.unfinished for span in roots):
        return 0.0
    return max(0, roots[0].start_ns - max(known)) / 1e9


def _spans(session: Session) -> dict[str, SpanFacts]:
    """Return the spans by name, with their paths."""
    spans = session.of_type("span")
    _, below = tree_of(spans)
    found: dict[str, SpanFacts] = {}
    for span in spans:
        entry = found.setdefault(span.full_name, SpanFacts(span.full_name, _root_of(span)))
        entry.count += 1
        entry.seconds += span.seconds
        entry.queue += span.number(semconv.SPAN_QUEUE_TIME) or 0.0
        inner = [span_path(one) for one in below.get(span.key, ())]
        for part, took in span_path(span).items():
            entry.parts[part] += max(0.0, took - sum(one.get(part, 0.0) for one in inner))
    labels = (semconv.SPAN_NAME, semconv.TASK_PREFIX, semconv.ACTIVITY)
    metered = session.metrics.sums(semconv.SPAN_EXECUTE_TIME.name, *labels)
    for (name, prefix, activity), took in metered.items():
        if name in found:
            add(found[name].work.setdefault(prefix, {}), activity, took)
    return found


def _add_groups(session: Session, names: dict[str, str], found: dict[str, SpanFacts]) -> None:
    """Add the groups, and the links of the paths."""
    sums: dict[tuple[str, str], tuple[int, float]] = {}
    tasks = session.of_type("task")
    for group in session.of_type("group"):
        entry = found.get(names.get(group.text(semconv.SPAN_ID), ""))
        if entry is None:
            continue
        prefix, count = group.text(semconv.TASK_PREFIX), int(group.number(semconv.TASK_COUNT) or 0)
        compute = group.number(_DURATION + "compute") or 0.0
        sums[_group_of(group)] = count, compute
        before = entry.before.setdefault(prefix, {})
        for action in ("transfer", "disk-read"):
            add(before, action, group.number(_DURATION + action))
        if how := group.text(semconv.TASK_GROUP_RESTRICTION):
            entry.restrictions[prefix] = how
        name = group.text(semconv.TASK_GROUP_SLOW_WORKER)
        runs = int(group.number(semconv.TASK_GROUP_SLOW_COUNT) or 0)
        if name and count > runs:
            took = group.number(semconv.TASK_GROUP_SLOW_TIME) or 0.0
            there = [task.seconds for task in tasks if _group_of(task) == _group_of(group)]
            others = max(0.0, compute - took) / (count - runs)
            longest = max(there, default=0.0)
            entry.slow.append(SlowWorker(name, prefix, runs, took, longest, others))
    for task in tasks:
        entry = found.get(names.get(task.text(semconv.SPAN_ID), ""))
        if entry is not None and task.attributes.get(semconv.TASK_ON_PATH) is True:
            count, compute = sums.get(_group_of(task), (0, 0.0))
            own = dict(zip(semconv.PATH_PARTS, link_parts(task), strict=True))
            entry.links.append(
                Link(
                    task.text(semconv.TASK_PREFIX) or task.name,
                    task.text(semconv.WORKER_NAME),
                    own,
                    "/".join(_group_of(task)),
                    count,
                    max(0.0, compute - own["compute"]) / (count - 1) if count > 1 else None,
                )
            )


def _root_of(span: Span) -> str:
    return span.text(semconv.SPAN_ROOT_NAME) or span.full_name


def _group_of(span: Span) -> tuple[str, str]:
    return span.text(semconv.SPAN_ID), span.text(semconv.TASK_GROUP_NAME)


def _roots(session: Session, roots: list[Span]) -> Iterator[RootFacts]:
    """Yield the facts of the trees by the names of their roots."""
    of_root = grouped(session.of_type("span"), _root_of)
    same = grouped(roots, lambda root: root.full_name)
    groups = session.of_type("group")
    pauses = [*_pauses(session)]
    labels = (semconv.SPAN_ROOT_NAME, semconv.TASK_RETRY_REASON)
    repeated = session.metrics.sums(semconv.TASK_RETRIED.name, *labels)
    for name, found in same.items():
        entry = RootFacts(name)
        threads = 0.0
        times = _joined(found)
        for root in found:
            path = span_path(root)
            for part, took in path.items():
                entry.parts[part] += took
            entry.seconds += root.seconds
            entry.tasks += int(root.number(semconv.TASK_COUNT) or 0)
            entry.elsewhere += root.number(semconv.SPAN_ELSEWHERE) or 0.0
            threads += root.number(semconv.SPAN_DASK_ACTIVE_CPU_TIME) or 0.0
        entry.threads = threads / entry.seconds if entry.seconds else 0.0
        for span in of_root.get(name, ()):
            if (idle := span.number(semconv.SPAN_IDLE)) is not None:
                entry.idle = (entry.idle or 0.0) + idle
            for activity, took in span_activities(span).items():
                add(entry.activities, activity, took)
        entry.retries = {
            why: count
            for (root_name, why), count in repeated.items()
            if root_name == name and count and why != "rescheduled"
        }
        entry.retried = _mean_run(group for group in groups if _root_of(group) == name)
        entry.paused = sum(_overlap(one, pause) for one in times for pause in pauses)
        if entry.elsewhere > _HELD * entry.threads * entry.seconds:
            others: dict[str, float] = {}
            for group in groups:
                owner = _root_of(group)
                within = sum(_overlap(one, (group.start_ns, group.end_ns)) for one in times)
                if owner != name and within:
                    took = group.number(_DURATION + "compute") or 0.0
                    add(others, owner, took * within / (group.seconds or 1.0))
            entry.holders = sorted(others.items(), key=lambda item: -item[1])
        yield entry


def _pauses(session: Session) -> Iterator[tuple[int, int]]:
    """Yield the times in which workers were paused."""
    since: dict[str, int] = {}
    found: list[tuple[int, int]] = []
    ended = (semconv.WORKER_RESUMED, semconv.WORKER_REMOVED)
    for log in session.logs:
        name = text(log.attributes.get(semconv.WORKER_NAME))
        if log.name == semconv.WORKER_PAUSED:
            since.setdefault(name, log.time_ns)
        elif log.name in ended and name in since:
            found.append((since.pop(name), log.time_ns))
    found += [(start, session.end_ns or start) for start in since.values()]
    until = 0
    for start, end in sorted(found):
        yield max(start, until), max(end, until)
        until = max(end, until)


def _cores(session: Session) -> list[float]:
    """Return the cores that worker processes used while they ran two tasks at least."""
    tasks = {
        series.labels.get(semconv.WORKER_NAME): series.history()
        for series in session.metrics.of(semconv.WORKER_TASK_COUNT.name)
        if series.labels.get(semconv.TASK_STATE) == "executing"
    }
    threads = {worker.name: worker.threads or 0.0 for worker in workers(session)}
    return [
        share * threads[name]
        for series in session.metrics.of(semconv.WORKER_CPU_UTILIZATION.name)
        if (name := series.labels.get(semconv.WORKER_NAME, "")) in threads
        for time_ns, share in series.history()
        if at(tasks.get(name, []), time_ns) >= 2
    ]


def _is_death(log: Log) -> bool:
    """Return whether a worker took tasks or results with it, without a request to leave."""
    own = log.attributes
    return (
        own.get(semconv.WORKER_REMOVAL_EXPECTED) is not True
        and own.get(semconv.WORKER_REMOVAL_REASON) not in _ORDERLY
        and any(own.get(key) for key in _LOST)
    )


def _death(log: Log) -> Death:
    suspects = log.attributes.get(semconv.TASK_SUSPECTS) or log.attributes.get(
        semconv.TASK_PREFIXES
    )
    said = words.one_line((log.body or "").partition("\n")[0])
    return Death(
        text(log.attributes.get(semconv.WORKER_NAME)),
        text(log.attributes.get(semconv.WORKER_REMOVAL_REASON)),
        words.cut(said, 400),
        _texts(suspects),
        _texts(log.attributes.get(semconv.ROOT_NAMES)),
    )


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, tuple) else []


def _named(session: Session, event: str) -> list[str]:
    found = (log for log in session.logs if log.name == event)
    return [*dict.fromkeys(text(log.attributes.get(semconv.WORKER_NAME)) for log in found)]


def _mean_run(groups: Iterable[Span]) -> float:
    """Return the mean seconds of a run in the groups with repeated ones."""
    count = took = 0.0
    for group in groups:
        again = sum(
            group.number(semconv.TASK_OUTCOME_COUNT.format(one)) or 0.0
            for one in ("retried", "recomputed")
        )
        if again:
            count += again + (group.number(semconv.TASK_COUNT) or 0.0)
            took += group.number(_DURATION + "compute") or 0.0
    return took / count if count else 0.0

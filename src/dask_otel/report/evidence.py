"""The facts of a run for its diagnoses, from its telemetry."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, pairwise
from math import inf
from operator import itemgetter
from typing import Any, Final, TypeAlias

from dask_otel import semconv
from dask_otel.core.diagnosis import Diagnosis, diagnose
from dask_otel.core.diagnosis.facts import (
    Death,
    Facts,
    FullestWorker,
    RootFacts,
    SlowWorkers,
    SpanFacts,
    link_of,
)
from dask_otel.core.sums import covered, joined, known_sum, summed
from dask_otel.report import words
from dask_otel.report.findings import (
    Failure,
    Worker,
    failures,
    is_death,
    outcome_counts,
    span_names,
    workers,
)
from dask_otel.report.path import link, span_path
from dask_otel.report.seconds import LOST, add, span_activities
from dask_otel.report.telemetry.model import Log, Session, Span, grouped, text, texts, tree_of
from dask_otel.report.telemetry.series import History

Times: TypeAlias = list[tuple[float, float]]
#: The threads of workers that died, and the times without them.
Gone: TypeAlias = Sequence[tuple[float, tuple[float, float]]]

_CANCELLED: Final = "cancelled"
_ERRED: Final = semconv.TASK_OUTCOME_COUNT.format("erred")
_DURATION: Final = semconv.TASK_GROUP_DURATION + "."
#: Of a group: its tasks, their results, those that were computed again, their seconds, and the
#: runs of its slow workers.
_GROUP: Final = (
    semconv.TASK_COUNT,
    semconv.TASK_OUTCOME_COUNT.format("memory"),
    semconv.TASK_OUTCOME_COUNT.format("recomputed"),
    _DURATION + "compute",
    semconv.TASK_GROUP_SLOW_SHARE,
    semconv.TASK_GROUP_SLOW_TIME,
    semconv.TASK_GROUP_OTHERS_TIME,
)
#: Of a group: its results, runs that were lost, results that were made again, and their seconds.
_RUNS: Final = (
    *map(semconv.TASK_OUTCOME_COUNT.format, ("memory", "lost", "recomputed")),
    _DURATION + "compute",
)
#: Of a root: its tasks, what others computed meanwhile, the time of the cluster's threads, and its
#: cancelled tasks.
_SUMS: Final = (
    semconv.TASK_COUNT,
    semconv.SPAN_ELSEWHERE,
    semconv.SPAN_DASK_ACTIVE_CPU_TIME,
    semconv.TASK_OUTCOME_COUNT.format("cancelled"),
)
#: The most characters of the words of an event, or of an exception.
_LONGEST: Final = 240
#: The least share of the threads' time that others need to be looked for.
HELD: Final = 0.05
#: The least share of it for a notice that workers did not report it.
_UNREPORTED: Final = 0.1
#: The least share of the longest pause of a worker for another worker to be named.
_PAUSED: Final = 0.1
#: The most names of spans, those that waited longest for threads, for which the tasks of others are
#: looked for.
_MOST_WAITS: Final = 20
#: Seconds between two roundings of the same time, at most.
_SAME: Final = 1e-3
#: Nanoseconds after which workers have reported what they did: a heartbeat or two.
_REPORTED: Final = 1_000_000_000
#: The diagnosis of a block without work.
_NO_WORK: Final = Diagnosis(
    "short",
    "",
    0.0,
    "The block had no work on this cluster",
    "",
    "Compute inside the block: a lazy collection does nothing before that, and what other threads "
    "submit is not the block's.",
)
_NO_ROOM: Final = Diagnosis(
    "gaps",
    "",
    0.0,
    "The block's work is not known: its telemetry had no room in the scheduler's memory",
    "",
    "Make otel.report.memory larger where the scheduler runs.",
)
_NOT_DONE: Final = "The block ended before its work was done"
_LOOK: Final = "Look at the traceback in the program that ran the block."
#: Behind the name of a span of others, if the block has one of this name.
_ANOTHER: Final = " (another)"


def facts_of(session: Session, errors: Sequence[Failure], known: Sequence[Worker]) -> Facts:
    """Return the facts of a run; `errors` and `known` are its failures and its workers."""
    if session.block is not None:
        session = replace(session, spans=[*_apart(session, session.block.name)])
    spans, roots = session.of_type("span"), session.roots()
    final = [one for one in errors if not one.repeated]
    again = grouped((one for one in errors if one.repeated), lambda one: one.span)
    events = grouped(session.logs, lambda log: log.name)
    deaths = [
        (log, interrupted)
        for log in events.get(semconv.WORKER_REMOVED, ())
        if (interrupted := _interrupted(log, roots)) or is_death(log)
    ]
    terminated = dict.fromkeys(map(_worker, events.get(semconv.WORKER_TERMINATED, ())))
    added, clients = (
        [log.time_ns for log in events.get(name, ()) if roots and log.time_ns <= roots[0].start_ns]
        for name in (semconv.WORKER_ADDED, semconv.CLIENT_ADDED)
    )
    before_first = blocked_first = between = 0.0
    if session.block is not None:
        starts = [root.start_ns for root in roots if root.full_name == session.block.name]
        if session.block.began and starts:
            before_first = max(0.0, min(starts) / 1e9 - session.block.began)
    elif added and clients and not any(span.unfinished for span in roots):
        # The client may have waited for the last one of these workers.
        there = max(added[-1], clients[0])
        before_first = (roots[0].start_ns - there) / 1e9
        blocked_first = sum(
            _growth(one.history(), [(there, roots[0].start_ns)])
            for one in session.metrics.of(semconv.EVENT_LOOP_BLOCKED_TIME.name)
            if one.labels.get(semconv.PROCESS_ROLE) == "scheduler"
        )
        times = joined((root.start_ns, root.end_ns) for root in roots)
        gone = [log.time_ns for log in events.get(semconv.CLIENT_REMOVED, ())]
        between = sum(
            (after - before) / 1e9
            for (_, before), (after, _) in pairwise(times)
            if bisect_left(gone, before) == bisect_right(gone, after)
        )
    missing = [*_missing(session, known, [log for log, _ in deaths])]
    paused = [*_pauses(session)]
    pauses = joined(times for _, times in paused)
    lasted = summed({name: until - since} for name, (since, until) in paused)
    least = _PAUSED * max(lasted.values(), default=0)
    of_roots = [*_roots(session, roots, missing, pauses)]
    dropped = session.metrics.by(semconv.OTEL_DROPPED.name, semconv.OTEL_REASON)
    gaps = [f"{words.counted(int(n), 'item')} ({why})" for why, n in dropped.items() if n > 0]
    lost = session.metrics.by(semconv.CLUSTER_TIME.name, semconv.ACTIVITY).get(LOST, 0.0)
    if not deaths and lost > _UNREPORTED * sum(one.threads * one.seconds for one in of_roots):
        unreported = words.seconds(lost)
        gaps.append(f"{unreported} thread-time that workers did not report before they left")
    return Facts(
        seconds=opened(roots),
        roots={root.name: root for root in of_roots},
        spans=_spans(session, {root.name: root.threads for root in of_roots}, missing, pauses),
        before_first=before_first,
        blocked_first=blocked_first,
        between=between,
        workers=len(known),
        threads=max((worker.threads or 0.0 for worker in known), default=0.0),
        fewest=min((worker.threads or 0.0 for worker in known), default=0.0),
        limits={worker.limit or 0.0 for worker in known if worker.memory},
        failed=_failed(session, final),
        exceptions=_exceptions(final),
        causes={span: [one.what for one in same] for span, same in again.items()},
        deaths=[_death(log, interrupted) for log, interrupted in deaths],
        terminated=[*terminated],
        pauses=[name for name, took in lasted.items() if took >= least],
        open=[span.full_name for span in spans if span.unfinished],
        gaps=gaps,
        merged=[
            (span.full_name, span.text(semconv.SPAN_REQUESTED_NAME))
            for span in spans
            if span.attributes.get(semconv.SPAN_COLLISION) is True
        ],
    )


def _failed(session: Session, final: Iterable[Failure]) -> int:
    """Return the number of tasks that failed for good: no client has retried them."""
    erred = outcome_counts(session).get("erred", 0.0)
    of_roots = (root.number(_ERRED) or 0.0 for root in session.roots())
    return int(max(erred, sum(of_roots), sum(one.count for one in final)))


def _apart(session: Session, block: str) -> Iterator[Span]:
    """Yield the spans; names of the block's spans are of these alone."""
    # A block without work has no span, but its name.
    own = {block, *(one.full_name for one in session.of_type("span") if one.key in session.own)}
    for span in session.spans:
        named = {key: span.text(key) for key in (semconv.SPAN_NAME, semconv.SPAN_ROOT_NAME)}
        new = {key: name + _ANOTHER for key, name in named.items() if name in own}
        is_other = new and span.key not in session.own
        yield replace(span, attributes={**span.attributes, **new}) if is_other else span


def headlines(session: Session) -> dict[str, str]:
    """Return the kind and the title of the first diagnosis of the runs of each root name."""
    facts = facts_of(session, failures(session), workers(session))
    first = {name: diagnose(replace(_of_root(facts, name), failed=0))[0] for name in facts.roots}
    return {name: f"{one.kind}: {one.title}" for name, one in first.items()}


def _of_root(facts: Facts, name: str) -> Facts:
    """Return the facts that concern the runs of one root name."""
    spans = [span for span in facts.spans if span.root == name]
    names, seconds = {span.name for span in spans}, facts.roots[name].seconds
    still = [one for one in facts.open if one in names]
    return replace(facts, seconds=seconds, before_first=0.0, between=0.0, spans=spans, open=still)


def diagnoses_of(session: Session, facts: Facts, errors: Sequence[Failure]) -> list[Diagnosis]:
    """Return what cost a run its time, or its block; `errors` are the failures of the block."""
    block = session.block
    if block is None:
        return diagnose(facts)
    if block.name in facts.roots:
        final = [one for one in errors if not one.repeated]
        own = _of_root(facts, block.name)
        own.before_first = facts.before_first
        own.failed, own.exceptions = sum(one.count for one in final), _exceptions(final)
        found = diagnose(own)
    else:
        # Dask may have booked its work on another span.
        unknown = _NO_ROOM if block.lost else _NO_WORK
        found = [one for one in diagnose(facts) if one.kind == "merged"] or [unknown]
    if block.waits is not None:
        more = [one for one in found if one.kind not in ("open", "short")]
        found = [Diagnosis("open", block.name, 0.0, _NOT_DONE, *block.waits), *more]
    if block.error is not None and found[0].kind != "failed":
        title = f"The block ended with {': '.join(filter(None, block.error))}"
        found.insert(0, Diagnosis("failed", block.name, 0.0, title, "", _LOOK))
    return found


def _exceptions(failures: Iterable[Failure]) -> list[str]:
    return [words.cut(_in_words(one), _LONGEST) for one in failures]


def _in_words(failure: Failure) -> str:
    if failure.message or not failure.log:
        return failure.what
    # The scheduler's own exception: the end of the last worker says why.
    why = failure.log[-1].partition("\n")[0].partition(". ")[0]
    return f"{failure.what}: {why}"


def opened(spans: Iterable[Span]) -> float:
    """Return the seconds in which at least one of some spans was open."""
    return covered((span.start_ns, span.end_ns) for span in spans) / 1e9


def _overlap(times: Times, start: float, end: float) -> float:
    """Return the seconds of times that are in their order, and apart, from start to end."""
    first, last = bisect_left(times, (start,)), bisect_left(times, (end,))
    near = times[max(0, first - 1) : last]
    return sum(max(0, min(end, until) - max(start, since)) for since, until in near) / 1e9


# ------------------------------------------------------------------------------- spans


def _spans(
    session: Session, threads: Mapping[str, float], missing: Gone, pauses: Times
) -> list[SpanFacts]:
    """Return the spans by name, with their paths, links and groups."""
    spans, names = session.of_type("span"), span_names(session)
    _, below = tree_of(spans)
    found: dict[str, SpanFacts] = {}
    for span in spans:
        entry = found.setdefault(span.full_name, SpanFacts(span.full_name, _root_of(span)))
        entry.seconds += span.seconds
        inside = below.get(span.key, ())
        entry.times += _without(span, inside)
        entry.queue += span.number(semconv.SPAN_QUEUE_TIME) or 0.0
        count, *others = (one.number(semconv.TASK_COUNT) or 0.0 for one in (span, *inside))
        entry.tasks += count - sum(others)
        inner = [span_path(one) for one in inside]
        for part, took in span_path(span).items():
            entry.parts[part] += max(0.0, took - sum(one.get(part, 0.0) for one in inner))
    labels = (semconv.SPAN_NAME, semconv.TASK_PREFIX, semconv.ACTIVITY)
    everything = session.of_type("group")
    known = {(names.get(one.text(semconv.SPAN_ID), ""), _prefix_of(one)) for one in everything}
    # Those of others with the same name are in it.
    metered = {
        key: took
        for key, took in session.metrics.sums(semconv.SPAN_EXECUTE_TIME.name, *labels).items()
        if key[0] + _ANOTHER not in found or key[:2] in known
    }
    own = summed({one.full_name: sum(span_activities(one).values())} for one in spans)
    all_of = summed({name: took} for (name, *_), took in metered.items())
    for (name, prefix, activity), took in metered.items():
        if name in found:
            is_own = name + _ANOTHER not in found or not own[name]
            share = 1.0 if is_own else own[name] / (all_of[name] or 1.0)
            add(found[name].work.setdefault(prefix, {}), activity, took * share)
    tasks, groups = (grouped(session.of_type(one), _group_of) for one in ("task", "group"))
    needy = grouped(
        (
            one
            for one in everything
            if one.number(_DURATION + "compute")
            and one.text(semconv.TASK_GROUP_RESTRICTION) == "resources"
        ),
        lambda one: one.text(semconv.SPAN_ID),
    )
    # Tasks that a worker took with it before they had a result.
    interrupted = {
        (span.text(semconv.SPAN_ID), lost)
        for span in spans
        for event in span.events
        if (lost := text(event.attributes.get(semconv.TASK_KEY)))
        and event.attributes.get(semconv.TASK_RETRY_REASON) == "worker_lost"
    }
    no_waits: dict[str, Times] = {name: [] for name in found}
    for key in {**groups, **tasks}:
        if (owner := names.get(key[0], "")) in found:
            of = tasks.get(key, ())
            entry = found[owner]
            idle = partial(_free, everything, needy.get(key[0], ()), threads.get(entry.root, 0.0))
            _add_group(entry, groups.get(key, ()), of, idle, interrupted)
            no_waits[owner] += chain.from_iterable(map(_no_waits, of))
    for name, same in grouped(spans, lambda one: one.full_name).items():
        # Nothing waits for a worker while a task of the path computes, or before its submission.
        entry, times = found[name], joined((one.start_ns, one.end_ns) for one in same)
        without = joined(no_waits[name])
        entry.paused, entry.missing = (
            sum(_overlap(times, *one) - _overlap(without, *one) for one in joined(absent))
            for absent in (pauses, (gone for _, gone in missing))
        )
    _add_beside(found, grouped(everything, lambda one: names.get(one.text(semconv.SPAN_ID), "")))
    return [*found.values()]


def _add_beside(found: Mapping[str, SpanFacts], groups: Mapping[str, Sequence[Span]]) -> None:
    """Add to spans that waited for threads what others of their root did while they ran."""
    kinds = {
        (name, prefix): same
        for name in found.keys() & groups.keys()
        for prefix, same in grouped(groups[name], _prefix_of).items()
        if prefix in found[name].work
    }
    for entry in sorted(found.values(), key=lambda one: -one.parts["no_thread"])[:_MOST_WAITS]:
        times = joined((one.start_ns, one.end_ns) for one in groups.get(entry.name, ()))
        for (name, prefix), same in kinds.items():
            if name != entry.name and found[name].root == entry.root and times:
                whole = sum(one.number(_DURATION + "compute") or 0.0 for one in same) or 1.0
                share = _computed(same, times) / whole
                for activity, took in found[name].work[prefix].items():
                    add(entry.beside.setdefault(prefix, {}), activity, took * share)


def _without(span: Span, inside: Iterable[Span]) -> Iterator[tuple[float, float]]:
    """Yield the times of a span in which no span below it was open."""
    start: float = span.start_ns
    for begin, end in joined((one.start_ns, one.end_ns) for one in inside):
        yield start, max(start, min(begin, span.end_ns))
        start = max(start, min(end, span.end_ns))
    yield start, span.end_ns


def _no_waits(task: Span) -> Iterator[tuple[float, float]]:
    """Yield the times of the path at a task in which it waited for no worker."""
    parts = link(task)
    began = task.end_ns - (sum(parts.values()) - parts.get("report", 0.0)) * 1e9
    yield began, began + parts.get("client", 0.0) * 1e9
    yield task.end_ns - parts.get("compute", 0.0) * 1e9, task.end_ns


def _free(groups: Sequence[Span], needy: Sequence[Span], threads: float, task: Span) -> float:
    """Return the seconds for which all threads could have done what idle ones did not.

    They are those of a task on the path that waited for a thread, while groups that need a resource
    had work.
    """
    parts = link(task)
    took = sum(parts.values()) if threads and "no_thread" in parts else 0.0
    times: Times = [(task.end_ns - took * 1e9, task.end_ns)]
    return (
        max(0.0, took - _computed(groups, times) / threads)
        if any(_overlap(times, one.start_ns, one.end_ns) for one in needy)
        else 0.0
    )


def _add_group(
    entry: SpanFacts,
    groups: Iterable[Span],
    tasks: Sequence[Span],
    free: Callable[[Span], float],
    interrupted: Container[tuple[str, str]],
) -> None:
    """Add the groups of a name to their span, and those of their tasks that are on the path."""
    count = results = recomputed = compute = 0.0
    for group in groups:
        prefix = group.text(semconv.TASK_PREFIX)
        count, results, recomputed, compute, share, mean, others = (
            group.number(key) or 0.0 for key in _GROUP
        )
        for action in ("transfer", "disk-read"):
            add(entry.before.setdefault(prefix, {}), action, group.number(_DURATION + action))
        if how := group.text(semconv.TASK_GROUP_RESTRICTION):
            entry.restrictions[prefix] = how
            if count > results:
                entry.unfinished.append(prefix)
        if names := texts(group.attributes.get(semconv.TASK_GROUP_SLOW_WORKERS)):
            entry.slow.append(SlowWorkers(names, prefix, share * count, mean, others))
    for task in tasks:
        if task.attributes.get(semconv.TASK_ON_PATH) is True:
            name = task.text(semconv.TASK_PREFIX) or task.name
            of, worker = "/".join(_group_of(task)), task.text(semconv.WORKER_NAME)
            again = (
                recomputed > 0
                and (task.number(semconv.TASK_ATTEMPT) or 1) > 1
                and (task.text(semconv.SPAN_ID), task.text(semconv.TASK_KEY)) not in interrupted
            )
            known = link(task), of, int(count), results, compute, worker, again, free(task)
            entry.links.append(link_of(name, *known, task.number(semconv.TASK_QUEUE_TIME)))


def _root_of(span: Span) -> str:
    return span.text(semconv.SPAN_ROOT_NAME) or span.full_name


def _prefix_of(group: Span) -> str:
    return group.text(semconv.TASK_PREFIX)


def _group_of(span: Span) -> tuple[str, str]:
    return span.text(semconv.SPAN_ID), span.text(semconv.TASK_GROUP_NAME)


# ------------------------------------------------------------------------------- roots


def _roots(
    session: Session, roots: list[Span], missing: Gone, pauses: Times
) -> Iterator[RootFacts]:
    """Yield the facts of the trees by the names of their roots, and of the cluster meanwhile."""
    spans, groups, tasks = (
        grouped(session.of_type(one), _root_of) for one in ("span", "group", "task")
    )
    labels = (semconv.SPAN_ROOT_NAME, semconv.TASK_RETRY_REASON)
    repeated = session.metrics.sums(semconv.TASK_RETRIED.name, *labels)
    loops, transfers, starving, running, used = (
        [
            (tuple(one.labels.get(label, "") for label in metric.labels), one.history())
            for one in session.metrics.of(metric.name)
        ]
        for metric in (
            semconv.EVENT_LOOP_BLOCKED_TIME,
            semconv.CLUSTER_TRANSFER_TIME,
            semconv.EVENT_LOOP_STARVED_TIME,
            semconv.EVENT_LOOP_CPU_TIME,
            semconv.CLUSTER_TIME,
        )
    )
    # All metrics are of the block's time, also those of spans that are still open.
    about = () if session.block is None else session.of_type("span")
    block = "" if session.block is None else session.block.name
    known = {one.full_name: _root_of(one) for one in about}
    by_span = session.metrics.by(semconv.SPAN_EXECUTE_TIME.name, semconv.SPAN_NAME)
    executed = summed({known[label]: took} for label, took in by_span.items() if label in known)
    for name, found in grouped(roots, lambda root: root.full_name).items():
        times, own = joined((one.start_ns, one.end_ns) for one in found), spans.get(name, ())
        seconds = sum(root.seconds for root in found)
        count, elsewhere, threads, cancelled = (
            sum(one.number(key) or 0.0 for one in found) for key in _SUMS
        )
        if covered(times) < sum(one.end_ns - one.start_ns for one in found):
            elsewhere = max(0.0, elsewhere - _beside(groups.get(name, ()), found))
        # Of others, a block needs only what it took from them.
        asked = groups.keys() | executed.keys() if block in ("", name) else {block}
        held = {other: took for other, took in executed.items() if other in asked}
        if elsewhere > HELD * threads:
            held |= {one: _computed(same, times) for one, same in groups.items() if one in asked}
        activities, spent = summed(map(span_activities, own)), _grown(used, times)
        # Tasks of others that were cancelled go on, and hold threads until its first task begins.
        vain = spent.get((_CANCELLED,), 0.0) - activities.get(_CANCELLED, 0.0)
        queue = sum(one.number(semconv.SPAN_QUEUE_TIME) or 0.0 for one in found)
        elsewhere += max(0.0, min(vain, queue * threads / (seconds or 1.0)))
        holders = [(other, took) for other, took in held.items() if other not in ("", name)]
        starved, cpu = (sum(_grown(one, times).values()) for one in (starving, running))
        yield RootFacts(
            name,
            seconds,
            summed([dict.fromkeys(semconv.PATH_PARTS, 0.0), *map(span_path, found)]),
            int(count),
            threads / (seconds or 1.0),
            activities,
            known_sum(span.number(semconv.SPAN_IDLE) for span in own),
            elsewhere,
            holders=dict(sorted(holders, key=lambda item: -item[1])),
            times=[(one.start_ns, one.end_ns) for one in found],
            unreported=spent.get((LOST,), 0.0),
            retries={
                why: count
                for (of, why), count in repeated.items()
                if of == name and count and why != "rescheduled"
            },
            cancelled=cancelled,
            paused=sum(_overlap(times, *pause) for pause in pauses),
            missing=sum(lost * _overlap(times, *gone) for lost, gone in missing),
            longest=max(
                (
                    took
                    for one in tasks.get(name, ())
                    for event in one.events
                    if event.name == semconv.EVENT_TASK_COMPUTE and not one.failed
                    if isinstance(took := event.attributes.get(semconv.TASK_PART_TIME), float)
                ),
                default=0.0,
            ),
            shorter=_shorter(groups.get(name, ())),
            # An export interval can be longer than the time; a worker's loop is one of many.
            blocked={
                role: min(took, seconds) if role == "scheduler" else took
                for (role,), took in _grown(loops, times).items()
            },
            starved=starved / cpu if cpu else 0.0,
            starving=starved if starving else inf,
            transfers=_grown(transfers, times),
            **_memory(found, own),
        )


def _shorter(groups: Iterable[Span]) -> float:
    """Return how long runs took that were lost, or made again what was, as a share of others."""
    runs = gone = took = whole = 0.0
    for group in groups:
        results, lost, again, compute = (group.number(key) or 0.0 for key in _RUNS)
        own = results + lost + again
        runs, gone, whole = runs + own, gone + lost + again, whole + compute
        took += (lost + again) * compute / (own or inf)
    return min(1.0, took * runs / (gone * whole or inf)) if gone else 1.0


def _memory(roots: Iterable[Span], spans: Iterable[Span]) -> dict[str, Any]:
    """Return who held most of the results in memory, and which worker was the fullest."""
    sizes = [(one.number(semconv.SPAN_MEMORY_PEAK) or 0.0, one) for one in roots]
    peak, at_peak = max(sizes, key=itemgetter(0))
    holder = at_peak.text(semconv.SPAN_MEMORY_PREFIX)
    beats = [(beat, one) for one in roots if (beat := _fullest(one))]
    fullest = None
    if beats:
        # The spans below that had work then have the same heartbeat.
        (share, name, when), root = max(beats, key=itemgetter(0))
        names = {
            one.full_name
            for one in spans
            if (beat := _fullest(one)) and beat[:2] == (share, name) and abs(beat[2] - when) < _SAME
        }
        ran = [one.number(semconv.SPAN_WORKER_TASKS) for _, one in beats]
        fullest = FullestWorker(
            share,
            name,
            int(root.number(semconv.SPAN_HEARTBEATS) or 0),
            # Other runs can have run more.
            None if None in ran else int(max(filter(None, ran), default=0)),
            sorted(one for one in names if not any(other.startswith(one + "/") for other in names)),
            root.number(semconv.SPAN_WORKER_PEAK_TIME),
        )
    return {
        "memory": peak,
        "holder": (holder, at_peak.number(semconv.SPAN_MEMORY_PREFIX_SIZE) or 0.0)
        if holder
        else None,
        "fullest": fullest,
    }


def _fullest(span: Span) -> tuple[float, str, float] | None:
    """Return the largest share of a worker's memory while the span had work, the worker, and when.

    The time is in seconds since the epoch.
    """
    share = span.number(semconv.SPAN_WORKER_PEAK)
    after = span.number(semconv.SPAN_WORKER_PEAK_TIME) or 0.0
    name = span.text(semconv.SPAN_WORKER_PEAK_NAME)
    return None if share is None else (share, name, span.start_ns / 1e9 + after)


def _grown(
    known: Iterable[tuple[tuple[str, ...], History]], times: Times
) -> dict[tuple[str, ...], float]:
    """Return what counters grew by in some times, as sums by their labels."""
    return summed({key: _growth(history, times)} for key, history in known)


def _growth(history: History, times: Times) -> float:
    """Return what a counter grew by in some times, to an export interval."""
    ends = [(bisect_left(history, (a,)), bisect_left(history, (b + _REPORTED,))) for a, b in times]
    steps = {step for first, last in ends for step in range(first, last + 1)}
    values = [0.0, *(value for _, value in history)]
    return sum(values[step + 1] - values[step] for step in steps if step < len(history))


def _computed(groups: Iterable[Span], times: Times) -> float:
    """Return the seconds that groups computed in some times, if they did it evenly."""
    return sum(
        (group.number(_DURATION + "compute") or 0.0)
        * _overlap(times, group.start_ns, group.end_ns)
        / (group.seconds or 1.0)
        for group in groups
    )


def _beside(groups: Iterable[Span], roots: Sequence[Span]) -> float:
    """Return what groups computed while other trees of their name were open, once for each."""
    edges = [sorted(one.start_ns for one in roots), sorted(one.end_ns for one in roots)]
    sums = [[*accumulate(times, initial=0)] for times in edges]

    def opened(until: int) -> int:
        begun, ended = (
            count * until - so_far[count]
            for times, so_far in zip(edges, sums, strict=True)
            for count in (bisect_left(times, until),)
        )
        return begun - ended

    return sum(
        (group.number(_DURATION + "compute") or 0.0)
        * ((opened(group.end_ns) - opened(group.start_ns)) / (group.end_ns - group.start_ns) - 1.0)
        for group in groups
        if group.end_ns > group.start_ns
    )


# ------------------------------------------------------------------------------ workers


def _pauses(session: Session) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the names of workers, and the times in which they were paused."""
    since: dict[str, int] = {}
    ended = (semconv.WORKER_RESUMED, semconv.WORKER_REMOVED)
    for log in session.logs:
        name = _worker(log)
        if log.name == semconv.WORKER_PAUSED:
            since.setdefault(name, log.time_ns)
        elif log.name in ended and name in since:
            yield name, (since.pop(name), log.time_ns)
    last = session.end_ns or 0
    yield from ((name, (start, max(start, last))) for name, start in since.items())


def _missing(
    session: Session, known: Iterable[Worker], removed: Iterable[Log]
) -> Iterator[tuple[float, tuple[int, int]]]:
    """Yield the threads of workers that died, and the times until another worker came."""
    threads = {worker.name: worker.threads or 0.0 for worker in known}
    added = iter([log.time_ns for log in session.logs if log.name == semconv.WORKER_ADDED])
    for log in removed:
        came = next((one for one in added if one >= log.time_ns), session.end_ns or log.time_ns)
        yield threads.get(_worker(log), 0.0), (log.time_ns, came)


def _worker(log: Log) -> str:
    return text(log.attributes.get(semconv.WORKER_NAME))


def _interrupted(log: Log, roots: Iterable[Span]) -> list[str]:
    """Return the roots that were open when a client restarted a worker: their tasks are gone."""
    if log.attributes.get(semconv.WORKER_REMOVAL_REASON) != "restarted":
        return []
    return [root.full_name for root in roots if root.start_ns < log.time_ns < root.end_ns]


def _death(log: Log, interrupted: Sequence[str]) -> Death:
    own = log.attributes
    said = words.one_line((log.body or "").partition("\n")[0])
    suspects, prefixes, roots = (
        texts(own.get(key))
        for key in (semconv.TASK_SUSPECTS, semconv.TASK_PREFIXES, semconv.ROOT_NAMES)
    )
    # Whole sentences.
    said = said if len(said) <= _LONGEST else said[:_LONGEST].rpartition(". ")[0] + "."
    restarted = own.get(semconv.WORKER_REMOVAL_REASON) == "restarted"
    suspected = [] if restarted else suspects or prefixes
    return Death(_worker(log), said, suspected, roots or interrupted, restarted)

"""Advice in words: where a run exceeds an alert's limit, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from dask_otel import semconv
from dask_otel.report import cpu, findings, idle, words
from dask_otel.report.limits import ENOUGH_BYTES, ENOUGH_SECONDS, LIMITS, RUNBOOKS
from dask_otel.report.meanings import MEANINGS, PARTS
from dask_otel.report.seconds import (
    IDLE,
    LOST,
    UNUSED,
    ClusterTime,
    SpanTime,
    add,
    by_root,
    cluster_time,
    span_times,
)
from dask_otel.report.telemetry.model import Session, text

_SAY: Final = {part.title: part.advice for part in PARTS}

#: Worst first.
_ORDER: Final = {"bad": 0, "warning": 1, "note": 2}
#: The smallest share of all time for a note, and the most notes.
_NOTED: Final = 0.02
_MOST: Final = 12


@dataclass(frozen=True)
class Advice:
    """One item of advice."""

    #: ``bad``, ``warning`` or ``note``.
    severity: str
    title: str
    advice: str
    #: The alert with this limit; empty if there is none.
    alert: str = ""
    #: The seconds that it concerns, for the order.
    weight: float = 0.0

    @property
    def url(self) -> str:
        """The address of the alert's page; empty if there is none."""
        return f"{RUNBOOKS}{self.alert}.html" if self.alert else ""


def advice(session: Session) -> list[Advice]:
    """Return the advice, the worst and largest first."""
    cluster, names = cluster_time(session), span_times(session)
    stragglers = list(findings.stragglers(session))
    waited = {one.span for one in stragglers}
    found = [
        *_failures(session),
        *_telemetry(session),
        *_collisions(session),
        *_gaps(session),
        *(_of_cluster(session, cluster, stragglers) if cluster is not None else ()),
        *(one for root in by_root(names) for one in _of_root(session, root)),
        *(one for entry in names if entry.name not in waited for one in _of_span(entry)),
        *_stragglers(session, stragglers),
    ]
    whole = cluster.used if cluster is not None else sum(entry.seconds for entry in names)
    worth = [one for one in found if one.severity != "note" or one.weight >= _NOTED * whole]
    return sorted(worth, key=lambda one: (_ORDER[one.severity], -one.weight))[:_MOST]


def _stragglers(session: Session, found: Iterable[findings.Straggler]) -> Iterator[Advice]:
    for one in islice(found, 3):
        task = one.task
        prefix = task.text(semconv.TASK_PREFIX) or task.name
        worker = task.text(semconv.WORKER_NAME)
        where = f" on worker {worker}" if worker else ""
        others = (
            "Its group has no other task"
            if one.average is None
            else f"The other tasks of its group took {words.seconds(one.average)} on average"
        )
        # A quarter of the run deserves more than a note.
        yield Advice(
            "warning" if task.seconds > session.seconds / 4 else "note",
            f"{one.span}: one task of {prefix} took {words.seconds(task.seconds)}{where}",
            f"{others}; the span took {words.seconds(one.span_seconds)}. Split that task, or start"
            " it first.",
            weight=task.seconds,
        )


def _gaps(session: Session) -> Iterator[Advice]:
    for gap in findings.gaps(session)[:3]:
        where = f"{gap.span}: no task ran for" if gap.span else "No task ran for"
        when = f"from {words.seconds(gap.after)} on" if gap.after else "before the first one"
        when = "in between" if gap.after is None else when
        say = (
            f"Meanwhile the workers' memory grew by {words.size(gap.grown)} without a task: the "
            "client sent data, for example by scatter. Let tasks load the data."
            if gap.grown > ENOUGH_BYTES / 4
            else "The client computed, or waited for something else, before it submitted work."
        )
        yield Advice(
            "warning" if gap.seconds > session.seconds / 4 else "note",
            f"{where} {words.seconds(gap.seconds)}, {when}",
            say,
            weight=gap.seconds,
        )


def _collisions(session: Session) -> Iterator[Advice]:
    spans = session.of_type("span")
    names = {span.full_name for span in spans}
    for span in spans:
        if span.attributes.get(semconv.SPAN_COLLISION) is True:
            asked = span.text(semconv.SPAN_REQUESTED_NAME)
            gone = "" if asked in names else f" {asked} has no span of its own."
            yield Advice(
                "warning",
                f"{span.full_name} includes the work of {asked}, and perhaps of other spans",
                f"While any of a function's futures is alive, all its tasks belong to the span that"
                f" submitted them first.{gone} Give each span a key of its own:"
                " client.map(f, items, key='f_2').",
                weight=span.seconds,
            )


def _failures(session: Session) -> Iterator[Advice]:
    failed = int(outcome_counts(session).get("erred", 0.0))
    kinds = Counter(
        text(event.attributes.get(semconv.EXCEPTION_TYPE)) or "unknown"
        for span in session.of_type("span")
        for event in span.exceptions()
    )
    if failed or kinds:
        what = ", ".join(kind for kind, _ in kinds.most_common(4))
        count = max(failed, sum(kinds.values()))
        title = f"{words.counted(count, 'task')} failed for good" + (f": {what}" if what else "")
        yield Advice("bad", title, "Their messages and tracebacks are below.", weight=float(count))
    unfinished = [span for span in session.of_type("span") if span.unfinished]
    if unfinished:
        plural = "s were" if len(unfinished) > 1 else " was"
        yield Advice(
            "bad",
            f"{len(unfinished)} span{plural} still open at the end of the telemetry",
            "They still run, or the scheduler died: see its log.",
            "DaskOtelSilent",
        )


def outcome_counts(session: Session) -> dict[str, float]:
    """Return the number of tasks by outcome; from the root spans if there are no metrics."""
    counted = session.metrics.by(semconv.TASK_FINISHED.name, semconv.TASK_OUTCOME)
    for root in [] if counted else session.roots():
        for outcome in ("memory", "erred", "cancelled"):
            add(counted, outcome, root.number(semconv.TASK_OUTCOME_COUNT.format(outcome)))
    return counted


def _telemetry(session: Session) -> Iterator[Advice]:
    dropped = session.metrics.by(semconv.OTEL_DROPPED.name, semconv.OTEL_REASON)
    lost = {reason: count for reason, count in dropped.items() if count > 0}
    if lost:
        reasons = ", ".join(f"{count:,.0f} {reason}" for reason, count in lost.items())
        yield Advice(
            "warning",
            f"The telemetry has gaps: {reasons}",
            "This report covers what was exported; the rest is missing.",
            "DaskOtelDropping",
        )


def _over(
    alert: str, what: str, seconds: float, whole: float, say: str, severity: str = "warning"
) -> Iterator[Advice]:
    """Yield advice if a share exceeds an alert's limit."""
    if whole <= 0 or seconds / whole <= LIMITS[alert][0]:
        return
    little = "" if whole >= ENOUGH_SECONDS else f" ({words.seconds(whole)}: too short to judge)"
    title = f"{what}: {seconds / whole:.0%}{little}"
    yield Advice("note" if little else severity, title, say, alert, seconds)


def _of_cluster(
    session: Session, cluster: ClusterTime, stragglers: Sequence[findings.Straggler]
) -> Iterator[Advice]:
    seconds_of = cluster.activities.get
    idle_seconds, unused, lost = (seconds_of(name, 0.0) for name in (IDLE, UNUSED, LOST))
    worked = cluster.used - unused
    yield from _over(
        "DaskClusterIdle",
        "Threads were idle though there was work",
        idle_seconds,
        worked,
        _why_idle(session, cluster, idle_seconds, stragglers),
    )
    yield from _over(
        "DaskClusterUnused",
        "The cluster had no work at all",
        unused,
        cluster.used,
        _SAY["Unused"],
    )
    what, say, severity = _LEFT if _nothing_lost_but_seconds(session) else _DIED
    yield from _over("DaskTimeLost", what, lost, worked, say, severity)
    _, least_idle = LIMITS["DaskNetworkSlow"]
    if worked > 0 and idle_seconds / worked > least_idle:
        received = session.metrics.by(semconv.CLUSTER_TRANSFER_TIME.name, semconv.IO_DIRECTION)
        yield from _over(
            "DaskNetworkSlow",
            "Time spent fetching data, relative to execution",
            received.get("receive", 0.0),
            worked - idle_seconds - lost,
            "Threads wait for others' data: use fewer and larger workers.",
        )
    late = session.metrics.by(semconv.EVENT_LOOP_BLOCKED_TIME.name, semconv.PROCESS_ROLE)
    seconds, blocked = session.metrics.seconds, late.get("scheduler", 0.0)
    if seconds:
        yield from _over(
            "DaskEventLoopBlocked",
            "The scheduler's event loop was blocked",
            blocked,
            seconds,
            cpu.why_blocked(session, sum(outcome_counts(session).values()), blocked),
        )


#: Title, advice and severity of seconds lost with workers, without and with lost tasks.
_LEFT: Final = (
    "Seconds that workers had not reported when they left",
    "No task was lost with them: they were closed, or retired, before their next heartbeat."
    " dask_otel.span_metrics(client, span_id) waits for it.",
    "note",
)
_DIED: Final = (
    "Time of tasks whose worker died",
    "Workers die while they compute: look for the OOM killer and evicted pods.",
    "bad",
)


def _why_idle(
    session: Session, cluster: ClusterTime, seconds: float, stragglers: Sequence[findings.Straggler]
) -> str:
    threads = (
        (cluster.capacity or 0.0) / session.metrics.seconds if session.metrics.seconds else 0.0
    )
    longest = max((one.task.seconds for one in stragglers), default=0.0)
    if longest * (threads - 1) > seconds / 2:
        return "Most of it passed while one task, named below, ran alone."
    why = idle.explain(session)
    return " ".join(filter(None, (why.sentence() if why else "", _SAY["Idle"])))


def _nothing_lost_but_seconds(session: Session) -> bool:
    """Return whether it is certain that no task was lost with its worker."""
    retried = session.metrics.by(semconv.TASK_RETRIED.name, semconv.TASK_RETRY_REASON)
    counts = [retried.get(reason) for reason in _WITH_WORKERS]
    roots = session.roots()
    return (
        bool(roots)
        and not any([*counts, session.metrics.total(semconv.TASK_LOST.name)])
        and all(
            not span.unfinished
            and all(span.number(semconv.TASK_OUTCOME_COUNT.format(one)) == 0 for one in _LOST)
            for span in roots
        )
    )


#: Retry reasons and outcomes of tasks that were lost with their workers.
_WITH_WORKERS: Final = ("worker_lost", "recomputed")
_LOST: Final = ("lost", "recomputed")


def _of_root(session: Session, root: SpanTime) -> Iterator[Advice]:
    executed = sum(root.activities.values())
    spilled = sum(root.activities.get(name, 0.0) for name in MEANINGS["spill"].names)
    yield from _over(
        "DaskSpilling", f"{root.name}: spilling", spilled, executed, _SAY["Moving data"]
    )
    failed, cancelled = (root.activities.get(name, 0.0) for name in ("failed", "cancelled"))
    say = _SAY["Wasted"]
    if cancelled > failed and _only_rescheduled(session, root.name):
        say = (
            "No task was cancelled: these runs asked to be rescheduled, as those of peer-to-peer "
            "shuffles do. Dask books them as cancelled."
        )
    yield from _over(
        "DaskWorkWasted",
        f"{root.name}: runs without a result",
        failed + cancelled,
        executed,
        say,
    )
    yield from _waiting(session, root)
    from_disk = root.bytes.get("disk-read", 0.0)
    read = from_disk + root.bytes.get("memory-read", 0.0)
    if read > ENOUGH_BYTES and 1 - from_disk / read < LIMITS["DaskCacheMisses"][0]:
        yield Advice(
            "note",
            f"{root.name}: only {1 - from_disk / read:.0%} of its data was found in memory",
            "Data comes back from disk: give each worker more memory.",
            "DaskCacheMisses",
        )


def _waiting(session: Session, root: SpanTime) -> Iterator[Advice]:
    """Yield one line about a root's prefixes that waited, the longest wait first."""
    (limit,) = LIMITS["DaskThreadsWait"]
    labels = (semconv.SPAN_ROOT_NAME, semconv.TASK_PREFIX, semconv.ACTIVITY)
    seconds = session.metrics.sums(semconv.SPAN_EXECUTE_TIME.name, *labels)
    on_threads = [
        (waited, seconds.get((name, prefix, "thread-cpu"), 0.0), prefix)
        for (name, prefix, activity), waited in seconds.items()
        if name == root.name and activity == "thread-noncpu"
    ]
    found = sorted((one for one in on_threads if one[0] > limit * (one[0] + one[1])), reverse=True)
    if found:
        named = ", ".join(prefix for _, _, prefix in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        waited = sum(one[0] for one in found)
        yield from _over(
            "DaskThreadsWait",
            f"{root.name}: tasks of {named}{more} wait, off the CPU",
            waited,
            waited + sum(one[1] for one in found),
            cpu.why_waiting(session),
            "note",
        )


def _only_rescheduled(session: Session, root: str) -> bool:
    spans = [one for one in session.of_type("span") if one.text(semconv.SPAN_ROOT_NAME) == root]
    rescheduled, cancelled = (
        sum(span.number(semconv.TASK_OUTCOME_COUNT.format(outcome)) or 0.0 for span in spans)
        for outcome in ("rescheduled", "cancelled")
    )
    return rescheduled > 0 and not cancelled


def _of_span(entry: SpanTime) -> Iterator[Advice]:
    if entry.idle is not None and entry.capacity:
        yield from _over(
            "DaskSpanIdle",
            f"{entry.name}: idle",
            entry.idle,
            entry.capacity,
            "It had work, but not enough that could run at the same time.",
            "note",
        )

"""What to do next, in words: where a run is beyond the limit of an alert, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from dask_otel import semconv
from dask_otel.report import cpu, findings, idle, words
from dask_otel.report.limits import ENOUGH_BYTES, ENOUGH_SECONDS, LIMITS, runbook
from dask_otel.report.meanings import MEANINGS, PARTS, meaning_of
from dask_otel.report.seconds import (
    IDLE,
    LOST,
    UNUSED,
    ClusterTime,
    SpanTime,
    by_root,
    cluster_time,
    span_times,
)
from dask_otel.report.telemetry.model import Run, text

_SAY: Final = {part.title: part.advice for part in PARTS}

#: The worst first.
_ORDER: Final = {"bad": 0, "warning": 1, "note": 2}
#: A note is worth a line if it is about this share of all time; and so many lines are read.
_NOTED: Final = 0.02
_MOST: Final = 12


@dataclass(frozen=True)
class Advice:
    """One thing to look at."""

    #: ``bad``, ``warning`` or ``note``.
    severity: str
    title: str
    advice: str
    #: Whose limit was passed; its page says more. Empty where no alert is about it.
    alert: str = ""
    #: Seconds that it is about, to put the largest first.
    weight: float = 0.0

    @property
    def url(self) -> str:
        """The address of the alert's page; empty where there is none."""
        return runbook(self.alert) if self.alert else ""


def advice(run: Run) -> list[Advice]:
    """Return what to look at, the worst and largest first."""
    cluster = cluster_time(run)
    names = span_times(run)
    stragglers = list(findings.stragglers(run))
    found = [*_failures(run), *_telemetry(run), *_collisions(run), *_gaps(run)]
    if cluster is not None:
        found += _of_cluster(run, cluster, stragglers)
    for root in by_root(names):
        found += _of_root(run, root)
    waited = {one.span for one in stragglers}
    found += _of_spans(entry for entry in names if entry.name not in waited)
    found += _stragglers(run, stragglers)
    whole = cluster.used if cluster is not None else sum(entry.seconds for entry in names)
    worth = [one for one in found if one.severity != "note" or one.weight >= _NOTED * whole]
    return sorted(worth, key=lambda one: (_ORDER[one.severity], -one.weight))[:_MOST]


def _stragglers(run: Run, found: Iterable[findings.Straggler]) -> Iterator[Advice]:
    for one in islice(found, 3):
        task = one.task
        prefix = task.attributes.get(semconv.TASK_PREFIX) or task.name
        worker = task.attributes.get(semconv.WORKER_NAME)
        where = f" on worker {worker}" if worker else ""
        others = (
            "It had no other"
            if one.average is None
            else f"The others took {words.seconds(one.average)} on average"
        )
        # A quarter of the run is worth more than a note.
        yield Advice(
            "warning" if task.seconds > run.seconds / 4 else "note",
            f"{one.span}: one task of {prefix} took {words.seconds(task.seconds)}{where}",
            f"{others}, and the span {words.seconds(one.span_seconds)}: split that task, or start"
            " it first.",
            weight=task.seconds,
        )


def _gaps(run: Run) -> Iterator[Advice]:
    for gap in findings.gaps(run)[:3]:
        where = f"{gap.span}: no task ran for" if gap.span else "No task ran for"
        when = f"from {words.seconds(gap.after)} on" if gap.after else "before the first one"
        when = "in between" if gap.after is None else when
        say = (
            f"Meanwhile the workers' memory grew by {words.size(gap.grown)}, and no task was there:"
            " the client sent data, such as by scatter. Let tasks load it."
            if gap.grown > ENOUGH_BYTES / 4
            else "The client computed, or waited for something else, before it submitted work."
        )
        yield Advice(
            "warning" if gap.seconds > run.seconds / 4 else "note",
            f"{where} {words.seconds(gap.seconds)}, {when}",
            say,
            weight=gap.seconds,
        )


def _collisions(run: Run) -> Iterator[Advice]:
    spans = run.of_type("span")
    names = {span.full_name for span in spans}
    for span in spans:
        if span.attributes.get(semconv.SPAN_COLLISION) is True:
            asked = text(span.attributes.get(semconv.SPAN_REQUESTED_NAME))
            gone = "" if asked in names else f" {asked} has no span of its own."
            yield Advice(
                "warning",
                f"{span.full_name} has the work of {asked} in it, perhaps of more spans",
                f"A function's tasks belong to the span that had them first, while one of its"
                f" futures is alive.{gone} Give each span a key of its own:"
                " client.map(f, items, key='f_2').",
                weight=span.seconds,
            )


def _failures(run: Run) -> Iterator[Advice]:
    failed = int(outcome_counts(run).get("erred", 0.0))
    kinds = Counter(
        text(event.attributes.get(semconv.EXCEPTION_TYPE)) or "unknown"
        for span in run.of_type("span")
        for event in span.exceptions()
    )
    if failed or kinds:
        what = ", ".join(kind for kind, _ in kinds.most_common(4))
        count = max(failed, sum(kinds.values()))
        title = f"{words.counted(count, 'task')} failed for good" + (f": {what}" if what else "")
        yield Advice("bad", title, "Their messages and tracebacks are below.", weight=float(count))
    unfinished = [span for span in run.of_type("span") if span.unfinished]
    if unfinished:
        plural = "s were" if len(unfinished) > 1 else " was"
        yield Advice(
            "bad",
            f"{len(unfinished)} span{plural} still open at the end of the telemetry",
            "Either they still run, or the scheduler died with them: its log knows.",
            "DaskOtelSilent",
        )


def outcome_counts(run: Run) -> dict[str, float]:
    """Return how many tasks ended how; of roots where there are no metrics."""
    counted = run.metrics.by(semconv.TASK_FINISHED.name, semconv.TASK_OUTCOME)
    if counted:
        return counted
    for root in run.roots():
        for outcome in ("memory", "erred", "cancelled"):
            value = root.number(semconv.TASK_OUTCOME_COUNT.format(outcome))
            if value is not None:
                counted[outcome] = counted.get(outcome, 0.0) + value
    return counted


def _telemetry(run: Run) -> Iterator[Advice]:
    dropped = run.metrics.by(semconv.OTEL_DROPPED.name, semconv.OTEL_REASON)
    lost = {reason: count for reason, count in dropped.items() if count > 0}
    if lost:
        reasons = ", ".join(f"{count:,.0f} {reason}" for reason, count in lost.items())
        yield Advice(
            "warning",
            f"The telemetry has gaps: {reasons}",
            "What this page says is true of what was exported; some of it was not.",
            "DaskOtelDropping",
        )


def _over(
    alert: str, what: str, seconds: float, whole: float, say: str, severity: str = "warning"
) -> Iterator[Advice]:
    """Yield advice where a share is over the limit of an alert."""
    if whole <= 0 or seconds / whole <= LIMITS[alert][0]:
        return
    little = (
        "" if whole >= ENOUGH_SECONDS else f" (of {words.seconds(whole)} only: little to judge by)"
    )
    title = f"{what}: {seconds / whole:.0%}{little}"
    yield Advice("note" if little else severity, title, say, alert, seconds)


def _of_cluster(
    run: Run, cluster: ClusterTime, stragglers: Sequence[findings.Straggler]
) -> Iterator[Advice]:
    activities = cluster.activities
    idle_seconds, unused = activities.get(IDLE, 0.0), activities.get(UNUSED, 0.0)
    worked = cluster.used - unused
    lost = activities.get(LOST, 0.0)
    why = idle.explain(run)
    say = f"{why.sentence()} {_SAY['Idle']}" if why is not None and why.sentence() else _SAY["Idle"]
    threads = (cluster.capacity or 0.0) / run.metrics.seconds if run.metrics.seconds else 0.0
    longest = max((one.task.seconds for one in stragglers), default=0.0)
    if longest * (threads - 1) > idle_seconds / 2:
        say = "Most of it while one task ran alone: it is named below."
    what = "Threads were idle though there was work"
    yield from _over("DaskClusterIdle", what, idle_seconds, worked, say)
    what = "The cluster had no work at all"
    yield from _over("DaskClusterUnused", what, unused, cluster.used, _SAY["Unused"])
    if _nothing_lost_but_seconds(run):
        what = "Seconds that workers had not reported when they left"
        say = (
            "No task was lost with them: they were closed, or retired, before their next"
            " heartbeat. dask_otel.span_metrics(client, span_id) waits for it."
        )
        yield from _over("DaskTimeLost", what, lost, worked, say, "note")
    else:
        what = "Time of tasks whose worker died"
        say = "Workers die while they compute: look for the OOM killer and evicted pods."
        yield from _over("DaskTimeLost", what, lost, worked, say, "bad")
    executed = sum(entry for name, entry in activities.items() if name not in (IDLE, UNUSED, LOST))
    receiving = sum(
        series.value
        for series in run.metrics.of(semconv.CLUSTER_TRANSFER_TIME.name)
        if series.labels.get(semconv.IO_DIRECTION) == "receive"
    )
    _, least_idle = LIMITS["DaskNetworkSlow"]
    if worked > 0 and idle_seconds / worked > least_idle:
        yield from _over(
            "DaskNetworkSlow",
            "Fetching data, for each second of execution",
            receiving,
            executed,
            "Threads wait for others' data: use fewer and larger workers.",
        )
    yield from _loops(run)


def _nothing_lost_but_seconds(run: Run) -> bool:
    """Return whether it is known of all tasks that none was lost with its worker."""
    retried = run.metrics.by(semconv.TASK_RETRIED.name, semconv.TASK_RETRY_REASON)
    if any(retried.get(reason, 0.0) > 0 for reason in ("worker_lost", "recomputed")):
        return False
    if any(series.value > 0 for series in run.metrics.of(semconv.TASK_LOST.name)):
        return False
    roots = run.roots()
    count = semconv.TASK_OUTCOME_COUNT.format
    return bool(roots) and not any(
        span.unfinished or span.number(count("lost")) != 0 or span.number(count("recomputed")) != 0
        for span in roots
    )


def _loops(run: Run) -> Iterator[Advice]:
    seconds = run.metrics.seconds
    late = run.metrics.by(semconv.EVENT_LOOP_BLOCKED_TIME.name, semconv.PROCESS_ROLE)
    blocked = late.get("scheduler", 0.0)
    yield from _over(
        "DaskEventLoopBlocked",
        "The scheduler's event loop was blocked",
        blocked,
        seconds,
        cpu.why_blocked(run, sum(outcome_counts(run).values()), blocked) if seconds else "",
    )


def _of_root(run: Run, root: SpanTime) -> Iterator[Advice]:
    executed = sum(root.activities.values())
    by_meaning: dict[str, float] = {}
    for activity, seconds in root.activities.items():
        meaning = meaning_of(activity)
        by_meaning[meaning] = by_meaning.get(meaning, 0.0) + seconds
    spilled = sum(root.activities.get(name, 0.0) for name in MEANINGS["spill"].names)
    yield from _over(
        "DaskSpilling", f"{root.name}: spilling", spilled, executed, _SAY["Moving data"]
    )
    wasted = by_meaning.get("failed", 0.0) + by_meaning.get("cancelled", 0.0)
    say = _SAY["Wasted"]
    if by_meaning.get("cancelled", 0.0) > wasted / 2 and _only_rescheduled(run, root.name):
        say = (
            "No task was cancelled: these are runs that asked to run elsewhere, as those of"
            " peer-to-peer shuffles do. Dask books them as cancelled."
        )
    yield from _over("DaskWorkWasted", f"{root.name}: runs without a result", wasted, executed, say)
    yield from _waiting(run, root)
    from_disk = root.bytes.get("disk-read", 0.0)
    read = from_disk + root.bytes.get("memory-read", 0.0)
    if read > ENOUGH_BYTES and 1 - from_disk / read < LIMITS["DaskCacheMisses"][0]:
        yield Advice(
            "note",
            f"{root.name}: only {1 - from_disk / read:.0%} of its data was found in memory",
            "Data comes back from disk: give each worker more memory.",
            "DaskCacheMisses",
        )


def _waiting(run: Run, root: SpanTime) -> Iterator[Advice]:
    """Yield one line about all prefixes of a root that wait, the one with most seconds first."""
    (limit,) = LIMITS["DaskThreadsWait"]
    found: list[tuple[float, float, str]] = []
    for prefix, activities in root.prefixes.items():
        waited = activities.get("thread-noncpu", 0.0)
        on_threads = waited + activities.get("thread-cpu", 0.0)
        if on_threads and waited / on_threads > limit:
            found.append((waited, on_threads, prefix))
    if not found:
        return
    found.sort(reverse=True)
    waited, whole = sum(one for one, _, _ in found), sum(one for _, one, _ in found)
    named = ", ".join(prefix for _, _, prefix in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    yield from _over(
        "DaskThreadsWait",
        f"{root.name}: tasks of {named}{more} wait, off the CPU",
        waited,
        whole,
        cpu.why_waiting(run),
        "note",
    )


def _only_rescheduled(run: Run, root: str) -> bool:
    count = semconv.TASK_OUTCOME_COUNT.format
    rescheduled, cancelled = (
        sum(
            span.number(count(outcome)) or 0.0
            for span in run.of_type("span")
            if span.attributes.get(semconv.SPAN_ROOT_NAME) == root
        )
        for outcome in ("rescheduled", "cancelled")
    )
    return rescheduled > 0 and not cancelled


def _of_spans(names: Iterable[SpanTime]) -> Iterator[Advice]:
    for entry in names:
        if entry.idle is not None and entry.capacity:
            yield from _over(
                "DaskSpanIdle",
                f"{entry.name}: idle",
                entry.idle,
                entry.capacity,
                "It had work, but not enough that could run at the same time.",
                "note",
            )

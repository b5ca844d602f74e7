"""The facts of an interval, from which its diagnoses are decided. Times are in seconds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple, TypeAlias

from dask_otel.semconv import PATH_PARTS

#: From when to when, each.
Times: TypeAlias = Sequence[tuple[float, float]]


class Link(NamedTuple):
    """A task on the path of its span."""

    prefix: str
    #: Those of `semconv.PATH_PARTS` that are above 0.
    parts: Mapping[str, float]
    group: str = ""
    #: The number of tasks in its group, and the mean duration of the others; None if unknown.
    alike: int = 0
    others: float | None = None
    #: The name of the worker that ran it; empty if unknown.
    worker: str = ""
    #: Whether it computed a result again that was lost.
    again: bool = False
    #: If it waited for a thread, and tasks of its span need resources: the seconds for which all
    #: threads could have done what idle ones did not.
    free: float = 0.0
    #: For how long it was on the scheduler's queue, beyond its waits in which no thread was free.
    queued: float = 0.0
    #: For how long no thread was free after it had left that queue.
    behind: float = 0.0


def link_of(
    prefix: str,
    parts: Mapping[str, float],
    group: str,
    alike: int,
    results: float,
    computed: float,
    worker: str = "",
    again: bool = False,
    free: float = 0.0,
    queued: float | None = None,
) -> Link:
    """Return a task on a path; all `results` of its group were `computed` in so many seconds."""
    others = max(0.0, computed - parts.get("compute", 0.0))
    mean = others / (results - 1) if results > 1 else None
    waits = (took for part, took in parts.items() if part not in ("uneven", "compute"))
    rest = max(0.0, (queued or 0.0) - sum(waits))
    behind = max(0.0, parts.get("no_thread", 0.0) - (queued or 0.0))
    return Link(prefix, parts, group, alike, mean, worker, again, free, rest, behind)


class SlowWorkers(NamedTuple):
    """Workers whose runs take longer than the others' runs of the same tasks."""

    names: Sequence[str]
    prefix: str
    runs: float
    #: Mean seconds of their runs, and of the others'.
    mean: float
    others: float


@dataclass
class SpanFacts:
    """All spans of one name."""

    name: str
    root: str
    seconds: float = 0.0
    #: What bounded them, without the spans below: seconds by `semconv.PATH_PARTS`.
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PATH_PARTS, 0.0))
    #: From its start to the start of its first task.
    queue: float = 0.0
    #: Its own tasks.
    tasks: float = 0.0
    links: list[Link] = field(default_factory=list)
    #: By prefix: seconds of own tasks by activity, and those by action that Dask booked on tasks
    #: before they computed; by what they are restricted to some workers.
    work: dict[str, dict[str, float]] = field(default_factory=dict)
    before: dict[str, dict[str, float]] = field(default_factory=dict)
    restrictions: dict[str, str] = field(default_factory=dict)
    #: Restricted prefixes of which some tasks have no result: these can still wait.
    unfinished: list[str] = field(default_factory=list)
    #: As `work`: what other spans of its root did meanwhile, if it waited for threads.
    beside: dict[str, dict[str, float]] = field(default_factory=dict)
    slow: list[SlowWorkers] = field(default_factory=list)
    #: For how long a worker was paused, and for how long one that died was missing, until others
    #: came: without the seconds in which known tasks of its path computed, or were not submitted.
    paused: float = 0.0
    missing: float = 0.0
    #: When they were open, and no span below them was.
    times: list[tuple[float, float]] = field(default_factory=list)


class FullestWorker(NamedTuple):
    """The worker that used the largest share of its memory while a root had work."""

    share: float
    name: str
    #: The number of all workers' heartbeats.
    heartbeats: int
    #: The most tasks that a worker ran at any of these; None if unknown.
    tasks: int | None = None
    #: The innermost spans that had work then, and the seconds from the root's start until then;
    #: empty and None if unknown.
    spans: Sequence[str] = ()
    after: float | None = None


@dataclass
class RootFacts:
    """All trees of spans with one root name, and the cluster meanwhile."""

    name: str
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PATH_PARTS, 0.0))
    tasks: int = 0
    #: Mean number of the cluster's threads.
    threads: float = 0.0
    #: Thread-seconds by activity, idle ones (None if not measured), and those that tasks of other
    #: roots computed.
    activities: dict[str, float] = field(default_factory=dict)
    idle: float | None = None
    elsewhere: float = 0.0
    #: The roots that computed meanwhile, with their thread-seconds, the most first.
    holders: Mapping[str, float] = field(default_factory=dict)
    #: Thread-seconds of tasks that no worker reported: it left before, or they still run.
    unreported: float = 0.0
    #: For how long a worker was paused.
    paused: float = 0.0
    #: Repeated runs by `dask.task.retry.reason`, without those that asked for it; thread-seconds
    #: of workers that died, until others came.
    retries: Mapping[str, float] = field(default_factory=dict)
    missing: float = 0.0
    #: Seconds for which the longest run that is known computed.
    longest: float = 0.0
    #: The mean seconds of runs that were lost, or made again what was, as a share of those of all.
    #: At most 1.0.
    shorter: float = 1.0
    #: Its tasks that were cancelled.
    cancelled: float = 0.0
    #: For how long event loops were blocked, by role; for how long the scheduler's waited for a
    #: CPU, for each second that it had one, and in all.
    blocked: Mapping[str, float] = field(default_factory=dict)
    starved: float = 0.0
    starving: float = inf
    #: The largest size of its results in memory, and the prefix that had most of it.
    memory: float = 0.0
    holder: tuple[str, float] | None = None
    #: The worker that used the largest share of its memory.
    fullest: FullestWorker | None = None
    #: Seconds of transfers by direction and activity.
    transfers: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    #: When they were open, each.
    times: Times = ()

    @property
    def busy(self) -> float:
        """Thread-seconds of its tasks."""
        return sum(self.activities.values())

    @property
    def resting(self) -> float:
        """Idle thread-seconds until its end, of which a blocked scheduler hears later."""
        return min(self.idle or 0.0, max(0.0, self.threads * self.seconds - self.busy))

    @property
    def unbegun(self) -> float:
        """Idle thread-seconds while all threads had tasks, at least: these had not begun."""
        outside = self.threads * self.seconds - self.present * self.parts["no_thread"]
        # The path computes while it waits for nothing.
        return max(0.0, self.resting - max(0.0, outside - self.parts["compute"]))

    @property
    def present(self) -> float:
        """Mean number of threads while there were any, as far as the path knows it."""
        # Those that are paused are there.
        there = self.seconds - max(0.0, self.parts["no_worker"] - self.paused)
        return self.threads * self.seconds / there if there > 0.0 else self.threads

    @property
    def spare(self) -> float:
        """Wall clock for which all threads could have done what the idle ones did not."""
        if self.idle is None:
            return inf
        # Roots with tasks at the same time share the idle seconds, and each could use them all.
        working = self.seconds - self.parts["client"]
        used = self.busy + self.elsewhere + self.unreported
        idle = max(self.idle, self.threads * working - used)
        return max(0.0, idle - self.unbegun) / max(1.0, self.present)


#: The root of a span whose root is unknown.
NOWHERE: Final = RootFacts("")


class Death(NamedTuple):
    """A worker that left against the plan, and took tasks or results with it."""

    worker: str
    #: The event in words.
    said: str = ""
    #: Tasks that Dask suspects, or that it was running; the roots of its work, if known.
    suspects: Sequence[str] = ()
    roots: Sequence[str] = ()
    #: Whether a client asked for it, and lost tasks or results so.
    restarted: bool = False


@dataclass
class Facts:
    """The facts of a run, or of an open span."""

    #: The time in which a root was open.
    seconds: float = 0.0
    roots: dict[str, RootFacts] = field(default_factory=dict)
    spans: list[SpanFacts] = field(default_factory=list)
    #: Seconds without work while workers and a client were there, before the first root.
    before_first: float = 0.0
    #: For how long the scheduler's event loop was blocked before its end: then or in the export
    #: interval after it.
    blocked_first: float = 0.0
    #: Seconds between roots, in which nothing was open, although a client stayed.
    between: float = 0.0
    #: Number of workers, most threads of one, and fewest.
    workers: int = 0
    threads: float = 0.0
    fewest: float = 0.0
    #: The different limits of their memory, in bytes, as far as they are known; 0.0 is none.
    limits: Collection[float] = ()
    #: Tasks that failed for good, their exceptions, and by span those of repeated runs.
    failed: int = 0
    exceptions: Sequence[str] = ()
    causes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    deaths: Sequence[Death] = ()
    #: Workers that their nannies ended for their memory, and those that were paused the longest.
    terminated: Sequence[str] = ()
    pauses: Sequence[str] = ()
    #: Spans that are still open, gaps in the telemetry in words, and (has, asked) of collisions.
    open: Sequence[str] = ()
    gaps: Sequence[str] = ()
    merged: Sequence[tuple[str, str]] = ()

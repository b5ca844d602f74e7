"""What is known of a span while it is open: plain state, and what Dask's side must offer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol, cast

from dask_otel.core.context import Traceparent
from dask_otel.core.life.task_runs import KeptRun, ShownRuns, TaskLimits
from dask_otel.core.records import (
    Attributes,
    Failure,
    Incident,
    Result,
    SpanIdentity,
    Tags,
    TaskCounts,
)

#: Why a task's run had to be repeated. ``rescheduled`` is the task's own wish, and no trouble:
#: Dask's peer-to-peer shuffles use it to move their tasks to the data.
RetryReason = Literal["error", "worker_lost", "recomputed", "client", "rescheduled"]

#: Why a task became unfinished: a client submitted it; a client had it retried after it
#: failed itself, or after one that it depends on did; its result was there, and was lost.
Cause = Literal["submitted", "retried", "unblamed", "recomputed"]


#: What most spans have of something: one for all of them, which are many. Never written to.
NOTHING: Final = cast("dict[Any, Any]", MappingProxyType({}))


class Run(NamedTuple):
    """What is known of a run that gave no result."""

    #: Where it ran.
    worker: str
    #: When it computed, as far as that is known.
    start: float
    stop: float


class Phase(Enum):
    """Where a generation of a Dask span stands."""

    OPEN = "open"
    SETTLING = "settling"
    LINGERING = "lingering"
    EXPORTED = "exported"


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds and caps; see ``otel.spans`` in the configuration."""

    linger: float = 2.0
    settle_timeout: float = 30.0
    max_groups: int = 64
    trace_gap: float = 3600.0
    max_per_trace: int = 5000
    max_exceptions: int = 16
    max_incidents: int = 32
    #: Exported spans kept in mind for their continuations.
    remember: int = 10_000
    #: Age at which a span that has not ended shows itself; None for never. From then on it
    #: tells of its progress, so often at most.
    progress_after: float | None = 60.0
    progress_interval: float = 300.0
    #: Whether groups become spans of their own.
    groups: bool = True
    #: Which runs of tasks do.
    tasks: TaskLimits = field(default_factory=TaskLimits)
    #: Whether open spans are noted, should the scheduler be lost.
    notes: bool = False


class GroupFacts(NamedTuple):
    """What Dask's TaskGroup says of the work since the generation began."""

    output_bytes: int
    #: Seconds by action.
    durations: Mapping[str, float]
    types: tuple[str, ...]


class SpanFacts(NamedTuple):
    """What Dask's Span says at the export."""

    collections: tuple[str, ...] = ()
    #: (file, line, function) where the client submitted it.
    code: tuple[str, int, str | None] | None = None
    #: Idle and capacity seconds of the generation; None where they were not measured.
    idle: float | None = None
    capacity: float | None = None
    #: Callers of other traces.
    callers: tuple[Traceparent, ...] = ()
    #: Attributes of the caller's baggage that are asked for.
    baggage: Attributes = MappingProxyType({})


class Cluster(Protocol):
    """What the lifecycle asks Dask's side, and tells it."""

    def thread_seconds(self, start: float, stop: float) -> float:
        """Return the integral of the cluster's thread count over the interval."""

    def threads_at(self, time: float) -> int:
        """Return the cluster's thread count at that time."""

    def group_facts(self, group: Group) -> GroupFacts:
        """Return what Dask's TaskGroup says of the work since the generation began."""

    def span_facts(self, span: OpenSpan) -> SpanFacts:
        """Return what Dask's Span says."""

    def span_opened(self, span: OpenSpan) -> None:
        """Take note that a generation begins."""

    def span_active(self, span: OpenSpan, now: float) -> None:
        """Take note that the span owns an unfinished task, and did not before."""

    def span_inactive(self, span: OpenSpan, now: float) -> None:
        """Take note that the span's last unfinished task is gone."""

    def span_exported(self, span: OpenSpan) -> None:
        """Take note that the generation is over: let go of what belonged to it."""


class Group:
    """One task group's part of an open generation."""

    __slots__ = (
        "blamed",
        "counts",
        "floor",
        "name",
        "prefix",
        "slowest",
        "source",
        "span",
        "start",
        "stop",
    )

    def __init__(
        self, span: OpenSpan, name: str, prefix: str, source: object, floor: float
    ) -> None:
        self.span = span
        self.name = name
        self.prefix = prefix
        #: Whatever the cluster needs to know it by.
        self.source = source
        self.counts = TaskCounts()
        #: Tasks that never ran, because one that they depend on failed.
        self.blamed = 0
        #: When a worker first did something for one of its runs, and when the last one ended; 0.0
        #: until something computed.
        self.start = 0.0
        self.stop = 0.0
        #: Its slowest run, or a heap of them, where more than one is kept; what a run's seconds
        #: must exceed to be one of them.
        self.slowest: KeptRun | list[KeptRun] | None = None
        self.floor = floor

    @property
    def unfinished(self) -> int:
        """Tasks that have no outcome yet: all but those with one."""
        counts = self.counts
        return counts.tasks - counts.memory - counts.erred - counts.cancelled - self.blamed


@dataclass(slots=True)
class Below:
    """Sums over the exported spans of the tree below an open span."""

    counts: TaskCounts = field(default_factory=TaskCounts)
    output_bytes: int = 0
    groups: int = 0
    workers: set[str] = field(default_factory=set)
    execute_seconds: float = 0.0
    #: First start of all; 0.0 if nothing started.
    start: float = 0.0
    stop: float = 0.0
    result: Result = "success"
    #: The first that became known.
    failure: Failure | None = None
    complete: bool = True


class OpenSpan:
    """One generation of a Dask span that has not been exported."""

    __slots__ = (
        "active",
        "activities",
        "attributes",
        "awaits",
        "below",
        "busy",
        "capacity",
        "depth",
        "dropped_incidents",
        "due",
        "execute_seconds",
        "failed",
        "first_start",
        "groups",
        "holds",
        "identity",
        "idle",
        "incidents",
        "last_stop",
        "late",
        "open_children",
        "owing",
        "parent",
        "partial",
        "phase",
        "quiet_since",
        "reporters",
        "requested",
        "reruns",
        "runs",
        "shown",
        "shown_until",
        "start",
        "unfinished",
        "workers",
        "zombies",
    )

    def __init__(
        self,
        identity: SpanIdentity,
        start: float,
        parent: OpenSpan | None,
        late: bool,
    ) -> None:
        self.identity = identity
        #: Not before the span above, also where the clock was set back between the two.
        self.start: float = start if parent is None else max(start, parent.start)
        #: Nearest open ancestor, which waits for this span; None for a root, and where all
        #: ancestors have been exported.
        self.parent = parent
        self.depth = len(identity.tags)
        self.late = late
        #: Whether tasks of it ended that were not observed.
        self.partial = False
        self.phase = Phase.SETTLING
        self.groups: list[Group] = []
        #: Own tasks in waiting, queued, no-worker or processing.
        self.unfinished = 0
        #: Whether the observer was told that it owns unfinished tasks.
        self.active = False
        #: 1 for own work or open blocks, plus 1 for each span below (direct, as `parent` goes)
        #: that is busy. Zero: the tree below is done.
        self.busy = 0
        #: Client blocks (``with span()``) that are known to be open.
        self.holds = 0
        #: Spans whose `parent` this is. It can't be exported before them.
        self.open_children = 0
        self.quiet_since = start
        self.due = 0.0
        #: Workers that must report before it is settled, with their count of heartbeats
        #: when the waiting began; None before the first look.
        self.owing: dict[str, int] | None = None
        #: The first of them, while nothing was heard of it.
        self.awaits: str | None = None
        #: Workers that ran own tasks; workers that reported metrics for it. Python's garbage
        #: collector passes over dicts of texts, but not over sets, and there are many of these.
        self.workers: dict[str, None] = {}
        self.reporters: dict[str, None] = {}
        #: Workers on which a cancelled task may still be running.
        self.zombies: frozenset[str] = frozenset()
        #: Keys that left their state only to come back, and why; None where no run of
        #: theirs was lost.
        self.reruns: dict[Hashable, RetryReason | None] = NOTHING
        #: Tasks that failed for good; the value is None beyond the cap on details. (Fewer than
        #: `TaskCounts.erred` where a key failed, was forgotten, and failed again.)
        self.failed: dict[Hashable, Failure | None] = NOTHING
        self.incidents: tuple[Incident, ...] = ()
        self.dropped_incidents = 0
        #: Own first start and last end; 0.0 if there was none.
        self.first_start = 0.0
        self.last_stop = 0.0
        #: Its share of the cluster's idle seconds, and that plus its execute seconds, as far
        #: as they have been exported.
        self.idle = 0.0
        self.capacity = 0.0
        #: Seconds of context ``execute``, by activity; their sum.
        self.activities: dict[Hashable, float] = {}
        self.execute_seconds = 0.0
        self.requested: Tags | None = None
        #: What the user gave it.
        self.attributes: Attributes | None = None
        #: Signs of life so far, and up to when they tell.
        self.shown = 0
        self.shown_until = self.start
        self.below: Below | None = None
        #: Runs that are kept to be shown, other than the groups' slowest.
        self.runs: ShownRuns | None = None

    # What is added from several sides, by the one way for each.

    def metered(self, worker: str, activity: Hashable, seconds: float) -> None:
        """A worker reported execute seconds, also of runs that gave no result."""
        self.workers[worker] = None
        activities = self.activities
        activities[activity] = activities.get(activity, 0.0) + seconds
        self.execute_seconds += seconds

    def begin_time(self, idle: float, capacity: float) -> None:
        """Begin to credit time: what is still to come of an earlier generation is taken off."""
        self.idle, self.capacity = -idle, -capacity

    def credit(self, idle: float, capacity: float) -> None:
        """Add a share of the cluster's idle seconds, and of its capacity."""
        self.idle += idle
        self.capacity += capacity

    def seen_in_part(self) -> None:
        """Tasks of it ended that were not observed."""
        self.partial = True

    def asked_for(self, tags: Tags) -> None:
        """A client asked for another span, and Dask booked its work here."""
        self.requested = tags

    def describe(self, attributes: Attributes | None) -> None:
        """Take the attributes that a user gave it."""
        self.attributes = attributes

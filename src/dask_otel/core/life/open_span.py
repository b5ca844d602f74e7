"""The state of an open span, and the interface to Dask's side."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, cast

from dask_otel.core.context import Traceparent
from dask_otel.core.records import (
    Attributes,
    Failure,
    Incident,
    Result,
    SpanIdentity,
    Tags,
    TaskCounts,
)

#: Why a run was repeated. A task asks itself to be ``rescheduled``, which is no failure: Dask's
#: peer-to-peer shuffles do it to move their tasks to the data.
RetryReason = Literal["error", "worker_lost", "recomputed", "client", "rescheduled"]

#: Why a task became unfinished: a client submitted it; a client retried it after it failed
#: (``retried``) or after one of its dependencies failed (``unblamed``); its result was lost.
Cause = Literal["submitted", "retried", "unblamed", "recomputed"]


#: The empty dict that most spans share, because there are many of them. Never written to.
NOTHING: Final = cast("dict[Any, Any]", MappingProxyType({}))


class Run(NamedTuple):
    """A run without a result."""

    #: Where it ran.
    worker: str
    #: When it computed, as far as known.
    start: float
    stop: float


class Phase(Enum):
    """Phase of a generation of a Dask span."""

    OPEN = "open"
    SETTLING = "settling"
    LINGERING = "lingering"
    EXPORTED = "exported"


#: Seconds of computing; the run's unique number, so that a comparison never goes further; key;
#: worker's name; start and stop; attempt; seconds in the queue; size and type of the result; parts.
KeptRun: TypeAlias = tuple[
    float,
    int,
    Hashable,
    str | None,
    float,
    float,
    int | None,
    float | None,
    int | None,
    str | None,
    tuple[tuple[str, float, float], ...],
]


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Which runs become spans; see ``otel.spans.tasks``."""

    #: Slowest runs of each group.
    slowest: int = 0
    #: Part of all runs, chosen by their keys: from 0.0 to 1.0.
    ratio: float = 0.0
    #: Runs of one generation; 0 for none.
    most: int = 100

    @property
    def floor(self) -> float:
        """Seconds that the first run of a group must exceed to be among its slowest."""
        return -1.0 if self.slowest and self.most else inf


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
    #: Exported spans that are remembered for their continuations.
    remember: int = 10_000
    #: Age of an open span at its first sign of life (None for never), and the least time between
    #: two signs.
    progress_after: float | None = 60.0
    progress_interval: float = 300.0
    #: Whether groups become spans of their own.
    groups: bool = True
    #: Which runs of tasks become spans.
    tasks: TaskLimits = field(default_factory=TaskLimits)
    #: Whether open spans are noted for the loss of the scheduler.
    notes: bool = False


class GroupFacts(NamedTuple):
    """Sums of Dask's TaskGroup since the generation began."""

    output_bytes: int
    #: Seconds by action.
    durations: Mapping[str, float]
    types: tuple[str, ...]


class SpanFacts(NamedTuple):
    """Facts of Dask's Span at the export."""

    collections: tuple[str, ...] = ()
    #: (file, line, function) of the client's submission.
    code: tuple[str, int, str | None] | None = None
    #: Idle and capacity seconds of the generation; None if not measured.
    idle: float | None = None
    capacity: float | None = None
    #: Callers of other traces.
    callers: tuple[Traceparent, ...] = ()
    #: The caller's baggage entries to export.
    baggage: Attributes = MappingProxyType({})


class Cluster(Protocol):
    """Dask's side, as the lifecycle sees it."""

    def thread_seconds(self, start: float, stop: float) -> float:
        """Return the integral of the cluster's thread count over the interval."""

    def threads_at(self, time: float) -> int:
        """Return the cluster's thread count at that time."""

    def group_facts(self, group: Group) -> GroupFacts:
        """Return the sums of Dask's TaskGroup since the generation began."""

    def span_facts(self, span: OpenSpan) -> SpanFacts:
        """Return facts of Dask's Span."""

    def span_opened(self, span: OpenSpan) -> None:
        """Note that a generation begins."""

    def span_active(self, span: OpenSpan, now: float) -> None:
        """Note that the span owns its first unfinished task."""

    def span_inactive(self, span: OpenSpan, now: float) -> None:
        """Note that the span's last unfinished task is gone."""

    def span_exported(self, span: OpenSpan) -> None:
        """Release the objects of a generation that is over."""


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
        #: The cluster's object for it.
        self.source = source
        self.counts = TaskCounts()
        #: Tasks that never ran, because a dependency failed.
        self.blamed = 0
        #: When a worker first did something for one of its runs, and when the last one ended; 0.0
        #: until something computed.
        self.start = 0.0
        self.stop = 0.0
        #: Its slowest run, or a heap of several; a run with more seconds than `floor` joins them.
        self.slowest: KeptRun | list[KeptRun] | None = None
        self.floor = floor

    @property
    def unfinished(self) -> int:
        """Tasks that have no outcome yet."""
        counts = self.counts
        return counts.tasks - counts.memory - counts.erred - counts.cancelled - self.blamed


class ShownRuns:
    """Runs of one generation that failed or were sampled."""

    __slots__ = ("failed", "repeated", "sampled", "sampled_count")

    def __init__(self) -> None:
        #: Runs that failed for good, by key, with their group; None beyond the limit.
        self.failed: dict[Hashable, tuple[KeptRun, Group, Failure] | None] = {}
        #: A heap of the longest runs that were chosen by their key, with their groups.
        self.sampled: list[tuple[float, int, KeptRun, Group]] = []
        self.sampled_count = 0
        #: Number of runs of each repeated task, up to a limit; the others' numbers are unknown.
        self.repeated: dict[Hashable, int] = {}


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
    #: The first one known.
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
        "last_sign",
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
        "signs",
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
        #: Nearest open ancestor, which waits for this span; None for a root, and if all ancestors
        #: have been exported.
        self.parent = parent
        self.depth = len(identity.tags)
        self.late = late
        #: Whether some of its tasks ended unobserved.
        self.partial = False
        self.phase = Phase.SETTLING
        self.groups: list[Group] = []
        #: Own tasks in waiting, queued, no-worker or processing.
        self.unfinished = 0
        #: Whether the cluster was notified that it owns unfinished tasks.
        self.active = False
        #: 1 for own work or open blocks, plus 1 for each busy direct child (by `parent`). 0 if the
        #: tree is done.
        self.busy = 0
        #: Open client blocks (``with span()``).
        self.holds = 0
        #: Open direct children, which are exported first.
        self.open_children = 0
        self.quiet_since = start
        self.due = 0.0
        #: Workers that must report before it is settled, with their number of heartbeats when
        #: the waiting began; None before the first check.
        self.owing: dict[str, int] | None = None
        #: The worker of these that it waits for now.
        self.awaits: str | None = None
        #: Workers that ran own tasks; workers that reported metrics for it. Dicts, because Python's
        #: garbage collector skips dicts of texts, but not sets, and there are many of these.
        self.workers: dict[str, None] = {}
        self.reporters: dict[str, None] = {}
        #: Workers on which a cancelled task may still be running.
        self.zombies: frozenset[str] = frozenset()
        #: Keys that left their state and will return, and why; None if no run was lost.
        self.reruns: dict[Hashable, RetryReason | None] = NOTHING
        #: Tasks that failed for good; the value is None beyond the cap on details. (Fewer than
        #: `TaskCounts.erred` where a key failed, was forgotten, and failed again.)
        self.failed: dict[Hashable, Failure | None] = NOTHING
        self.incidents: tuple[Incident, ...] = ()
        self.dropped_incidents = 0
        #: First start and last end of own tasks; 0.0 if there is none.
        self.first_start = 0.0
        self.last_stop = 0.0
        #: Its share of the cluster's idle seconds, and that plus its execute seconds, up to the
        #: last export.
        self.idle = 0.0
        self.capacity = 0.0
        #: Seconds of context ``execute``, by activity; their sum.
        self.activities: dict[Hashable, float] = {}
        self.execute_seconds = 0.0
        self.requested: Tags | None = None
        #: The user's attributes.
        self.attributes: Attributes | None = None
        #: Number of signs of life, and the time of the last one.
        self.signs = 0
        self.last_sign = self.start
        self.below: Below | None = None
        #: Runs to be exported, except the groups' slowest.
        self.runs: ShownRuns | None = None

    # Changes that come from several modules.

    def metered(self, worker: str, activity: Hashable, seconds: float) -> None:
        """Add execute seconds that a worker reported, also of runs without a result."""
        self.workers[worker] = None
        activities = self.activities
        activities[activity] = activities.get(activity, 0.0) + seconds
        self.execute_seconds += seconds

    def begin_time(self, idle: float, capacity: float) -> None:
        """Begin to credit time, less the outstanding time of an earlier generation."""
        self.idle, self.capacity = -idle, -capacity

    def credit(self, idle: float, capacity: float) -> None:
        """Add a share of the cluster's idle seconds, and of its capacity."""
        self.idle += idle
        self.capacity += capacity

    def seen_in_part(self) -> None:
        """Note that some of its tasks ended unobserved."""
        self.partial = True

    def asked_for(self, tags: Tags) -> None:
        """Note the requested name of work that Dask booked here instead."""
        self.requested = tags

    def describe(self, attributes: Attributes | None) -> None:
        """Set the user's attributes."""
        self.attributes = attributes

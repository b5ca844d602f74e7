"""The state of an open span, and the interface to Dask's side."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Protocol

from dask_otel.core.context import Traceparent
from dask_otel.core.memory.sums import SpanSum
from dask_otel.core.path.step import SpanPath
from dask_otel.core.records import (
    Attributes,
    Failure,
    GraphLog,
    RawRun,
    Result,
    Retry,
    SpanIdentity,
    Tags,
    TaskCounts,
    WorkerPeak,
)

#: Why a run was repeated. ``rescheduled`` is no failure: the task requests it. Dask's peer-to-peer
#: shuffles do so to move their tasks to the data.
RetryReason = Literal["error", "worker_lost", "recomputed", "client", "rescheduled"]

#: Why a task became unfinished: a client submitted it; a client retried it after it failed
#: (``retried``) or after one of its dependencies failed (``unblamed``).
Cause = Literal["submitted", "retried", "unblamed"]


class Phase(Enum):
    """Phase of a generation of a Dask span."""

    OPEN = "open"
    SETTLING = "settling"
    LINGERING = "lingering"
    EXPORTED = "exported"


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Which runs become spans; see ``otel.spans.tasks``."""

    #: Slowest runs of each group.
    slowest: int
    #: Share of all runs, chosen by their keys: from 0.0 to 1.0.
    ratio: float
    #: Limit of the runs of one generation; 0 for none.
    most: int

    @property
    def floor(self) -> float:
        """Seconds that the first run of a group must exceed to be among its slowest."""
        return -1.0 if self.slowest and self.most else inf


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds and caps; see ``otel.spans`` in the configuration."""

    linger: float
    settle_timeout: float
    max_groups: int
    trace_gap: float
    max_per_trace: int
    max_exceptions: int
    #: Limit of the exported spans that are remembered for their continuations.
    remember: int
    #: Age of an open span at its first sign of life (None for never), and the least time between
    #: two signs.
    progress_after: float | None
    progress_interval: float
    #: Whether groups become spans of their own.
    groups: bool
    #: Which runs of tasks become spans.
    tasks: TaskLimits
    #: Whether the path of each span is followed, and whether the graph of each root is recorded.
    path: bool
    graph: bool
    #: Whether the results in memory are followed.
    memory: bool


class GroupFacts(NamedTuple):
    """Sums of Dask's TaskGroup since the generation began."""

    output_bytes: int
    #: Seconds by action.
    durations: Mapping[str, float]
    types: tuple[str, ...]


#: The sums of a group without work: one object for all of them.
NO_SUMS: Final = GroupFacts(0, MappingProxyType({}), ())


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
    #: The graph log, of a root.
    graph: GraphLog | None = None


class Cluster(Protocol):
    """The lifecycle's interface to Dask's side."""

    def threads(self, start: float, stop: float) -> tuple[float, int]:
        """Return the integral of the cluster's thread count over the interval, and the last one."""

    def group_facts(self, group: Group) -> GroupFacts:
        """Return the sums of Dask's TaskGroup since the generation began."""

    def span_facts(self, span: OpenSpan) -> SpanFacts:
        """Return facts of Dask's Span."""

    def span_opened(self, span: OpenSpan) -> None:
        """Handle the start of a generation."""

    def span_activity(self, span: OpenSpan) -> None:
        """Handle the span's first unfinished task, or the end of its last one."""

    def span_exported(self, span: OpenSpan) -> None:
        """Release the objects of a finished generation."""


class Group(TaskCounts):
    """One task group's part of an open generation, with the counts of its tasks."""

    __slots__ = (
        "before", "blamed", "by_worker", "came", "floor", "moment", "name", "new_runs", "prefix",
        "restriction", "slowest", "source", "span", "start", "stop",
    )  # fmt: skip
    __eq__, __hash__ = object.__eq__, object.__hash__

    def __init__(
        self,
        span: OpenSpan,
        name: str,
        prefix: str,
        source: object,
        floor: float,
        before: GroupFacts = NO_SUMS,
    ) -> None:
        super().__init__()
        self.span = span
        self.name = name
        self.prefix = prefix
        #: The group's object in `Cluster`, and its sums when the generation began.
        self.source = source
        self.before = before
        #: Seconds that a run must exceed to join the slowest ones.
        self.floor = floor
        #: Tasks that never ran, because a dependency failed.
        self.blamed = 0
        #: A worker's first action for one of its runs, and the end of the last run; 0.0 until a
        #: run has computed.
        self.start = self.stop = 0.0
        #: Its last runs with a result, until they are added up; see `computing`.
        self.new_runs: list[RawRun] = []
        #: Some of its runs, and their seconds, by the worker's name.
        self.by_worker: dict[object, list[float]] = {}
        #: By what Dask restricts its first task to some workers: see `FinishedGroup`.
        self.restriction = ""
        #: Its slowest runs, the slowest first.
        self.slowest: tuple[RawRun, ...] = ()
        #: Bytes of the results that came since the ledger of memory was last read, and the sum of
        #: ``bytes * time``.
        self.came, self.moment = 0, 0.0

    def __repr__(self) -> str:
        return f"<Group {self.name!r}: {self.unfinished} of {self.tasks} tasks unfinished>"

    @property
    def unfinished(self) -> int:
        """The number of tasks without an outcome."""
        return self.tasks - self.memory - self.erred - self.cancelled - self.blamed


@dataclass(slots=True)
class KeptRuns:
    """Runs of one generation that are kept because they failed or were sampled."""

    #: Runs that failed for good, by key, with their group; None beyond the limit.
    failed: dict[Hashable, tuple[RawRun, Group] | None] = field(default_factory=dict)
    #: A heap of the longest runs sampled by their key, with their groups.
    sampled: list[tuple[RawRun, Group]] = field(default_factory=list)
    sampled_count: int = 0
    #: Number of runs of each repeated task, up to a limit; the others' numbers are unknown.
    repeated: dict[Hashable, int] = field(default_factory=dict)


@dataclass(slots=True)
class Below:
    """Sums over the exported spans of the tree below an open span."""

    counts: TaskCounts = field(default_factory=TaskCounts)
    output_bytes: int = 0
    groups: int = 0
    workers: set[str] = field(default_factory=set)
    execute_seconds: float = 0.0
    seceded: float = 0.0
    #: First start of all; 0.0 if nothing started.
    start: float = 0.0
    stop: float = 0.0
    result: Result = "success"
    #: The first one known.
    failure: Failure | None = None
    complete: bool = True


@dataclass(slots=True, eq=False, repr=False)
class OpenSpan(SpanPath):
    """One generation of a Dask span that has not been exported."""

    #: Open ancestors, the nearest one first.
    above: tuple[OpenSpan, ...]
    identity: SpanIdentity
    #: Whether it began after its parent was exported.
    late: bool
    #: Whether some of its tasks ended unobserved.
    partial: bool = False
    phase: Phase = Phase.SETTLING
    #: Its groups, the oldest one first.
    groups: list[Group] = field(default_factory=list)
    #: Own tasks in waiting, queued, no-worker or processing.
    unfinished: int = 0
    #: Whether the cluster was notified that it owns unfinished tasks.
    active: bool = False
    #: 1 for own work or open blocks, plus 1 for each busy direct child (by `parent`). 0 if the
    #: tree is done.
    busy: int = 0
    #: Open client blocks (``with span()``).
    holds: int = 0
    #: Open direct children, which are exported first.
    open_children: int = 0
    #: The time when its work was done.
    quiet_since: float = 0.0
    #: Workers that must report before it is settled, with their number of heartbeats when
    #: the wait began; None before the first check.
    owing: dict[str, int] | None = None
    #: The one that it waits for now.
    awaits: str | None = None
    #: Workers that ran own tasks (True) or only reported metrics for it (False). A dict, because
    #: there are many, and Python's garbage collector skips dicts of atoms, but not sets.
    workers: dict[str, bool] = field(default_factory=dict)
    #: Workers on which a cancelled task may still be running.
    zombies: frozenset[str] = frozenset()
    #: Keys that left their state and will return, and why; None if no run was lost.
    #: Most spans have none, and an empty dict takes 64 bytes.
    reruns: dict[Hashable, RetryReason | None] | None = None
    #: Tasks that failed for good; the value is None beyond the cap on details. (Fewer than
    #: `TaskCounts.erred` if a key failed, was forgotten, and failed again.)
    failed: dict[Hashable, Failure | None] | None = None
    retries: tuple[Retry, ...] = ()
    dropped_retries: int = 0
    #: First start and last end of own tasks; 0.0 if there is none.
    first_start: float = 0.0
    last_stop: float = 0.0
    #: Its share of the cluster's idle seconds, and that plus its execute seconds, up to the
    #: last export.
    idle: float = 0.0
    capacity: float = 0.0
    #: Computed seconds of its tasks and of those below, and of the cluster when it was opened and
    #: when its work was last done; see `computing`.
    computed: float = 0.0
    cluster_before: float = 0.0
    cluster_computed: float = 0.0
    #: Number of workers' heartbeats when it was opened, and the fullest worker until its work was
    #: last done.
    heartbeats_before: int = 0
    worker_peak: WorkerPeak | None = None
    #: When its work was done, by the clock of the ledger of results; 0.0 before.
    work_done: float = 0.0
    #: Its results in memory; None if there were none.
    results: SpanSum | None = None
    #: Seconds of context ``execute``, by activity.
    activities: dict[Hashable, float] = field(default_factory=dict)
    #: Seconds for which its tasks ran after they had seceded.
    seceded: float = 0.0
    #: Tags of another span, if Dask assigned that span's work to this one.
    requested: Tags | None = None
    #: The user's attributes.
    attributes: Attributes | None = None
    #: Number of signs of life, and the time of the last one.
    signs: int = 0
    last_sign: float = 0.0
    below: Below | None = None
    #: Runs to be exported, except the groups' slowest.
    runs: KeptRuns | None = None

    def __post_init__(self) -> None:
        self.quiet_since = self.start
        if self.parent is not None:
            # Even if the clock was set back between the two.
            self.start = max(self.start, self.parent.start)

    def __repr__(self) -> str:
        name = "/".join(map(str, self.identity.tags))
        return f"<OpenSpan {name!r}: {self.phase.value}, {self.unfinished} unfinished tasks>"

    @property
    def parent(self) -> OpenSpan | None:
        """The nearest open ancestor, which waits for this span; None if there is none."""
        return self.above[0] if self.above else None

    @property
    def root(self) -> OpenSpan:
        """The uppermost open span of its tree; it may be the span itself."""
        return self.above[-1] if self.above else self

    @property
    def depth(self) -> int:
        """Number of its tags; greater than that of the span above."""
        return len(self.identity.tags)

    @property
    def empty(self) -> bool:
        """Whether it is a continuation without work: its tasks were to run again, and did not."""
        return (
            self.identity.generation > 1
            and not (self.first_start or self.activities or self.below or self.signs)
            and not any(group.tasks for group in self.groups)
        )

    @property
    def execute_seconds(self) -> float:
        """Seconds of context ``execute``."""
        return sum(self.activities.values())

    @property
    def ran_on(self) -> set[str]:
        """The workers that ran own tasks."""
        return {worker for worker, ran in self.workers.items() if ran}

    def counts_so_far(self) -> TaskCounts:
        """Return the counts of its own tasks, and of the spans below that have ended."""
        below = () if self.below is None else (self.below.counts,)
        return TaskCounts.of(*self.groups, *below)

    # Changes that come from several modules.

    def reported(self, worker: str, ran: bool) -> None:
        """Record that a worker reported metrics of it, and whether it ran own tasks."""
        self.workers[worker] = ran or self.workers.get(worker, False)

    def owe_time(self, idle: float, capacity: float) -> None:
        """Begin with a debt: time of an earlier generation that will be credited to this one."""
        self.idle, self.capacity = -idle, -capacity

    def credit(self, idle: float, capacity: float) -> None:
        """Add a share of the cluster's idle seconds, and of its capacity."""
        self.idle += idle
        self.capacity += capacity

    def release(self) -> None:
        """Release its groups and its chain, after the export: they refer to it."""
        self.groups, self.runs, self.results = [], None, None
        self.close()

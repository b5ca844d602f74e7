"""The core's output, in two steps.

Records of the first step go from the event loop to a thread: `FinishedSpan`, `Progress`,
`OpenNote`, `FinishedGraph`, `ClusterEvent`, and `core.metrics.batch.MetricBatch` have Dask's raw
values. Strings, ids and attributes cost more than collecting the values, so the thread makes them.

Records of the second step go to the exporters: `SpanRecord`, `LogRecord` and `MetricRecord` are
OpenTelemetry's data model in plain Python. Every string is clean and truncated, every number has
its final type.

No record changes after the hand-over: two threads read it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias

from dask_otel.core.context import Traceparent
from dask_otel.core.trace import Trace
from dask_otel.semconv import Instrument

#: An attribute value of a span, event, link or data point.
AttributeValue: TypeAlias = str | bool | int | float | tuple[str, ...]
Attributes: TypeAlias = Mapping[str, AttributeValue]

#: A Dask span's full name: the tags of its ancestors and its own, outermost first. Dask does not
#: validate tags: they can be any hashable.
Tags: TypeAlias = tuple[Hashable, ...]

#: A fine performance metric's key with the span id removed, as in Dask's
#: ``Span.cumulative_worker_metrics``: ``(context, *rest)``, mostly
#: ``("execute", prefix, activity, unit)``.
SpanMetricKey: TypeAlias = tuple[Hashable, ...]

Outcome: TypeAlias = Literal["memory", "erred", "cancelled"]
#: ``error`` and ``unknown``: before the work was done, the scheduler closed, or the bridge was
#: removed.
Result: TypeAlias = Literal["success", "cancellation", "unknown", "error", "failure"]


# ---------------------------------------------------------------- loop -> export thread


@dataclass(frozen=True, slots=True)
class SpanIdentity:
    """The OpenTelemetry span of one generation of a Dask span, and its parent."""

    #: Dask's ids of the span itself and of the root of its tree.
    dask_id: str
    root_id: str
    tags: Tags
    generation: int
    trace_id: Trace
    span_id: int
    #: None for the root span of a trace.
    parent_span_id: int | None
    #: (trace id, span id) of the first generation, for a continuation; None if unknown.
    first: tuple[Trace, int] | None = None
    #: Whether the parent is the caller's span.
    remote: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that failed for good."""

    time: float
    key: str
    prefix: str
    #: Address of the worker that ran it.
    worker: str | None
    #: ``repr`` of the exception as Dask sends it, such as ``KeyError('b')``; None for a decision
    #: of the scheduler.
    text: str | None
    traceback: str | None
    #: Class name of the scheduler's own exception (``KilledWorker``).
    scheduler_error: str | None = None
    #: That worker's name, as in its metrics.
    worker_name: str | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """A repeated run: an event on its span."""

    time: float
    key: str
    reason: str
    #: The exception of the earlier run.
    failure: Failure | None = None


@dataclass(slots=True)
class TaskCounts:
    """Tasks of a span, all and by outcome; the last four count events, not tasks.

    A task requests to be `rescheduled` (``Reschedule``): such a run is not `retried`.
    """

    tasks: int = 0
    memory: int = 0
    erred: int = 0
    cancelled: int = 0
    retried: int = 0
    lost: int = 0
    recomputed: int = 0
    rescheduled: int = 0

    @classmethod
    def of(cls, *parts: TaskCounts) -> TaskCounts:
        """Return the sum of other counts."""
        total = cls()
        for part in parts:
            total.add(part)
        return total

    def add(self, other: TaskCounts) -> None:
        """Add another span's counts to these."""
        for name in TaskCounts.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class SpanMemory(NamedTuple):
    """What results of a generation took of the workers' memory until its work was done."""

    #: The largest sum of bytes (None if all came and went unseen), and the bytes over time.
    peak: int | None
    byte_seconds: float
    #: Of a root: the prefixes with most of the peak and their bytes, the most first.
    at_peak: tuple[tuple[str, int], ...] = ()


class WorkerPeak(NamedTuple):
    """The worker with the largest share of its memory in use while a generation had work."""

    share: float
    worker: str
    #: When its heartbeat came, in seconds since the epoch, and the number of all heartbeats.
    time: float
    heartbeats: int
    #: The most tasks that a worker ran at any of these.
    tasks: int | None = None


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """One task group's part of a finished generation. Times are seconds since the epoch."""

    name: str
    prefix: str
    #: 1 for the first group of that name in the generation.
    ordinal: int
    start: float
    stop: float
    counts: TaskCounts
    output_bytes: int
    #: Seconds by action, as Dask's ``TaskGroup.all_durations``.
    durations: Mapping[str, float]
    types: tuple[str, ...]
    #: ``resources`` or ``workers``; empty if any worker may run its first task.
    restriction: str = ""
    #: The names of the workers that are slower than the others, the share of the runs that were
    #: slow there, the mean seconds of these and of the others'; None if none is.
    slow_workers: tuple[list[str], float, float, float] | None = None
    #: None if it had no results in memory, or that is not measured.
    memory: SpanMemory | None = None


class TaskRun(NamedTuple):
    """One run of a task, made once, at its end. Times are seconds since the epoch.

    Most runs are never looked at again. So they are kept as plain tuples of these fields
    (`RawRun`): these take a fifth of the instructions, and Python's garbage collector skips them.
    With one run for each group, a full collection takes 0.12 ms for a thousand `TaskRun` objects:
    24 ms of the event loop for 200,000 groups.
    """

    #: Compute seconds, measured by the worker.
    seconds: float
    #: Dask's number of the run; None if the run becomes no span: its end or its times are unknown.
    number: int | None
    key: Hashable
    #: The worker's name, for `str`, as in its metrics; None if unknown.
    worker: object
    #: Its compute times.
    start: float
    stop: float
    #: The number of this run of the task; None if unknown.
    attempt: int | None = None
    #: Seconds in the scheduler's queue; None if not measured.
    queued: float | None = None
    #: Size and type of the result, as the worker reported them; None for a run that failed.
    nbytes: Any = None
    type: Any = None
    #: The worker's longest actions before computing: ``transfer`` or ``disk-read``, its start, and
    #: its seconds, measured by the worker.
    parts: tuple[tuple[str, float, float], ...] = ()
    #: When the task was sent to the worker (0.0 if unknown), and the seconds with any action after
    #: that.
    sent: float = 0.0
    fetched: float = 0.0
    #: Why it failed for good; None if it did not.
    failure: Failure | None = None


RawRun: TypeAlias = tuple[Any, ...]


class TaskPath(NamedTuple):
    """A run on the path of its span."""

    #: Seconds by `semconv.PATH_PARTS`, without the last.
    parts: tuple[float, ...]
    #: Key and number of the run before it on the path that has a span, too.
    before: tuple[Hashable, int] | None


class FinishedTask(NamedTuple):
    """One run of a task, for a span of its own."""

    run: TaskRun
    #: Name, prefix and ordinal of its group in the generation.
    group: str
    prefix: str
    ordinal: int
    #: None for a run that is not on the path.
    path: TaskPath | None = None


class FinishedTasks(Protocol):
    """Runs of a span's tasks; some are made only when they are iterated."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[FinishedTask]: ...


class SpanPathFacts(NamedTuple):
    """What a finished generation waited for: the path to its end."""

    #: Seconds by `semconv.PATH_PARTS`; their sum is the duration.
    parts: tuple[float, ...]
    #: Tasks on it, and those of them that only the client led to.
    tasks: int
    submitted: int = 0
    #: Execute seconds divided by threads; None if unknown.
    threads_bound: float | None = None


class GraphWorker(NamedTuple):
    """The time of a worker in the cluster; 0.0 if it came before the recording."""

    name: object
    address: str
    host: str
    threads: int
    resources: Mapping[str, Any]
    came: float
    #: Of Dask's object for it, which decides its place in Dask's sets.
    hash: int = 0
    went: float | None = None


#: To which a task is restricted: addresses of workers, hosts, amounts by resource; and whether that
#: is only a preference.
Restriction: TypeAlias = tuple[
    tuple[str, ...], tuple[str, ...], tuple[tuple[str, float], ...], bool
]


class Submission(NamedTuple):
    """Tasks that a client submitted together, or that will run again."""

    #: When the scheduler had made them.
    at: float
    #: Dask's priorities by key; None if it has none.
    priorities: Mapping[Hashable, tuple[Any, ...] | None]
    #: The keys of its tasks, and of what each of them needs.
    needs: tuple[Sequence[Hashable], Sequence[Collection[Hashable]]]
    #: By key, to which workers tasks are restricted.
    limits: Mapping[Hashable, Restriction | None]
    #: What Dask expects: of groups that it did not have before, the prefix, a task's seconds, and
    #: the longest of those that ran so far (negative if unknown); and the bytes a second between
    #: workers.
    durations: tuple[tuple[str, float, float], ...]
    bandwidth: float
    #: How many tasks the scheduler had made by then, of all users.
    made: int

    def __repr__(self) -> str:
        return f"<Submission of {len(self.priorities)} tasks>"


class GraphPart(NamedTuple):
    """Runs of one task group that ended alike."""

    prefix: str
    #: See `outcome` in docs/files.md.
    outcome: str
    rows: list[RawRun]
    #: Those that have its tasks, among others. Dask's task group has no other list.
    submissions: list[Submission]

    def __repr__(self) -> str:
        return f"<GraphPart: {len(self.rows)} runs of {self.prefix!r}>"


class GraphLog:
    """The runs of a root and of the spans below it. The event loop adds to it, until the export.

    All in it but lists is tuples of numbers and text, which Python's garbage collector skips.
    """

    def __init__(self) -> None:
        self.parts: list[GraphPart] = []
        #: Seconds after which runs seceded, by the task's key and the time when it was sent.
        self.seceded: dict[tuple[Hashable, float], float] = {}
        #: Its runs, and how many it may have until the limits are checked again.
        self.size = self.room = 0
        #: Runs beyond the limits.
        self.left_out = 0
        #: Those since the root began; known at its export.
        self.workers: tuple[GraphWorker, ...] = ()
        #: By the addresses of those that are still there, the last heartbeat; also known then.
        self.seen: Mapping[str, float] = {}
        #: Dask's configuration, as docs/files.md describes it; also known then.
        self.scheduler: Mapping[str, float | None] = {}

    def __repr__(self) -> str:
        return f"<GraphLog: {self.size} runs, {self.left_out} left out>"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanDescription:
    """The facts of a generation that are known even while it is open."""

    identity: SpanIdentity
    #: When it was enqueued (generation 1) or got its first new work.
    start: float
    #: The first compute start in it or the tree below, as in Dask's ``Span.start``; None if
    #: nothing started.
    first_start: float | None = None
    #: ``type`` of each collection in the span's metadata.
    collections: tuple[str, ...] = ()
    #: (file, line, function) of the client's submission, if Dask collected code.
    code: tuple[str, int, str | None] | None = None
    #: Tags of another span, if Dask assigned that span's work to this one.
    requested: Tags | None = None
    #: Whether it began after its parent was exported.
    late: bool = False
    #: The user's attributes, within the limits of `core.attributes`, not cleaned.
    attributes: Attributes = field(default_factory=dict)
    #: Callers of other traces, for links.
    callers: tuple[Traceparent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSpan(SpanDescription):
    """One generation of a Dask span, complete and ready for export."""

    #: The end of the last work in it or the tree below.
    stop: float
    result: Result
    complete: bool
    #: Own tasks and the tree below.
    counts: TaskCounts
    output_bytes: int
    group_count: int
    worker_count: int
    #: Threads of the cluster at `stop`.
    thread_count: int
    #: Dask's ``active_cpu_seconds`` over ``[start, stop]`` and its "idle or other spans".
    active_cpu: float
    dask_idle: float
    #: Own seconds of context ``execute``, by Dask's name of the activity.
    activities: Mapping[Hashable, float]
    #: Own seconds of runs with a result, of which workers tell as each ends; None if other runs
    #: were lost with their worker, or cut off.
    computed: float | None = 0.0
    #: Addresses of the workers that ran its tasks or those below, of a span without an open one
    #: above; else None.
    ran_on: frozenset[str] | None = None
    #: Seconds for which tasks ran after they had seceded, its own and those of the tree below.
    seceded: float = 0.0
    #: Own share of the cluster's idle seconds, and that plus own execute seconds; None if not
    #: measured.
    idle: float | None = None
    capacity: float | None = None
    #: Seconds that tasks outside of the tree computed while it had work; None if not measured.
    elsewhere: float | None = None
    #: None if not measured.
    path: SpanPathFacts | None = None
    #: Of the tree; None if it had no results in memory, or that is not measured.
    memory: SpanMemory | None = None
    #: None without workers that have a limit.
    worker_peak: WorkerPeak | None = None
    groups: tuple[FinishedGroup, ...] = ()
    #: Groups beyond the cap.
    dropped_groups: int = 0
    #: Runs of own tasks that become spans: failed ones, then the others, the longest first.
    tasks: FinishedTasks = ()
    #: Runs beyond the cap.
    dropped_tasks: int = 0
    failures: tuple[Failure, ...] = ()
    #: Failures beyond the cap.
    dropped_failures: int = 0
    #: First final failure of the span or of the tree below it.
    tree_failure: Failure | None = None
    retries: tuple[Retry, ...] = ()
    dropped_retries: int = 0
    #: The graph log, of a root.
    graph: GraphLog | None = None

    @property
    def weight(self) -> int:
        """How many OpenTelemetry spans this becomes."""
        return 1 + len(self.groups) + len(self.tasks)


@dataclass(frozen=True, slots=True)
class FinishedGraph:
    """The graph log of an exported root."""

    span: FinishedSpan
    log: GraphLog
    #: How many lines it becomes.
    weight: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """A sign of life of an open generation, exported as a child of its span."""

    identity: SpanIdentity
    #: 0 for the start; 1, 2, … for the progress since the last sign.
    ordinal: int
    #: From the last sign to now; both are the generation's start if the ordinal is 0.
    start: float
    stop: float
    #: Own tasks so far, and tasks of finished spans below; None if the ordinal is 0.
    counts: TaskCounts | None = None
    #: As in `SpanDescription`, of a snapshot.
    requested: Tags | None = None
    #: How many OpenTelemetry spans this becomes.
    weight: ClassVar[int] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenNote(SpanDescription):
    """An open generation, for its export if the scheduler is lost."""

    #: When the note was made. The comparison of notes ignores it.
    time: float = field(compare=False)
    #: Own tasks so far, and tasks of finished spans below; None if there are none.
    counts: TaskCounts | None = None


class Fact:
    """Names of the facts of a `ClusterEvent` that only its text has, not the attributes."""

    #: Of each prefix: its tasks, and the seconds for which the longest one had run at the last
    #: heartbeat.
    RUNNING: Final = "running"
    #: Of each prefix: its unfinished tasks.
    HAD: Final = "had"
    #: Of each prefix: the bytes of its results on the worker, the most first.
    HELD: Final = "held"
    #: Whether the worker had a nanny, and that has reported no kill.
    NANNY: Final = "nanny"
    #: Number of other workers that run tasks, and whether the scheduler closed, too.
    OTHERS: Final = "others"
    CLOSING: Final = "closing"
    #: Seconds without a heartbeat when Dask found them overdue.
    OVERDUE: Final = "overdue"
    #: Workers that ended while they had the suspected tasks.
    DEATHS: Final = "deaths"
    #: Whether workers send their log records.
    LOGS: Final = "logs"
    #: Names of workers, and of those that could not be retired.
    RETIRED: Final = "retired"
    FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Something that happened on the cluster, for a log record."""

    #: Seconds since the epoch.
    time: float
    #: A key of `semconv.LOG_EVENTS`.
    name: str
    #: Raw values by attribute.
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: The open spans of the work concerned.
    work: tuple[SpanIdentity, ...] = ()
    #: How many log records this becomes.
    weight: int = 1


# ------------------------------------------------------------ export thread -> exporters


class Event(NamedTuple):
    """A span event."""

    name: str
    time_ns: int
    attributes: Attributes


class Link(NamedTuple):
    """A link to another span."""

    trace_id: int
    span_id: int


class Origin(NamedTuple):
    """The origin of a span, as encoded in a request."""

    #: The resource, with ``service.instance.id`` and the like.
    resource: bytes
    #: The instrumentation scope, with the bridge's version.
    scope: bytes


@dataclass(slots=True, eq=False)
class Row:
    """One waiting OpenTelemetry span or log record."""

    #: In OTLP; a `SpanRecord` for an application's provider.
    body: Any = field(repr=False)
    #: Its origin, if another run made it.
    origin: Origin | None = None
    #: Number of its row in the spool; 0 if it is in memory only.
    number: int = 0
    #: Number of its failures alone, in a row.
    strikes: int = 0


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """One OpenTelemetry span."""

    #: A `Trace`, which has the sampler's decision.
    trace_id: int
    span_id: int
    parent_span_id: int | None
    name: str
    kind: Literal["server", "internal"]
    start_ns: int
    end_ns: int
    attributes: Attributes
    events: tuple[Event, ...]
    links: tuple[Link, ...]
    #: Description of status ERROR; None leaves the status UNSET.
    error: str | None
    #: Whether the parent is the caller's span.
    remote_parent: bool = False


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One log record of OpenTelemetry: an event."""

    time_ns: int
    name: str
    severity: int
    #: None if the operator's redaction left it out.
    body: str | None
    attributes: Attributes
    #: The span that it belongs to; None without exactly one.
    trace_id: int | None = None
    span_id: int | None = None


class Answer(NamedTuple):
    """The outcome of one request."""

    #: Whether the server accepted it, at least in part.
    taken: bool
    #: Why the server did not accept it; empty if it did.
    reason: str = ""
    #: Whether the server blames the content of the request.
    blames: bool = False
    #: Whether there was no server: nothing listens, the name does not resolve, only one side uses
    #: TLS, or the new connection breaks.
    absent: bool = False
    #: Whether the server does not know this signal.
    unsupported: bool = False
    #: Seconds to wait before the next request, as the server demands; 0 if it does not.
    pause: float = 0.0
    #: Number of rejected items in an accepted request.
    lost: int = 0
    #: The server's message about an accepted request.
    said: str = ""


class Exemplar(NamedTuple):
    """A measurement and its span."""

    trace_id: int
    span_id: int
    value: float
    time_ns: int


class NumberPoint(NamedTuple):
    """A data point of a counter, up-down counter or gauge."""

    attributes: Attributes
    start_ns: int
    time_ns: int
    value: int | float
    exemplars: tuple[Exemplar, ...] = ()


@dataclass(frozen=True, slots=True)
class HistogramPoint:
    """A data point of a histogram with explicit bounds."""

    attributes: Attributes
    start_ns: int
    time_ns: int
    count: int
    sum: float
    min: float
    max: float
    #: One more than `bounds`.
    bucket_counts: tuple[int, ...]
    bounds: tuple[float, ...]
    exemplars: tuple[Exemplar, ...] = ()


Temporality: TypeAlias = Literal["cumulative", "delta"]


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """All points of one instrument in one export, in the order of sending."""

    name: str
    unit: str
    description: str
    instrument: Instrument
    temporality: Temporality
    points: tuple[NumberPoint, ...] | tuple[HistogramPoint, ...]

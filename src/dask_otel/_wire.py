"""The messages between a client and its scheduler: requests, and plain data as answers.

A pickle refers to objects by module and name, and the two sides may have neighbouring versions. So
all messages are in this module, and from 0.1.0 on nothing here is renamed, moved or removed; each
new field or argument has a default. Requests run on the scheduler's event loop, and use only the
scheduler's version of the other modules, which may change. `tests/cluster/test_versions.py` tests
clients and schedulers of two versions with each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from dask_otel.core.figures import counted, seconds, size
from dask_otel.core.text import Sanitizer, span_path
from dask_otel.core.traces.address import anchor, fill

if TYPE_CHECKING:
    import pandas
    from distributed.scheduler import Scheduler

#: ``(context, prefix, activity, unit)``, as in Dask's ``Span.cumulative_worker_metrics``; Dask and
#: users may add keys of other shapes, the context first and the unit last.
MetricKey: TypeAlias = tuple[Hashable, ...]

#: Columns of `SpanMetrics.to_frame` that are parts of the key.
KEY_COLUMNS = ("context", "prefix", "activity", "unit")

# ---------------------------------------------------------------------------- requests

# Requests that work without a bridge import the scheduler's side; others use the running bridge.


async def install(config: Mapping[str, Any], dask_scheduler: Scheduler) -> str:
    """Start a bridge on the scheduler; see `dask_otel.register`."""
    from dask_otel.scheduler.plugin import install

    status = await install(dask_scheduler, config)
    bridge = _bridge(dask_scheduler)
    if bridge is not None and not await bridge.connected():
        # Only its exporters know the standard variables. Another client may have begun it just now.
        return "off"
    return status


def unused(config: Mapping[str, Any], dask_scheduler: Scheduler) -> tuple[str, ...]:
    """Return the keys of a configuration that the running bridge ignores; see `register`.

    Full keys without values; none if the configuration is not valid on the scheduler.
    """
    from dask_otel.settings.problems import ConfigurationError

    bridge = _bridge(dask_scheduler)
    try:
        return () if bridge is None else bridge.unused(config)
    except ConfigurationError:
        # Dask logs a failed call with its arguments, which can contain credentials. The problems
        # are already in the log.
        return ()


async def uninstall(dask_scheduler: Scheduler) -> str:
    """Remove the bridge from the scheduler; see `dask_otel.unregister`."""
    plugin = dask_scheduler.plugins.get("dask-otel")
    if plugin is None:
        return "absent"
    await plugin.close()
    return "stopped"


async def settled_metrics(
    span_id: str, timeout: float, submitted: bool, dask_scheduler: Scheduler
) -> SpanMetrics | Refusal:
    """Return the metrics of a span once they are complete; see `dask_otel.span_metrics`."""
    bridge = _bridge(dask_scheduler)
    if bridge is None:
        return Refusal(*_NO_BRIDGE)
    answer = await bridge.settled.answer(span_id, timeout, submitted)
    return SpanMetrics(**answer) if isinstance(answer, dict) else Refusal(*answer)


async def examine(seconds: float, dask_scheduler: Scheduler) -> dict[str, Any]:
    """Return the facts for ``dask-otel doctor``; test telemetry goes to its own endpoints."""
    from dask_otel.scheduler.examination import examine

    return await examine(dask_scheduler, _bridge(dask_scheduler), seconds)


def decided_trace(span_id: str, dask_scheduler: Scheduler) -> TraceContext | None:
    """Return the scheduler's decision for a Dask span; None if it does not know the span.

    Without a bridge there is no decision: ids are computed from Dask's.
    """
    bridge = _bridge(dask_scheduler)
    where = None if bridge is None else bridge.settled.trace_context(span_id)
    return None if where is None else TraceContext(*where)


def why(asked: tuple[Hashable, ...], dask_scheduler: Scheduler) -> Why | Refusal:
    """Return why a task or a span is not done yet; see `dask_otel.why`."""
    bridge = _bridge(dask_scheduler)
    if bridge is None:
        return Refusal(*_NO_BRIDGE)
    return Why(tuple([Reason(**one) for one in bridge.why(asked)]))


async def held(asked: str | None, dask_scheduler: Scheduler) -> Held | Refusal:
    """Return the results in memory and their keepers; see `dask_otel.held`."""
    bridge = _bridge(dask_scheduler)
    if bridge is None:
        return Refusal(*_NO_BRIDGE)
    answer = await bridge.held(asked)
    if answer is None:
        return Refusal(
            "unknown",
            "the scheduler knows no span with this id or full name: it has no task yet, or all its "
            "tasks were forgotten",
        )
    largest = tuple(
        Holding(**{**one, "keepers": tuple(Keeper(**keeper) for keeper in one["keepers"])})
        for one in answer.pop("largest")
    )
    return Held(largest=largest, **answer)


#: The names of requests to record without an answer yet; a cancelled client ends one before.
_asked: set[str] = set()


async def record(name: str, owner: str, dask_scheduler: Scheduler) -> Recorded | Refusal:
    """Keep telemetry in memory for a client until `end_record`; start a bridge if there is none."""
    from distributed.metrics import time

    from dask_otel.scheduler.plugin import recording_bridge

    _asked.add(name)
    try:
        for _ in range(2):
            bridge = await recording_bridge(dask_scheduler)
            if bridge is not None and name in _asked:
                number = await bridge.record(name, owner)
                if number is not None:
                    return Recorded(number=number, time=time())
            if name not in _asked:
                await end_record(name, dask_scheduler)
                return Refusal("ended", "the request has ended meanwhile")
            # The first one may be stopped, or replaced, meanwhile.
    finally:
        _asked.discard(name)
    return Refusal("off", "dask-otel does not run on this scheduler; its log says why")


async def read_record(
    since: int,
    after: int,
    most: int,
    settle: tuple[str, float, bool],
    dask_scheduler: Scheduler,
    until: int | None = None,
) -> Recorded | Refusal:
    """Return rows after a number, at most so many bytes (or one), and what was lost `since`.

    The first question, whose numbers are equal, waits until all of a span is in memory: `settle` is
    its id, the longest wait in seconds, and whether its work may still be on its way. Its answer
    has the number of the last row then, `until` which the next questions ask.
    """
    bridge = _bridge(dask_scheduler)
    recorder = None if bridge is None else bridge.recording.recorder
    if recorder is not None and after == since:
        until = await bridge.recording.settle(*settle)
        recorder = None if until is None else recorder
    if recorder is None:
        # Another bridge may not even have its exporters yet.
        return Refusal("gone", "the bridge was stopped or replaced meanwhile")
    rows, number, more = recorder.part(after, most, until)
    return Recorded(rows, number, more, recorder.lost(since), until=until)


async def end_record(name: str, dask_scheduler: Scheduler) -> None:
    """Undo `record`; a bridge that was started for it is removed."""
    _asked.discard(name)
    bridge = _bridge(dask_scheduler)
    if bridge is not None:
        await bridge.forget(name)


async def profile_loop(seconds: float) -> tuple[bytes, ...] | Refusal:
    """Return stacks of the event loop that runs this, of a scheduler or a worker.

    They are blobs of `core.profiles.stacks`. It needs no bridge.
    """
    from dask_otel.scheduler.loops import loop_stacks

    found = await loop_stacks(seconds)
    if found is None:
        return Refusal("busy", "somebody else profiles this event loop now: try again later")
    return tuple(found)


_NO_BRIDGE = (
    "no bridge",
    "dask-otel does not run on this scheduler: call dask_otel.register(client), or start the "
    "scheduler with --preload dask_otel",
)


def _bridge(dask_scheduler: Scheduler) -> Any:
    return getattr(dask_scheduler.plugins.get("dask-otel"), "bridge", None)


# ----------------------------------------------------------------------------- answers


@dataclass(frozen=True)
class TraceContext:
    """The ids of a Dask span in a tracing backend."""

    #: The trace id, 32 hex digits.
    trace_id: str
    #: The OpenTelemetry span id, 16 hex digits, of the last known generation.
    span_id: str
    #: Whether the scheduler has decided it; otherwise it was computed from Dask's ids.
    decided: bool = False

    @property
    def url(self) -> str | None:
        """The address of the span; None without the setting ``otel.trace-url`` in this process."""
        return _url(self.trace_id, self.span_id)


def _url(trace_id: str, span_id: str) -> str | None:
    from dask_otel.settings.reading import setting

    return fill(setting("otel.trace-url"), trace_id, span_id)


@dataclass(frozen=True, repr=False)
class SpanMetrics:
    """Metrics and times of a settled Dask span.

    Times are seconds since the epoch, on the scheduler's clock. *Tree* means the span with all
    spans below it, *own* the tasks of the span alone. Unknown values are None: outcomes, idle and
    capacity of a span that finished before the bridge started, or so long ago that the bridge has
    forgotten it (``otel.spans.remember``). The result is also unknown if tasks ended while there
    was no bridge, unless one is known to have failed.
    """

    #: The Dask id of the span.
    id: str
    #: Its tags and those of its ancestors, outermost first.
    name: tuple[Hashable, ...]
    #: The Dask id of its root.
    root_id: str
    #: Tree: the worst of ``success``, ``cancellation`` and ``failure``.
    result: str | None
    #: The time when the scheduler first saw it.
    enqueued: float
    #: Tree: the time when the first task started computing; None if none did.
    start: float | None
    #: Tree: the time when the last work ended.
    stop: float
    #: Tree: ``tasks``, among them ``memory``, ``erred``, ``cancelled``; events ``retried``,
    #: ``lost``, ``recomputed``, ``rescheduled``. Only those that the bridge observed.
    counts: Mapping[str, int] | None
    #: Own fine performance metrics, unscaled, as the workers reported them.
    own: Mapping[MetricKey, float]
    #: The sums over the tree: Dask's ``cumulative_worker_metrics`` without the entry that is not
    #: a measurement ("idle or other spans", here `dask_idle_time`).
    tree: Mapping[MetricKey, float]
    #: Tree: share of the cluster's idle seconds.
    idle_time: float | None
    #: Tree: that share, and the reported execute seconds.
    capacity_time: float | None
    #: Tree: Dask's ``active_cpu_seconds``.
    dask_active_cpu_time: float
    #: Tree: Dask's "idle or other spans".
    dask_idle_time: float
    #: The id of its trace, 32 hex digits.
    trace_id: str
    #: Its OpenTelemetry span id, 16 hex digits.
    span_id: str
    #: Workers that had not sent their last report at the settle timeout: metrics may be missing.
    unreported: tuple[str, ...] = ()
    #: Tree: seconds of the path that bounded it, by part, such as ``no_thread``. They add up to the
    #: duration, or the durations of several generations. None if unknown, or not followed.
    path: Mapping[str, float] | None = None
    #: What cost it this time, the most expensive cause first: ``kind``, ``span``, ``seconds``,
    #: ``title``, ``evidence`` and ``next`` of each. Empty without a path.
    diagnosis: tuple[Mapping[str, Any], ...] = ()

    @property
    def url(self) -> str | None:
        """The address of its trace; None without the setting ``otel.trace-url`` in this process."""
        return _url(self.trace_id, self.span_id)

    @property
    def duration(self) -> float:
        """Seconds from enqueued to the end of the last work."""
        return self.stop - self.enqueued

    @property
    def queue_time(self) -> float | None:
        """Seconds from enqueued to the first start; None if nothing started."""
        return None if self.start is None else max(0.0, self.start - self.enqueued)

    def __repr__(self) -> str:
        return f"<SpanMetrics {self._path}: {', '.join(self._facts())}, trace {self.trace_id}>"

    def _repr_html_(self) -> str:
        name = anchor(self.url, self._path)
        return f"{name}: {anchor(None, ', '.join(self._facts()))}"

    @property
    def _path(self) -> str:
        return span_path(self.name, Sanitizer())

    def _facts(self) -> list[str]:
        """Return the most important facts as lines."""
        facts = [self.result or "outcome unknown", f"{self.duration:.3g} s"]
        if self.counts is not None:
            facts.append(f"{self.counts.get('tasks', 0)} tasks")
        if self.idle_time is not None:
            facts.append(f"{self.idle_time:.3g} s idle")
        return facts

    def to_frame(self) -> pandas.DataFrame:
        """Return the metrics as a pandas frame.

        Returns
        -------
        frame
            One row a metric, with the columns ``context``, ``prefix``, ``activity``, ``unit``,
            ``own`` and ``tree``. ``own`` is NaN if the span itself has no value.

        Raises
        ------
        ImportError
            If pandas is not installed here.
        """
        import pandas

        rows = [(*_columns(key), self.own.get(key), value) for key, value in self.tree.items()]
        return pandas.DataFrame(rows, columns=[*KEY_COLUMNS, "own", "tree"])


def _columns(key: MetricKey) -> tuple[Any, ...]:
    """Return a key as four values, filled with None."""
    context, *middle, unit = key if len(key) > 1 else (*key, None)
    if len(middle) > 2:
        # An activity of several parts, which Dask makes from nested context meters.
        middle = [middle[0], tuple(middle[1:])]
    return (context, *[None] * (2 - len(middle)), *middle, unit)


@dataclass(frozen=True)
class Reason:
    """Why one task or span is not done yet."""

    #: The task's key, or the span's full name, as text for one line.
    name: str
    #: Dask's state of the task; ``span`` for a span, ``unknown`` for neither.
    state: str
    #: A stable name of the cause, such as ``worker paused``.
    kind: str
    #: The cause in one or more sentences.
    what: str
    #: What to do next.
    next_step: str
    #: The address of the worker that the task was sent to.
    worker: str | None = None
    #: Seconds since it was sent there, or since it was ready for any worker; None if unknown.
    seconds: float | None = None
    #: Of a span that is open: seconds of its path so far, by part, such as ``no_thread``, up to the
    #: last end of a task; None if unknown, or not followed.
    path: Mapping[str, float] | None = None
    #: Of such a span: what has cost it this time, as in `SpanMetrics`.
    diagnosis: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, repr=False)
class Why:
    """Why a task or a span is not done yet; `print` it, or read its reasons."""

    #: First the task or span in question, then tasks that hold it up, the most urgent first.
    reasons: tuple[Reason, ...]

    def __repr__(self) -> str:
        return "\n\n".join(
            # Of an unknown task, nothing else is known.
            f"{one.name}{'' if one.kind == one.state else f' ({one.state})'}: {one.kind}\n"
            f"  {one.what}\n  next: {one.next_step}"
            for one in self.reasons
        )


@dataclass(frozen=True)
class Keeper:
    """What keeps some of the results in memory."""

    #: ``client``, ``actor``, ``tasks``, ``data set``, ``variable``, ``queue`` or ``nothing``.
    kind: str
    #: The id of the client (also of actors), the tasks' function, the name of the others.
    name: str
    #: Size and number of the results that it keeps. Something else may keep them, too.
    bytes: int
    results: int
    #: Seconds since the client submitted its last graph; None if unknown.
    seconds: float | None = None


@dataclass(frozen=True)
class Holding:
    """The results of one function in one span that are in memory."""

    #: The full name of the span; empty for results of no span, such as scattered data.
    span: str
    #: The prefix of the tasks' keys.
    prefix: str
    #: Their size, as Dask measures it, and their number. Copies on further workers don't count.
    bytes: int
    results: int
    #: The keepers of most bytes first, and the number of those that are not shown.
    keepers: tuple[Keeper, ...]
    other_keepers: int
    #: What to do so that they leave memory.
    next_step: str


@dataclass(frozen=True, repr=False)
class Held:
    """The results in the memory of the workers, and their keepers; `print` it, or read it."""

    #: The full name of the span in question; empty if all were asked for.
    span: str
    #: Size and number of the results that were looked at, and the number of all.
    bytes: int
    results: int
    known: int
    #: The largest first, and the number of those that are not shown.
    largest: tuple[Holding, ...]
    others: int

    def __repr__(self) -> str:
        of_span = f" of {self.span}" if self.span else ""
        looked = "" if self.results >= self.known else f" of the {self.known:,} that are there"
        sum_of = f"{size(self.bytes)} in {counted(self.results, 'result')}"
        first = f"In memory{of_span}: {sum_of}{looked}."
        rest = size(self.bytes - sum(one.bytes for one in self.largest))
        lines = [
            line
            for one in self.largest
            for line in (
                "",
                f"{one.span or 'no span'}, {one.prefix}: {size(one.bytes)} in "
                f"{counted(one.results, 'result')}",
                *(f"  kept by {_keeper(keeper)}" for keeper in one.keepers),
                *([f"  and by {one.other_keepers:,} more"] * bool(one.other_keepers)),
                f"  next: {one.next_step}",
            )
        ]
        more = ["", f"And {rest} of {self.others:,} more."] * bool(self.others)
        return "\n".join([first, *lines, *more])


def _keeper(one: Keeper) -> str:
    """Return a keeper in words."""
    after = f", no submission for {seconds(one.seconds)}" if one.seconds is not None else ""
    kind = {"actor": "actors of client", "tasks": "unfinished tasks of"}.get(one.kind, one.kind)
    name = f"{kind} {one.name}".rstrip()
    return f"{name}: {size(one.bytes)} in {counted(one.results, 'result')}{after}"


@dataclass(frozen=True)
class Recorded:
    """Rows of telemetry that a scheduler keeps in memory."""

    #: The signal of each, and its lines of OTLP/JSON, as one member of a gzip file.
    rows: tuple[tuple[str, bytes], ...] = ()
    #: The number of the last one.
    number: int = 0
    #: Whether there are more.
    more: bool = False
    #: The number of traces, and of rows of other signals, that had no room, by signal.
    lost: Mapping[str, int] = field(default_factory=dict)
    #: The scheduler's time when it began to record; None if that is not the answer's subject.
    time: float | None = None
    #: The number of the last row of all; None if that is not known.
    until: int | None = None


@dataclass(frozen=True)
class Refusal:
    """The reason for a missing answer."""

    kind: str
    message: str

    def error(self) -> Exception:
        """Return the exception for the client to raise."""
        kinds: dict[str, type[Exception]] = {"unknown": LookupError, "timeout": TimeoutError}
        return kinds.get(self.kind, RuntimeError)(self.message)

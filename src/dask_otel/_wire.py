"""What a client and its scheduler send each other: questions, and plain data as answers.

Pickle names what it carries by module and name, and either side may be of a neighbouring version.
So all of it is here, and from 0.1.0 on nothing here is renamed, moved or taken away; what is added
(a field, an argument) has a default. Questions run on the scheduler, on its event loop, and may
only ask what is there: the rooms behind them can change. `tests/cluster/test_versions.py` has
clients and schedulers of two versions talk to each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from dask_otel.core.text import Sanitizer, span_path
from dask_otel.core.traces.link import anchor, fill

if TYPE_CHECKING:
    import pandas
    from distributed.scheduler import Scheduler

#: ``(context, prefix, activity, unit)``, as in Dask's ``Span.cumulative_worker_metrics``; Dask and
#: users may add keys of other shapes, the context first and the unit last.
MetricKey: TypeAlias = tuple[Hashable, ...]

#: Columns of `SpanMetrics.to_frame` that are parts of the key.
KEY_COLUMNS = ("context", "prefix", "activity", "unit")

# --------------------------------------------------------------------------- questions

# What works without a bridge imports the scheduler's side; all else asks the bridge that is there.


async def install(config: Mapping[str, Any], dask_scheduler: Scheduler) -> str:
    """Start a bridge on the scheduler; see `dask_otel.register`."""
    from dask_otel.scheduler.plugin import install, make_way

    await make_way(dask_scheduler)
    return install(dask_scheduler, config)


def unused(config: Mapping[str, Any], dask_scheduler: Scheduler) -> tuple[str, ...]:
    """Return the keys of a configuration that the running bridge ignores; see `register`.

    Full keys without values; none if the configuration is not valid there.
    """
    from dask_otel.settings.problems import ConfigurationError

    bridge = _bridge(dask_scheduler)
    try:
        return () if bridge is None else bridge.unused(config)
    except ConfigurationError:
        # Dask logs a failed call with its arguments, and they can hold credentials. The log has
        # the problems already.
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
        return Refusal(
            "no bridge",
            "dask-otel does not run on this scheduler: call dask_otel.register(client), or start "
            "the scheduler with --preload dask_otel",
        )
    answer = await bridge.settled.answer(span_id, timeout, submitted)
    return SpanMetrics(**answer) if isinstance(answer, dict) else Refusal(*answer)


async def examine(seconds: float, dask_scheduler: Scheduler) -> dict[str, Any]:
    """Return the facts for ``dask-otel doctor``; only the own endpoints get test telemetry."""
    from dask_otel.scheduler.examination import examine

    return await examine(dask_scheduler, _bridge(dask_scheduler), seconds)


def decided_trace(span_id: str, dask_scheduler: Scheduler) -> TraceContext | None:
    """Return the scheduler's decision for a Dask span; None if it does not know the span.

    Without a bridge nothing is decided: ids follow from Dask's.
    """
    bridge = _bridge(dask_scheduler)
    where = None if bridge is None else bridge.settled.trace_context(span_id)
    return None if where is None else TraceContext(*where)


def _bridge(dask_scheduler: Scheduler) -> Any:
    return getattr(dask_scheduler.plugins.get("dask-otel"), "bridge", None)


# ----------------------------------------------------------------------------- answers


@dataclass(frozen=True)
class TraceContext:
    """Where a Dask span is found in a tracing backend."""

    #: The trace, 32 hex digits.
    trace_id: str
    #: The OpenTelemetry span, 16 hex digits: that of the last generation that is known.
    span_id: str
    #: Whether the scheduler said so; else it was computed from Dask's ids.
    decided: bool = False

    @property
    def url(self) -> str | None:
        """Where to look at it; None without a setting ``otel.trace-url``, here."""
        return _url(self.trace_id, self.span_id)


def _url(trace_id: str, span_id: str) -> str | None:
    from dask_otel.settings.reading import setting

    return fill(setting("otel.trace-url"), trace_id, span_id)


@dataclass(frozen=True, repr=False)
class SpanMetrics:
    """Metrics and times of a settled Dask span.

    Times are seconds since the epoch, on the scheduler's clock. *Tree* means the span with all
    spans below it, *own* the tasks of the span alone. What is not known is None: outcomes, idle
    and capacity of a span that finished before the bridge came, or so long ago that the
    bridge has forgotten it (``otel.spans.remember``). Nor is the result of a span known where tasks
    ended while there was no bridge, unless one is known to have failed.
    """

    #: Dask's id of the span.
    id: str
    #: Its tags and those of its ancestors, outermost first.
    name: tuple[Hashable, ...]
    #: Dask's id of its root.
    root_id: str
    #: Tree: ``success``, ``cancellation`` or ``failure``, the worst wins.
    result: str | None
    #: When the scheduler first saw it.
    enqueued: float
    #: Tree: when the first task started computing; None if none did.
    start: float | None
    #: Tree: when the last work ended.
    stop: float
    #: Tree: ``tasks``, and of these ``memory``, ``erred``, ``cancelled``; events ``retried``,
    #: ``lost``, ``recomputed``, ``rescheduled``. As far as the bridge saw them.
    counts: Mapping[str, int] | None
    #: Own fine performance metrics, unscaled, as the workers reported them.
    own: Mapping[MetricKey, float]
    #: The same, summed over the tree: Dask's ``cumulative_worker_metrics`` without the entry that
    #: is no measurement ("idle or other spans", here `dask_idle_time`).
    tree: Mapping[MetricKey, float]
    #: Tree: share of the cluster's idle seconds.
    idle_time: float | None
    #: Tree: that share, and the reported execute seconds.
    capacity_time: float | None
    #: Tree: Dask's ``active_cpu_seconds``.
    dask_active_cpu_time: float
    #: Tree: Dask's "idle or other spans".
    dask_idle_time: float
    #: The trace that it is in, 32 hex digits.
    trace_id: str
    #: Its OpenTelemetry span, 16 hex digits.
    span_id: str
    #: Workers that had not sent their last report at the settle timeout: metrics may be missing.
    unreported: tuple[str, ...] = ()

    @property
    def url(self) -> str | None:
        """Where to look at its trace; None without a setting ``otel.trace-url``, here."""
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
        """Return the few things that one wants to see first."""
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
            ``own`` and ``tree``. ``own`` is NaN where the span itself has none.

        Raises
        ------
        ImportError
            If pandas is not installed here.
        """
        import pandas

        rows = [(*_columns(key), self.own.get(key), value) for key, value in self.tree.items()]
        return pandas.DataFrame(rows, columns=[*KEY_COLUMNS, "own", "tree"])


def _columns(key: MetricKey) -> tuple[Any, ...]:
    """Return a key as four values; what a shorter one lacks is None."""
    if len(key) == len(KEY_COLUMNS):
        return key
    if len(key) < len(KEY_COLUMNS):
        middle = (*[None] * (len(KEY_COLUMNS) - len(key)), *key[1:-1])
        return (key[0], *middle, key[-1] if len(key) > 1 else None)[: len(KEY_COLUMNS)]
    # An activity of several parts, as Dask makes them of nested context meters.
    return (key[0], key[1], key[2:-1], key[-1])


@dataclass(frozen=True)
class Refusal:
    """Why there is no answer."""

    kind: str
    message: str

    def error(self) -> Exception:
        """Return what the client raises."""
        kinds: dict[str, type[Exception]] = {"unknown": LookupError, "timeout": TimeoutError}
        return kinds.get(self.kind, RuntimeError)(self.message)

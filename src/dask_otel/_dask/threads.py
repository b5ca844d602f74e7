"""Accounts for the cluster's thread-seconds: Dask's side of `dask_otel.core.idle.accounting`.

The spans extension is not enough. It also needs the raw heartbeat, whose ``executing`` lists
cancelled tasks (``WorkerState.executing`` drops them); the message of a task that seceded, which is
not a transition; and the message of a failed task, whose transition has no times if the task is
retried.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from dask_otel import semconv
from dask_otel._dask.boundary import ErrorBoundary
from dask_otel._dask.runs import RunsUnderWay
from dask_otel._dask.wrapping import Wrappers
from dask_otel.core.idle.accounting import Accounting, Increments
from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.records import Tags

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

#: Our own activities in ``dask.cluster.time``; a user's with the same name becomes `_OTHER_TIME`.
_OUR_TIMES: Final = frozenset({"idle", "unused", "lost"})
_OTHER_TIME: Final = "other"

#: Number of spans in a step of a hand-over.
STEP: Final = 250


class ThreadTime:
    """Feeds the accounting from one scheduler.

    All methods belong to the scheduler's event loop. The adapter guards the calls of its hooks.
    """

    def __init__(
        self, scheduler: Scheduler, boundary: ErrorBoundary, under_way: RunsUnderWay
    ) -> None:
        self._scheduler = scheduler
        self._boundary = boundary
        self._under_way = under_way
        #: `TaskEvents` calls this directly at transitions.
        self.accounting = Accounting(monotonic())
        #: Execute seconds of the present heartbeat, by span id and by activity.
        self._seconds: dict[str, float] = {}
        self._activities: dict[Hashable, float] = {}
        #: Seconds that it travelled.
        self.travelled = 0.0
        #: The interval that `prepare` has closed and `export` has not yet exported.
        self._closed: _Closed | None = None
        #: The message of the present failure.
        self._failing: Mapping[str, Any] = {}
        self.wrappers = Wrappers()

    # ------------------------------------------------------------------ attach, detach

    def attach(self) -> None:
        """Add the workers, then wrap the scheduler's handlers."""
        for ws in self._scheduler.workers.values():
            self.worker_added(ws)
        self.wrappers.handler(self._scheduler.handlers, "heartbeat_worker", self._wrapped_heartbeat)
        handlers = self._scheduler.stream_handlers
        seceded = self.wrappers.then(self._seceded, self._boundary, "long_running")
        self.wrappers.handler(handlers, "long-running", seceded)
        self.wrappers.handler(handlers, "task-erred", self._wrapped_task_erred)

    def add_tasks(self) -> None:
        """Add the tasks in processing; the active spans must be known."""
        for ws in self._scheduler.workers.values():
            for task in ws.processing:
                self.accounting.task_assigned(ws.address, task.key, task.group.span_id, monotonic())
                if task in ws.long_running:
                    self.accounting.task_seceded(ws.address, task.key, None, monotonic())

    # ------------------------------------------------------------------------- workers

    def worker_added(self, ws: WorkerState) -> None:
        """Add a worker."""
        self.accounting.worker_added(ws.address, ws.nthreads, monotonic())

    # --------------------------------------------------------------------------- tasks

    def failure_of(self, key: Hashable) -> Mapping[str, Any]:
        """Return the worker's message of the present failure, if it is this task's.

        If the task has retries left, its transitions lack the exception.
        """
        return self._failing if self._failing.get("key") == key else {}

    def _wrapped_task_erred(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # `left` is called within the original.
        def task_erred(*args: Any, **kwargs: Any) -> Any:
            self._failing = kwargs
            try:
                return original(*args, **kwargs)
            finally:
                self._failing = {}

        return task_erred

    def _seceded(
        self, key: Hashable, worker: str, compute_duration: float | None = None, **_: Any
    ) -> None:
        task, ws = self._scheduler.tasks.get(key), self._scheduler.workers.get(worker)
        if task is not None and ws is not None and task in ws.long_running:
            self.accounting.task_seceded(worker, key, compute_duration, monotonic())

    # ---------------------------------------------------------------------- heartbeats

    def metered(self, span_id: str, activity: Hashable, seconds: float) -> None:
        """Add execute seconds of the present heartbeat."""
        # Values that a counter cannot hold are ignored on both sides of the sum.
        if 0.0 < seconds < inf:
            self._seconds[span_id] = self._seconds.get(span_id, 0.0) + seconds
            if activity in _OUR_TIMES:
                activity = _OTHER_TIME
            self._activities[activity] = self._activities.get(activity, 0.0) + seconds

    def _wrapped_heartbeat(self, original: Callable[..., Any]) -> Callable[..., Any]:
        measured = self.wrappers.then(self._cut, self._boundary, "heartbeat_worker")(original)

        def heartbeat_worker(*args: Any, **kwargs: Any) -> Any:
            self._seconds, self.travelled = {}, 0.0
            return measured(*args, **kwargs)

        return heartbeat_worker

    def _cut(
        self, *, address: str, executing: Mapping[Hashable, float] | None = None, **_: Any
    ) -> None:
        workers = self._scheduler.workers
        ws = workers.get(address) or workers.get(self._scheduler.coerce_address(address))
        if ws is None:
            return
        executing = executing or {}
        seconds, self._seconds = self._seconds, {}
        self.accounting.heartbeat(ws.address, executing, seconds, monotonic(), self.travelled)
        self._under_way.heartbeat(ws.address, executing)

    # --------------------------------------------------------------------------- spans

    def span_totals(self, span: OpenSpan) -> tuple[float, float]:
        """Return a generation's idle and capacity seconds up to now."""
        idle, capacity = self.accounting.pending(span.identity.dask_id)
        return max(0.0, span.idle + idle), max(0.0, span.capacity + capacity)

    # ------------------------------------------------------------------------- metrics

    def prepare(
        self, open_spans: Mapping[str, OpenSpan], tags_of: Callable[[str], Tags]
    ) -> Iterator[None]:
        """Close an interval and prepare its `export`, in short steps.

        The interval ends with the first step. With thousands of active spans all steps together
        would be too long for one callback of the loop.
        """
        accounting = self.accounting
        if self._closed is None:
            activities, self._activities = self._activities, {}
            self._closed = _Closed(activities, accounting.begin_export(monotonic()))
            yield
        while not accounting.settle(STEP):
            yield
        while not self._closed.credit(STEP, open_spans, tags_of):
            yield

    @property
    def prepared(self) -> bool:
        """Whether an interval has been closed and not exported."""
        return self._closed is not None

    def export(
        self,
        batch: MetricBatch,
        open_spans: Mapping[str, OpenSpan],
        tags_of: Callable[[str], Tags],
    ) -> None:
        """Add the seconds since the last export to a batch and to the open spans.

        If `prepare` has begun, this exports its interval; the rest belongs to the next one.
        """
        for _ in self.prepare(open_spans, tags_of):
            pass
        assert self._closed is not None
        closed, self._closed = self._closed, None
        since = closed.since
        times = {
            **closed.activities,
            "idle": since.idle,
            "unused": since.unused,
            "lost": since.lost,
        }
        for activity, seconds in times.items():
            batch.add(semconv.CLUSTER_TIME.name, activity, value=seconds)
        batch.add(semconv.CLUSTER_CAPACITY_TIME.name, value=since.capacity)
        batch.add(semconv.CLUSTER_EXCESS_TIME.name, value=since.excess)
        batch.set_level(semconv.CLUSTER_INFLIGHT_TIME.name, value=max(0.0, since.in_flight))
        for metric, by_tags in (
            (semconv.SPAN_IDLE_TIME, closed.idle),
            (semconv.SPAN_CAPACITY_TIME, closed.capacity),
        ):
            for tags, seconds in by_tags.items():
                batch.add(metric.name, tags, value=seconds)


@dataclass(slots=True)
class _Closed:
    """A closed interval that is being added to a batch."""

    #: Execute seconds by activity.
    activities: dict[Hashable, float]
    since: Increments
    #: Seconds by tags: many spans share a name.
    idle: dict[Tags, float] = field(default_factory=dict)
    capacity: dict[Tags, float] = field(default_factory=dict)

    def credit(
        self,
        limit: int,
        open_spans: Mapping[str, OpenSpan],
        tags_of: Callable[[str], Tags],
    ) -> bool:
        """Credit at most `limit` shares to their spans; return whether none is left."""
        idle, reported = self.since.span_idle, self.since.span_reported
        for shares in (idle, reported):
            for _ in range(min(limit, len(shares))):
                limit -= 1
                span_id, seconds = shares.popitem()
                span = open_spans.get(span_id)
                tags = tags_of(span_id) if span is None else span.identity.tags
                more_idle = seconds if shares is idle else 0.0
                if shares is idle:
                    self.idle[tags] = self.idle.get(tags, 0.0) + seconds
                self.capacity[tags] = self.capacity.get(tags, 0.0) + seconds
                if span is not None:
                    span.credit(more_idle, seconds)
        return not idle and not reported

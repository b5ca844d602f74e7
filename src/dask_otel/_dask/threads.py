"""Accounts for the cluster's thread-seconds: Dask's side of `dask_otel.core.idle.accounting`.

The spans extension is not enough. It also needs the raw heartbeat, whose ``executing`` lists
cancelled tasks (``WorkerState.executing`` drops them); the message of a task that seceded, which is
not a transition; and the message of a failed task, whose transition has no times if the task is
retried.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from dask_otel import semconv
from dask_otel._dask.runs import RunsUnderWay
from dask_otel._dask.wrapping import Wrappers
from dask_otel.core.idle.accounting import Accounting, Increments
from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.metrics.batch import Batches, MetricBatch
from dask_otel.core.records import Tags

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: Our own activities in ``dask.cluster.time``; a user's with the same name becomes `_OTHER_TIME`.
_OUR_TIMES: Final = frozenset({"idle", "unused", "lost"})
_OTHER_TIME: Final = "other"

#: Number of spans in a step of a hand-over.
STEP: Final = 250


class ThreadTime:
    """Feeds the accounting from one scheduler.

    All methods belong to the scheduler's event loop. The adapter guards the calls of its hooks.
    """

    def __init__(self, scheduler: Scheduler, under_way: RunsUnderWay) -> None:
        self._scheduler = scheduler
        self._under_way = under_way
        #: `TaskEvents` calls this directly at transitions.
        self.accounting = Accounting(monotonic())
        #: Execute seconds of the present heartbeat, by span id and by activity.
        self._seconds: dict[str, float] = {}
        self._activities: dict[Hashable, float] = {}
        #: Seconds that it travelled.
        self._travelled = 0.0
        #: The interval that `fold` has begun to add.
        self._closed: Increments | None = None
        #: The message of the present failure.
        self._failing: Mapping[str, Any] = {}

    def wrap(self, wrappers: Wrappers) -> None:
        """Wrap the scheduler's handlers."""
        messages = self._scheduler.stream_handlers
        cut = wrappers.then(self._cut, "heartbeat_worker")
        seceded = wrappers.then(self._seceded, "long_running")
        wrappers.handler(self._scheduler.handlers, "heartbeat_worker", cut)
        wrappers.handler(messages, "long-running", seceded)
        wrappers.handler(messages, "task-erred", self._wrapped_task_erred)

    # --------------------------------------------------------------------------- tasks

    def failure_of(self, key: Hashable) -> Mapping[str, Any]:
        """Return the worker's message of the present failure, if it is this task's.

        If the task has retries left, its transitions lack the exception.
        """
        return self._failing if self._failing.get("key") == key else {}

    def _wrapped_task_erred(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # The original calls `TaskEvents.transition`.
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

    def begin_heartbeat(self, travelled: float) -> None:
        """Begin to read a heartbeat that took so many seconds to arrive."""
        self._seconds, self._travelled = {}, travelled

    def _cut(
        self, *, address: str, executing: Mapping[Hashable, float] | None = None, **_: Any
    ) -> None:
        workers = self._scheduler.workers
        ws = workers.get(address) or workers.get(self._scheduler.coerce_address(address))
        if ws is None:
            return
        executing = executing or {}
        seconds, travelled = self._seconds, self._travelled
        self.begin_heartbeat(0.0)
        self.accounting.heartbeat(ws.address, executing, seconds, monotonic(), travelled)
        self._under_way.heartbeat(ws.address, executing)

    # --------------------------------------------------------------------------- spans

    def span_totals(self, span: OpenSpan) -> tuple[float, float]:
        """Return a generation's idle and capacity seconds up to now."""
        idle, capacity = self.accounting.pending(span.identity.dask_id)
        return max(0.0, span.idle + idle), max(0.0, span.capacity + capacity)

    # ------------------------------------------------------------------------- metrics

    def fold(
        self,
        batches: Batches,
        open_spans: Mapping[str, OpenSpan],
        tags_of: Callable[[str], Tags],
    ) -> Iterator[None]:
        """Add the seconds since the last call to the batch and the open spans, in short steps.

        The interval ends with the first step. With thousands of active spans all steps together
        would be too long for one callback of the loop. After an interruption, the next call
        continues with the same interval.
        """
        if self._closed is None:
            self._closed = self.accounting.begin_export(monotonic())
            self._add_totals(batches.open, self._closed)
            yield
        while not self.accounting.settle(STEP):
            yield
        idle, reported = self._closed.span_idle, self._closed.span_reported
        while idle or reported:
            shares = idle or reported
            for _ in range(min(STEP, len(shares))):
                span_id, seconds = shares.popitem()
                span = open_spans.get(span_id)
                tags = tags_of(span_id) if span is None else span.identity.tags
                batches.open.add(semconv.SPAN_CAPACITY_TIME.name, tags, value=seconds)
                if shares is idle:
                    batches.open.add(semconv.SPAN_IDLE_TIME.name, tags, value=seconds)
                if span is not None:
                    span.credit(seconds if shares is idle else 0.0, seconds)
            yield
        self._closed = None

    def _add_totals(self, batch: MetricBatch, closed: Increments) -> None:
        """Add an interval's seconds of the whole cluster."""
        activities, self._activities = self._activities, {}
        ours: dict[Hashable, float] = {
            "idle": closed.idle,
            "unused": closed.unused,
            "lost": closed.lost,
        }
        for activity, seconds in {**activities, **ours}.items():
            batch.add(semconv.CLUSTER_TIME.name, activity, value=seconds)
        batch.add(semconv.CLUSTER_CAPACITY_TIME.name, value=closed.capacity)
        batch.add(semconv.CLUSTER_EXCESS_TIME.name, value=closed.excess)
        batch.set_level(semconv.CLUSTER_INFLIGHT_TIME.name, value=max(0.0, closed.in_flight))

"""Where the cluster's thread-seconds went: Dask's side of `dask_otel.core.idle.accounting`.

It needs more than the spans extension gets: the raw heartbeat, whose ``executing`` still lists
cancelled tasks (``WorkerState.executing`` drops them), the message of a task that seceded, for
which there is no transition, and that of a task that failed, whose transition has no times if it
is retried.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from math import inf
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Final

from dask_otel import semconv
from dask_otel._dask.boundary import Boundary
from dask_otel._dask.wrapping import Wrappers
from dask_otel.core.idle.accounting import Accounting, Increments
from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.metrics.batch import MetricBatch
from dask_otel.core.records import Tags

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

#: Names in ``dask.cluster.time`` that are ours; an activity of a user's goes to `_OTHER_TIME`.
_OUR_TIMES: Final = frozenset({"idle", "unused", "lost"})
_OTHER_TIME: Final = "other"

#: What the ``stimulus_id`` of a message says by which a worker tells of the end of a run.
_ENDS: Final = frozenset({"task-finished", "task-erred"})

#: Spans in a step of a hand-over.
STEP: Final = 250


def _nobody(ws: WorkerState, executing: Mapping[Hashable, float]) -> None:
    """Stand in for the one who wants to be told."""


class ThreadTime:
    """Feeds the accounting from one scheduler.

    Parameters
    ----------
    scheduler
        A running scheduler.
    boundary
        Takes every error of ours: Dask does not guard its handlers.

    Notes
    -----
    All methods belong to the scheduler's event loop. Those called by the adapter's hooks are
    guarded there.
    """

    def __init__(self, scheduler: Scheduler, boundary: Boundary) -> None:
        self._scheduler = scheduler
        self._boundary = boundary
        #: Told of each heartbeat: the seconds of every task that it lists as running.
        self.on_executing: Callable[[WorkerState, Mapping[Hashable, float]], None] = _nobody
        self._accounting = Accounting(monotonic())
        #: Execute seconds of the heartbeat at hand, by span id and by activity.
        self._seconds: dict[str, float] = {}
        self._activities: dict[Hashable, float] = {}
        #: What `prepare` has closed, until `export` passes it on.
        self._closed: _Closed | None = None
        #: Key and ``startstops`` of the failure at hand.
        self._failing: Mapping[str, Any] = {}
        #: Seconds of the event loop that this took, up to now.
        self.spent = 0.0
        self._wrappers = Wrappers()

    # ------------------------------------------------------------------ attach, detach

    def attach(self) -> None:
        """Take in the workers and their tasks, then wrap the scheduler's handlers."""
        for ws in self._scheduler.workers.values():
            self.worker_added(ws)
        self._wrappers.handler(
            self._scheduler.handlers, "heartbeat_worker", self._wrapped_heartbeat
        )
        handlers = self._scheduler.stream_handlers
        self._wrappers.handler(handlers, "long-running", self._wrapped_long_running)
        self._wrappers.handler(handlers, "task-erred", self._wrapped_task_erred)

    def take_in_tasks(self) -> None:
        """Take in what is processing; the active spans are known by now."""
        for ws in self._scheduler.workers.values():
            for task in ws.processing:
                self.assigned(task.key, task)
                if task in ws.long_running:
                    self._accounting.task_seceded(ws.address, task.key, None, monotonic())

    def detach(self) -> None:
        """Put the scheduler's handlers back."""
        self._wrappers.take_off()

    @property
    def attached(self) -> bool:
        """Whether it observes the scheduler."""
        return self._wrappers.attached

    # ------------------------------------------------------------------------- workers

    def worker_added(self, ws: WorkerState) -> None:
        """A worker joined."""
        self._accounting.worker_added(ws.address, ws.nthreads, monotonic(), ws.time_delay)

    def worker_removed(self, address: str) -> None:
        """A worker is gone; its tasks have been released."""
        self._accounting.worker_removed(address, monotonic())

    # --------------------------------------------------------------------------- tasks

    def assigned(self, key: Hashable, task: TaskState) -> None:
        """A task was sent to a worker."""
        span_id = task.group.span_id
        self._accounting.task_assigned(task.processing_on.address, key, span_id, monotonic())

    def ended(self, ws: WorkerState, key: Hashable, seconds: float) -> None:
        """A run ended, good or bad, after so many seconds of computing."""
        self._accounting.task_done(ws.address, key, seconds, monotonic())

    def left(self, ws: WorkerState, key: Hashable, stimulus_id: str) -> None:
        """A task is no longer in processing, and the transition does not say how long it ran."""
        if stimulus_id.startswith(("task-erred", "reschedule")):
            # It failed, with retries left, or asked to run again: it has ended.
            startstops = self.failure_of(key).get("startstops")
            seconds = run_times(startstops)[2] if startstops else None
            self._accounting.task_done(ws.address, key, seconds, monotonic())
        else:
            self._accounting.task_released(ws.address, key, monotonic())

    def failure_of(self, key: Hashable) -> Mapping[str, Any]:
        """Return what a worker says of the failure that is being handled, if it is that task's.

        Where the task has retries left, its transitions do not say it.
        """
        return self._failing if self._failing.get("key") == key else {}

    def stolen(self, key: Hashable, victim: WorkerState, thief: WorkerState) -> None:
        """A task that had not started was stolen."""
        self._accounting.task_stolen(key, victim.address, thief.address, monotonic())

    def _wrapped_task_erred(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # `left` is called within the original.
        def task_erred(*args: Any, **kwargs: Any) -> Any:
            self._failing = kwargs
            try:
                return original(*args, **kwargs)
            finally:
                self._failing = {}

        return task_erred

    def _wrapped_long_running(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def long_running(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.attached:
                try:
                    self._seceded(kwargs["key"], kwargs["worker"], kwargs.get("compute_duration"))
                except Exception:
                    self._boundary.failed("long_running")
            return result

        return long_running

    def _seceded(self, key: Hashable, worker: str, elapsed: float | None) -> None:
        task, ws = self._scheduler.tasks.get(key), self._scheduler.workers.get(worker)
        if task is not None and ws is not None and task in ws.long_running:
            self._accounting.task_seceded(worker, key, elapsed, monotonic())

    # ---------------------------------------------------------------------- heartbeats

    def metered(self, span_id: str, activity: Hashable, seconds: float) -> None:
        """A worker reported execute seconds, in the heartbeat that is being handled."""
        # What a counter can't hold is left out of both sides of the sum.
        if 0.0 < seconds < inf:
            self._seconds[span_id] = self._seconds.get(span_id, 0.0) + seconds
            if activity in _OUR_TIMES:
                activity = _OTHER_TIME
            self._activities[activity] = self._activities.get(activity, 0.0) + seconds

    def _wrapped_heartbeat(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def heartbeat_worker(*args: Any, **kwargs: Any) -> Any:
            if self.attached:
                self._seconds = {}
            result = original(*args, **kwargs)
            if self.attached:
                began = perf_counter()
                try:
                    self._cut(kwargs)
                except Exception:
                    self._boundary.failed("heartbeat_worker")
                self.spent += perf_counter() - began
            return result

        return heartbeat_worker

    def _cut(self, message: Mapping[str, Any]) -> None:
        scheduler = self._scheduler
        address = message["address"]
        ws = scheduler.workers.get(address)
        if ws is None:
            ws = scheduler.workers.get(scheduler.coerce_address(address))
            if ws is None:
                return
        executing = message.get("executing") or {}
        seconds, self._seconds = self._seconds, {}
        self._accounting.heartbeat(ws.address, executing, seconds, monotonic(), ws.time_delay)
        self.on_executing(ws, executing)

    # --------------------------------------------------------------------------- spans

    def span_active(self, span: OpenSpan) -> None:
        """A span owns an unfinished task, and did not before."""
        self._accounting.span_active(span.identity.root_id, span.identity.dask_id, monotonic())

    def span_inactive(self, span: OpenSpan) -> None:
        """A span's last unfinished task is gone."""
        self._accounting.span_inactive(span.identity.dask_id, monotonic())

    def span_opened(self, span: OpenSpan) -> None:
        """A generation begins: what is still to be exported was an earlier one's."""
        span.begin_time(*self._pending(span.identity.dask_id))

    def span_totals(self, span: OpenSpan) -> tuple[float, float]:
        """Return a generation's idle and capacity seconds up to now."""
        idle, capacity = self._pending(span.identity.dask_id)
        return max(0.0, span.idle + idle), max(0.0, span.capacity + capacity)

    # ------------------------------------------------------------------------- metrics

    def prepare(
        self, open_spans: Mapping[str, OpenSpan], tags_of: Callable[[str], Tags]
    ) -> Iterator[None]:
        """Close an interval and prepare its `export`: a short step for each item.

        The interval ends with the first step. With thousands of active spans the whole would
        be too long for one callback of the loop.
        """
        accounting = self._accounting
        if self._closed is None:
            activities, self._activities = self._activities, {}
            accounting.begin_export(monotonic())
            self._closed = _Closed(activities)
            yield
        closed = self._closed
        if closed.since is None:
            while not accounting.settle(STEP):
                yield
            closed.since = accounting.finish_export()
        while not closed.credit(STEP, open_spans, tags_of):
            yield

    @property
    def prepared(self) -> bool:
        """Whether an interval has been closed and not exported."""
        return self._closed is not None

    def _pending(self, span_id: str) -> tuple[float, float]:
        """Return a span's idle and capacity seconds that it has not been credited with yet."""
        idle, capacity = self._accounting.pending(span_id)
        if self._closed is not None and self._closed.since is not None:
            since = self._closed.since
            more = since.span_idle.get(span_id, 0.0)
            idle += more
            capacity += more + since.span_reported.get(span_id, 0.0)
        return idle, capacity

    def export(
        self,
        batch: MetricBatch,
        open_spans: Mapping[str, OpenSpan],
        tags_of: Callable[[str], Tags],
    ) -> None:
        """Add what passed since the last export to a batch, and to the spans that are open.

        Where `prepare` has begun, it is that interval, and what came since then is the next's.
        """
        for _ in self.prepare(open_spans, tags_of):
            pass
        assert self._closed is not None
        closed, self._closed = self._closed, None
        since = closed.since
        assert since is not None
        name = semconv.CLUSTER_TIME.name
        for activity, seconds in closed.activities.items():
            batch.add(name, activity, value=seconds)
        for activity, seconds in (
            ("idle", since.idle),
            ("unused", since.unused),
            ("lost", since.lost),
        ):
            batch.add(name, activity, value=seconds)
        for metric, seconds in (
            (semconv.CLUSTER_CAPACITY_TIME, since.capacity),
            (semconv.CLUSTER_EXCESS_TIME, since.excess),
        ):
            batch.add(metric.name, value=seconds)
        batch.set_level(semconv.CLUSTER_INFLIGHT_TIME.name, value=max(0.0, since.in_flight))
        for metric, by_tags in (
            (semconv.SPAN_IDLE_TIME, closed.idle),
            (semconv.SPAN_CAPACITY_TIME, closed.capacity),
        ):
            for tags, seconds in by_tags.items():
                batch.add(metric.name, tags, value=seconds)


class _Closed:
    """An interval on its way into a batch."""

    __slots__ = ("activities", "capacity", "idle", "since")

    def __init__(self, activities: dict[Hashable, float]) -> None:
        #: Execute seconds by activity.
        self.activities = activities
        #: None until all active spans are settled.
        self.since: Increments | None = None
        #: Seconds by tags: many spans share a name.
        self.idle: dict[Tags, float] = {}
        self.capacity: dict[Tags, float] = {}

    def credit(
        self,
        limit: int,
        open_spans: Mapping[str, OpenSpan],
        tags_of: Callable[[str], Tags],
    ) -> bool:
        """Credit so many spans with their seconds; whether none is left."""
        assert self.since is not None
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


def run_times(startstops: Iterable[Mapping[str, Any]]) -> tuple[float, float, float]:
    """Return when a run last computed, and for how long in all; zeros if it did not."""
    started = stopped = seconds = 0.0
    for startstop in startstops:
        if startstop["action"] == "compute":
            started, stopped = startstop["start"], startstop["stop"]
            seconds += stopped - started
    return started, stopped, seconds


def stimulus_time(stimulus_id: str) -> float | None:
    """Return when a worker made the message that a run ended, by its own clock.

    Dask writes it into the message's ``stimulus_id``. A message that repeats what a worker said
    before has another one, and there is none then.
    """
    what, _, clock = stimulus_id.rpartition("-")
    if what not in _ENDS:
        return None
    try:
        return float(clock)
    except ValueError:
        return None

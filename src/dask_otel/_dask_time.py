"""Where the cluster's thread-seconds went: Dask's side of `dask_otel.core.accounting`.

A part of `dask_otel._dask`, and like it allowed to look inside Dask. It needs more than the
spans extension gets: the raw heartbeat, whose ``executing`` still lists cancelled tasks
(``WorkerState.executing`` drops them), the message of a task that seceded, for which there is
no transition, and that of a task that failed, whose transition has no times if it is retried.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import wraps
from math import inf
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from dask_otel import semconv
from dask_otel.core.accounting import Accounting, Increments
from dask_otel.core.records import MetricBatch, Tags
from dask_otel.core.spans import OpenSpan

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState, WorkerState

#: Names in ``dask.cluster.time`` that are ours; an activity of a user's goes to `_OTHER_TIME`.
_OUR_TIMES: Final = frozenset({"idle", "unused", "lost"})
_OTHER_TIME: Final = "other"


class Boundary(Protocol):
    """Where the bridge's own errors end."""

    def failed(self, kind: str) -> None:
        """Count the exception that is being handled, and log the first of its kind."""


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
        self._accounting = Accounting(monotonic())
        #: Execute seconds of the heartbeat at hand, by span id and by activity.
        self._seconds: dict[str, float] = {}
        self._activities: dict[Hashable, float] = {}
        #: Key and ``startstops`` of the failure at hand.
        self._failing: tuple[Hashable, Any] = None, None
        #: What `take` has taken, with the activities, until `export` passes it on.
        self._taken: tuple[Increments, dict[Hashable, float]] | None = None
        #: Seconds of the event loop that this took, up to now.
        self.spent = 0.0
        self._unwrap: list[Callable[[], None]] = []

    # ------------------------------------------------------------------ attach, detach

    def attach(self) -> None:
        """Take in the workers and their tasks, then wrap the scheduler's handlers."""
        for ws in self._scheduler.workers.values():
            self.worker_added(ws)
        self._wrap(self._scheduler.handlers, "heartbeat_worker", self._wrapped_heartbeat)
        handlers = self._scheduler.stream_handlers
        self._wrap(handlers, "long-running", self._wrapped_long_running)
        self._wrap(handlers, "task-erred", self._wrapped_task_erred)

    def take_in_tasks(self) -> None:
        """Take in what is processing; the active spans are known by now."""
        for ws in self._scheduler.workers.values():
            for task in ws.processing:
                self.assigned(task.key, task)
                if task in ws.long_running:
                    self._accounting.task_seceded(ws.address, task.key, None, monotonic())

    def detach(self) -> None:
        """Put the scheduler's handlers back."""
        while self._unwrap:
            self._unwrap.pop()()

    def _wrap(
        self,
        handlers: dict[str, Callable[..., Any]],
        name: str,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        original = handlers[name]
        # Dask looks at a handler's signature, which `wraps` keeps.
        wrapper = handlers[name] = wraps(original)(make(original))

        def unwrap() -> None:
            # Where somebody wrapped it after us, ours stays below theirs, and does nothing.
            if handlers.get(name) is wrapper:
                handlers[name] = original

        self._unwrap.append(unwrap)

    @property
    def attached(self) -> bool:
        """Whether it observes the scheduler."""
        return bool(self._unwrap)

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

    def left(
        self, key: Hashable, ws: WorkerState, stimulus_id: str, info: Mapping[str, Any]
    ) -> None:
        """A task is no longer in processing."""
        startstops = info.get("startstops")
        if startstops:
            seconds: float | None = _computed(startstops)
        elif stimulus_id.startswith("task-erred"):
            # It failed, with retries left: the transition does not say for how long it ran.
            failed, startstops = self._failing
            seconds = _computed(startstops) if startstops and failed == key else None
        else:
            self._accounting.task_released(ws.address, key, monotonic())
            return
        self._accounting.task_done(ws.address, key, seconds, monotonic())

    def moved(self, key: Hashable, victim: WorkerState, thief: WorkerState) -> None:
        """A task that had not started was stolen."""
        self._accounting.task_moved(key, victim.address, thief.address, monotonic())

    def _wrapped_task_erred(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # `left` is called within the original.
        def task_erred(*args: Any, **kwargs: Any) -> Any:
            self._failing = kwargs.get("key"), kwargs.get("startstops")
            try:
                return original(*args, **kwargs)
            finally:
                self._failing = None, None

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

    # --------------------------------------------------------------------------- spans

    def span_active(self, span: OpenSpan) -> None:
        """A span owns an unfinished task, and did not before."""
        self._accounting.span_active(span.identity.root_id, span.identity.dask_id, monotonic())

    def span_inactive(self, span: OpenSpan) -> None:
        """A span's last unfinished task is gone."""
        self._accounting.span_inactive(span.identity.dask_id, monotonic())

    def span_opened(self, span: OpenSpan) -> None:
        """A generation begins: what is still to be exported was an earlier one's."""
        idle, capacity = self._pending(span.identity.dask_id)
        span.idle, span.capacity = -idle, -capacity

    def span_totals(self, span: OpenSpan) -> tuple[float, float]:
        """Return a generation's idle and capacity seconds up to now."""
        idle, capacity = self._pending(span.identity.dask_id)
        return max(0.0, span.idle + idle), max(0.0, span.capacity + capacity)

    # ------------------------------------------------------------------------- metrics

    def take(self) -> None:
        """Take what passed since the last export: the first half of `export`, ahead of it.

        With thousands of active spans the halves are too much for one callback of the loop.
        """
        if self._taken is None:
            activities, self._activities = self._activities, {}
            self._taken = self._accounting.export(monotonic()), activities

    def _pending(self, span_id: str) -> tuple[float, float]:
        """Return a span's idle and capacity seconds that are not exported yet."""
        idle, capacity = self._accounting.pending(span_id)
        if self._taken is not None:
            taken, _ = self._taken
            idle += taken.span_idle.get(span_id, 0.0)
            capacity += taken.span_capacity.get(span_id, 0.0)
        return idle, capacity

    def export(
        self,
        batch: MetricBatch,
        open_spans: Mapping[str, OpenSpan],
        tags_of: Callable[[str], Tags],
    ) -> None:
        """Add what passed since the last export to a batch, and to the spans that are open."""
        self.take()
        assert self._taken is not None
        (since, activities), self._taken = self._taken, None
        add = batch.increments
        name = semconv.CLUSTER_TIME.name
        for activity, seconds in activities.items():
            add[name, activity] = add.get((name, activity), 0.0) + seconds
        for activity, seconds in (
            ("idle", since.idle),
            ("unused", since.unused),
            ("lost", since.lost),
        ):
            add[name, activity] = add.get((name, activity), 0.0) + seconds
        for metric, seconds in (
            (semconv.CLUSTER_CAPACITY_TIME, since.capacity),
            (semconv.CLUSTER_EXCESS_TIME, since.excess),
        ):
            add[metric.name,] = add.get((metric.name,), 0.0) + seconds
        batch.levels[semconv.CLUSTER_INFLIGHT_TIME.name,] = max(0.0, since.in_flight)
        # Many spans share a name: sums by tags first, for the event loop waits.
        idle: dict[Tags, float] = {}
        capacity: dict[Tags, float] = {}
        span_idle = since.span_idle
        # Every span with idle seconds has capacity seconds.
        for span_id, seconds in since.span_capacity.items():
            span = open_spans.get(span_id)
            tags = tags_of(span_id) if span is None else span.identity.tags
            capacity[tags] = capacity.get(tags, 0.0) + seconds
            share = span_idle.get(span_id)
            if share is not None:
                idle[tags] = idle.get(tags, 0.0) + share
            if span is not None:
                span.capacity += seconds
                span.idle += share or 0.0
        for metric, by_tags in (
            (semconv.SPAN_IDLE_TIME, idle),
            (semconv.SPAN_CAPACITY_TIME, capacity),
        ):
            for tags, seconds in by_tags.items():
                series = (metric.name, tags)
                add[series] = add.get(series, 0.0) + seconds


def _computed(startstops: Iterable[Mapping[str, Any]]) -> float:
    """Return the compute seconds of a run."""
    seconds = 0.0
    for startstop in startstops:
        if startstop["action"] == "compute":
            seconds += startstop["stop"] - startstop["start"]
    return seconds

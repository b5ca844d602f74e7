"""Accounts for the cluster's thread-seconds: Dask's side of `dask_otel.core.idle.accounting`.

The spans extension is not enough. It also needs the raw heartbeat, whose ``executing`` lists
cancelled tasks (``WorkerState.executing`` drops them); the message of a task that seceded, which is
not a transition; and the message of a failed task, whose transition has no times if the task is
retried.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from time import monotonic
from typing import Any, Final

from distributed.core import Status
from distributed.metrics import time
from distributed.scheduler import Scheduler, WorkerState
from distributed.spans import Span

from dask_otel import semconv
from dask_otel._dask.runs import SENT_TO, Ready
from dask_otel._dask.stimuli import stimulus_time
from dask_otel._dask.wrapping import Wrappers
from dask_otel.core.idle.accounting import Accounting, Increments
from dask_otel.core.idle.worker import WorkerTime
from dask_otel.core.life.clock_offsets import ClockOffsets
from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.metrics.batch import Batches, MetricBatch

#: In ``dask.cluster.time``, a user's activity with the name of one of ours.
_OTHER_TIME: Final = "other"

#: Number of spans in a part of a hand-over's step.
STEP: Final = 50


class ThreadTime:
    """Feeds the accounting from one scheduler.

    All methods belong to the scheduler's event loop. The adapter guards the calls of its hooks.
    """

    def __init__(
        self, scheduler: Scheduler, clocks: ClockOffsets, ready: dict[Hashable, Ready]
    ) -> None:
        self._scheduler = scheduler
        self._clocks = clocks
        self._ready = ready
        #: `TaskEvents` and `Heartbeats` call this directly.
        self.accounting = Accounting(monotonic(), time, stimulus_time)
        #: Execute seconds since the last export, by activity; `Heartbeats` adds them.
        self.activities: dict[Hashable, float] = {}
        #: The interval that `fold` has begun to add.
        self._closed: Increments | None = None
        #: The message of the present failure.
        self._failing: Mapping[str, Any] = {}

    def wrap(self, wrappers: Wrappers) -> None:
        """Wrap the scheduler's handlers."""
        messages = self._scheduler.stream_handlers
        wrappers.after(messages, "long-running", "long_running", self._seceded)
        wrappers.handler(messages, "task-erred", self._wrapped_task_erred)

    # --------------------------------------------------------------------------- tasks

    def worker_status(self, ws: WorkerState) -> None:
        """Record whether a worker takes tasks: it joins, pauses, resumes, or will leave."""
        self.accounting.worker_status(ws.address, ws.status is Status.running, time())

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

    def _seceded(self, message: Mapping[str, Any]) -> None:
        key, worker = message["key"], message["worker"]
        compute_duration = message.get("compute_duration")
        stimulus_id = message.get("stimulus_id", "")
        task, ws = self._scheduler.tasks.get(key), self._scheduler.workers.get(worker)
        if task is None or ws is None or task not in ws.long_running:
            return
        account = self.accounting.task_seceded(worker, key, compute_duration, monotonic())
        self.freed(account, worker, key, stimulus_id)
        if key in self._ready:
            record = self._ready[key]
            threads, how, held = record[SENT_TO]
            record[SENT_TO] = threads, how, compute_duration if held is None else held

    def freed(
        self,
        account: WorkerTime | None,
        worker: str,
        key: Hashable,
        stimulus_id: str,
        resources: bool = False,
    ) -> None:
        """Record that a run left its thread, which the message of its worker says without times.

        `resources` is whether it left resources, too, for which others can wait.
        """
        noticed = stimulus_time(stimulus_id)
        if account is not None and noticed is not None and (resources or not account.free):
            now, offset = time(), self._clocks.offset(worker)
            stop = now if offset is None else min(now, noticed + offset)
            waited = not account.free
            account.ends.append((stimulus_id, stop, self.accounting.present, key, waited))

    # ------------------------------------------------------------------------- metrics

    def fold(self, batches: Batches, open_spans: Mapping[str, OpenSpan]) -> Iterator[None]:
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
        known: dict[str, Span] = self._scheduler.extensions["spans"].spans
        idle, reported = self._closed.span_idle, self._closed.span_reported
        while idle or reported:
            shares = idle or reported
            for _ in range(min(STEP, len(shares))):
                span_id, seconds = shares.popitem()
                span = open_spans.get(span_id)
                tags = known[span_id].name if span is None else span.identity.tags
                batches.open.add(semconv.SPAN_CAPACITY_TIME.name, tags, value=seconds)
                if shares is idle:
                    batches.open.add(semconv.SPAN_IDLE_TIME.name, tags, value=seconds)
                if span is not None:
                    span.credit(seconds if shares is idle else 0.0, seconds)
            yield
        self._closed = None

    def _add_totals(self, batch: MetricBatch, closed: Increments) -> None:
        """Add an interval's seconds of the whole cluster."""
        activities, self.activities = self.activities, {}
        ours = {"idle": closed.idle, "unused": closed.unused, "lost": closed.lost}
        for activity, seconds in activities.items():
            activity = _OTHER_TIME if activity in ours else activity
            batch.add(semconv.CLUSTER_TIME.name, activity, value=seconds)
        for name, seconds in ours.items():
            batch.add(semconv.CLUSTER_TIME.name, name, value=seconds)
        batch.add(semconv.CLUSTER_CAPACITY_TIME.name, value=closed.capacity)
        batch.add(semconv.CLUSTER_EXCESS_TIME.name, value=closed.excess)
        batch.set_level(semconv.CLUSTER_INFLIGHT_TIME.name, value=closed.in_flight)

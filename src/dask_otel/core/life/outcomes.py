"""The tasks of open spans: their outcomes, workers and times.

Only this file writes the counts and times of a group, and a span's unfinished tasks, failures,
reruns, workers, first start and last end. But `_dask/tasks` counts most submitted tasks, all
results, and lost and repeated runs, without a call. The lifecycle is notified when a span gets its
first unfinished task and when the last one ends.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Literal

from dask_otel.core.life.completion import earliest
from dask_otel.core.life.open_span import (
    Cause,
    Group,
    Limits,
    OpenSpan,
    RetryReason,
)
from dask_otel.core.path.step import PARTS
from dask_otel.core.records import Failure, RawRun, Retry

#: Limit of a span's events about repeated runs.
MAX_RETRIES: Final = 32


class Outcomes:
    """The outcomes of the tasks of all open spans of one scheduler.

    Parameters
    ----------
    limits
        Caps on the details.
    activity
        Called with the span, with True when it gets its first unfinished task and with False when
        the last one ends, and the time.
    """

    def __init__(
        self,
        limits: Limits,
        activity: Callable[[OpenSpan, bool, float], None],
    ) -> None:
        self._max_exceptions = limits.max_exceptions
        self.activity = activity
        #: Number of tasks that left their state and will return; 0 except in the middle of a
        #: stimulus.
        self.coming_back = 0

    def added(
        self, group: Group, key: Hashable, now: float, cause: Cause = "submitted"
    ) -> RetryReason | None:
        """Count a task that became unfinished: it was submitted, or will run again.

        Returns
        -------
        reason
            Why a run of it must be repeated; None if there was no run.
        """
        span = group.span
        reason: RetryReason | None = None
        if span.reruns and key in span.reruns:
            reason = span.reruns.pop(key)
            self.coming_back -= 1
            if reason == "rescheduled":
                group.rescheduled += 1
            elif reason is not None:
                group.retried += 1
        elif cause == "submitted":
            group.tasks += 1
        else:
            reason = self._asked_again(group, key, cause)
        span.unfinished += 1
        if not span.active:
            self.activity(span, True, now)
        return reason

    @staticmethod
    def _asked_again(group: Group, key: Hashable, cause: Cause) -> RetryReason | None:
        """Count a task of ``Client.retry``: its failure is revoked, unless it was exported."""
        failed = group.span.failed
        if failed and key in failed:
            del failed[key]
            if group.span.runs is not None:
                group.span.runs.failed.pop(key, None)
            group.erred -= 1
        elif cause == "retried" or not group.blamed:
            # The failure belonged to an earlier generation: in this one it is a new task.
            group.tasks += 1
            if cause == "unblamed":
                return None
        else:
            group.blamed -= 1
            return None
        group.retried += 1
        return "client"

    def taken_in(self, group: Group, count: int, now: float, began: float) -> None:
        """Count unfinished tasks that are older than the bridge.

        `began` is the first start of their span's tasks; 0.0 if unknown.
        """
        group.span.first_start = began or group.span.first_start
        group.tasks += count
        group.span.unfinished += count
        if not group.span.active:
            self.activity(group.span, True, now)

    def failed(
        self,
        group: Group,
        key: Hashable,
        failure: Failure,
        start: float,
        stop: float,
        now: float,
        was_unfinished: bool = True,
    ) -> None:
        """Count a task that failed for good. Its dependents, which never ran, don't fail.

        Parameters
        ----------
        start, stop
            When it computed; 0.0 if it did not.
        was_unfinished
            False for an actor, which fails after it was done: its worker left.
        """
        span = group.span
        if not was_unfinished:
            self._take_back_result(group, group.memory > 0)
        group.erred += 1
        if span.failed is None:
            span.failed = {}
        detailed = len(span.failed) < self._max_exceptions
        span.failed[key] = failure if detailed else None
        if stop:
            self.ran(group, failure.worker, start, stop, now)
        else:
            self.at_work_until(span, now)
        if was_unfinished:
            self._removed(span, now)

    def cancelled(self, group: Group, worker: str | None, now: float) -> None:
        """Count a cancelled task.

        Parameters
        ----------
        worker
            Where it was processing, and may still run; None if it was not.
        """
        span = group.span
        group.cancelled += 1
        if worker is not None:
            span.zombies |= {worker}
        self.at_work_until(span, now)
        self._removed(span, now)

    def recomputed(self, group: Group, counted: bool, now: float) -> None:
        """Count a task whose result was lost: it is work again.

        `counted` is whether the group has counted that result. If it belonged to an earlier
        generation, this is a new task.
        """
        self._take_back_result(group, counted, 1)
        group.span.unfinished += 1
        if not group.span.active:
            self.activity(group.span, True, now)

    def not_recomputed(self, group: Group, counted: bool, now: float) -> None:
        """Undo `recomputed`: the task keeps the result that it had."""
        self._take_back_result(group, counted, -1)
        self._removed(group.span, now)

    @staticmethod
    def _take_back_result(group: Group, counted: bool, change: Literal[1, -1] = 1) -> None:
        if counted:
            group.memory -= change
        else:
            # The result belonged to an earlier generation: in this one it is a new task.
            group.tasks += change

    @staticmethod
    def prepared(group: Group, run: RawRun) -> None:
        """Begin a group no later than a worker's first action for a finished run."""
        start = max(min([start for _, start, _ in run[PARTS]]), group.span.start)
        group.start = earliest(group.start, start)

    def blamed(self, group: Group, now: float) -> None:
        """Count a task that will never run, because a dependency failed."""
        group.blamed += 1
        self.at_work_until(group.span, now)
        self._removed(group.span, now)

    def interrupted(
        self, group: Group, key: Hashable, reason: RetryReason | None, now: float
    ) -> None:
        """Record that a task left the unfinished states and will return.

        Parameters
        ----------
        reason
            ``error`` (with retries left), ``worker_lost`` or ``rescheduled``; None for a task
            that was not processing, so that no run is repeated.
        """
        span = group.span
        if span.reruns is None:
            span.reruns = {}
        span.reruns[key] = reason
        self.coming_back += 1
        self.at_work_until(span, now)
        self._removed(span, now)

    def forgotten(self, group: Group, key: Hashable) -> None:
        """Forget a task. If it was expected to return, it was cancelled after all."""
        reruns = group.span.reruns
        if reruns and key in reruns:
            del reruns[key]
            self.coming_back -= 1
            group.cancelled += 1

    def cancel_all(self, span: OpenSpan) -> None:
        """Cancel the span's unfinished tasks: the scheduler was restarted."""
        self.coming_back -= len(span.reruns or ())
        span.reruns = None
        for group in span.groups:
            group.cancelled += max(0, group.unfinished)

    def recount(self, span: OpenSpan, unfinished: int, now: float) -> None:
        """Correct the number of unfinished tasks after an error of ours."""
        if span.unfinished and not unfinished:
            self.at_work_until(span, now)
        span.unfinished = unfinished

    def at_work_until(self, span: OpenSpan, until: float) -> None:
        """End the span no earlier than `until`: a task or a client's block was active."""
        span.last_stop = max(span.last_stop, until)

    def exported(self, span: OpenSpan) -> None:
        """Forget the tasks that will return: they belong to the next generation."""
        self.coming_back -= len(span.reruns or ())

    def ran(self, group: Group, worker: str | None, start: float, stop: float, now: float) -> None:
        """Add the compute times of a run: even without a result, it was work of its span.

        Or those of many runs: the first start, and the last end.
        """
        span = group.span
        if worker is not None:
            span.workers[worker] = True
        # The times are corrected (see `clock_offsets`). If a clock was set, that is not enough: no
        # run ends in the future, or starts before its span.
        if not span.start <= start <= stop <= now:
            start = max(span.start, min(start - max(0.0, stop - now), stop, now))
            stop = max(span.start, min(stop, now))
        # Without calls: `max` takes 500 instructions.
        if start < group.start or not group.start:
            group.start = start
        if stop > group.stop:
            group.stop = stop
        if start < span.first_start or not span.first_start:
            span.first_start = start
        if stop > span.last_stop:
            span.last_stop = stop

    def _removed(self, span: OpenSpan, now: float) -> None:
        span.unfinished -= 1
        if not span.unfinished:
            self.activity(span, False, now)

    @staticmethod
    def repeated(span: OpenSpan, retry: Retry) -> None:
        """Add an event to the span, up to the cap."""
        if len(span.retries) < MAX_RETRIES:
            span.retries += (retry,)
        else:
            span.dropped_retries += 1

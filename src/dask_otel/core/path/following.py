"""Follows the tasks of a scheduler: what each waited for last before it was ready.

A task that becomes ready in the stimulus that put one of its dependencies into memory waited for
that one last, however many it has. A task that is ready in the moment of its submission waited for
nobody but the client. In any other stimulus a task becomes ready again: its run was lost, or is
repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable
from typing import Any, Final, Protocol, TypeAlias

from dask_otel.core.path.chain import MAX_STEPS, folded
from dask_otel.core.path.step import (
    DEPTH,
    END,
    KEY,
    Lost,
    RawStep,
    Readiness,
    SpanPath,
    Step,
    Times,
    lost_run,
)
from dask_otel.core.path.waiting import UNKNOWN, Place, Sent, Threads
from dask_otel.core.records import RawRun, TaskRun

#: Tasks of one submission that are ready within these seconds share one time.
MOMENT: Final = 0.001
#: What a task waited for that was sent as soon as the step before ended; see `Step.waited`.
AtOnce: TypeAlias = tuple[RawStep, None]
#: Of a task that was not ready yet.
_NEVER: Final[Times] = (0.0, 0.0, None, 0.0, None, None)


class Cluster(Protocol):
    """Has the present state of a cluster's threads."""

    present: Threads


class Paths:
    """What the tasks of one scheduler waited for last before they were ready. O(1) for each event.

    Parameters
    ----------
    submission_time
        Returns when the scheduler received a submission, by its stimulus.
    cluster
        The cluster of the scheduler.
    """

    def __init__(self, submission_time: Callable[[str], float], cluster: Cluster) -> None:
        self._submission_time, self._cluster = submission_time, cluster
        #: What tasks waited for that are to be ready again: a run is repeated.
        self._again: dict[Hashable, Readiness] = {}
        #: The last submission, and the last group with a ready task in it. Its tasks that become
        #: ready until then share what they waited for, and the memory: the times are wrong by a
        #: millisecond and by a hundredth of the time since the submission, at most.
        self.submission: str | None = None
        self.alike: Any = None
        self.until = 0.0
        self.shared: Readiness = (None, _NEVER)
        #: The stimulus of the last end, and its step.
        self._stimulus: str | None = None
        self._last: RawStep = ()
        #: The last chain that was folded, and the result: tasks with the same one come together.
        self._long: Any = None
        self._folded: Any = None

    def __repr__(self) -> str:
        return f"<Paths: {len(self._again)} tasks to run again>"

    def submitted(self, group: Any, stimulus: str, now: float) -> Readiness:
        """Return what a task waited for that is ready in the moment of its submission."""
        if stimulus is not self.submission or group is not self.alike:
            self.submission, self.alike = stimulus, group
            submitted, threads = self._submission_time(stimulus), self._cluster.present
            self.shared = _last(group.span), (submitted, now, None, 0.0, threads, threads)
            self.until = now + MOMENT
        elif now > self.until:
            (before, times), threads = self.shared, self._cluster.present
            self.shared = before, (times[0], now, None, 0.0, threads, threads)
            self.until = now + MOMENT + (now - (times[0] or now)) / 100
        return self.shared

    def at_once(self, stimulus: str) -> AtOnce | None:
        """Return what a task waited for that this stimulus sends to a worker.

        None if no dependency of it has just ended, or if a task is to be ready again: see `ready`.
        """
        return (self._last, None) if stimulus is self._stimulus and not self._again else None

    def ready(self, key: Hashable, stimulus: str, now: float, span: SpanPath | None) -> Readiness:
        """Return what a ready task waited for; without a span if that has ended."""
        if stimulus is self._stimulus:
            # A dependency of it has just ended.
            self._again.pop(key, None)
            return after(self._last, now, self._cluster.present)
        last = None if span is None else _last(span)
        before, waited = self._again.pop(key, None) or (last, (0.0, now, *_NEVER[2:]))
        submitted, ready, lost, _, first, _ = waited
        return before, (submitted, ready, lost, now, first, self._cluster.present)

    def interrupted(self, key: Hashable, known: Readiness | None, run: Lost | None) -> None:
        """Record that a ready task will be ready again; its run, if any, is repeated."""
        if known is not None:
            self._again[key] = _repeated(known, run)

    def recomputed(self, key: Hashable, span: SpanPath) -> None:
        """Record that a task that has ended will run again."""
        if key in self._again:
            return
        last = _last(span)
        self._again[key] = last, _NEVER
        if last is not None:
            step = Step._make(last)
            run = TaskRun._make(step.run)
            if run.key == key and (step.before or step.waited):
                threads = step.sent_to[0]
                waited = step.waited or (step.before[END], run.sent, None, 0.0, threads, threads)
                lost = lost_run(step.place, step.sent_to, key, run.sent, run.start, run.stop)
                self._again[key] = _repeated((step.before, waited), lost)

    def forget(self, key: Hashable) -> None:
        """Forget a task that will not run."""
        self._again.pop(key, None)

    def in_vain(self, span: SpanPath, key: Hashable, now: float) -> None:
        """Forget a task that waited for others until now, and will not run."""
        self.forget(key)
        for one in (span, *span.above):
            one.vain_until = now

    def repair(self, unfinished: Container[Hashable]) -> None:
        """Forget all other tasks, after an error of ours."""
        for key in [key for key in self._again if key not in unfinished]:
            del self._again[key]

    def ended(
        self,
        stimulus: str | None,
        now: float,
        group: Any,
        run: RawRun,
        waited: Readiness | AtOnce | None = None,
        sent_to: Sent = UNKNOWN,
        place: Place = None,
    ) -> None:
        """Record the end of a run.

        Parameters
        ----------
        stimulus
            None if it has no result: then nobody waited for it.
        waited
            What its task waited for.
        sent_to, place
            See `Step`.
        """
        depth = 1
        before, times = waited or self._again.pop(run[KEY], None) or (None, None)
        if before is not None:
            depth += before[DEPTH]
            if now < before[END]:
                # The clock was set back.
                now = before[END]
            if depth > MAX_STEPS:
                if before is not self._long:
                    self._long, self._folded = before, folded(before)
                depth, before = 1, self._folded
        span = group.span
        # In the order of `Step`.
        self._last = step = (before, now, depth, span, times, group, run, sent_to, place)
        self._stimulus = stimulus
        span.last = step
        if span.above:
            # A loop over none costs more than the question.
            for above in span.above:
                above.last = step


def after(before: RawStep, now: float, threads: Threads | None) -> Readiness:
    """Return what a task waited for that was ready after a dependency: this is the step."""
    return before, (before[END], now, None, 0.0, threads, threads)


def _last(span: SpanPath) -> RawStep | None:
    """Return the last step in a span, or in the nearest span above that has one."""
    return next((one.last for one in (span, *span.above) if one.last is not None), None)


def _repeated(readiness: Readiness, run: Lost | None) -> Readiness:
    """Return what a task waited for whose run is repeated."""
    before, (submitted, ready, lost, again, first, _) = readiness
    # After the first run, it is repeated from the beginning of that.
    if not (lost or again):
        lost = run or (ready, first, ready, first, ready)
    return before, (submitted, ready, lost, 0.0, first, None)

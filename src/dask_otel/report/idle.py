"""Why threads were idle: before the first task, with too few tasks, or with enough."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from dask_otel import semconv
from dask_otel.report.seconds import IDLE
from dask_otel.report.telemetry.model import Session
from dask_otel.report.telemetry.series import at

#: States of tasks that a thread could run, or is running.
_READY = ("queued", "no-worker", "processing")
#: Fewest samples for an explanation.
_FEWEST_SAMPLES = 5


@dataclass(frozen=True)
class IdleReason:
    """Idle thread-seconds by the scheduler's state at the end of each export interval.

    Levels are samples, one for each export, and a reason is a sum over intervals: the shorter they
    are, the more exact it is. Before the first start, the run waited for workers or data.
    """

    total: float
    #: With fewer tasks to run than threads.
    too_few_tasks: float
    #: With enough tasks, which were placed unevenly, or waited for data or the scheduler.
    enough_tasks: float
    #: Before the run's first task started.
    before_first: float
    samples: int

    def reasons(self) -> list[tuple[str, float, float, str]]:
        """Return each reason with its thread-seconds, their share, and a hint."""
        found = (
            (
                "before the first task started",
                self.before_first,
                "the run waited for workers or imports",
            ),
            (
                "while fewer tasks could run than there were threads",
                self.too_few_tasks,
                "smaller partitions or a smaller cluster help; or a long task ended last",
            ),
            (
                "while there were enough tasks for all threads",
                self.enough_tasks,
                "they were spread unevenly, or waited for data or the scheduler",
            ),
        )
        return [
            (when, seconds, seconds / self.total, hint)
            for when, seconds, hint in found
            if seconds > 0
        ]


def explain(session: Session) -> IdleReason | None:
    """Return why threads were idle; None with too few samples."""
    idle = [
        series.history()
        for series in session.metrics.of(semconv.CLUSTER_TIME.name)
        if series.labels.get(semconv.ACTIVITY) == IDLE
    ]
    ready = [
        series.history()
        for series in session.metrics.of(semconv.CLUSTER_TASK_COUNT.name)
        if series.labels.get(semconv.TASK_STATE) in _READY
    ]
    threads = [s.history() for s in session.metrics.of(semconv.CLUSTER_THREAD_COUNT.name)]
    times = sorted({time for history in idle for time, _ in history})
    if len(times) <= _FEWEST_SAMPLES or not ready or not threads:
        return None
    first = min(
        (
            event.time_ns
            for span in session.of_type("span")
            for event in span.events
            if event.name == semconv.EVENT_START
        ),
        default=None,
    )
    few = enough = before = 0.0
    for begin, end in itertools.pairwise(times):
        seconds = sum(at(history, end) - at(history, begin) for history in idle)
        if first is not None and end <= first:
            before += seconds
        elif sum(at(h, end) for h in ready) < sum(at(h, end) for h in threads):
            few += seconds
        else:
            enough += seconds
    return IdleReason(few + enough + before, few, enough, before, len(times) - 1)

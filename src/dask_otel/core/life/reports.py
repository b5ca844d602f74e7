"""Which workers still owe a finished span its last metrics.

Workers send metrics with their heartbeats, so the metrics of the last tasks arrive after the tasks'
ends. A heartbeat that arrives after the end is not enough: it may have been made before the end. A
heartbeat that *began* after the end is enough, and so is the second one that arrives after it.

A span waits for one worker at a time, and is checked again when that worker has reported: waiting
spans cost nothing until then.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import islice

from dask_otel.core.life.open_span import OpenSpan


@dataclass(slots=True)
class WorkerReports:
    """A worker's reports so far, by its heartbeats."""

    #: When it made the last one.
    began: float = 0.0
    beats: int = 0
    #: Cancelled tasks that still ran at its last heartbeat.
    cancelled: int = 0


class Reports:
    """The reports of each worker so far, and the spans that wait for them."""

    def __init__(self) -> None:
        self._workers: defaultdict[str, WorkerReports] = defaultdict(WorkerReports)
        #: Spans by the worker that they wait for.
        self._waiting: dict[str, dict[OpenSpan, None]] = {}
        #: Spans to check: new ones, which the owner adds, and those whose worker has reported.
        self.due: dict[OpenSpan, None] = {}

    def heartbeat(self, worker: str, began: float, cancelled: int) -> None:
        """Record that a worker has reported all metrics up to the start of its heartbeat.

        Parameters
        ----------
        began
            When the worker made it, on the scheduler's clock.
        cancelled
            Cancelled tasks that still ran.
        """
        known = self._workers[worker]
        known.beats += 1
        known.began = began
        known.cancelled = cancelled
        if worker in self._waiting:
            self._check_waiting(worker)

    def began(self, worker: str) -> float:
        """Return the start of a worker's last heartbeat on the scheduler's clock; 0.0 if none."""
        known = self._workers.get(worker)
        return 0.0 if known is None else known.began

    def worker_removed(self, worker: str) -> None:
        """Forget a worker that left: no span waits for it any longer."""
        self._workers.pop(worker, None)
        self._check_waiting(worker)

    def clock_set_back(self, now: float) -> None:
        """Ignore heartbeats from the future after the scheduler's clock was set back."""
        for known in self._workers.values():
            if known.began > now:
                known.began = 0.0
        for worker in list(self._waiting):
            self._check_waiting(worker)

    def _check_waiting(self, worker: str) -> None:
        waiting = self._waiting.pop(worker, {})
        for span in waiting:
            span.awaits = None
        self.due.update(waiting)

    def begin_anew(self, span: OpenSpan) -> None:
        """Forget the workers that owe metrics of a span: it has work again."""
        span.owing = None

    def forget(self, span: OpenSpan) -> None:
        """Stop waiting for a span; `OpenSpan.owing` has the workers that did not report."""
        self.due.pop(span, None)
        if span.awaits is not None:
            del self._waiting[span.awaits][span]
            span.awaits = None

    def take_complete(self, most: int | None = None) -> list[OpenSpan]:
        """Check up to `most` due spans; remove and return those whose metrics have arrived."""
        due = list(islice(self.due, most))
        for span in due:
            del self.due[span]
        return [span for span in due if self._complete(span)]

    def _complete(self, span: OpenSpan) -> bool:
        """Whether all live workers of the span have reported since its last task ended."""
        if span.owing is None:
            span.owing = {
                worker: known.beats
                for worker in span.workers.keys() | span.zombies
                if (known := self._workers.get(worker)) is not None
            }
        owing = span.owing
        for worker in list(owing):
            if not self._has_reported(span, worker, owing[worker]):
                span.awaits = worker
                self._waiting.setdefault(worker, {})[span] = None
                return False
            del owing[worker]
        return True

    def _has_reported(self, span: OpenSpan, worker: str, beats: int) -> bool:
        known = self._workers.get(worker)
        return known is None or (
            (known.began > span.quiet_since or known.beats >= beats + 2)
            and not (known.cancelled and worker in span.zombies)
        )

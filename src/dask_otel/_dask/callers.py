"""Callers' contexts in Dask's tasks: read at the submission, and written for the worker.

The carrier comes as an annotation (`CARRIER_KEY`); the decision goes to the worker as another one
(`DECISION_KEY`), so that both sides name the same trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dask_otel.core.context import (
    CARRIER_KEY,
    DECISION_KEY,
    STATE_KEY,
    Caller,
)
from dask_otel.core.life.callers import Callers

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

    from dask_otel.core.life.open_span import OpenSpan
    from dask_otel.core.trace import Trace


class TaskContexts:
    """Reads and writes the contexts of one scheduler's tasks."""

    def __init__(self, callers: Callers) -> None:
        self.callers = callers
        #: The first caller of each new span, by Dask span id.
        self.openers: dict[str, Caller] = {}
        #: Span, carrier and context of the last task. The next task mostly has the same.
        self._last: tuple[OpenSpan | None, object] = (None, None)
        self._context = self._state = ""

    def submitted(self, tasks: Iterable[TaskState], born: Iterable[str]) -> None:
        """Find the caller of each new span: that of its first task with a context.

        `tasks` are in the order of submission, with their spans; `born` has the new spans' ids.
        """
        self.openers = openers = {}
        if self.callers.propagation == "off":
            return
        waiting = set(born)
        for task in tasks:
            if not waiting:
                return
            annotations = task.annotations
            if not annotations or annotations.get(CARRIER_KEY) is None:
                continue
            span = annotations.get("span")
            # The default span has no annotation; it gets links from its tasks.
            found = set() if span is None else waiting.intersection(span["ids"])
            caller = self.caller(task) if found else None
            if caller is not None:
                openers.update(dict.fromkeys(found, caller))
                waiting -= found

    def caller(self, task: TaskState) -> Caller | None:
        """Return the caller of a task."""
        annotations = task.annotations
        return self.callers.read(annotations.get(CARRIER_KEY)) if annotations else None

    def annotate(self, task: TaskState, span: OpenSpan) -> None:
        """Write a task's context for its worker. Called for every task."""
        annotations = task.annotations
        if annotations is None:
            task.annotations = annotations = {}
        carrier = annotations.get(CARRIER_KEY)
        last, known = self._last
        if span is not last or carrier is not known:
            self._context, self._state = self.callers.task_context(span, carrier)
            self._last = (span, carrier)
        annotations[DECISION_KEY] = self._context
        if self._state:
            annotations[STATE_KEY] = self._state
        elif STATE_KEY in annotations:
            del annotations[STATE_KEY]

    def decide_with(self, sampled: Callable[[Trace], bool]) -> bool:
        """Set the sampler for all further contexts.

        Return whether any earlier context differs.
        """
        self._last = (None, None)
        return self.callers.decide_with(sampled)

    def exported(self, span: OpenSpan) -> None:
        """Forget a span whose generation is over."""
        self.callers.exported(span)
        if self._last[0] is span:
            self._last = (None, None)

"""Callers' contexts in Dask's tasks: read at the submission, and written for the worker.

The carrier comes as an annotation (`CARRIER_KEY`). The decision goes to the worker as another one
(`DECISION_KEY`), so that both sides name the same trace. If the worker computes the same from
Dask's ids, nothing is written: most tasks keep their annotations unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from distributed.scheduler import TaskState

from dask_otel.core.context import (
    CARRIER_KEY,
    DECISION_KEY,
    STATE_KEY,
    Caller,
    computed,
    format_traceparent,
)
from dask_otel.core.life.callers import Callers
from dask_otel.core.life.open_span import OpenSpan
from dask_otel.core.trace import Trace

_NOTHING: Final = (None, None, None)


class TaskContexts:
    """Reads and writes the contexts of one scheduler's tasks."""

    def __init__(self, callers: Callers) -> None:
        self.callers = callers
        #: The first caller of each new span, by Dask span id.
        self.openers: dict[str, Caller] = {}
        #: Span, carrier and annotated span of the last task. The next task mostly has the same.
        self._last: tuple[OpenSpan | None, object, object] = _NOTHING
        #: What to write for such a task; an empty context if its worker computes the same.
        self._context = self._state = ""
        #: The last task's span if its worker computes the same, and there is no carrier; else None.
        self.plain: OpenSpan | None = None
        #: How many annotations Dask gives each task of that span; one without others needs nothing.
        self.own = 0

    def submitted(self, tasks: Iterable[TaskState], born: Iterable[str]) -> None:
        """Find the caller of each new span: that of its first task with a context.

        `tasks` are in the order of submission, with their spans; `born` has the new spans' ids.
        """
        self.openers = openers = {}
        waiting = set(born)
        if self.callers.propagation == "off" or not waiting:
            return
        for task in tasks:
            annotations = task.annotations
            if not annotations or CARRIER_KEY not in annotations:
                continue
            span = annotations.get("span")
            # The default span has no annotation; it gets links from its tasks.
            found = set() if span is None else waiting.intersection(span["ids"])
            caller = self.caller(task) if found else None
            if caller is not None:
                openers.update(dict.fromkeys(found, caller))
                waiting -= found
                if not waiting:
                    return

    def caller(self, task: TaskState) -> Caller | None:
        """Return the caller of a task."""
        annotations = task.annotations
        return self.callers.read(annotations.get(CARRIER_KEY)) if annotations else None

    def annotate(self, task: TaskState, span: OpenSpan) -> None:
        """Write a task's context, unless its worker computes the same. Called for most tasks."""
        annotations = task.annotations
        carrier = own = None
        if annotations:
            carrier, own = annotations.get(CARRIER_KEY), annotations.get("span")
        last = self._last
        # Dask makes an equal annotation for each task of a span. A context with a carrier does not
        # depend on it.
        if span is not last[0] or carrier is not last[1] or (carrier is None and own != last[2]):
            self._context, self._state = self.callers.task_context(span, carrier)
            if carrier is None and not self._state and self._context == _computed(span, own):
                self._context = ""
            self._last = (span, carrier, own)
            self.plain = None if carrier is not None or self._context else span
            self.own = 0 if own is None else 1
        if self._context:
            if annotations is None:
                task.annotations = annotations = {}
            annotations[DECISION_KEY] = self._context
            if self._state:
                annotations[STATE_KEY] = self._state
            else:
                annotations.pop(STATE_KEY, None)
        elif annotations and DECISION_KEY in annotations:
            del annotations[DECISION_KEY]
            annotations.pop(STATE_KEY, None)

    def decide_with(self, sampled: Callable[[Trace], bool]) -> None:
        """Set the sampler for all further contexts."""
        self._forget_last()
        self.callers.sampled = sampled

    def exported(self, span: OpenSpan) -> None:
        """Forget a span whose generation is over."""
        self.callers.exported(span)
        if self._last[0] is span:
            self._forget_last()

    def _forget_last(self) -> None:
        self._last, self.plain = _NOTHING, None


def _computed(span: OpenSpan, own: Any) -> str | None:
    """Return the context that a worker computes for a task with this annotation.

    None if the annotation is of another span: Dask books a group's tasks on the group's first span.
    """
    ident = span.identity
    known = False
    # Users can write any annotation.
    with suppress(Exception):
        ids = own["ids"] if own else (ident.dask_id,)
        known = (ids[0], ids[-1]) == (ident.root_id, ident.dask_id)
    return format_traceparent(computed(ident.dask_id, ident.root_id)) if known else None

"""The OpenTelemetry context of each task."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, Final, Protocol

from dask_otel._otel.api.current import Context, remote_child, remote_parent
from dask_otel.core.context import (
    BAGGAGE,
    CARRIER_KEY,
    DECISION_KEY,
    MAX_BAGGAGE,
    MAX_STATE,
    STATE_KEY,
    Traceparent,
    parse_traceparent,
)
from dask_otel.core.identity import is_sampled, span_id, task_span_id, trace_id

logger = logging.getLogger("distributed.dask_otel")

#: Contexts kept; with more spans than that under way at once, they are made anew.
KEPT: Final = 1024

#: What ids that are computed here say of sampling: whoever decided otherwise would have told us.
_SAMPLED: Final = 1


class Task(Protocol):
    """What is needed of a worker's task."""

    key: Any
    annotations: Mapping[str, Any] | None
    #: Dask's id of the task's span.
    span_id: str | None
    #: Dask's number of the run.
    run_id: int


class TaskContexts:
    """Contexts in which a task's span is current, one for each span.

    Notes
    -----
    All methods belong to the worker's event loop. Nothing raises, whatever the annotations are:
    they are data that users can write. What is no context is counted and named once in the log;
    the task runs with the next best one.
    """

    def __init__(self) -> None:
        #: Which part of the tasks has spans of their own, as on the scheduler.
        self.ratio = 0.0
        #: What was no context, by kind.
        self.garbage: Counter[str] = Counter()
        #: By the texts that the scheduler wrote.
        self._decided: dict[Hashable, Context] = {}
        #: By Dask's id of the span.
        self._computed: dict[Hashable, Context] = {}

    def of(self, task: Task) -> Context | None:
        """Return a task's context; None where nothing says which span it belongs to."""
        annotations = task.annotations
        try:
            context = self._of_decision(annotations) if annotations else None
        except Exception:
            self._count("decision")
            context = None
        if context is None:
            context = self._by_ids(task)
        if self.ratio and context is not None:
            try:
                return self._of_run(task, context)
            except Exception:
                self._count("key")
        return context

    def _of_run(self, task: Task, context: Context) -> Context:
        """Return the context of a run that the scheduler exports by itself; else its span's.

        Where the context is the caller's, or that of a continuation, whose number is not known
        here, it stays.
        """
        owner = task.span_id
        if owner is None or not is_sampled(task.key, self.ratio):
            return context
        return remote_child(context, span_id(owner), task_span_id(owner, task.key, task.run_id))

    def _by_ids(self, task: Task) -> Context | None:
        """Return the context that follows from Dask's ids, for a task that was told none."""
        annotations = task.annotations
        try:
            span = annotations.get("span") if annotations else None
            if span is not None:
                return self._hashed(span["ids"][-1], span["ids"][0])
            # Dask leaves the annotation out for the default span, which is a root. If a task
            # without it joins a group of another span, that one was most likely seen before.
            return None if task.span_id is None else self._hashed(task.span_id, task.span_id)
        except Exception:
            self._count("span")
            return None

    def _of_decision(self, annotations: Mapping[str, Any]) -> Context | None:
        """Return the context that the scheduler decided; None where it decided none."""
        decided = annotations.get(DECISION_KEY)
        if decided is None:
            return None
        carrier = annotations.get(CARRIER_KEY)
        state = annotations.get(STATE_KEY)
        baggage = dict.get(carrier, BAGGAGE) if isinstance(carrier, dict) else None
        if state is not None or baggage is not None:
            # What is no text is left out alone: the rest holds.
            state = self._text(state, MAX_STATE, "state")
            baggage = self._text(baggage, MAX_BAGGAGE, "baggage")
        known = decided if state is None and baggage is None else (decided, state, baggage)
        try:
            return self._decided[known]
        except KeyError:
            pass
        parent = parse_traceparent(decided)
        if parent is None:
            self._count("decision")
            return None
        return _keep(self._decided, known, remote_parent(parent, state, baggage))

    def _hashed(self, dask_id: str, root: str) -> Context:
        """Return the context of a span by Dask's ids: computed, not told."""
        try:
            return self._computed[dask_id]
        except KeyError:
            parent = Traceparent(trace_id(root), span_id(dask_id), _SAMPLED)
            return _keep(self._computed, dask_id, remote_parent(parent))

    def _text(self, value: object, limit: int, kind: str) -> str | None:
        if value is None or (isinstance(value, str) and len(value) <= limit):
            return value
        self._count(kind)
        return None

    def _count(self, kind: str) -> None:
        self.garbage[kind] += 1
        if self.garbage[kind] == 1:
            logger.warning(
                "dask-otel: the annotations of a task hold something else than its trace context "
                "(%s); it was ignored, and later ones will be without a word",
                kind,
            )


def _keep(contexts: dict[Hashable, Context], known: Hashable, context: Context) -> Context:
    if len(contexts) >= KEPT:
        contexts.clear()
    contexts[known] = context
    return context

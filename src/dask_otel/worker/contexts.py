"""The OpenTelemetry context of each task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, Final

from distributed.worker_state_machine import TaskState

from dask_otel._log import logger
from dask_otel._otel.api.current import Context, remote_child, remote_parent
from dask_otel.core.context import (
    BAGGAGE,
    CARRIER_KEY,
    DECISION_KEY,
    MAX_BAGGAGE,
    MAX_STATE,
    STATE_KEY,
    computed,
    parse_traceparent,
)
from dask_otel.core.identity import is_sampled, span_id, task_span_id

#: Size of each cache of contexts; when it is full, it is emptied.
KEPT: Final = 1024


class TaskContexts:
    """The contexts in which a task's span is current, one for each span.

    Notes
    -----
    Call all methods on the worker's event loop. They never raise, because users can write any
    annotation. An invalid context is counted and logged once for each kind; the task then runs
    with the next best context.
    """

    def __init__(self) -> None:
        #: The fraction of tasks with spans of their own, as on the scheduler.
        self.ratio = 0.0
        #: Invalid annotations by kind.
        self.garbage: Counter[str] = Counter()
        #: By the scheduler's texts.
        self._decided: dict[Hashable, Context] = {}
        #: By Dask span id.
        self._computed: dict[Hashable, Context] = {}

    def of(self, task: TaskState) -> Context | None:
        """Return a task's context; None if its span is unknown."""
        annotations = task.annotations
        context = None
        try:
            if annotations and DECISION_KEY in annotations:
                context = self._of_decision(annotations)
        except Exception:
            self._count("decision")
        if context is None:
            # Computed from Dask's ids, without a call: most tasks have no decision.
            try:
                span = annotations.get("span") if annotations else None
                # Dask omits the annotation for the default span, which is a root. If a task without
                # it joins a group of another span, that span's context is most likely cached.
                own = task.span_id if span is None else span["ids"][-1]
                context = self._computed.get(own)
                if context is None and own is not None:
                    root = own if span is None else span["ids"][0]
                    context = _keep(self._computed, own, remote_parent(computed(own, root)))
            except Exception:
                self._count("span")
        if self.ratio and context is not None:
            try:
                return self._of_run(task, context)
            except Exception:
                self._count("key")
        return context

    def _of_run(self, task: TaskState, context: Context) -> Context:
        """Return the run's own context if the scheduler samples its key, else its span's.

        A context of a caller or of a later generation, whose number is unknown here, stays.
        """
        owner = task.span_id
        if owner is None or not is_sampled(task.key, self.ratio):
            return context
        return remote_child(context, span_id(owner), task_span_id(owner, task.key, task.run_id))

    def _of_decision(self, annotations: Mapping[str, Any]) -> Context | None:
        """Return the context that the scheduler decided; None without a decision."""
        decided = annotations.get(DECISION_KEY)
        if decided is None:
            return None
        carrier = annotations.get(CARRIER_KEY)
        state = annotations.get(STATE_KEY)
        baggage = dict.get(carrier, BAGGAGE) if isinstance(carrier, dict) else None
        if state is not None or baggage is not None:
            # Ignore only the part that is not text.
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

    def _text(self, value: object, limit: int, kind: str) -> str | None:
        if value is None or (isinstance(value, str) and len(value) <= limit):
            return value
        self._count(kind)
        return None

    def _count(self, kind: str) -> None:
        self.garbage[kind] += 1
        if self.garbage[kind] == 1:
            logger.warning(
                "dask-otel: a task's annotations hold no valid trace context (%s); it was "
                "ignored, and later ones are not logged",
                kind,
            )


def _keep(contexts: dict[Hashable, Context], known: Hashable, context: Context) -> Context:
    if len(contexts) >= KEPT:
        contexts.clear()
    contexts[known] = context
    return context

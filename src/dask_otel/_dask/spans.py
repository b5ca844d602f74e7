"""Follows new spans and task groups of Dask, and maps them to our open spans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from itertools import islice
from time import monotonic
from typing import Any, cast

from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskGroup, TaskState
from distributed.spans import Span, SpansSchedulerExtension

from dask_otel import semconv
from dask_otel._dask.boundary import ErrorBoundary
from dask_otel._dask.callers import TaskContexts
from dask_otel._dask.facts import (
    UNFINISHED,
    ancestors,
    group_sums,
    restriction,
    unfinished,
)
from dask_otel._dask.graphs import Graphs
from dask_otel._dask.past import Past
from dask_otel._dask.wrapping import Wrappers
from dask_otel.core.context import Caller
from dask_otel.core.life.callers import DEFAULT_SPAN
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import NO_SUMS, Group, OpenSpan
from dask_otel.core.metrics.batch import Batches
from dask_otel.core.records import Tags


class DaskSpans:
    """Follows Dask's spans and groups of one scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        lifecycle: Lifecycle,
        contexts: TaskContexts,
        batches: Batches,
        boundary: ErrorBoundary,
    ) -> None:
        self.scheduler = scheduler
        self.extension: SpansSchedulerExtension = scheduler.extensions["spans"]
        self.contexts = contexts
        self.batches = batches
        self.boundary = boundary
        self._lifecycle = lifecycle
        #: Records the graph logs; None while nobody keeps them.
        self.graphs: Graphs | None = None
        #: For these, the tasks that were just submitted, and their groups.
        self.latest: tuple[list[TaskState], set[TaskGroup]] = [], set()
        #: The groups of the tasks of a submission that is under way.
        self._submitted_groups: set[TaskGroup] = set()
        #: Our record of each task group with an open span; read at every transition.
        self.groups: dict[TaskGroup, Group] = {}
        self._memory = lifecycle.memory
        if self._memory is not None:
            self._memory.open_groups, self._memory.owner = self.groups, self._owner
            self._memory.clock = monotonic
        #: By group, the span that the client requested in the present submission.
        self.requested: dict[TaskGroup, Tags] = {}
        #: Number of Dask's spans that we have adopted. Dask appends new ones and never removes any.
        self._seen = 0
        #: Whether our counts of unfinished tasks may be wrong after an error.
        self.drifted = False

    # ------------------------------------------------------------------ attach, detach

    def attach(self, past: Past | None) -> None:
        """Adopt the unfinished work."""
        now = time()
        may_have_exported = self._lifecycle.generations.may_have_exported
        seen = () if past is None else islice(self.extension.spans, past.seen)
        known = {dask_id for dask_id in seen if may_have_exported(dask_id)}
        self.contexts.submitted(self.scheduler.tasks.values(), self.extension.spans)
        for group in self.scheduler.task_groups.values():
            self._take_in(group, now, known)
        self.annotate_all()
        self._seen = len(self.extension.spans)

    def _take_in(self, group: TaskGroup, now: float, known: Set[str]) -> None:
        """Adopt a group's unfinished work from before the bridge.

        `known` are the ids of the spans that an earlier bridge may have exported.
        """
        count = unfinished(group)
        if not count or not group.span_id:
            return
        dask_span = self.extension.spans[group.span_id]
        span = self._lifecycle.open.get(dask_span.id)
        began = 0.0
        if span is None:
            span = (
                self._reopened(dask_span, now)
                if dask_span.id in known
                else self._created(dask_span, known)
            )
            states = [item for one in dask_span.groups for item in one.states.items()]
            # Some of its tasks have ended, or are gone.
            if any(count for state, count in states if state not in UNFINISHED):
                span.partial = True
                if dask_span.id not in known:
                    began = dask_span.start
        span.unknown = True
        self._lifecycle.outcomes.taken_in(self._add_group(span, group), count, now, began)

    def release(self) -> None:
        """Release Dask's objects."""
        self.groups.clear()

    def submission_over(self) -> None:
        """Forget the facts of the last submission."""
        self.requested = {}

    def annotate_all(self) -> None:
        """Write the contexts of all tasks that have not run.

        For tasks from before the bridge, or annotated before it could decide. Tasks on a worker
        keep the context that was sent with them.
        """
        for task in self.scheduler.tasks.values():
            if task.state in UNFINISHED:
                group = self.groups.get(task.group)
                if group is not None:
                    self.contexts.annotate(task, group.span)

    # --------------------------------------------------------------------- submissions

    def wrap(self, wrappers: Wrappers) -> None:
        """Wrap the extension's method; in it, an error of ours would fail the user's graph."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def observe_tasks(tss: Iterable[TaskState], *args: Any, **kwargs: Any) -> Any:
                tss = tss if isinstance(tss, list) else list(tss)
                wrappers.run("observe_tasks", self._submitted, tss)
                result = original(tss, *args, **kwargs)
                wrappers.run("observe_tasks", self._observed, tss)
                return result

            return observe_tasks

        wrappers.method(self.extension, "observe_tasks", make)

    def _submitted(self, tasks: list[TaskState]) -> None:
        self.requested = {}
        self._submitted_groups = groups = {task.group for task in tasks}
        if any(group.span_id for group in groups):
            self.requested = self._collisions(tasks)
        for tags in {*self.requested.values()}:
            self.batches.open.add(semconv.SPAN_COLLIDED.name, tags)

    def _observed(self, tasks: list[TaskState]) -> None:
        drifted, self.drifted = self.drifted, True
        self._take_in_spans(tasks)
        if (memory := self._memory) is not None and memory.spanless:
            for group in {task.group for task in tasks if task.group in memory.spanless}:
                memory.begin(group)
        groups, self._submitted_groups = self._submitted_groups, set()
        if self.graphs is not None:
            self.latest = tasks, groups
        self.drifted = drifted

    def _collisions(self, tasks: list[TaskState]) -> dict[TaskGroup, Tags]:
        """Return, by group, the requested spans that the tasks will not get.

        A TaskGroup belongs to one span for life; ``observe_tasks`` overwrites the annotation of
        later tasks under another span.
        """
        requested: dict[TaskGroup, Tags] = {}
        for task in tasks:
            span_id = task.group.span_id
            if span_id:
                asked = (task.annotations or {}).get("span")
                if asked:
                    ids = asked.get("ids") if isinstance(asked, dict) else None
                    if not ids or not isinstance(ids, (list, tuple)):
                        # Any client can annotate with anything.
                        self.batches.open.add(semconv.OTEL_SANITIZED.name, "message", value=1)
                    elif ids[-1] != span_id:
                        requested[task.group] = tuple(asked["name"])
                elif self.extension.spans[span_id].name != DEFAULT_SPAN:
                    requested[task.group] = DEFAULT_SPAN
        return requested

    # ----------------------------------------------------------------- spans and groups

    def adopt(self, task: TaskState, now: float) -> Group | None:
        """Return our record of a task's group, on its span's open generation."""
        if not task.group.span_id:
            # Data announced by a Variable or Queue has no span, and no work yet.
            return None
        group = self._adopt(task.group, now, self.contexts.caller(task))
        group.restriction = restriction(task)
        return group

    def _adopt(self, group: TaskGroup, now: float, caller: Caller | None = None) -> Group:
        self._take_in_spans()
        dask_span = self.extension.spans[group.span_id]
        return self._add_group(self._reopened(dask_span, now, caller), group)

    def forget(self, group: Group) -> None:
        """Forget a group whose generation is over."""
        self.groups.pop(cast("TaskGroup", group.source), None)
        if self._memory is not None:
            self._memory.forget(group.source)

    def unfinished_by_span(self, now: float, resting: Mapping[TaskGroup, int]) -> dict[str, int]:
        """Adopt all spans and groups, and return Dask's counts of unfinished tasks.

        `resting` ones of a group are no work.
        """
        self._take_in_spans()
        counts: dict[str, int] = {}
        for group in self.scheduler.task_groups.values():
            count = unfinished(group) - resting.get(group, 0)
            if count and group.span_id:
                counts[group.span_id] = counts.get(group.span_id, 0) + count
                if group not in self.groups:
                    self._adopt(group, now)
        return counts

    def _take_in_spans(self, tasks: Iterable[TaskState] = ()) -> None:
        """Open the spans that Dask has made since the last call, for these tasks."""
        spans = self.extension.spans
        if self._seen == len(spans):
            return
        born = list(islice(reversed(spans.values()), len(spans) - self._seen))
        self.contexts.submitted(tasks, [dask_span.id for dask_span in born])
        for dask_span in reversed(born):
            if dask_span.id not in self._lifecycle.open:
                self._created(dask_span)
            self._seen += 1

    def _created(self, dask_span: Span, known: Set[str] | None = None) -> OpenSpan:
        above = ancestors(dask_span)
        for ancestor in above:
            # Only if the bridge started on a running cluster: otherwise they are open, or gone.
            is_new = ancestor.id not in self._lifecycle.open
            if is_new and known is not None and ancestor.id not in known:
                self._created(ancestor, known)
        opener = self.contexts.openers.get(dask_span.id)
        return self._opened(
            self._lifecycle.span_created, dask_span, above, dask_span.enqueued, opener
        )

    def _reopened(self, dask_span: Span, now: float, caller: Caller | None = None) -> OpenSpan:
        span = self._lifecycle.open.get(dask_span.id)
        if span is None:
            reopen, above = self._lifecycle.span_reopened, ancestors(dask_span)
            span = self._opened(reopen, dask_span, above, now, caller)
            if not self._lifecycle.generations.knows(dask_span.id):
                # Its earlier work was forgotten or never observed.
                span.partial = span.unknown = True
        return span

    def _opened(
        self,
        begin: Callable[..., OpenSpan],
        dask_span: Span,
        above: list[Span],
        when: float,
        caller: Caller | None,
    ) -> OpenSpan:
        callers, tags = self.contexts.callers, dask_span.name
        asked = callers.opens(tags, not above, caller)
        span = begin(dask_span.id, tags, tuple(a.id for a in above), when, asked)
        callers.opened(span, caller)
        return span

    def _add_group(self, span: OpenSpan, group: TaskGroup) -> Group:
        before = group_sums(group) if group.nbytes_total or group.duration else NO_SUMS
        own = self.groups[group] = self._lifecycle.add_group(
            span, group.name, group.prefix.name, group, before
        )
        if self._memory is not None:
            self._memory.begin(group)
        return own

    def _owner(self, group: TaskGroup) -> tuple[Span | None, str]:
        """Return the span of a group, if it has one, and the group's prefix."""
        span = self.extension.spans[group.span_id] if group.span_id else None
        return span, group.prefix.name

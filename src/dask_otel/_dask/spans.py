"""Dask's spans and task groups, as they come, and the open spans of ours that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from distributed.metrics import time

from dask_otel import semconv
from dask_otel._dask.boundary import Boundary
from dask_otel._dask.callers import TaskContexts
from dask_otel._dask.facts import (
    UNFINISHED,
    Continued,
    ancestors,
    group_facts,
    has_ended,
    unfinished,
)
from dask_otel._dask.past import Past
from dask_otel._dask.wrapping import Wrappers
from dask_otel.core.context import Caller
from dask_otel.core.life.callers import DEFAULT_SPAN
from dask_otel.core.life.lifecycle import Lifecycle
from dask_otel.core.life.open_span import Group, GroupFacts, OpenSpan
from dask_otel.core.life.summaries import Summaries
from dask_otel.core.metrics.batch import Batches
from dask_otel.core.records import Tags

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskGroup, TaskState
    from distributed.spans import Span, SpansSchedulerExtension


class DaskSpans:
    """Follows Dask's spans and groups of one scheduler.

    Parameters
    ----------
    scheduler, extension
        A running scheduler, and its spans extension, whose ``observe_tasks`` is wrapped.
    lifecycle
        Told of every span that begins.
    summaries
        Of spans that were exported.
    contexts
        Of the tasks, with whose callers spans begin.
    batches
        Where collisions are counted.
    boundary
        Takes every error of ours: one in ``observe_tasks`` would fail the user's graph.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        extension: SpansSchedulerExtension,
        lifecycle: Lifecycle,
        summaries: Summaries,
        contexts: TaskContexts,
        batches: Batches,
        boundary: Boundary,
    ) -> None:
        self._scheduler = scheduler
        self._extension = extension
        self._lifecycle = lifecycle
        self._summaries = summaries
        self._contexts = contexts
        self._batches = batches
        self._boundary = boundary
        self._wrappers = Wrappers()
        #: Our record of each task group with an open span; read at every transition.
        self.groups: dict[TaskGroup, Group] = {}
        #: By group, the span that the client asked for in the submission at hand.
        self.requested: dict[TaskGroup, Tags] = {}
        #: How many of Dask's spans we have taken in. Dask adds them at the end, and keeps them.
        self._seen = 0
        #: Whether an error of ours may have left the counts of unfinished tasks wrong.
        self.drifted = False
        #: Seconds of the event loop that submissions took, up to now.
        self.spent = 0.0

    # ------------------------------------------------------------------ attach, detach

    def attach(self, past: Past | None) -> None:
        """Take in the unfinished work that is there, and wrap the extension's method."""
        now = time()
        known = self._known_before(past)
        self._contexts.submitted(self._scheduler.tasks.values(), self._extension.spans)
        for group in self._scheduler.task_groups.values():
            self._take_in(group, now, known)
        self.annotate_all()
        self._seen = len(self._extension.spans)
        self._wrappers.method(self._extension, "observe_tasks", self._wrapped)

    def detach(self) -> None:
        """Put it back as it was, and let go of Dask's objects."""
        self._wrappers.take_off()
        self.groups.clear()

    @property
    def count(self) -> int:
        """How many spans Dask has."""
        return len(self._extension.spans)

    def _known_before(self, past: Past | None) -> Callable[[str], bool]:
        """Return what tells whether an earlier bridge may have exported a span."""
        if past is None:
            return lambda _: False
        spans = self._extension.spans
        since = set(islice(reversed(spans), len(spans) - past.seen))
        may_have_exported = self._lifecycle.generations.may_have_exported
        return lambda dask_id: dask_id not in since and may_have_exported(dask_id)

    def _take_in(self, group: TaskGroup, now: float, known: Callable[[str], bool]) -> None:
        """Adopt the unfinished work that was there before the bridge."""
        count = unfinished(group)
        if not count or not group.span_id:
            return
        dask_span = self._extension.spans[group.span_id]
        span = self._lifecycle.open.get(dask_span.id)
        if span is None:
            if known(dask_span.id):
                span = self._reopened(dask_span, now)
            else:
                span = self._created(dask_span, known)
            if any(has_ended(group) for group in dask_span.groups):
                span.mark_partial()
        own = self._add_group(span, group)
        self._lifecycle.tasks.taken_in(own, count, now)

    def annotate_all(self) -> None:
        """Tell all tasks their contexts that have not run.

        For those that were there before the bridge, or were told before it could decide. What has
        been sent to a worker stays as it is there.
        """
        for task in self._scheduler.tasks.values():
            if task.state in UNFINISHED:
                group = self.groups.get(task.group)
                if group is not None:
                    self._contexts.annotate(task, group.span)

    # --------------------------------------------------------------------- submissions

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def observe_tasks(tss: Iterable[TaskState], *args: Any, **kwargs: Any) -> Any:
            if not self._wrappers.attached:
                return original(tss, *args, **kwargs)
            tss = tss if isinstance(tss, list) else list(tss)
            began = perf_counter()
            try:
                self.requested = self._collisions(tss)
                for tags in {*self.requested.values()}:
                    self._batches.open.add(semconv.SPAN_COLLIDED.name, tags)
            except Exception:
                self.requested = {}
                self._boundary.failed("observe_tasks")
            self.spent += perf_counter() - began
            result = original(tss, *args, **kwargs)
            began = perf_counter()
            try:
                self._take_in_spans(tss)
            except Exception:
                self.drifted = True
                self._boundary.failed("observe_tasks")
            self.spent += perf_counter() - began
            return result

        return observe_tasks

    def _collisions(self, tasks: list[TaskState]) -> dict[TaskGroup, Tags]:
        """Return the span that the client asked for, by group, where it will not get it.

        A TaskGroup belongs to one span for life; ``observe_tasks`` overwrites the annotation
        of tasks that come later under another span.
        """
        requested: dict[TaskGroup, Tags] = {}
        for task in tasks:
            span_id = task.group.span_id
            if span_id:
                asked = (task.annotations or {}).get("span")
                if asked:
                    if asked["ids"][-1] != span_id:
                        requested[task.group] = tuple(asked["name"])
                elif self._extension.spans[span_id].name != DEFAULT_SPAN:
                    requested[task.group] = DEFAULT_SPAN
        return requested

    def submitted(self, group: Group, dask_group: TaskGroup) -> None:
        """A client submitted a task of a group: take note if it asked for another span."""
        if dask_group in self.requested:
            group.span.note_requested(self.requested[dask_group])

    def submission_over(self) -> None:
        """Forget what concerns one submission alone."""
        if self.requested:
            self.requested = {}

    # ----------------------------------------------------------------- spans and groups

    def adopt(self, task: TaskState, now: float) -> Group | None:
        """Return our record of a task's group, on its span's open generation."""
        return self._adopt(task.group, now, self._contexts.caller(task))

    def _adopt(self, group: TaskGroup, now: float, caller: Caller | None = None) -> Group | None:
        if not group.span_id:
            # Data that a Variable or Queue announced: no span, and no work, yet.
            return None
        if self._seen != len(self._extension.spans):
            self._take_in_spans()
        dask_span = self._extension.spans[group.span_id]
        return self._add_group(self._reopened(dask_span, now, caller), group)

    def let_go(self, group: Group) -> None:
        """A group's generation is over."""
        source: Any = group.source
        self.groups.pop(source.group if type(source) is Continued else source, None)

    def facts_of(self, group: Group) -> GroupFacts:
        """Read the TaskGroup's sums; there are none where they can't be read."""
        try:
            source: Any = group.source
            return source.facts() if type(source) is Continued else group_facts(source)
        except Exception:
            self._boundary.failed("group_facts")
            return GroupFacts(0, {}, ())

    def unfinished_by_span(self, now: float) -> dict[str, int]:
        """Return Dask's counts of unfinished tasks, with all their spans and groups taken in."""
        self._take_in_spans()
        counts: dict[str, int] = {}
        for group in self._scheduler.task_groups.values():
            count = unfinished(group)
            if count and group.span_id:
                counts[group.span_id] = counts.get(group.span_id, 0) + count
                if group not in self.groups:
                    self._adopt(group, now)
        return counts

    def _take_in_spans(self, tasks: Iterable[TaskState] = ()) -> None:
        """Open the spans that Dask has made since the last call, for these tasks."""
        spans = self._extension.spans
        if self._seen == len(spans):
            return
        born = list(islice(reversed(spans.values()), len(spans) - self._seen))
        self._contexts.submitted(tasks, [dask_span.id for dask_span in born])
        for dask_span in reversed(born):
            if dask_span.id not in self._lifecycle.open:
                self._created(dask_span)
            self._seen += 1

    def _created(self, dask_span: Span, known: Callable[[str], bool] | None = None) -> OpenSpan:
        above = ancestors(dask_span)
        for ancestor in above:
            # Only where the bridge came to a running cluster: else they are there, or gone.
            missing = known is not None and ancestor.id not in self._lifecycle.open
            if missing and known is not None and not known(ancestor.id):
                self._created(ancestor, known)
        dask_id, tags = dask_span.id, dask_span.name
        callers, opener = self._contexts.callers, self._contexts.opener(dask_id)
        asked = callers.opens(tags, not above, opener)
        ids = tuple(a.id for a in above)
        span = self._lifecycle.span_created(dask_id, tags, ids, dask_span.enqueued, asked)
        callers.opened(span, opener)
        return span

    def _reopened(self, dask_span: Span, now: float, caller: Caller | None = None) -> OpenSpan:
        span = self._lifecycle.open.get(dask_span.id)
        if span is None:
            above = tuple(ancestor.id for ancestor in ancestors(dask_span))
            callers, tags = self._contexts.callers, dask_span.name
            asked = callers.opens(tags, not above, caller)
            span = self._lifecycle.span_reopened(dask_span.id, tags, above, now, asked)
            callers.opened(span, caller)
            if not self._summaries.knows(dask_span.id):
                # What it did before is forgotten, or was never seen.
                span.mark_partial()
        return span

    def _add_group(self, span: OpenSpan, group: TaskGroup) -> Group:
        source = Continued(group) if group.duration or group.nbytes_total else group
        own = self._lifecycle.add_group(span, group.name, group.prefix.name, source)
        self.groups[group] = own
        return own

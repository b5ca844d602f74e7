"""From a finished Dask span to OpenTelemetry spans: names, attributes, events, links.

This is the attribute table of the telemetry contract as code. Any field from Dask can be wrong in
any way: a bad string is cleaned, a bad number or time is left out or replaced by the nearest known
one, and both are counted. Nothing raises.

Seconds are doubles, counts are ints; unmeasured values are absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final

from dask_otel import semconv
from dask_otel.core import identity
from dask_otel.core.attributes import RESERVED
from dask_otel.core.context import Traceparent
from dask_otel.core.path.step import COMPUTE
from dask_otel.core.records import (
    Attributes,
    Event,
    FinishedGroup,
    FinishedSpan,
    Link,
    OpenNote,
    Progress,
    Retry,
    SpanIdentity,
    SpanMemory,
    SpanRecord,
    Tags,
)
from dask_otel.core.sums import summed
from dask_otel.core.text import (
    Sanitizer,
)
from dask_otel.core.traces.exceptions import error_type
from dask_otel.core.traces.redact import redacted_name, redacted_value
from dask_otel.core.traces.task_records import TaskRecords
from dask_otel.core.traces.values import SpanLimits, Written, coverage, in_threads

_DEFAULT_LIMITS: Final = SpanLimits()


def translate(
    item: FinishedSpan | Progress | OpenNote,
    limits: SpanLimits = _DEFAULT_LIMITS,
    sanitizer: Sanitizer | None = None,
    profile_of: Callable[[SpanIdentity], tuple[str, float] | None] | None = None,
) -> list[SpanRecord]:
    """Return the OpenTelemetry spans of one generation of a Dask span. Never raises.

    Parameters
    ----------
    item
        Of a finished generation, the span itself comes first, then one child per task group, then
        the single tasks. A sign of life is one child of an open span. A note becomes the span for
        export if the scheduler is lost: it ends at the time of the note (the note's reader knows
        the real end), and values that are known only at the end are absent.
    limits
        Sizes and numbers.
    sanitizer
        Counts changed values, by kind; those of a note are counted with the finished span.
    profile_of
        Returns the file of a span's profile, and the sampled seconds; None if it has none.
    """
    if isinstance(item, OpenNote):
        return [_Translation(item.identity, item.start, item.time, limits, Sanitizer()).lost(item)]
    made = _Translation(item.identity, item.start, item.stop, limits, sanitizer or Sanitizer())
    if isinstance(item, Progress):
        return [made.progress(item)]
    return made.finished(item, profile_of and profile_of(item.identity))


class _Translation(TaskRecords):
    """One call of `translate`."""

    def progress(self, progress: Progress) -> SpanRecord:
        """Return the marker of the start, or the progress since the last sign."""
        who = self.who
        kind, verb = ("progress", "running") if progress.ordinal else ("marker", "started")
        out = self._identity(kind) | {semconv.SPAN_NAME: self.name}
        if progress.counts is not None:
            self._put_outcomes(out, progress.counts)
        self._put_requested(out, progress.requested)
        return SpanRecord(
            trace_id=who.trace_id,
            span_id=identity.group_span_id(who.dask_id, who.generation, kind, progress.ordinal),
            parent_span_id=who.span_id,
            name=self._child_name(self.last_tag, verb),
            kind="internal",
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            attributes=out,
            events=(),
            links=(),
            error=None,
        )

    def _links(self, callers: Iterable[Traceparent]) -> tuple[Link, ...]:
        first = self.who.first
        links = [] if first is None else [Link(int(first[0]), first[1])]
        return (*links, *(Link(caller.trace_id, caller.span_id) for caller in callers))

    def _span_identity(self, result: str, failed: str | None, complete: bool) -> Written:
        # In this order: the encoder can leave out the last ones.
        return self._identity("span") | {
            semconv.SPAN_NAME: self.name,
            semconv.SPAN_RESULT: self._text(result),
            **({} if failed is None else {semconv.ERROR_TYPE: failed}),
            semconv.SPAN_COMPLETE: complete,
            semconv.SPAN_GENERATION: self.who.generation,
            semconv.SPAN_TAGS: self.tags,
        }

    def _put_queue_time(self, out: Written, span: FinishedSpan | OpenNote) -> None:
        if span.first_start is not None:
            queued = self._seconds(span.first_start, span.start)
            if queued is not None:
                out[semconv.SPAN_QUEUE_TIME] = max(queued, 0.0)

    def _started(self, first_start: float | None) -> list[Event]:
        started = None if first_start is None else self._time(first_start)
        if started is None:
            return []
        # A worker's clock may be slow; no work starts before the span was enqueued.
        return [Event(semconv.EVENT_START, max(started, self.start_ns), {})]

    def _put_user_attributes(self, out: Written, attributes: Attributes) -> None:
        """Add the user's attributes, which do not overwrite the bridge's."""
        for raw, given in attributes.items():
            key, value = self._text(raw), self._value(given)
            if key in out or key.startswith(RESERVED):
                self.sanitizer.count("reserved")
                continue
            if key and value is not None and self.limits.redact is not None:
                # Redact before truncation.
                whole = redacted_value(self.limits.redact, key, given, self.sanitizer)
                value = None if whole is None else self._value(whole)
            if key and value is not None:
                out[key] = value

    def _put_origin(self, out: Written, span: FinishedSpan | OpenNote) -> None:
        """Add the origin of the span: collections, code, and the requested name."""
        if span.collections:
            # Dask has one entry for each submission; only the types matter.
            out[semconv.COLLECTION_TYPES] = self._distinct(span.collections)
        self._put_requested(out, span.requested)
        if span.late:
            out[semconv.SPAN_LATE] = True
        if span.code is not None and self.limits.code:
            path, line, function = span.code
            self._put_redacted(out, semconv.CODE_FILE_PATH, path)
            self._put(out, {semconv.CODE_LINE_NUMBER: line})
            if function is not None:
                self._put_redacted(out, semconv.CODE_FUNCTION_NAME, function)

    def _put_requested(self, out: Written, requested: Tags | None) -> None:
        if requested is not None:
            out[semconv.SPAN_COLLISION] = True
            out[semconv.SPAN_REQUESTED_NAME] = redacted_name(
                self.limits.redact, requested, self.sanitizer
            )

    def _record(
        self,
        out: Written,
        events: tuple[Event, ...],
        callers: Iterable[Traceparent],
        error: str | None,
    ) -> SpanRecord:
        """Return the span's record."""
        who = self.who
        return SpanRecord(
            trace_id=who.trace_id,
            span_id=who.span_id,
            parent_span_id=who.parent_span_id,
            name=self.last_tag,
            kind="server" if who.generation == 1 and who.dask_id == who.root_id else "internal",
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            attributes=out,
            events=events,
            links=self._links(callers),
            error=error,
            remote_parent=who.remote,
        )

    # ------------------------------------------------------------------------------ a note

    def lost(self, note: OpenNote) -> SpanRecord:
        """Return the span with its known facts."""
        out = self._span_identity("error", "SchedulerLost", complete=False)
        self._put_queue_time(out, note)
        if note.counts is not None:
            self._put_outcomes(out, note.counts)
        self._put_origin(out, note)
        self._put_user_attributes(out, note.attributes)
        return self._record(
            out,
            tuple(self._started(note.first_start)),
            note.callers,
            "The scheduler was lost before the span had ended",
        )

    # --------------------------------------------------------------------- a finished span

    def finished(
        self, finished: FinishedSpan, profile: tuple[str, float] | None
    ) -> list[SpanRecord]:
        """Return the span, its groups, and its tasks."""
        groups = [self._group(group) for group in finished.groups]
        parents = {
            (group.name, group.ordinal): record
            for group, record in zip(finished.groups, groups, strict=True)
        }
        tasks = [self._task(task, parents) for task in finished.tasks]
        failed = self._error_type(finished)
        events, dropped = self._events(finished)
        out = self._span_attributes(finished, failed, dropped, profile)
        error = None if failed is None else self._description(finished, failed)
        return [self._record(out, events, finished.callers, error), *groups, *tasks]

    def _span_attributes(
        self,
        finished: FinishedSpan,
        failed: str | None,
        dropped_events: int,
        profile: tuple[str, float] | None,
    ) -> Written:
        out = self._span_identity(finished.result, failed, bool(finished.complete))
        self._put_queue_time(out, finished)
        self._put_outcomes(out, finished.counts)
        numbers: dict[str, object] = {
            semconv.SPAN_OUTPUT_SIZE: finished.output_bytes,
            semconv.TASK_GROUP_COUNT: finished.group_count,
            semconv.WORKER_COUNT: finished.worker_count,
            semconv.THREAD_COUNT: finished.thread_count,
            semconv.SPAN_DROPPED_COUNT: finished.dropped_groups or None,
            semconv.SPAN_DROPPED_EVENT_COUNT: dropped_events or None,
            semconv.SPAN_DROPPED_TASK_COUNT: finished.dropped_tasks or None,
            semconv.SPAN_DASK_ACTIVE_CPU_TIME: finished.active_cpu,
            semconv.SPAN_DASK_IDLE_TIME: finished.dask_idle,
            semconv.SPAN_CAPACITY: finished.capacity,
            semconv.SPAN_IDLE: finished.idle,
            semconv.SPAN_ELSEWHERE: finished.elsewhere,
            semconv.SPAN_SECEDED: finished.seceded or None,
        }
        if (path := finished.path) is not None:
            self._put_path_parts(out, semconv.SPAN_PATH_PART_TIME, path.parts)
            numbers |= {
                semconv.SPAN_PATH_TASKS: path.tasks,
                semconv.SPAN_PATH_SUBMITTED: path.submitted,
                semconv.SPAN_PATH_BOUND_CHAIN: path.parts[COMPUTE],
                semconv.SPAN_PATH_BOUND_THREADS: path.threads_bound,
            }
        self._put_memory(out, finished.memory)
        if (peak := finished.worker_peak) is not None:
            out[semconv.SPAN_WORKER_PEAK_NAME] = self._text(peak.worker)
            numbers |= {
                semconv.SPAN_WORKER_PEAK: peak.share,
                semconv.SPAN_WORKER_PEAK_TIME: max(0.0, peak.time - finished.start),
                semconv.SPAN_HEARTBEATS: peak.heartbeats,
                semconv.SPAN_WORKER_TASKS: peak.tasks,
            }
        if profile is not None:
            out[semconv.SPAN_PROFILE], sampled = profile
            # Of the last runs of a worker that closed, there is only what they computed.
            known = finished.computed
            ran = None if known is None else max(in_threads(finished.activities), known)
            numbers |= {
                semconv.SPAN_PROFILE_TIME: sampled,
                semconv.SPAN_PROFILE_COVERAGE: coverage(sampled, ran),
            }
        self._put(out, numbers)
        self._put_origin(out, finished)
        self._put_parts(out, semconv.SPAN_ACTIVITY_TIME, finished.activities)
        self._put_user_attributes(out, finished.attributes)
        return out

    def _put_memory(self, out: Written, memory: SpanMemory | None) -> None:
        if memory is not None:
            self._put(
                out,
                {
                    semconv.SPAN_MEMORY_PEAK: memory.peak,
                    semconv.SPAN_MEMORY_SPENT: memory.byte_seconds,
                },
            )
            named = [
                (self._redacted_text(semconv.TASK_PREFIX, raw), size)
                for raw, size in memory.at_peak
            ]
            if named:
                prefix, size = named[0]
                self._put(out, {semconv.SPAN_MEMORY_PREFIX_SIZE: size})
                if prefix is not None:
                    out[semconv.SPAN_MEMORY_PREFIX] = prefix
            # Redaction can give several the same name.
            parts = summed({prefix: size} for prefix, size in named if prefix is not None)
            self._put_parts(out, semconv.SPAN_MEMORY_AT_PEAK, parts)

    def _error_type(self, finished: FinishedSpan) -> str | None:
        """Return the value of ``error.type``; None if the status stays UNSET."""
        if finished.result == "error":
            return "SchedulerClosed"
        if finished.result != "failure":
            return None
        if finished.tree_failure is None:
            return semconv.FOLDED
        return error_type(finished.tree_failure, self.sanitizer)

    def _description(self, finished: FinishedSpan, failed: str) -> str:
        if finished.result == "error":
            return "The scheduler closed before the work was done"
        if not finished.failures:
            return self._text(f"A task below failed: {failed}")
        first = finished.failures[0]
        what = self._last_line(first, failed)
        key = self._redacted_text(semconv.TASK_KEY, first.key)
        return self._text(f"A task failed: {what}" if key is None else f"Task {key} failed: {what}")

    # ----------------------------------------------------------------------------- events

    def _events(self, finished: FinishedSpan) -> tuple[tuple[Event, ...], int]:
        """Return the events by time, and the number of those left out."""
        counts = map(self._count, (finished.dropped_failures, finished.dropped_retries))
        events = [self._exception(failure) for failure in finished.failures]
        events += [self._retry(retry) for retry in finished.retries]
        events += self._started(finished.first_start)
        events.sort(key=attrgetter("time_ns"))
        return tuple(events), sum(filter(None, counts))

    def _retry(self, retry: Retry) -> Event:
        out: Written = {semconv.TASK_RETRY_REASON: retry.reason}
        self._put_redacted(out, semconv.TASK_KEY, retry.key)
        if retry.failure is not None:
            out.update(self._exception(retry.failure).attributes)
        return Event(semconv.EVENT_TASK_RETRIED, self._event_ns(retry.time), out)

    # ----------------------------------------------------------------------------- groups

    def _group(self, group: FinishedGroup) -> SpanRecord:
        who = self.who
        start_ns, end_ns = self._interval(group.start, group.stop, self)
        out = self._identity("group")
        erred = self._count(group.counts.erred)
        self._put_redacted(out, semconv.TASK_GROUP_NAME, group.name)
        prefix = self._put_redacted(out, semconv.TASK_PREFIX, group.prefix)
        self._put_outcomes(out, group.counts)
        self._put(out, {semconv.SPAN_OUTPUT_SIZE: group.output_bytes})
        self._put_memory(out, group.memory)
        if group.types:
            out[semconv.TASK_GROUP_TYPES] = self._distinct(group.types)
        self._put_parts(out, semconv.TASK_GROUP_DURATION, group.durations)
        if group.restriction:
            out[semconv.TASK_GROUP_RESTRICTION] = group.restriction
        if group.slow_workers is not None:
            names, share, mean, others = group.slow_workers
            out[semconv.TASK_GROUP_SLOW_WORKERS] = (*map(self._text, names),)
            out[semconv.TASK_GROUP_SLOW_SHARE] = share
            self._put(
                out,
                {semconv.TASK_GROUP_SLOW_TIME: mean, semconv.TASK_GROUP_OTHERS_TIME: others},
            )
        return SpanRecord(
            trace_id=who.trace_id,
            span_id=identity.group_span_id(who.dask_id, who.generation, group.name, group.ordinal),
            parent_span_id=who.span_id,
            name=self._child_name(prefix or semconv.EMPTY, "tasks"),
            kind="internal",
            start_ns=start_ns,
            end_ns=end_ns,
            attributes=out,
            events=(),
            links=(),
            # A group that failed must not be green below a red span.
            error=f"{erred} of its tasks failed" if erred else None,
        )

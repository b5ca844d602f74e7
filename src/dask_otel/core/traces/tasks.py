"""Single tasks: the spans of those that are shown by themselves, and the events of failures."""

from __future__ import annotations

from typing import Final

from dask_otel import semconv
from dask_otel.core import identity
from dask_otel.core.records import Event, Failure, FinishedTask, SpanRecord
from dask_otel.core.text import Sanitizer, stacktrace_text
from dask_otel.core.traces import exceptions
from dask_otel.core.traces.exceptions import error_type
from dask_otel.core.traces.values import Parts, Written

#: Events of a task, by Dask's word for what they tell of.
_PART_EVENTS: Final = {
    "transfer": semconv.EVENT_TASK_TRANSFER,
    "disk-read": semconv.EVENT_TASK_DISK_READ,
}


class TaskRecords(Parts):
    """What a finished span tells of single tasks."""

    def _last_line(self, failure: Failure, otherwise: str) -> str:
        """Return type and message of a failure, where messages may be shown."""
        if not self.limits.message or failure.text is None:
            return otherwise
        # Counted where the event has them.
        return exceptions.last_line(failure, Sanitizer(), self.limits.message)

    def _exception(self, failure: Failure) -> Event:
        sanitizer, limits = self.sanitizer, self.limits
        out: Written = {semconv.EXCEPTION_TYPE: error_type(failure, sanitizer)}
        if limits.message and failure.text is not None:
            message = exceptions.message(failure.text, sanitizer, limits.message)
            out[semconv.EXCEPTION_MESSAGE] = message
        if limits.stacktrace and failure.traceback is not None:
            whole = exceptions.stacktrace(failure, sanitizer, limits.message)
            out[semconv.EXCEPTION_STACKTRACE] = stacktrace_text(whole, sanitizer, limits.stacktrace)
        out[semconv.TASK_KEY] = self._text(failure.key)
        out[semconv.TASK_PREFIX] = self._text(failure.prefix)
        if failure.worker_name is not None:
            out[semconv.WORKER_NAME] = self._text(failure.worker_name)
        return Event(semconv.EVENT_EXCEPTION, self._event_ns(failure.time), out)

    def _event_ns(self, seconds: float) -> int:
        time_ns = self._time(seconds)
        return self.end_ns if time_ns is None else time_ns

    def _task(self, task: FinishedTask, parents: dict[tuple[str, int], int]) -> SpanRecord:
        """Return a run of a task, with what the worker did for it before it computed.

        Parameters
        ----------
        parents
            Span ids of the groups that are exported, by name and ordinal.
        """
        who = self.who
        prefix = self._text(task.prefix)
        computed_ns, end_ns = self._interval(task.start, task.stop)
        if self.start_ns < computed_ns == self.end_ns:
            # Of no length, at the very end of its span: it must not leave it.
            computed_ns, end_ns = computed_ns - 1, computed_ns
        events = self._task_events(task, computed_ns)
        start_ns = min([event.time_ns for event in events])
        out = self._identity("task")
        out[semconv.TASK_KEY] = self._text(_readable(task.key))
        out[semconv.TASK_PREFIX] = prefix
        out[semconv.TASK_GROUP_NAME] = self._text(task.group)
        if task.worker is not None:
            out[semconv.WORKER_NAME] = self._text(task.worker)
        if task.attempt is not None:
            self._put_count(out, semconv.TASK_ATTEMPT, task.attempt)
        if task.queued is not None:
            self._put_seconds(out, semconv.TASK_QUEUE_TIME, task.queued)
        if task.nbytes is not None:
            self._put_count(out, semconv.TASK_OUTPUT_SIZE, task.nbytes)
        if task.type is not None:
            out[semconv.TASK_OUTPUT_TYPE] = self._text(task.type)
        error = None
        if task.failure is not None:
            failed = error_type(task.failure, self.sanitizer)
            out[semconv.ERROR_TYPE] = failed
            error = self._text(self._last_line(task.failure, failed))
            events.append(self._exception(task.failure))
        return SpanRecord(
            trace_id=who.trace_id,
            span_id=identity.task_span_id(who.dask_id, task.key, task.run),
            parent_span_id=parents.get((task.group, task.ordinal), who.span_id),
            name=self._child_name(prefix or semconv.EMPTY, "task"),
            kind="internal",
            start_ns=start_ns,
            end_ns=end_ns,
            attributes=self._limited(out),
            events=tuple(sorted(events, key=event_time)),
            links=(),
            error=error,
            root_name=self.root_name or semconv.EMPTY,
        )

    def _task_events(self, task: FinishedTask, computed_ns: int) -> list[Event]:
        """Return what the worker did for a run: each at its start, with its seconds."""
        compute: Written = {}
        seconds = self._seconds(task.seconds)
        if seconds is not None:
            compute[semconv.TASK_PART_TIME] = seconds
        events = [Event(semconv.EVENT_TASK_COMPUTE, computed_ns, compute)]
        for part in task.parts:
            name = _PART_EVENTS.get(part.action)
            start_ns = self._time(part.start)
            took = self._seconds(part.seconds)
            if name is None or start_ns is None or took is None:
                continue
            # Nothing is done for a task before its span was there, or after it has begun.
            start_ns = min(max(start_ns, self.start_ns), computed_ns)
            events.append(Event(name, start_ns, {semconv.TASK_PART_TIME: took}))
        return events


def _readable(key: object) -> object:
    """Return a key as text, as Dask shows it: that it is a tuple is nothing to be told of."""
    if isinstance(key, (tuple, int, float)):
        try:
            return str(key)
        except Exception:  # noqa: BLE001 - what can't be turned into text is counted later
            return key
    return key


def event_time(event: Event) -> int:
    """Return when an event was, to sort by."""
    return event.time_ns

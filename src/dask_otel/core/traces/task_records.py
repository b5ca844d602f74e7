"""Spans of single tasks, and events of their failures."""

from __future__ import annotations

from operator import attrgetter
from typing import Final, cast

from dask_otel import semconv
from dask_otel.core import identity
from dask_otel.core.records import Event, Failure, FinishedTask, Link, SpanRecord, TaskRun
from dask_otel.core.text import Sanitizer, label_text, plain_text, stacktrace_text
from dask_otel.core.traces import exceptions
from dask_otel.core.traces.exceptions import error_type
from dask_otel.core.traces.redact import redacted
from dask_otel.core.traces.values import Parts, Written

#: Events of a task, by Dask's name of the action.
_PART_EVENTS: Final = {
    "transfer": semconv.EVENT_TASK_TRANSFER,
    "disk-read": semconv.EVENT_TASK_DISK_READ,
}


class TaskRecords(Parts):
    """Records of a finished span's single tasks."""

    def _last_line(self, failure: Failure, otherwise: str) -> str:
        """Return type and message of a failure; `otherwise` without a message."""
        message = self._message(failure)
        return otherwise if message is None else exceptions.last_line(failure, message, Sanitizer())

    def _message(self, failure: Failure) -> str | None:
        """Return a failure's message, redacted once; None to leave it out."""
        limit, known = self.limits.message, id(failure) in self._messages
        if not known and limit and failure.text is not None:
            words = exceptions.built_in_message(failure.text) or failure.text
            message = self._redacted_text(semconv.EXCEPTION_MESSAGE, words, limit)
            self._messages[id(failure)] = message
        return self._messages.get(id(failure))

    def _exception(self, failure: Failure) -> Event:
        sanitizer, limits = self.sanitizer, self.limits
        out: Written = {semconv.EXCEPTION_TYPE: error_type(failure, sanitizer)}
        message = self._message(failure)
        if message is not None:
            out[semconv.EXCEPTION_MESSAGE] = message
        if limits.stacktrace and failure.traceback is not None:
            whole: str | None = exceptions.stacktrace(failure, message, sanitizer)
            if limits.redact is not None:
                name = semconv.EXCEPTION_STACKTRACE
                whole = redacted(limits.redact, name, whole, sanitizer)
            if whole is not None:
                text = stacktrace_text(whole, sanitizer, limits.stacktrace)
                out[semconv.EXCEPTION_STACKTRACE] = text
        self._put_redacted(out, semconv.TASK_KEY, failure.key)
        self._put_redacted(out, semconv.TASK_PREFIX, failure.prefix)
        if failure.worker_name is not None:
            out[semconv.WORKER_NAME] = label_text(failure.worker_name, sanitizer)
        return Event(semconv.EVENT_EXCEPTION, self._event_ns(failure.time), out)

    def _event_ns(self, seconds: float) -> int:
        time_ns = self._time(seconds)
        return self.end_ns if time_ns is None else time_ns

    def _task(self, task: FinishedTask, parents: dict[tuple[str, int], SpanRecord]) -> SpanRecord:
        """Return a run of a task, with the worker's actions for it before it computed.

        Parameters
        ----------
        parents
            The exported groups, by name and ordinal.
        """
        who, run = self.who, task.run
        parent = parents.get((task.group, task.ordinal))
        computed_ns, end_ns = self._interval(run.start, run.stop, parent or self)
        events = self._task_events(run, computed_ns)
        start_ns = min([event.time_ns for event in events])
        out = self._identity("task")
        # Dask's keys are mostly such: as Dask writes them, and not counted as sanitised.
        plain = isinstance(run.key, (tuple, int, float))
        key = plain_text(run.key, Sanitizer()) if plain else run.key
        self._put_redacted(out, semconv.TASK_KEY, key)
        prefix = self._put_redacted(out, semconv.TASK_PREFIX, task.prefix)
        self._put_redacted(out, semconv.TASK_GROUP_NAME, task.group)
        if run.worker is not None:
            out[semconv.WORKER_NAME] = label_text(run.worker, self.sanitizer)
        self._put(
            out,
            {
                semconv.TASK_ATTEMPT: run.attempt,
                semconv.TASK_OUTPUT_SIZE: run.nbytes,
                semconv.TASK_QUEUE_TIME: run.queued,
            },
        )
        links: tuple[Link, ...] = ()
        if task.path is not None:
            out[semconv.TASK_ON_PATH] = True
            self._put_path_parts(out, semconv.TASK_PATH_PART_TIME, task.path.parts)
            if task.path.before is not None:
                before = identity.task_span_id(who.dask_id, *task.path.before)
                links = (Link(who.trace_id, before),)
        if type(run.type) is str:
            out[semconv.TASK_OUTPUT_TYPE] = self._text(run.type)
        error = None
        if run.failure is not None:
            failed = error_type(run.failure, self.sanitizer)
            out[semconv.ERROR_TYPE] = failed
            error = self._text(self._last_line(run.failure, failed))
            events.append(self._exception(run.failure))
        return SpanRecord(
            trace_id=who.trace_id,
            span_id=identity.task_span_id(who.dask_id, run.key, cast("int", run.number)),
            parent_span_id=who.span_id if parent is None else parent.span_id,
            name=self._child_name(prefix or semconv.EMPTY, "task"),
            kind="internal",
            start_ns=start_ns,
            end_ns=end_ns,
            attributes=out,
            events=tuple(sorted(events, key=attrgetter("time_ns"))),
            links=links,
            error=error,
        )

    def _task_events(self, run: TaskRun, computed_ns: int) -> list[Event]:
        """Return the worker's actions for a run: each at its start, with its seconds."""
        compute: Written = {}
        self._put(compute, {semconv.TASK_PART_TIME: run.seconds})
        events = [Event(semconv.EVENT_TASK_COMPUTE, computed_ns, compute)]
        for action, start, seconds in run.parts:
            start_ns = self._time(start)
            took = self._seconds(seconds)
            if action in _PART_EVENTS and start_ns is not None and took is not None:
                # These actions begin neither before the span nor after the start of the task.
                start_ns = min(max(start_ns, self.start_ns), computed_ns)
                events.append(Event(_PART_EVENTS[action], start_ns, {semconv.TASK_PART_TIME: took}))
        return events

"""From a finished Dask span to OpenTelemetry spans: names, attributes, events, links.

This is the attribute table of the telemetry contract as code. What comes in is what Dask
said, so any field can be wrong in any way: a bad text is made clean, a bad number or time
is left out or replaced by the nearest one known, and both are counted. Nothing raises.

Seconds are doubles, counts are ints; what was not measured is absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dask_otel import semconv
from dask_otel.core import identity
from dask_otel.core.attributes import RESERVED
from dask_otel.core.records import (
    AttributeValue,
    Event,
    Failure,
    FinishedGroup,
    FinishedSpan,
    Incident,
    Link,
    Progress,
    SpanIdentity,
    SpanRecord,
    TaskCounts,
)
from dask_otel.core.text import (
    ATTRIBUTE_LIMIT,
    STACKTRACE_LIMIT,
    Sanitizer,
    attribute_array,
    attribute_text,
    span_path,
    stacktrace_text,
    suffix_text,
)
from dask_otel.core.traces import exceptions
from dask_otel.core.traces.exceptions import error_type

#: OTLP has 64 bits, of which some backends read the highest as a sign.
_TIME_LIMIT_NS: Final = 2.0**63
_INT64_MAX: Final = 2**63 - 1

_SCHEDULER_CLOSED: Final = "SchedulerClosed"

#: Fields of `TaskCounts` with their attributes.
_COUNT_KEYS: Final = (
    ("tasks", semconv.TASK_COUNT),
    *[
        (name, semconv.TASK_OUTCOME_COUNT.format(name))
        for name in (
            "memory",
            "erred",
            "cancelled",
            "retried",
            "lost",
            "recomputed",
            "rescheduled",
        )
    ],
)

_Attributes = dict[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class SpanLimits:
    """How much one OpenTelemetry span may hold, as configured."""

    #: Characters of a string.
    text: int = ATTRIBUTE_LIMIT
    #: Characters of an exception's message and of a status description; 0 leaves both out.
    message: int = ATTRIBUTE_LIMIT
    #: Bytes of a stacktrace; 0 leaves it out.
    stacktrace: int = STACKTRACE_LIMIT
    exceptions: int = 16
    incidents: int = 32
    links: int = 32
    #: Activities of a span, `semconv.FOLDED` counted; also actions of a group.
    activities: int = 32
    #: Attributes of a span: the first ones stay. None for no limit.
    attributes: int | None = None


_DEFAULT_LIMITS: Final = SpanLimits()


def translate(
    finished: FinishedSpan,
    limits: SpanLimits = _DEFAULT_LIMITS,
    note: Sanitizer | None = None,
) -> list[SpanRecord]:
    """Return the OpenTelemetry spans of one generation of a Dask span.

    The span itself comes first, then one child per task group in it. Never raises.

    Parameters
    ----------
    finished
        What Dask said.
    limits
        Sizes and numbers.
    note
        Counts what had to be changed, by kind.
    """
    return _Translation(finished, limits, note or Sanitizer()).records()


def translate_progress(
    progress: Progress,
    limits: SpanLimits = _DEFAULT_LIMITS,
    note: Sanitizer | None = None,
) -> list[SpanRecord]:
    """Return the child that shows a span which has not ended. Never raises."""
    parts = _ProgressTranslation(
        progress.identity, progress.start, progress.stop, limits, note or Sanitizer()
    )
    return [parts.record(progress)]


class _Parts:
    """What every OpenTelemetry span of one Dask span has: times, texts, identity."""

    def __init__(
        self,
        who: SpanIdentity,
        start: float,
        stop: float,
        limits: SpanLimits,
        note: Sanitizer,
    ) -> None:
        self.who = who
        self.limits = limits
        self.note = note
        self.tags = attribute_array(who.tags, note, limits.text)
        self.name = self._text(span_path(who.tags, note))
        self.last_tag = (self.tags[-1] if self.tags else "") or semconv.EMPTY
        self.root_name = self.tags[0] if self.tags else ""
        self.dask_id = self._text(who.dask_id)
        self.root_id = self._text(who.root_id)
        self.start_ns, self.end_ns = self._interval(start, stop)

    # ------------------------------------------------------------------------------ parts

    def _identity(self, span_type: str) -> _Attributes:
        """Return the attributes that say which Dask span this belongs to."""
        return {
            semconv.SPAN_TYPE: span_type,
            semconv.SPAN_ID: self.dask_id,
            semconv.SPAN_ROOT_ID: self.root_id,
            semconv.SPAN_ROOT_NAME: self.root_name,
        }

    def _put_counts(self, out: _Attributes, counts: TaskCounts) -> None:
        for name, key in _COUNT_KEYS:
            self._put_count(out, key, getattr(counts, name, None))

    def _put_parts(self, out: _Attributes, namespace: str, seconds: Mapping[Any, float]) -> None:
        """Add seconds by activity or action: the largest ones, then the rest as one."""
        sums: dict[str, float] = {}
        for raw, value in seconds.items():
            number = self._seconds(value)
            if number is not None:
                suffix = suffix_text(raw, self.note)
                sums[suffix] = sums.get(suffix, 0.0) + number
        limit = self.limits.activities
        if len(sums) > limit:
            rest = sums.pop(semconv.FOLDED, 0.0)
            largest = sorted(sums.items(), key=_descending)
            sums = dict(largest[: limit - 1])
            sums[semconv.FOLDED] = rest + sum([value for _, value in largest[limit - 1 :]])
        for suffix, value in sums.items():
            out[f"{namespace}.{suffix}"] = value

    def _put_count(self, out: _Attributes, key: str, value: object) -> None:
        count = value if type(value) is int else self._count(value)
        if count is None:
            return
        if -_INT64_MAX <= count <= _INT64_MAX:
            out[key] = count
        else:
            self.note.count("value")

    def _put_seconds(self, out: _Attributes, key: str, value: object) -> None:
        seconds = self._seconds(value)
        if seconds is not None:
            out[key] = seconds

    def _limited(self, attributes: _Attributes) -> _Attributes:
        limit = self.limits.attributes
        if limit is None or len(attributes) <= limit:
            return attributes
        self.note.count("cut")
        return dict(list(attributes.items())[:limit])

    # ---------------------------------------------------------------------- single values

    def _text(self, value: object) -> str:
        return attribute_text(value, self.note, self.limits.text)

    def _distinct(self, values: tuple[object, ...]) -> tuple[str, ...]:
        return attribute_array(dict.fromkeys([self._text(value) for value in values]), self.note)

    def _value(self, value: object) -> AttributeValue | None:
        """Return an attribute value of any of the allowed types; others become text."""
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return max(-_INT64_MAX, min(int(value), _INT64_MAX))
        if isinstance(value, float):
            return self._seconds(value)
        if isinstance(value, (tuple, list)):
            return attribute_array(value, self.note, self.limits.text)
        return self._text(value)

    def _count(self, value: object) -> int | None:
        """Return a count of any size; None, counted, if it is no number."""
        try:
            return int(value)  # type: ignore[call-overload, no-any-return]
        except Exception:  # noqa: BLE001 - anything can come
            self.note.count("value")
            return None

    def _seconds(self, value: object, origin: object = 0.0) -> float | None:
        """Return seconds (since `origin`); None, counted, if they are no finite number."""
        if type(value) is float and value - value == 0 and origin == 0.0:
            return value
        try:
            seconds = float(value) - float(origin)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - anything can come
            seconds = float("nan")
        if seconds - seconds == 0:
            return seconds
        self.note.count("value")
        return None

    def _time(self, seconds: object) -> int | None:
        """Return nanoseconds since the epoch; None, counted, if there is no such time."""
        value = self._seconds(seconds)
        if value is None:
            return None
        scaled = value * 1e9
        if 1 <= scaled < _TIME_LIMIT_NS:
            return int(scaled)
        self.note.count("value")
        return None

    def _interval(self, start: object, stop: object) -> tuple[int, int]:
        """Return start and end; a missing one is the other, and 1 ns lies between them at least.

        Jaeger takes a span that ends when it starts as one of negative duration, and warns.
        """
        start_ns, end_ns = self._time(start), self._time(stop)
        if start_ns is None:
            start_ns = getattr(self, "start_ns", 0) if end_ns is None else end_ns
        return start_ns, max(start_ns + 1, end_ns or 0)

    def _child_name(self, subject: str, what: str) -> str:
        """Return the name of a child that is no Dask span.

        Never that of a span: in Jaeger's list of operations and in Tempo's span metrics a name is
        all that tells them apart. So where it is too long, its last word stays.
        """
        room = max(self.limits.text - len(what) - 1, 1)
        return f"{attribute_text(subject, self.note, room)} {what}"


class _ProgressTranslation(_Parts):
    """One call of `translate_progress`."""

    def record(self, progress: Progress) -> SpanRecord:
        """Return the marker of the start, or the progress since the last sign."""
        who = self.who
        kind, verb = ("progress", "running") if progress.ordinal else ("marker", "started")
        out = self._identity(kind)
        out[semconv.SPAN_NAME] = self.name
        if progress.counts is not None:
            self._put_counts(out, progress.counts)
        return SpanRecord(
            trace_id=who.trace_id,
            span_id=identity.group_span_id(who.dask_id, who.generation, kind, progress.ordinal),
            parent_span_id=who.span_id,
            name=self._child_name(self.last_tag, verb),
            kind="internal",
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            attributes=self._limited(out),
            events=(),
            links=(),
            error=None,
            root_name=self.root_name or semconv.EMPTY,
        )


class _Translation(_Parts):
    """One call of `translate`: the finished span with its limits, times and texts."""

    def __init__(self, finished: FinishedSpan, limits: SpanLimits, note: Sanitizer) -> None:
        super().__init__(finished.identity, finished.start, finished.stop, limits, note)
        self.finished = finished

    def records(self) -> list[SpanRecord]:
        """Return the span and its groups."""
        return [self._span(), *[self._group(group) for group in self.finished.groups]]

    # ------------------------------------------------------------------------------- span

    def _span(self) -> SpanRecord:
        who = self.finished.identity
        failed = self._error_type()
        is_root = who.generation == 1 and who.dask_id == who.root_id
        events, dropped = self._events()
        links = [] if who.first is None else [Link(int(who.first[0]), who.first[1], {})]
        links += [Link(caller.trace_id, caller.span_id, {}) for caller in self.finished.callers]
        return SpanRecord(
            trace_id=who.trace_id,
            span_id=who.span_id,
            parent_span_id=who.parent_span_id,
            name=self.last_tag,
            kind="server" if is_root else "internal",
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            attributes=self._limited(self._span_attributes(failed, dropped)),
            events=events,
            links=tuple(links[: self.limits.links]),
            error=None if failed is None else self._description(failed),
            root_name=self.root_name or semconv.EMPTY,
            remote_parent=who.remote,
        )

    def _span_attributes(self, failed: str | None, dropped_events: int) -> _Attributes:
        finished = self.finished
        out = self._identity("span")
        out[semconv.SPAN_NAME] = self.name
        out[semconv.SPAN_RESULT] = self._text(finished.result)
        if failed is not None:
            out[semconv.ERROR_TYPE] = failed
        out[semconv.SPAN_COMPLETE] = bool(finished.complete)
        self._put_count(out, semconv.SPAN_GENERATION, finished.identity.generation)
        out[semconv.SPAN_TAGS] = self.tags
        if finished.first_start is not None:
            queued = self._seconds(finished.first_start, finished.start)
            if queued is not None:
                out[semconv.SPAN_QUEUE_TIME] = max(queued, 0.0)
        self._put_counts(out, finished.counts)
        self._put_count(out, semconv.SPAN_OUTPUT_SIZE, finished.output_bytes)
        self._put_count(out, semconv.TASK_GROUP_COUNT, finished.group_count)
        self._put_count(out, semconv.WORKER_COUNT, finished.worker_count)
        self._put_count(out, semconv.THREAD_COUNT, finished.thread_count)
        self._put_seconds(out, semconv.SPAN_DASK_ACTIVE_CPU_TIME, finished.active_cpu)
        self._put_seconds(out, semconv.SPAN_DASK_IDLE_TIME, finished.dask_idle)
        if finished.capacity is not None:
            self._put_seconds(out, semconv.SPAN_CAPACITY, finished.capacity)
        if finished.idle is not None:
            self._put_seconds(out, semconv.SPAN_IDLE, finished.idle)
        if finished.dropped_groups:
            self._put_count(out, semconv.SPAN_DROPPED_COUNT, finished.dropped_groups)
        if dropped_events:
            self._put_count(out, semconv.SPAN_DROPPED_EVENT_COUNT, dropped_events)
        self._put_origin(out)
        self._put_parts(out, semconv.SPAN_ACTIVITY_TIME, finished.activities)
        self._put_given(out)
        return out

    def _put_given(self, out: _Attributes) -> None:
        """Add what the user gave; what the bridge says itself is not overwritten."""
        for raw, given in self.finished.attributes.items():
            key, value = self._text(raw), self._value(given)
            if key in out or key.startswith(RESERVED):
                self.note.count("reserved")
            elif key and value is not None:
                out[key] = value

    def _put_origin(self, out: _Attributes) -> None:
        """Add where the span comes from: collections, code, and what was asked for."""
        finished = self.finished
        if finished.collections:
            # Dask has one entry for each submission: the types are what is asked for.
            out[semconv.COLLECTION_TYPES] = self._distinct(finished.collections)
        if finished.requested is not None:
            out[semconv.SPAN_COLLISION] = True
            out[semconv.SPAN_REQUESTED_NAME] = self._text(span_path(finished.requested, self.note))
        if finished.late:
            out[semconv.SPAN_LATE] = True
        if finished.code is not None:
            path, line, function = finished.code
            out[semconv.CODE_FILE_PATH] = self._text(path)
            self._put_count(out, semconv.CODE_LINE_NUMBER, line)
            if function is not None:
                out[semconv.CODE_FUNCTION_NAME] = self._text(function)

    def _error_type(self) -> str | None:
        """Return the value of ``error.type``; None where the status stays UNSET."""
        finished = self.finished
        if finished.result == "error":
            return _SCHEDULER_CLOSED
        if finished.result != "failure":
            return None
        if finished.tree_failure is None:
            return semconv.FOLDED
        return error_type(finished.tree_failure, self.note)

    def _description(self, failed: str) -> str:
        if self.finished.result == "error":
            return "The scheduler closed before the work was done"
        if not self.finished.failures:
            return self._text(f"A task below failed: {failed}")
        first = self.finished.failures[0]
        what = failed
        if self.limits.message and first.text is not None:
            # Type and message; counted where the event has them.
            what = exceptions.last_line(first, Sanitizer(), self.limits.message)
        return self._text(f"Task {self._text(first.key)} failed: {what}")

    # ----------------------------------------------------------------------------- events

    def _events(self) -> tuple[tuple[Event, ...], int]:
        """Return the events by time, and how many are left out."""
        finished, limits = self.finished, self.limits
        failures = finished.failures[: limits.exceptions]
        incidents = finished.incidents[: limits.incidents]
        dropped = len(finished.failures) - len(failures)
        dropped += len(finished.incidents) - len(incidents)
        for count in (finished.dropped_failures, finished.dropped_incidents):
            dropped += self._count(count) or 0
        events = [self._exception(failure) for failure in failures]
        events += [self._incident(incident) for incident in incidents]
        if finished.first_start is not None:
            # A worker's clock may be behind: nothing starts before it was enqueued.
            started = self._time(finished.first_start)
            if started is not None:
                events.append(Event(semconv.EVENT_START, max(started, self.start_ns), {}))
        events.sort(key=_event_time)
        return tuple(events), dropped

    def _exception(self, failure: Failure) -> Event:
        note, limits = self.note, self.limits
        out: _Attributes = {semconv.EXCEPTION_TYPE: error_type(failure, note)}
        if limits.message and failure.text is not None:
            message = exceptions.message(failure.text, note, limits.message)
            out[semconv.EXCEPTION_MESSAGE] = message
        if limits.stacktrace and failure.traceback is not None:
            whole = exceptions.stacktrace(failure, note, limits.message)
            out[semconv.EXCEPTION_STACKTRACE] = stacktrace_text(whole, note, limits.stacktrace)
        out[semconv.TASK_KEY] = self._text(failure.key)
        out[semconv.TASK_PREFIX] = self._text(failure.prefix)
        if failure.worker_name is not None:
            out[semconv.WORKER_NAME] = self._text(failure.worker_name)
        return Event(semconv.EVENT_EXCEPTION, self._event_ns(failure.time), out)

    def _incident(self, incident: Incident) -> Event:
        out: _Attributes = {}
        for key, value in incident.attributes.items():
            clean = self._value(value)
            if clean is not None:
                out[self._text(key)] = clean
        name = self._text(incident.name) or semconv.EMPTY
        return Event(name, self._event_ns(incident.time), out)

    def _event_ns(self, seconds: float) -> int:
        time_ns = self._time(seconds)
        return self.end_ns if time_ns is None else time_ns

    # ----------------------------------------------------------------------------- groups

    def _group(self, group: FinishedGroup) -> SpanRecord:
        who = self.finished.identity
        name = self._text(group.name)
        prefix = self._text(group.prefix)
        start_ns, end_ns = self._interval(group.start, group.stop)
        if self.start_ns < start_ns == self.end_ns:
            # Of no length, at the very end of its span: it must not leave it.
            start_ns, end_ns = start_ns - 1, start_ns
        out = self._identity("group")
        erred = self._count(group.counts.erred)
        out[semconv.TASK_GROUP_NAME] = name
        out[semconv.TASK_PREFIX] = prefix
        self._put_counts(out, group.counts)
        self._put_count(out, semconv.SPAN_OUTPUT_SIZE, group.output_bytes)
        if group.types:
            out[semconv.TASK_GROUP_TYPES] = self._distinct(group.types)
        self._put_parts(out, semconv.TASK_GROUP_DURATION, group.durations)
        return SpanRecord(
            trace_id=who.trace_id,
            span_id=identity.group_span_id(who.dask_id, who.generation, group.name, group.ordinal),
            parent_span_id=who.span_id,
            name=self._child_name(prefix or semconv.EMPTY, "tasks"),
            kind="internal",
            start_ns=start_ns,
            end_ns=end_ns,
            attributes=self._limited(out),
            events=(),
            links=(),
            # A group that failed must not be green below a red span.
            error=f"{erred} of its tasks failed" if erred else None,
            root_name=self.root_name or semconv.EMPTY,
        )


def _event_time(event: Event) -> int:
    return event.time_ns


def _descending(item: tuple[str, float]) -> float:
    return -item[1]

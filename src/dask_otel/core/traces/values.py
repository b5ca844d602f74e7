"""The common part of all OpenTelemetry spans of one Dask span: identity, times, clean values.

Any field from Dask can be wrong in any way: a bad string is cleaned, a bad number or time is left
out or replaced by the nearest known one, and both are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dask_otel import semconv
from dask_otel.core.records import AttributeValue, SpanIdentity, SpanRecord, TaskCounts
from dask_otel.core.text import (
    ATTRIBUTE_LIMIT,
    STACKTRACE_LIMIT,
    Sanitizer,
    attribute_array,
    attribute_text,
    attribute_value,
    span_path,
    suffix_text,
)
from dask_otel.core.traces.redact import Redact, redacted, redacted_tags

#: Limit of a span's activities, with `semconv.FOLDED`; also of a group's actions.
MAX_ACTIVITIES: Final = 32
#: OTLP has 64 bits; some backends read the highest one as a sign.
_TIME_LIMIT_NS: Final = 2.0**63
_INT64_MAX: Final = 2**63 - 1

#: Fields of `TaskCounts` with their attributes.
_COUNT_KEYS: Final = (
    ("tasks", semconv.TASK_COUNT),
    *[(name, semconv.TASK_OUTCOME_COUNT.format(name)) for name in semconv.OUTCOMES],
)

#: The attributes of spans that are whole numbers; others are seconds or shares.
_COUNTS: Final = frozenset(
    key
    for types in semconv.SPAN_ATTRIBUTES.values()
    for key, kind in types.items()
    if kind == "int"
)
Written: TypeAlias = dict[str, AttributeValue]

#: Activities of a task before and after it is in a thread. Dask's ``executor`` is not among them: a
#: task that waits for its thread to begin has begun for Dask, and for the samples of its thread.
_OUTSIDE: Final = frozenset(
    ("other", "deserialize", "disk-read", "disk-write", "compress", "decompress", "serialize")
)
#: More than this part of its seconds cannot be samples of a span: noise is less.
_MOST_SAMPLED: Final = 1.1


def in_threads(activities: Mapping[Any, float]) -> float:
    """Return the seconds of a span's tasks in their threads, where samples are taken."""
    return sum(seconds for name, seconds in activities.items() if name not in _OUTSIDE)


def coverage(sampled: float, ran: float | None) -> float | None:
    """Return the sampled share of the seconds that tasks ran in threads; None if unknown.

    It is no share if samples say more: there are few of them, or Dask does not know all seconds.
    """
    return sampled / ran if ran and sampled <= _MOST_SAMPLED * ran else None


@dataclass(frozen=True, slots=True)
class SpanLimits:
    """The configured limits of one OpenTelemetry span."""

    #: Characters of an exception's message and of a status description; 0 leaves both out.
    message: int = ATTRIBUTE_LIMIT
    #: Bytes of a stacktrace; 0 leaves it out.
    stacktrace: int = STACKTRACE_LIMIT
    #: Whether to export the keys of tasks, and the code that submitted them.
    task_keys: bool = True
    code: bool = True
    #: The operator's function for users' texts; None without one.
    redact: Redact | None = None


class Parts:
    """The common part of all OpenTelemetry spans of one Dask span: times, texts, identity."""

    def __init__(
        self,
        who: SpanIdentity,
        start: float,
        stop: float,
        limits: SpanLimits,
        sanitizer: Sanitizer,
    ) -> None:
        self.who = who
        self.limits = limits
        self.sanitizer = sanitizer
        tags = redacted_tags(limits.redact, who.tags, sanitizer)
        self.tags = attribute_array(tags, sanitizer)
        self.name = self._text(span_path(tags, sanitizer))
        self.last_tag = (self.tags[-1] if self.tags else "") or semconv.EMPTY
        #: The attributes that identify the Dask span.
        self._ids: Written = {
            semconv.SPAN_ID: self._text(who.dask_id),
            semconv.SPAN_ROOT_ID: self._text(who.root_id),
            semconv.SPAN_ROOT_NAME: self.tags[0] if self.tags else "",
        }
        self.start_ns, self.end_ns = self._interval(start, stop)
        #: Messages of failures to export, by the failures' identity: each is redacted once.
        self._messages: dict[int, str | None] = {}

    # ------------------------------------------------------------------------------ parts

    def _identity(self, span_type: str) -> Written:
        """Return the attributes that identify the Dask span."""
        return {semconv.SPAN_TYPE: span_type, **self._ids}

    def _put_outcomes(self, out: Written, counts: TaskCounts) -> None:
        self._put(out, {key: getattr(counts, name) for name, key in _COUNT_KEYS})

    def _put_parts(self, out: Written, namespace: str, seconds: Mapping[Any, float]) -> None:
        """Add seconds by activity or action: the largest ones, then the sum of the rest."""
        sums: dict[str, float] = {}
        for raw, value in seconds.items():
            number = self._seconds(value)
            if number is not None:
                suffix = suffix_text(raw, self.sanitizer)
                sums[suffix] = sums.get(suffix, 0.0) + number
        if len(sums) > MAX_ACTIVITIES:
            rest = sums.pop(semconv.FOLDED, 0.0)
            largest = sorted(sums.items(), key=lambda item: -item[1])
            sums = dict(largest[: MAX_ACTIVITIES - 1])
            sums[semconv.FOLDED] = rest + sum([value for _, value in largest[MAX_ACTIVITIES - 1 :]])
        # A sum of finite numbers may be infinite.
        self._put(out, {f"{namespace}.{suffix}": value for suffix, value in sums.items()})

    def _put_path_parts(self, out: Written, name: str, seconds: tuple[float, ...]) -> None:
        """Add the parts of a path."""
        # A task has all but the last.
        parts = zip(semconv.PATH_PARTS, seconds, strict=False)
        self._put(out, {name.format(part): value for part, value in parts})

    def _put(self, out: Written, given: Mapping[str, object]) -> None:
        """Add the numbers that are known and valid, each in the type of its attribute."""
        for key, value in given.items():
            number: int | float | None = None
            if value is not None:
                number = self._count(value) if key in _COUNTS else self._seconds(value)
            if number is not None:
                out[key] = number

    # ---------------------------------------------------------------------- single values

    def _text(self, value: object) -> str:
        return attribute_text(value, self.sanitizer)

    def _redacted_text(self, name: str, value: object, limit: int = ATTRIBUTE_LIMIT) -> str | None:
        """Return a user's text after redaction; None to leave it out, such as a task's key."""
        if name == semconv.TASK_KEY and not self.limits.task_keys:
            return None
        redact = self.limits.redact
        if redact is not None:
            value = redacted(redact, name, value, self.sanitizer)
            if value is None:
                return None
        return attribute_text(value, self.sanitizer, limit)

    def _put_redacted(self, out: Written, name: str, value: object) -> str | None:
        """Add and return a user's text, unless redaction leaves it out."""
        text = self._redacted_text(name, value)
        if text is not None:
            out[name] = text
        return text

    def _distinct(self, values: tuple[object, ...]) -> tuple[str, ...]:
        return attribute_array(
            dict.fromkeys([self._text(value) for value in values]), self.sanitizer
        )

    def _value(self, value: object) -> AttributeValue | None:
        return attribute_value(value, self.sanitizer)

    def _count(self, value: object) -> int | None:
        """Return a count; None if it is not a number, or too large for OTLP (counted)."""
        # Anything can arrive.
        with suppress(Exception):
            count = int(value)  # type: ignore[call-overload]
            if -_INT64_MAX <= count <= _INT64_MAX:
                return count  # type: ignore[no-any-return]
        self.sanitizer.count("value")
        return None

    def _seconds(self, value: object, origin: object = 0.0) -> float | None:
        """Return seconds (since `origin`); None if they are no finite number (counted)."""
        try:
            seconds = float(value) - float(origin)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - anything can come
            seconds = float("nan")
        if seconds - seconds == 0:
            return seconds
        self.sanitizer.count("value")
        return None

    def _time(self, seconds: object) -> int | None:
        """Return nanoseconds since the epoch; None if there is no such time (counted)."""
        value = self._seconds(seconds)
        if value is None:
            return None
        scaled = value * 1e9
        if 1 <= scaled < _TIME_LIMIT_NS:
            return int(scaled)
        self.sanitizer.count("value")
        return None

    def _interval(
        self, start: object, stop: object, above: Parts | SpanRecord | None = None
    ) -> tuple[int, int]:
        """Return start and end, at least 1 ns apart; a bad one becomes the other.

        Jaeger warns of a negative duration if a span ends when it starts. `above` is the parent: an
        interval of length zero at its very end must not end after it.
        """
        start_ns, end_ns = self._time(start), self._time(stop)
        if start_ns is None:
            start_ns = getattr(self, "start_ns", 0) if end_ns is None else end_ns
        if above is not None and above.start_ns < start_ns == above.end_ns:
            return start_ns - 1, start_ns
        return start_ns, max(start_ns + 1, end_ns or 0)

    def _child_name(self, subject: str, what: str) -> str:
        """Return the name of a child that is not a Dask span.

        It must differ from a Dask span's name: Jaeger's list of operations and Tempo's span
        metrics have only the name. So the last word survives truncation.
        """
        room = ATTRIBUTE_LIMIT - len(what) - 1
        return f"{attribute_text(subject, self.sanitizer, room)} {what}"

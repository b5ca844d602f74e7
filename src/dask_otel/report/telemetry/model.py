"""Sessions with their spans and series, as plain data: a session is what one scheduler left."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from dask_otel import semconv
from dask_otel.core.profiles.pprof import Profile
from dask_otel.report import words
from dask_otel.report.telemetry.series import Metrics

#: An attribute's value in Python. Maps and bytes, which the bridge never sends, become None.
Plain: TypeAlias = str | bool | int | float | tuple["Plain", ...] | None

_Key = TypeVar("_Key", bound=Hashable)
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Event:
    """An event, such as one of a span."""

    name: str
    time_ns: int
    attributes: dict[str, Plain]


@dataclass(frozen=True, slots=True)
class Log(Event):
    """A log record: an event of the cluster, or a worker's."""

    #: OpenTelemetry's number.
    severity: int
    body: str

    @property
    def level(self) -> str:
        """The severity as text."""
        known = [least for least in semconv.SEVERITIES if least <= self.severity]
        return semconv.SEVERITIES[max(known, default=semconv.DEBUG)]

    @property
    def is_event(self) -> bool:
        """Whether it is an event of the cluster, not a worker's record or how many are missing."""
        return not self.name.startswith(semconv.WORKER_LOG)

    @property
    def description(self) -> str:
        """Its text; without one, its name and the reason of a worker's removal."""
        removed = text(self.attributes.get(semconv.WORKER_REMOVAL_REASON))
        return self.body or f"{self.name} {removed}".rstrip()


@dataclass(slots=True)
class Span:
    """One span of a trace. Ids are hexadecimal; `parent_id` is empty for a root."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    failed: bool = False
    description: str = ""
    attributes: dict[str, Plain] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    #: The name of its service, unless it is Dask.
    service: str = ""
    #: Announced by a sign of life, but never exported itself.
    unfinished: bool = False
    #: Added to its name: it is what the report is about, unlike others.
    mark: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Its trace id and span id, which together are unique."""
        return self.trace_id, self.span_id

    @property
    def above(self) -> tuple[str, str]:
        """The key of its parent."""
        return self.trace_id, self.parent_id

    @property
    def type(self) -> str:
        """``span``, ``group``, ``task``, ``marker``, ``progress``; empty for another service's."""
        return self.text(semconv.SPAN_TYPE)

    @property
    def seconds(self) -> float:
        """From start to end."""
        return max(0, self.end_ns - self.start_ns) / 1e9

    @property
    def lasted(self) -> float | None:
        """Its seconds; None if only its start is known."""
        return None if self.unfinished and self.end_ns - self.start_ns <= 1 else self.seconds

    @property
    def result(self) -> str:
        """Its result in words; empty if it was not exported."""
        if self.unfinished:
            return "still open"
        incomplete = self.attributes.get(semconv.SPAN_COMPLETE) is False
        ended = (self.text(semconv.SPAN_RESULT), "incomplete" if incomplete else "")
        return ", ".join(filter(None, ended))

    @property
    def full_name(self) -> str:
        """All tags, from the root's on; for a group or task, its own name."""
        return self.text(semconv.SPAN_NAME) or self.name

    @property
    def label(self) -> str:
        """Its own name, and whether it continues an earlier span."""
        generation = self.number(semconv.SPAN_GENERATION) or 1
        continued = f" (continued, {generation:.0f})" if generation > 1 else ""
        return self.name + continued + self.mark

    def number(self, key: str) -> float | None:
        """Return a numeric attribute; None if it is absent or not a number."""
        return number(self.attributes.get(key))

    def text(self, key: str) -> str:
        """Return a text attribute; empty if it is absent or not text."""
        return text(self.attributes.get(key))


@dataclass(frozen=True)
class Block:
    """A block of a program, whose span has an id of Dask; the exception that ended it, if any."""

    name: str
    span_id: str
    #: Its type, and its message.
    error: tuple[str, str] | None = None
    #: When it began, on the scheduler's clock, as seconds since the epoch; None if it is unknown.
    #: Its span begins with its first tasks.
    began: float | None = None
    #: Why its work was not done at its end, and the next step; None if it was.
    waits: tuple[str, str] | None = None
    #: Whether spans, perhaps its own, had no room in memory.
    lost: bool = False


@dataclass
class Session:
    """The telemetry of one scheduler, as far as it was read.

    `resource` has the attributes of its process; `foreign`, other services' spans in its traces.
    """

    instance: str
    cluster: str
    resource: dict[str, Plain] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    foreign: list[Span] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    #: In the order of time.
    logs: list[Log] = field(default_factory=list)
    bridge: str = ""
    #: Of its root spans.
    profiles: list[Profile] = field(default_factory=list)
    #: The block that the report is about, if any, and the keys of its spans.
    block: Block | None = None
    own: frozenset[tuple[str, str]] = frozenset()

    @property
    def start_ns(self) -> int | None:
        """The earliest known time; None without spans and metrics."""
        starts = [self.metrics.start_ns, *(span.start_ns for span in self.spans)]
        return min((start for start in starts if start is not None), default=None)

    @property
    def end_ns(self) -> int | None:
        """The latest known time."""
        ends = [self.metrics.end_ns, *(span.end_ns for span in self.spans)]
        return max((end for end in ends if end is not None), default=None)

    @property
    def seconds(self) -> float:
        """From start to end."""
        return max(0, (self.end_ns or 0) - (self.start_ns or 0)) / 1e9

    @property
    def title(self) -> str:
        """Its title: its cluster, and when it began."""
        return f"{self.cluster or 'Dask'}, {words.when(self.start_ns)}"

    def happened(self, most: int) -> list[Log]:
        """Return its log records in the order of time; the severest if there are too many."""
        first = sorted(self.logs, key=lambda log: (-log.severity, not log.is_event))[:most]
        return sorted(first, key=lambda log: log.time_ns)

    def warnings(self, most: int | None = None) -> list[Log]:
        """Return the events of the cluster that are warnings or worse."""
        return [log for log in self.logs if log.is_event and log.severity >= semconv.WARN][:most]

    def roots(self) -> list[Span]:
        """Return the spans without a Dask parent."""
        return [
            span
            for span in self.of_type("span")
            if span.attributes.get(semconv.SPAN_ID) == span.attributes.get(semconv.SPAN_ROOT_ID)
        ]

    def of_type(self, kind: str) -> list[Span]:
        """Return the spans of a type in the order of their start."""
        return sorted((s for s in self.spans if s.type == kind), key=lambda s: s.start_ns)


@dataclass
class Skipped:
    """Counts unreadable input, and input beyond the limits."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, example: str = "", count: int = 1) -> None:
        """Count an item of a kind; the first example is kept."""
        self.counts[what] = self.counts.get(what, 0) + count
        if example:
            self.examples.setdefault(what, example)

    def lines(self) -> list[str]:
        """Return a line for each kind."""
        return [
            f"{count:,} × {what}" + (f" ({self.examples[what]})" if what in self.examples else "")
            for what, count in self.counts.items()
        ]


def tree_of(spans: Iterable[Span]) -> tuple[list[Span], dict[tuple[str, str], list[Span]]]:
    """Return the spans without a parent among them, and the children by their parent's key.

    Both are in the order of their start. A cycle, which only a hostile file has, has no root.
    """
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.end_ns))
    keys = {span.key for span in ordered}
    roots: list[Span] = []
    below: dict[tuple[str, str], list[Span]] = {}
    for span in ordered:
        is_root = span.above not in keys or span.above == span.key
        (roots if is_root else below.setdefault(span.above, [])).append(span)
    return roots, below


def subtree(tops: Iterable[Span], below: Mapping[tuple[str, str], list[Span]]) -> list[Span]:
    """Return some spans and all below them, each once, even in a cycle of a hostile file.

    `below` are the children of `tree_of`.
    """
    found = {span.key: span for span in tops}
    new = [*found.values()]
    while new := [one for span in new for one in below.get(span.key, ()) if one.key not in found]:
        found |= {one.key: one for one in new}
    return [*found.values()]


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Return the items by their keys, in their order."""
    found: dict[_Key, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def number(value: Plain) -> float | None:
    """Return a number; None if it is absent or not a number."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def text(value: Plain) -> str:
    """Return a text; empty if it is absent or not text."""
    return value if isinstance(value, str) else ""


def texts(value: Plain) -> list[str]:
    """Return the texts of a list; none if it is absent or no list."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, tuple) else []

"""The timeline's rows as the page's script reads them: small, and packed.

A row is ``[parent, depth, kind, name, start, end, flags, queue, attributes, parts]``: times in
seconds from the run's start, attributes flat as number of the key and value, flags 1 for failed
and 2 for unfinished, parts the seconds of each part of the time or null.
"""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass, field
from typing import Any, Final

from dask_otel import semconv
from dask_otel.report import words
from dask_otel.report.meanings import PARTS, hex_colour
from dask_otel.report.seconds import IDLE, parts, span_activities
from dask_otel.report.telemetry.model import Event, Plain, Run, Span

#: Rows of one timeline. Beyond, the longest groups and tasks stay, and all that failed.
MOST_ROWS: Final = 20_000
#: From this length on a text is kept once; and so many characters of such texts in all.
_LONG, _MOST_LONG = 160, 4_000_000

_KINDS: Final = {"span": 0, "group": 1, "task": 2}
_QUEUE: Final = {"span": semconv.SPAN_QUEUE_TIME, "task": semconv.TASK_QUEUE_TIME}
_FAILED, _UNFINISHED = 1, 2


@dataclass
class Timeline:
    """What the script gets, and how many spans have no row."""

    packed: str
    rows: int
    folded: int


@dataclass
class _Texts:
    """Keys by number, and long texts once."""

    keys: dict[str, int] = field(default_factory=dict)
    long: dict[str, int] = field(default_factory=dict)
    size: int = 0

    def key(self, name: str) -> int:
        return self.keys.setdefault(name, len(self.keys))

    def value(self, value: Plain) -> Any:
        if isinstance(value, tuple):
            value = ", ".join(str(item) for item in value)
        if isinstance(value, float):
            return round(value, 6)
        if not isinstance(value, str) or len(value) < _LONG:
            return value
        if value not in self.long:
            if self.size + len(value) > _MOST_LONG:
                return value[:_LONG] + "…"
            self.size += len(value)
            self.long[value] = len(self.long)
        return [self.long[value]]


def timeline(run: Run, most: int = MOST_ROWS) -> Timeline:
    """Return the rows of a run's traces, in the order of the tree."""
    spans = [*run.spans, *run.foreign]
    kept = _most_important(spans, most)
    begin = min((span.start_ns for span in kept), default=0)
    end = max((span.end_ns for span in kept), default=0)
    texts = _Texts()
    rows = [_row(span, parent, depth, begin, texts) for span, parent, depth in _in_order(kept)]
    data = {
        "start": begin // 1_000_000,
        "length": (end - begin) / 1e9,
        "colours": [hex_colour(part.colour) for part in PARTS],
        "keys": list(texts.keys),
        "long": list(texts.long),
        "rows": rows,
    }
    return Timeline(pack(data), len(rows), len(spans) - len(kept))


def pack(data: Any) -> str:
    """Return a value as JSON, compressed, in base64: text that no markup can be in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode("ascii")


def _most_important(spans: list[Span], most: int) -> list[Span]:
    if len(spans) <= most:
        return spans

    def rank(span: Span) -> tuple[bool, bool, float]:
        return (span.type != "span", not span.failed, -span.seconds)

    return sorted(spans, key=rank)[:most]


def _in_order(spans: list[Span]) -> list[tuple[Span, int, int]]:
    """Return the spans with the row of what is above them and their depth; each once.

    What has no parent here begins a tree; so does one of a circle, which only a hostile file has.
    """
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    children: dict[tuple[str, str], list[Span]] = {}
    roots = []
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns)):
        above = (span.trace_id, span.parent_id)
        if above in by_id and span.parent_id != span.span_id:
            children.setdefault(above, []).append(span)
        else:
            roots.append(span)
    result: list[tuple[Span, int, int]] = []
    seen: set[int] = set()
    for root in (*roots, *spans):
        stack = [(root, -1, 0)]
        while stack:
            span, parent, depth = stack.pop()
            if id(span) in seen:
                continue
            seen.add(id(span))
            row = len(result)
            result.append((span, parent, depth))
            below = children.get((span.trace_id, span.span_id), ())
            stack += [(child, row, depth + 1) for child in reversed(below)]
    return result


def _row(span: Span, parent: int, depth: int, begin: int, texts: _Texts) -> list[Any]:
    kind = span.type
    attributes: list[Any] = []

    def put(key: str, value: Plain) -> None:
        if value is not None:
            attributes.extend((texts.key(key), texts.value(value)))

    if span.service:
        put(semconv.SERVICE_NAME, span.service)
    if span.description:
        put("status", span.description)
    for key, value in span.attributes.items():
        put(key, value)
    for event in span.events[:40]:
        _put_event(event, begin, put)
    put("trace id", span.trace_id)
    seconds = span_activities(span) if kind == "span" else {}
    idle = span.number(semconv.SPAN_IDLE) if kind == "span" else None
    by_part = list(parts({**seconds, IDLE: idle or 0.0}).values())
    queue = span.number(_QUEUE[kind]) if kind in _QUEUE else None
    return [
        parent,
        depth,
        _KINDS.get(kind, 3),
        _name(span),
        round((span.start_ns - begin) / 1e9, 6),
        round((span.end_ns - begin) / 1e9, 6),
        _FAILED * span.failed + _UNFINISHED * span.unfinished,
        # A task's wait is before its start: only a span's is a part of its bar.
        round(queue, 6) if queue is not None and kind == "span" else 0,
        attributes,
        [round(value, 4) for value in by_part] if sum(by_part) > 0 else None,
    ]


def _name(span: Span) -> str:
    if span.type == "task":
        key = span.attributes.get(semconv.TASK_KEY)
        return words.cut(str(key), 120, "…") if key else span.name
    generation = span.number(semconv.SPAN_GENERATION) or 1
    return span.name + (f" (continued, {generation:.0f})" if generation > 1 else "")


def _put_event(event: Event, begin: int, put: Any) -> None:
    when = words.seconds(max(0, event.time_ns - begin) / 1e9)
    if event.name == semconv.EVENT_EXCEPTION:
        for key, value in event.attributes.items():
            put(key, value)
        return
    values = " ".join(
        f"{value:.6g}" if isinstance(value, float) else str(value)
        for value in event.attributes.values()
    )
    put(f"event {event.name}", f"at {when}" + (f": {values}" if values else ""))

"""The timeline's rows for the page's script, small and packed.

A row is ``[parent, depth, kind, name, start, end, flags, queue, attributes, parts]``: times in
seconds from the run's start, attributes flat as number of the key and value, flags 1 for failed
and 2 for unfinished, parts the seconds of each part of the time or null.

A link of a path is ``[row, number of its span, end, parts]``: its task's row, when the scheduler
knew of its end, and the seconds of its parts before that.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from dask_otel import semconv
from dask_otel.report import words
from dask_otel.report.meanings import PART_TITLES, PATH, colour_of
from dask_otel.report.path import link
from dask_otel.report.seconds import own_parts
from dask_otel.report.telemetry.model import Plain, Session, Span, tree_of

#: Most rows of one timeline. Beyond it, only the longest groups and tasks stay, and all failures.
MOST_ROWS: Final = 20_000
#: Texts of this length or more are stored once; and the most characters of such texts in all.
_LONG, _MOST_LONG = 160, 4_000_000

_KINDS: Final = {"span": 0, "group": 1, "task": 2}
_FAILED, _UNFINISHED = 1, 2


@dataclass
class _Texts:
    """A table of keys by number, and of long texts, each once."""

    keys: dict[str, int] = field(default_factory=dict)
    long: dict[str, int] = field(default_factory=dict)
    size: int = 0

    def key(self, name: str) -> int:
        return self.keys.setdefault(name, len(self.keys))

    def value(self, value: Plain) -> Any:
        if isinstance(value, float):
            return round(value, 6)
        value = ", ".join(map(str, value)) if isinstance(value, tuple) else value
        if not isinstance(value, str) or len(value) < _LONG:
            return value
        if value not in self.long:
            if self.size + len(value) > _MOST_LONG:
                return value[:_LONG] + "…"
            self.size += len(value)
        return [self.long.setdefault(value, len(self.long))]


def timeline(session: Session, most: int = MOST_ROWS) -> dict[str, Any]:
    """Return the template's values of the timeline of a run's traces, in the order of the tree.

    They are the script's data, the number of rows, and that of the spans without a row.
    """
    spans = [*session.spans, *session.foreign]
    kept = sorted(spans, key=lambda one: (one.type != "span", not one.failed, -one.seconds))[:most]
    begin = min((span.start_ns for span in kept), default=0)
    end = max((span.end_ns for span in kept), default=0)
    texts = _Texts()
    placed = _in_order(kept)
    rows = [_row(span, parent, depth, begin, texts) for span, parent, depth in placed]
    owners: dict[str, int] = {}
    path = [
        [
            row,
            owners.setdefault(span.text(semconv.SPAN_ID), len(owners)),
            # The task's span ends with its run.
            round((span.end_ns - begin) / 1e9 + parts.get("report", 0.0), 6),
            [round(parts.get(part, 0.0), 6) for part in PATH],
        ]
        for row, (span, _, _) in enumerate(placed)
        if span.attributes.get(semconv.TASK_ON_PATH) is True
        for parts in (link(span),)
    ]
    data = {
        "start": begin // 1_000_000,
        "length": (end - begin) / 1e9,
        "colours": [colour_of(title) for title in PART_TITLES],
        "path": path,
        "events": [
            [(log.time_ns - begin) / 1e9, log.level, log.description[:600]]
            for log in session.warnings(200)
        ],
        "pathParts": [[title, colour_of(title)] for title in PATH.values()],
        "keys": list(texts.keys),
        "long": list(texts.long),
        "rows": rows,
    }
    return {"packed": pack(data), "rows": len(rows), "folded": len(spans) - len(kept)}


def pack(data: Any) -> str:
    """Return a value as compressed JSON in base64, which cannot contain markup."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode("ascii")


def _in_order(spans: list[Span]) -> list[tuple[Span, int, int]]:
    """Return each span once, with the row of its parent and its depth.

    A span in a cycle, which only a hostile file has, begins a tree.
    """
    roots, below = tree_of(spans)
    result: list[tuple[Span, int, int]] = []
    seen: set[int] = set()
    for root in (*roots, *spans):
        stack = [(root, -1, 0)]
        while stack:
            span, parent, depth = stack.pop()
            if id(span) not in seen:
                seen.add(id(span))
                children = reversed(below.get(span.key, ()))
                stack += [(child, len(result), depth + 1) for child in children]
                result.append((span, parent, depth))
    return result


def _row(span: Span, parent: int, depth: int, begin: int, texts: _Texts) -> list[Any]:
    key = span.text(semconv.TASK_KEY) if span.type == "task" else ""
    by_part = list(own_parts(span).values()) if span.type == "span" else []
    # A task waits before its start, so only a span's wait is part of its bar.
    queue = span.number(semconv.SPAN_QUEUE_TIME) if span.type == "span" else None
    return [
        parent,
        depth,
        _KINDS.get(span.type, 3),
        words.cut(key, 120) if key else span.label,
        round((span.start_ns - begin) / 1e9, 6),
        round((span.end_ns - begin) / 1e9, 6),
        _FAILED * span.failed + _UNFINISHED * span.unfinished,
        round(queue or 0, 6),
        [
            number
            for key, value in _details(span, begin)
            if value is not None
            for number in (texts.key(key), texts.value(value))
        ],
        [round(value, 4) for value in by_part] if sum(by_part) > 0 else None,
    ]


def _details(span: Span, begin: int) -> Iterator[tuple[str, Plain]]:
    yield semconv.SERVICE_NAME, span.service or None
    yield "status", span.description or None
    yield from span.attributes.items()
    for event in span.events[:40]:
        if event.name == semconv.EVENT_EXCEPTION:
            yield from event.attributes.items()
            continue
        values = (
            f"{value:.6g}" if isinstance(value, float) else str(value)
            for value in event.attributes.values()
        )
        when = words.seconds(max(0, event.time_ns - begin) / 1e9)
        yield f"event {event.name}", ": ".join(filter(None, (f"at {when}", " ".join(values))))
    yield "trace id", span.trace_id

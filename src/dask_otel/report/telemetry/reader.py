"""Sorts telemetry into sessions: one for each scheduler. Each span is there once.

Spans that a crash left open are there, too, up to their last sign of life.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from dask_otel import semconv
from dask_otel.core.text import full_name, span_tags
from dask_otel.report.telemetry import json_files
from dask_otel.report.telemetry.decoding import Exported, decode
from dask_otel.report.telemetry.model import (
    Plain,
    Session,
    Skipped,
    Span,
    grouped,
    subtree,
    text,
    tree_of,
)

#: Most spans of all sessions. Beyond it, only Dask spans and failures, up to twice as many.
MOST_SPANS: Final = 100_000

#: Most log records of all sessions together.
MOST_LOGS: Final = 20_000

_SIGNS: Final = ("marker", "progress")


class Reader:
    """Collects telemetry, in any order and possibly repeated, into sessions."""

    def __init__(self, most_spans: int = MOST_SPANS) -> None:
        self.skipped = Skipped()
        self._most_spans = most_spans
        self._sessions: dict[tuple[str, str], Session] = {}
        self._seen: set[tuple[str, str]] = set()
        self._logged: set[tuple[str, str]] = set()
        self._foreign: list[Span] = []

    def read(self, paths: Iterable[str | Path]) -> None:
        """Read files and directories.

        Raises
        ------
        FileNotFoundError
            If one of them does not exist, or a directory has nothing to read.
        """
        for path in json_files.find(paths):
            for value in json_files.values(path, self.skipped):
                self.take(value)

    def read_lines(self, lines: bytes) -> None:
        """Read lines of JSON, as in a file."""
        for line in lines.splitlines():
            self.take(json_files.parse(line))

    def take(self, value: Any) -> None:
        """Add a JSON value of any shape."""
        for item in decode(value, self.skipped):
            self._add(item)

    def _add(self, item: Exported) -> None:
        # Other services' spans make no session.
        is_ours = item.points or item.logs or any(span.type for span in item.spans)
        session = self._session(item.resource, item.scope_version) if is_ours else Session("", "")
        for measured in item.points:
            if not session.metrics.add(*measured):
                self.skipped.add("data point of a series beyond the limit")
        for log in item.logs:
            key = (f"{log.time_ns} {log.name}", f"{log.body} {log.attributes}")
            if key in self._logged:
                continue
            if len(self._logged) < MOST_LOGS:
                self._logged.add(key)
                session.logs.append(log)
            else:
                self.skipped.add("log record beyond the limit")
        for span in item.spans:
            if span.key in self._seen:
                continue
            is_important = span.failed or span.type in ("span", *_SIGNS)
            if len(self._seen) >= self._most_spans * (2 if is_important else 1):
                self.skipped.add("span beyond the limit")
                continue
            self._seen.add(span.key)
            if span.type:
                session.spans.append(span)
            else:
                span.service = text(item.resource.get(semconv.SERVICE_NAME)) or "another service"
                self._foreign.append(span)

    def sessions(self) -> list[Session]:
        """Return the runs by their start, each with other services' spans in its traces."""
        for session in self._sessions.values():
            traces = {span.trace_id for span in session.spans}
            session.foreign = [span for span in self._foreign if span.trace_id in traces]
            session.logs.sort(key=lambda log: log.time_ns)
            session.spans = [
                one
                for one in (*session.spans, *_unfinished(session.spans))
                if one.type not in _SIGNS and not _is_empty(one)
            ]
        found = [session for session in self._sessions.values() if session.start_ns is not None]
        return sorted(found, key=lambda session: session.start_ns or 0)

    def _session(self, resource: dict[str, Plain], version: str) -> Session:
        cluster = text(resource.get(semconv.CLUSTER_NAME)) or text(
            resource.get(semconv.SERVICE_NAME)
        )
        instance = text(resource.get(semconv.SERVICE_INSTANCE_ID))
        session = self._sessions.setdefault((instance, cluster), Session(instance, cluster))
        session.resource.update(resource)
        session.bridge = version or session.bridge
        return session


def _is_empty(span: Span) -> bool:
    """Return whether it is Dask's default span without tasks."""
    empty = span.number(semconv.TASK_COUNT) == 0 and not span.failed
    return empty and span.type == "span" and span.full_name == "default"


def _unfinished(spans: list[Span]) -> list[Span]:
    """Return a span for each one with signs of life that was never exported."""
    there = {span.key for span in spans}
    lonely = (span for span in spans if span.type in _SIGNS and span.above not in there)
    signs = grouped(lonely, lambda span: span.above)
    # Prefer an exported span as the parent.
    ids = {(key[0], found[0].full_name): key[1] for key, found in signs.items()}
    ids |= {(one.trace_id, one.full_name): one.span_id for one in spans if one.type == "span"}
    unfinished = []
    for (trace_id, span_id), found in signs.items():
        last = max(found, key=lambda sign: sign.end_ns)
        *tags, name = span_tags(last.full_name) or [""]
        above = full_name(tags)
        one = Span(
            trace_id=trace_id,
            span_id=span_id,
            parent_id=ids.get((trace_id, above), ""),
            name=name or last.name,
            start_ns=min(sign.start_ns for sign in found),
            end_ns=last.end_ns,
            attributes={**last.attributes, semconv.SPAN_TYPE: "span"},
            unfinished=True,
        )
        unfinished.append(one)
    # It was open as long as those below it.
    _, below = tree_of([*spans, *unfinished] if unfinished else ())
    for one in unfinished:
        one.end_ns = max(each.end_ns for each in subtree([one], below))
    return unfinished

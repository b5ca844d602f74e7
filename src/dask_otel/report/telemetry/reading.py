"""Files to runs: which scheduler's it is, each span once, and what a killed one left open."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from dask_otel import semconv
from dask_otel.report.telemetry import files
from dask_otel.report.telemetry.decoding import ResourceMetrics, ResourceSpans, decode
from dask_otel.report.telemetry.model import Plain, Run, Skipped, Span, text

#: Spans that are kept of all runs together. Beyond: only Dask spans and what failed, up to twice.
MOST_SPANS: Final = 100_000

_SIGNS: Final = ("marker", "progress")


class Reader:
    """Takes in telemetry, in any order and more than once; gives runs."""

    def __init__(self, most_spans: int = MOST_SPANS) -> None:
        self.skipped = Skipped()
        self._most_spans = most_spans
        self._runs: dict[tuple[str, str], Run] = {}
        self._spans: dict[tuple[str, str], Span] = {}
        self._foreign: list[Span] = []

    def read(self, paths: Iterable[str | Path]) -> None:
        """Read files and directories.

        Raises
        ------
        FileNotFoundError
            Where one of them is not there, or a directory has nothing to read.
        """
        for path in files.find(paths):
            for value in files.values(path, self.skipped):
                self.take(value)

    def take(self, value: Any) -> None:
        """Take in a JSON value, of whatever shape."""
        for item in decode(value, self.skipped):
            self.add(item)

    def add(self, item: ResourceSpans | ResourceMetrics) -> None:
        """Take in what one process exported at one time."""
        if isinstance(item, ResourceMetrics):
            if item.points:
                metrics = self._run(item.resource, item.scope_version).metrics
                for name, labels, point, monotone, delta in item.points:
                    if not metrics.add(name, labels, point, monotone=monotone, delta=delta):
                        self.skipped.add("data point of a series beyond the limit")
            return
        own = [span for span in item.spans if span.type]
        run = self._run(item.resource, item.scope_version) if own else None
        for span in item.spans:
            if (span.trace_id, span.span_id) in self._spans:
                continue
            count = len(self._spans)
            important = span.failed or span.type in ("span", *_SIGNS)
            if count >= (2 * self._most_spans if important else self._most_spans):
                self.skipped.add("span beyond the limit")
                continue
            self._spans[span.trace_id, span.span_id] = span
            if span.type and run is not None:
                run.spans.append(span)
            else:
                span.service = text(item.resource.get(semconv.SERVICE_NAME)) or "another service"
                self._foreign.append(span)

    def runs(self) -> list[Run]:
        """Return the runs by their start, each with the spans of other services in its traces."""
        for run in self._runs.values():
            traces = {span.trace_id for span in run.spans}
            run.foreign = [span for span in self._foreign if span.trace_id in traces]
            run.spans = [*run.spans, *_unfinished(run.spans)]
            run.spans = [one for one in run.spans if one.type not in _SIGNS and not _is_empty(one)]
        found = [run for run in self._runs.values() if run.start_ns is not None]
        return sorted(found, key=lambda run: run.start_ns or 0)

    def _run(self, resource: dict[str, Plain], version: str) -> Run:
        cluster = text(resource.get(semconv.CLUSTER_NAME)) or text(
            resource.get(semconv.SERVICE_NAME)
        )
        instance = text(resource.get(semconv.SERVICE_INSTANCE_ID))
        run = self._runs.setdefault((instance, cluster), Run(instance, cluster))
        run.resource.update(resource)
        run.bridge = version or run.bridge
        return run


def _is_empty(span: Span) -> bool:
    """Return whether it is what Dask makes for work of no span that has no tasks."""
    empty = span.number(semconv.TASK_COUNT) == 0 and not span.failed
    return empty and span.type == "span" and span.full_name == "default"


def _unfinished(spans: list[Span]) -> list[Span]:
    """Return a span for each that gave signs of life and was never exported."""
    there = {(span.trace_id, span.span_id) for span in spans}
    signs: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        if span.type in _SIGNS and (span.trace_id, span.parent_id) not in there:
            signs.setdefault((span.trace_id, span.parent_id), []).append(span)
    by_name = {
        (span.trace_id, span.full_name): span.span_id for span in spans if span.type == "span"
    }
    for (trace_id, span_id), found in signs.items():
        by_name.setdefault((trace_id, found[0].full_name), span_id)
    result = []
    for (trace_id, span_id), found in signs.items():
        last = max(found, key=lambda sign: sign.end_ns)
        full_name = last.full_name
        above = by_name.get((trace_id, full_name.rpartition("/")[0]), "")
        result.append(
            Span(
                trace_id=trace_id,
                span_id=span_id,
                parent_id=above,
                name=full_name.rpartition("/")[2] or last.name,
                start_ns=min(sign.start_ns for sign in found),
                end_ns=last.end_ns,
                attributes={**last.attributes, semconv.SPAN_TYPE: "span"},
                unfinished=True,
            )
        )
    return result

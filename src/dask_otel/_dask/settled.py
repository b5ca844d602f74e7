"""Answers clients' requests for Dask's spans: waits until a span has settled, then reads it.

The client does not poll, and no delay is guessed: the request waits on the scheduler until the
lifecycle has settled the span.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any, Final, TypeAlias

from distributed.spans import Span

from dask_otel import semconv
from dask_otel._dask.adapter import SchedulerAdapter
from dask_otel._dask.diagnosing import diagnosis
from dask_otel._dask.facts import root_of, trace_of
from dask_otel.core import identity
from dask_otel.core.figures import counted
from dask_otel.core.life.completion import worst
from dask_otel.core.life.open_span import OpenSpan, Phase
from dask_otel.core.life.progress import snapshot
from dask_otel.core.life.summaries import SpanSummary, join_paths, total
from dask_otel.core.path.chain import path_of
from dask_otel.core.records import Progress
from dask_otel.core.text import line_text, listed

#: Dask's name for unmeasured time; see ``Span.cumulative_worker_metrics``.
NOT_MEASURED: Final = ("execute", "N/A", "idle or other spans", "seconds")

#: Most open spans of others whose snapshots are read.
MOST_SHOWN: Final = 100

#: Kind and message; see `dask_otel._wire.Refusal`.
Refused: TypeAlias = tuple[str, str]


class SettledSpans:
    """Returns the metrics of spans once they are complete, on the scheduler's event loop."""

    def __init__(self, adapter: SchedulerAdapter) -> None:
        self._adapter = adapter
        self._spans = adapter.scheduler.extensions["spans"].spans
        #: The scheduler's clients by their ids.
        self.clients = adapter.scheduler.clients
        #: Set at the next change; None while nobody waits.
        self._changed: asyncio.Event | None = None
        self._closed = False

    async def answer(
        self, span_id: str, timeout: float, submitted: bool
    ) -> dict[str, Any] | Refused:
        """Return the metrics of a span as soon as it and the spans below it have settled.

        `submitted` is whether the client's work, and with it the span, may not have arrived yet.
        The answer has the fields of `dask_otel._wire.SpanMetrics`, or those of a refusal.
        """
        refused = await self.wait(span_id, timeout, submitted)
        return refused or self.read(self._spans[span_id])

    async def wait(self, span_id: str, timeout: float, submitted: bool) -> Refused | None:
        """Wait until they have settled; return a refusal if they have not. See `answer`."""
        if span_id not in self._spans and not submitted:
            return _unknown(span_id)
        try:
            await self._settled(span_id, timeout)
        except (TimeoutError, asyncio.TimeoutError):  # two classes on Python 3.10
            if (refused := self._timed_out(span_id, timeout)) is not None:
                return refused
        if self._closed:
            return "closed", f"the bridge was stopped before span {span_id} had settled"
        return None if span_id in self._spans else _unknown(span_id)

    def tree(self, span_id: str) -> list[str]:
        """Return the ids of a span and of those below it; none of an unknown one."""
        top: Span | None = self._spans.get(span_id)
        return [] if top is None else [below.id for below in top.traverse_spans()]

    def snapshots(self, span_id: str, now: float) -> list[Progress]:
        """Return snapshots of the open ones in a span's tree, and of the oldest others."""
        still_open = self._adapter.lifecycle.open
        shown = dict.fromkeys((*self.tree(span_id), *islice(still_open, MOST_SHOWN)))
        return [snapshot(still_open[one], now) for one in shown if one in still_open]

    def notify(self) -> None:
        """Make waiting requests check again: spans may have settled."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    def close(self) -> None:
        """Answer all waiting requests."""
        self._closed = True
        self.notify()

    async def _settled(self, span_id: str, timeout: float) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + timeout
        last: OpenSpan | None = None
        blocks = self._adapter.blocks.blocks
        awaited = blocks.awaits(span_id)
        while not self._closed:
            # Walk the tree only when the unsettled span that was found last has settled.
            if last is None or not self._is_unsettled(last):
                last = None
                if span_id in self._spans:
                    last = next(self._unsettled(self._spans[span_id]), None)
                    if last is None:
                        return
                elif awaited and not blocks.awaits(span_id):
                    # Its block was left, and had no work.
                    return
            if self._changed is None:
                self._changed = asyncio.Event()
            # Not around this method: before Python 3.12, others have their turn after its end, and
            # the span can have work again.
            await asyncio.wait_for(self._changed.wait(), until - clock())

    def _unsettled(self, dask_span: Span) -> Iterator[OpenSpan]:
        open_spans = self._adapter.lifecycle.open
        for below in dask_span.traverse_spans():
            span = open_spans.get(below.id)
            if span is not None and self._is_unsettled(span):
                yield span

    def _is_unsettled(self, span: OpenSpan) -> bool:
        present = self._adapter.lifecycle.open.get(span.identity.dask_id)
        return present is span and span.phase is not Phase.LINGERING

    # ------------------------------------------------------------------------- reading

    def times(self, span_id: str) -> tuple[float, float] | None:
        """Return when the scheduler first saw a span, and when it ended; None for an unknown one.

        The end is infinite while it is open.
        """
        span: Span | None = self._spans.get(span_id)
        lifecycle = self._adapter.lifecycle
        known = span_id not in lifecycle.open and lifecycle.generations.earliest_start(span_id)
        return None if span is None else (float(span.enqueued), known or math.inf)

    def trace_context(self, span_id: str) -> tuple[str, str, bool] | None:
        """Return the fields of `dask_otel._wire.TraceContext`; None for an unknown span.

        They are those of an open span's present generation, or of an exported span's first one. If
        that has been forgotten, they are not "decided": it may have been in a caller's trace.
        """
        span = self._adapter.lifecycle.open.get(span_id)
        if span is not None:
            ident = span.identity
            return f"{ident.trace_id:032x}", f"{ident.span_id:016x}", True
        dask_span = self._spans.get(span_id)
        if dask_span is None:
            return None
        trace = trace_of(dask_span, self._adapter.lifecycle)
        shown = identity.trace_id(root_of(dask_span).id) if trace is None else trace
        return f"{shown:032x}", f"{identity.span_id(span_id):016x}", trace is not None

    def read(self, dask_span: Span) -> dict[str, Any]:
        """Return what is known of a span now; the fields of `dask_otel._wire.SpanMetrics`."""
        tree = dask_span.cumulative_worker_metrics
        dask_idle = tree.pop(NOT_MEASURED, 0.0)
        spans = [*dask_span.traverse_spans()]
        known = [self._adapter.summary(below.id) for below in spans]
        summary = total(known)
        # A span without a summary may have failed.
        complete = None not in known
        seen = complete and not summary.partial
        result = worst(
            "failure" if summary.counts.erred else "success",
            "cancellation" if summary.counts.cancelled else "success",
        )
        stop = max(dask_span.enqueued, summary.stop if seen else dask_span.stop)
        path = self._path(dask_span.id, known[0], stop)
        where = self.trace_context(dask_span.id)
        assert where is not None
        return {
            "id": dask_span.id,
            "name": dask_span.name,
            "root_id": root_of(dask_span).id,
            "trace_id": where[0],
            "span_id": where[1],
            # Unobserved tasks may have failed; a known failure is final.
            "result": result if seen or (complete and result == "failure") else None,
            "enqueued": dask_span.enqueued,
            "start": (summary.first_start if seen else dask_span.start) or None,
            "stop": stop,
            "counts": asdict(summary.counts) if complete else None,
            "own": dict(dask_span._cumulative_worker_metrics),
            "tree": tree,
            "idle_time": summary.idle if complete else None,
            "capacity_time": summary.capacity if complete else None,
            "dask_active_cpu_time": dask_span.active_cpu_seconds,
            "dask_idle_time": dask_idle,
            "unreported": tuple(sorted(summary.unreported)),
            "path": dict(zip(semconv.PATH_PARTS, path, strict=True)) if path else None,
            "diagnosis": diagnosis(self._adapter.scheduler, spans, known, path) if path else (),
        }

    def _path(
        self, span_id: str, summary: SpanSummary | None, stop: float
    ) -> tuple[float, ...] | None:
        """Return the seconds that bounded a span's generations; none or None if unknown."""
        exported = None if summary is None else summary.path
        span = self._adapter.lifecycle.open.get(span_id)
        if span is None:
            return exported
        found = path_of(span, stop)
        return join_paths(exported, None if found is None else found[0].parts)

    def _timed_out(self, span_id: str, timeout: float) -> Refused | None:
        dask_span = self._spans.get(span_id)
        if dask_span is None:
            return _unknown(span_id)
        reasons = [missing(span) for span in self._unsettled(dask_span)]
        if not reasons:
            # They settled in the last moment.
            return None
        return "timeout", f"span {span_id} has not settled within {timeout:g} s: {listed(reasons)}"


def missing(span: OpenSpan) -> str:
    """Return what keeps a span from settling."""
    name = line_text("/".join(map(str, span.identity.tags)))
    if span.unfinished:
        return f"{name} has {counted(span.unfinished, 'unfinished task')}"
    if span.holds:
        return f"the client's block of {name} is still open"
    if span.phase is Phase.OPEN:
        return f"{name} waits for the spans below it"
    return f"{name} waits for the heartbeats of {listed(sorted(span.owing or ['workers']))}"


def _unknown(span_id: str) -> Refused:
    return (
        "unknown",
        f"the scheduler knows no span with the id {line_text(span_id)!r}. A span is known there "
        "once work was submitted inside its block, unless all of it joined task groups of other "
        "spans (https://dask-otel.readthedocs.io/en/stable/lifecycle.html"
        "#why-is-this-work-in-another-span); its id is what `with span(...) as id` gives",
    )

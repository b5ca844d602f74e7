"""Dask's spans for those who ask: waits until one has settled, then reads it.

Nothing is polled by the client, and no delay is guessed: whoever asks waits on the scheduler
for what the lifecycle says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from dask_otel._dask.facts import trace_of
from dask_otel._wire import MetricKey, Refusal, SpanMetrics, TraceContext
from dask_otel.core import identity
from dask_otel.core.life.completion import worst
from dask_otel.core.life.open_span import OpenSpan, Phase
from dask_otel.core.life.summaries import SpanSummary
from dask_otel.core.records import Result
from dask_otel.core.trace import Trace
from dask_otel.core.traces.link import span_hex, trace_hex

if TYPE_CHECKING:
    from distributed.spans import Span

    from dask_otel._dask.adapter import SchedulerAdapter

#: Dask's name for what it did not measure; see ``Span.cumulative_worker_metrics``.
NOT_MEASURED: Final[MetricKey] = ("execute", "N/A", "idle or other spans", "seconds")
#: Spans and workers that a message names.
_NAMED: Final = 5


class SettledSpans:
    """Answers who asks for the metrics of a span, once these are in.

    Parameters
    ----------
    adapter
        Of the scheduler whose spans are asked for.

    Notes
    -----
    All methods belong to the scheduler's event loop.
    """

    def __init__(self, adapter: SchedulerAdapter) -> None:
        self._adapter = adapter
        self._spans = adapter.scheduler.extensions["spans"].spans
        self._waiting: list[asyncio.Event] = []
        self._closed = False

    async def answer(self, span_id: str, timeout: float, submitted: bool) -> SpanMetrics | Refusal:
        """Return the metrics of a span as soon as it and the spans below it have settled.

        Parameters
        ----------
        span_id
            Dask's id.
        timeout
            The longest wait, in seconds.
        submitted
            Whether work of the client may still be on its way here, and with it the span.
        """
        if span_id not in self._spans and not submitted:
            return _unknown(span_id)
        changed = asyncio.Event()
        self._waiting.append(changed)
        try:
            await asyncio.wait_for(self._settled(span_id, changed), timeout)
        except (TimeoutError, asyncio.TimeoutError):  # two classes on Python 3.10
            return self._timed_out(span_id, timeout)
        finally:
            self._waiting.remove(changed)
        if self._closed:
            return Refusal("closed", f"the bridge was stopped before span {span_id} had settled")
        return self._read(self._spans[span_id])

    def notify(self) -> None:
        """Look again: spans may have settled."""
        for event in self._waiting:
            event.set()

    def close(self) -> None:
        """Send everybody away who still waits."""
        self._closed = True
        self.notify()

    async def _settled(self, span_id: str, changed: asyncio.Event) -> None:
        last: OpenSpan | None = None
        while not self._closed:
            # The tree is walked only when the span has settled that was found last.
            if last is None or not self._is_unsettled(last):
                last = None
                if span_id in self._spans:
                    last = next(self._unsettled(self._spans[span_id]), None)
                    if last is None:
                        return
            changed.clear()
            await changed.wait()

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

    def trace_context(self, span_id: str) -> TraceContext | None:
        """Return where a Dask span is found in a tracing backend; None for an unknown one.

        Of one that is open, the generation at hand; of one that has been exported, the first. Not
        as decided where that is forgotten, and may have been a caller's trace.
        """
        span = self._adapter.lifecycle.open.get(span_id)
        if span is not None:
            ident = span.identity
            return TraceContext(trace_hex(ident.trace_id), span_hex(ident.span_id), decided=True)
        dask_span = self._spans.get(span_id)
        if dask_span is None:
            return None
        trace = trace_of(dask_span, self._adapter.lifecycle)
        known = trace is not None
        if trace is None:
            trace = Trace(identity.trace_id(_root_of(dask_span).id))
        return TraceContext(trace_hex(trace), span_hex(identity.span_id(span_id)), decided=known)

    def _read(self, dask_span: Span) -> SpanMetrics:
        tree = dask_span.cumulative_worker_metrics
        dask_idle = tree.pop(NOT_MEASURED, 0.0)
        known = [self._adapter.summary(below.id) for below in dask_span.traverse_spans()]
        summary = SpanSummary()
        for one in known:
            summary.add(one or SpanSummary())
        # One that is not known could have failed.
        complete = None not in known
        seen = complete and not summary.partial
        result = _result(known) if complete else None
        where = self.trace_context(dask_span.id)
        assert where is not None
        return SpanMetrics(
            id=dask_span.id,
            name=dask_span.name,
            root_id=_root_of(dask_span).id,
            trace_id=where.trace_id,
            span_id=where.span_id,
            # Tasks that nobody saw end could have failed, but what has failed has failed.
            result=result if seen or result == "failure" else None,
            enqueued=dask_span.enqueued,
            start=(summary.first_start if seen else dask_span.start) or None,
            stop=max(dask_span.enqueued, summary.stop if seen else dask_span.stop),
            counts=asdict(summary.counts) if complete else None,
            own=dict(dask_span._cumulative_worker_metrics),
            tree=tree,
            idle_time=summary.idle if complete else None,
            capacity_time=summary.capacity if complete else None,
            dask_active_cpu_time=dask_span.active_cpu_seconds,
            dask_idle_time=dask_idle,
            unreported=tuple(sorted(summary.unreported)),
        )

    def _timed_out(self, span_id: str, timeout: float) -> Refusal:
        dask_span = self._spans.get(span_id)
        if dask_span is None:
            return _unknown(span_id)
        missing = [self._missing(span) for span in self._unsettled(dask_span)]
        return Refusal(
            "timeout",
            f"span {span_id} has not settled within {timeout:g} s: {_listed(missing)}",
        )

    def _missing(self, span: OpenSpan) -> str:
        name = "/".join(map(str, span.identity.tags))
        if span.unfinished:
            return f"{name} has {span.unfinished} unfinished tasks"
        if span.holds:
            return f"the client's block of {name} is still open"
        if span.phase is Phase.OPEN:
            return f"{name} waits for the spans below it"
        return f"{name} waits for the heartbeats of {_listed(sorted(span.owing or ['workers']))}"


def _root_of(dask_span: Span) -> Span:
    while dask_span.parent is not None:
        dask_span = dask_span.parent
    return dask_span


def _result(summaries: list[SpanSummary | None]) -> Result:
    results: list[Result] = ["success"]
    for summary in summaries:
        if summary is not None and summary.counts.erred:
            results.append("failure")
        elif summary is not None and summary.counts.cancelled:
            results.append("cancellation")
    return worst(*results)


def _unknown(span_id: str) -> Refusal:
    return Refusal(
        "unknown",
        f"the scheduler knows no span with the id {span_id!r}. A span is known there once work "
        "was submitted inside its block; its id is what `with span(...) as id` gives",
    )


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f", and {more} more" if more > 0 else "")

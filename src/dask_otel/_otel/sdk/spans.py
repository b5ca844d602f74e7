"""Spans through the tracer provider that the application has set."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import SpanContext, StatusCode

from dask_otel import semconv
from dask_otel._otel.sdk.sampling import KINDS, SAMPLED, TraceSampler
from dask_otel._otel.sdk.transport import uninstrumented
from dask_otel.core.records import Answer, Row, SpanRecord

logger = logging.getLogger("distributed.dask_otel")


class _Ids(IdGenerator):
    """Gives our tracer the ids of the record at hand, in the thread that has one at hand.

    The SDK hands out one tracer for a name: bridges of several schedulers share it.
    """

    def __init__(self, otherwise: IdGenerator) -> None:
        self.record = threading.local()
        self._otherwise = otherwise

    def generate_trace_id(self) -> int:
        ids: tuple[int, int] | None = getattr(self.record, "ids", None)
        return self._otherwise.generate_trace_id() if ids is None else ids[0]

    def generate_span_id(self) -> int:
        ids: tuple[int, int] | None = getattr(self.record, "ids", None)
        return self._otherwise.generate_span_id() if ids is None else ids[1]


class ProviderSpanSink:
    """Spans through the tracer provider that the application has set, with our ids.

    Its sampler, processors, limits and resource apply, and it is never shut down by us.
    """

    name = "the application's tracer provider"
    #: It does not say what has arrived.
    key = None
    advice = "Check the exporters of the application."
    patience = 0.0
    loss = "error"

    def __init__(self, provider: TracerProvider, version: str) -> None:
        tracer: Any = provider.get_tracer(
            semconv.SCOPE_NAME, version, schema_url=semconv.SCHEMA_URL
        )
        self._tracer = tracer
        # The provider's own sampler decides; asked for the trace, so that spans that come
        # before their root follow it.
        self._sampler = TraceSampler(provider.sampler)
        ids = getattr(tracer, "id_generator", None)
        if not isinstance(ids, _Ids):
            # A plain attribute of our own tracer: other tracers of the provider keep theirs.
            ids = _Ids(ids or provider.id_generator)
            tracer.id_generator = ids
        self._ids: _Ids = ids
        self._warned = False

    def wants(self, record: SpanRecord) -> bool:
        """Whether the trace is sampled; the provider decides about each span itself."""
        return self._sampler.span(record)

    def encode(self, record: SpanRecord) -> SpanRecord:
        """Return the record itself."""
        return record

    def send(self, rows: Sequence[Row], _longest: float) -> Answer:
        """Start and end each span, with the times of the record."""
        lost = 0
        with uninstrumented():
            for row in rows:
                try:
                    self._replay(row.body)
                except Exception:
                    # One of the application's processors; others may have taken the span.
                    lost += 1
                    if not self._warned:
                        self._warned = True
                        logger.warning(
                            "dask-otel: the application's tracer provider raised", exc_info=True
                        )
        return Answer(True, lost=lost)

    def _replay(self, record: SpanRecord) -> None:
        self._ids.record.ids = (int(record.trace_id), record.span_id)
        try:
            span = self._tracer.start_span(
                record.name,
                self._sampler.parent(record),
                KINDS[record.kind],
                dict(record.attributes),
                [
                    SdkLink(
                        SpanContext(link.trace_id, link.span_id, False, SAMPLED),
                        dict(link.attributes),
                    )
                    for link in record.links
                ],
                record.start_ns,
                record_exception=False,
            )
        finally:
            # A processor may start spans of its own with this tracer, in this thread.
            self._ids.record.ids = None
        for event in record.events:
            span.add_event(event.name, dict(event.attributes), event.time_ns)
        if record.error is not None:
            span.set_status(StatusCode.ERROR, record.error)
        span.end(record.end_ns)

    def close(self) -> None:
        """Leave the application's provider alone."""


def application_provider() -> TracerProvider | None:
    """Return the SDK tracer provider that the application has set globally, if any."""
    provider = trace_api.get_tracer_provider()
    return provider if isinstance(provider, TracerProvider) else None

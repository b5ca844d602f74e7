"""Spans through the application's tracer provider."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from dask_otel import semconv
from dask_otel._log import logger
from dask_otel._otel.sdk.sampling import SAMPLED, TraceSampler, parent_of
from dask_otel._otel.sdk.transport import uninstrumented
from dask_otel.core.records import Answer, Row, SpanRecord
from dask_otel.pump.destination import Destination
from dask_otel.pump.thread import promptly

_ADVICE: Final = "Check the exporters of the application, or set otel.provider to own."


class _AtHand(threading.local, IdGenerator, Sampler):
    """Gives our tracer the present record's ids, and samples it: its trace is already decided.

    Each thread has its own record, since bridges of several schedulers share the tracer: the SDK
    returns the same one for a name.
    """

    #: Ids of the trace and the span; None without a present record.
    ids: tuple[int, int] | None = None

    def __init__(self, ids: IdGenerator, sampler: Sampler) -> None:
        self._ids_of_others = ids
        self._sampler_of_others = sampler

    def generate_trace_id(self) -> int:
        return self._ids_of_others.generate_trace_id() if self.ids is None else self.ids[0]

    def should_sample(self, *args: Any, **options: Any) -> SamplingResult:
        sampler = self._sampler_of_others if self.ids is None else ALWAYS_ON
        return sampler.should_sample(*args, **options)

    def generate_span_id(self) -> int:
        # Reset last: a processor may start its own spans with this tracer, in this thread.
        ids, self.ids = self.ids, None
        return self._ids_of_others.generate_span_id() if ids is None else ids[1]

    def get_description(self) -> str:
        return self._sampler_of_others.get_description()


class ProviderSpanSink:
    """Spans through the application's tracer provider, with our ids.

    The provider's sampler, processors, limits and resource apply. We never shut it down.

    Parameters
    ----------
    provider
        The application's provider.
    version
        The bridge's version.
    sampler
        Asks the provider's sampler once for each root, not for each span.
    """

    signal = "traces"
    #: No spool: the provider does not report which spans have arrived.
    key: str | None = None
    loss = "error"

    def __init__(self, provider: TracerProvider, version: str, sampler: TraceSampler) -> None:
        tracer: Any = provider.get_tracer(
            semconv.SCOPE_NAME, version, schema_url=semconv.SCHEMA_URL
        )
        self.destination = Destination("the application's tracer provider", advice=_ADVICE)
        self._tracer = tracer
        self.wants: Callable[[Any], bool] = lambda record: sampler.decides(record.trace_id)
        ids = getattr(tracer, "id_generator", None)
        if not isinstance(ids, _AtHand):
            # Change only our own tracer's attributes: the provider's other tracers keep theirs.
            ids = _AtHand(ids or provider.id_generator, provider.sampler)
            tracer.id_generator = tracer.sampler = ids
        self._at_hand: _AtHand = ids
        self._warned = False

    def encode(self, record: SpanRecord) -> SpanRecord:
        """Return the record itself."""
        return record

    def send(self, rows: Sequence[Row], _longest: float) -> Answer:
        """Start and end each span, with the times of the record."""
        # Private in the SDK: where it is named otherwise, we believe that there are some.
        if not getattr(getattr(self._tracer, "span_processor", None), "_span_processors", True):
            return Answer(False, "it has no span processor, so its spans go nowhere")
        lost = 0
        with uninstrumented():
            for row in rows:
                try:
                    lost += not self._replay(row.body)
                except BaseException:
                    # One of the application's processors failed; others may have the span.
                    lost += 1
                    if not self._warned:
                        self._warned = True
                        logger.warning(
                            "dask-otel: the application's tracer provider raised", exc_info=True
                        )
        return Answer(True, lost=lost)

    def _replay(self, record: SpanRecord) -> bool:
        """Return whether it was accepted: the application may have disabled our tracer."""
        self._at_hand.ids = (int(record.trace_id), record.span_id)
        try:
            span = self._tracer.start_span(
                record.name,
                parent_of(record),
                SpanKind[record.kind.upper()],
                dict(record.attributes),
                [
                    SdkLink(SpanContext(link.trace_id, link.span_id, False, SAMPLED))
                    for link in record.links
                ],
                record.start_ns,
                record_exception=False,
            )
        finally:
            self._at_hand.ids = None
        if not span.is_recording():
            return False
        for event in record.events:
            span.add_event(event.name, dict(event.attributes), event.time_ns)
        if record.error is not None:
            span.set_status(StatusCode.ERROR, record.error)
        span.end(record.end_ns)
        return True

    def close(self) -> None:
        """Do nothing: the provider belongs to the application."""


def application_provider() -> TracerProvider | None:
    """Return the SDK tracer provider that the application has set globally, if any."""
    # It may have to be loaded first.
    provider = promptly(trace_api.get_tracer_provider)
    return provider if isinstance(provider, TracerProvider) else None

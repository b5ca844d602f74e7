"""Span sinks: finished spans to an exporter, or through the application's own provider."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, TypeVar

from opentelemetry import trace as trace_api
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event as SdkEvent
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler, SamplingResult
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import SpanContext, Status, StatusCode

from dask_otel import semconv
from dask_otel._otel.sdk.answers import ExporterLogs, uninstrumented
from dask_otel._otel.sdk.environment import count
from dask_otel._otel.sdk.exporters import NamedExporter
from dask_otel._otel.sdk.sampling import (
    KINDS,
    SAMPLED,
    TraceSampler,
    flags_of,
    parent_of,
    state_of,
    trace_of,
)
from dask_otel._otel.sdk.sink import ExporterSink
from dask_otel.core.records import Attributes, Origin, SpanRecord
from dask_otel.core.text import CUT
from dask_otel.pump.breath import MadeInBreaths

logger = logging.getLogger("distributed.dask_otel")

_UNSET: Final = Status()
_LIMITS: Final = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
)

Item = TypeVar("Item")


class _Origin(NamedTuple):
    """An earlier run, and what its spans are made with."""

    origin: Origin
    resource: Resource
    scope: InstrumentationScope


#: Earlier runs that are kept at hand.
_MOST_ORIGINS: Final = 256


def scope(version: str) -> InstrumentationScope:
    """Return the instrumentation scope of everything we export."""
    return InstrumentationScope(semconv.SCOPE_NAME, version, semconv.SCHEMA_URL)


class ReadableSpans:
    """Makes the SDK's spans of records, within the limits of the standard variables.

    Raises
    ------
    ConfigurationError
        If one of these variables has a value that is not allowed.
    """

    def __init__(self, resource: Resource, version: str) -> None:
        self._resource = resource
        self._scope = scope(version)
        for variable in _LIMITS:
            # The SDK raises as well, in old versions without naming the variable.
            count(variable, 0)
        self._limits = SpanLimits()
        self._origins: dict[int, _Origin] = {}

    def make(self, record: SpanRecord) -> ReadableSpan:
        """Return the SDK's span."""
        limits = self._limits
        parent = None
        trace_id = int(record.trace_id)
        trace = trace_of(record)
        state, flags = state_of(trace), flags_of(trace)
        resource, its_scope = self._resource, self._scope
        if record.origin is not None:
            _, resource, its_scope = self._of(record.origin)
        if record.parent_span_id is not None:
            parent = SpanContext(
                trace_id, record.parent_span_id, record.remote_parent, flags, state
            )
        return ReadableSpan(
            name=record.name,
            context=SpanContext(trace_id, record.span_id, False, flags, state),
            parent=parent,
            resource=resource,
            attributes=_attributes(
                record.attributes, limits.max_span_attributes, limits.max_span_attribute_length
            ),
            events=_first(self._events(record), limits.max_events),
            links=_first(self._links(record), limits.max_links),
            kind=KINDS[record.kind],
            status=_UNSET if record.error is None else Status(StatusCode.ERROR, record.error),
            start_time=record.start_ns,
            end_time=record.end_ns,
            instrumentation_scope=its_scope,
        )

    def _of(self, origin: Origin) -> _Origin:
        """Return what goes with the spans of an earlier run: there are a few of these."""
        found = self._origins.get(id(origin))
        if found is None:
            if len(self._origins) >= _MOST_ORIGINS:
                self._origins.clear()
            found = _Origin(origin, Resource(dict(origin.resource)), scope(origin.version))
            # It keeps the origin: no other one can have that identity.
            self._origins[id(origin)] = found
        return found

    def _events(self, record: SpanRecord) -> list[SdkEvent]:
        most, length = self._limits.max_event_attributes, self._limits.max_attribute_length
        return [
            SdkEvent(event.name, _attributes(event.attributes, most, length), event.time_ns)
            for event in record.events
        ]

    def _links(self, record: SpanRecord) -> list[SdkLink]:
        most, length = self._limits.max_link_attributes, self._limits.max_attribute_length
        return [
            SdkLink(
                SpanContext(link.trace_id, link.span_id, False, SAMPLED),
                _attributes(link.attributes, most, length),
            )
            for link in record.links
        ]


def _first(items: list[Item], limit: int | None) -> Sequence[Item]:
    """Return the first items; the SDK's bounded list carries the count of the others."""
    if limit is None or len(items) <= limit:
        return items
    bounded = BoundedList[Item](limit)
    bounded.extend(items[:limit])
    bounded.dropped = len(items) - limit
    return bounded


def _attributes(attributes: Attributes, most: int | None, length: int | None) -> Any:
    """Return the first attributes, with long texts cut; see `_first`."""
    kept: dict[str, Any] = dict(attributes)
    if length is not None:
        kept = {key: _cut(value, length) for key, value in kept.items()}
    if most is None or len(kept) <= most:
        return kept
    bounded = BoundedAttributes(most, dict(list(kept.items())[:most]), immutable=False)
    bounded.dropped = len(kept) - most
    return bounded


def _cut(value: Any, length: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_cut(item, length) for item in value)
    if isinstance(value, str) and len(value) > length:
        return value[: max(0, length - 1)] + CUT[:length]
    return value


class ExporterSpanSink(ExporterSink):
    """Spans to one exporter, through its public ``export``."""

    loss = "rejected"

    def __init__(
        self, named: NamedExporter, spans: ReadableSpans, sampler: TraceSampler, logs: ExporterLogs
    ) -> None:
        super().__init__(named, logs)
        self._spans = spans
        self._sampler = sampler

    def wants(self, record: SpanRecord) -> bool:
        """Whether the span is sampled."""
        return self._sampler.span(record)

    def export(self, records: Sequence[SpanRecord]) -> bool:
        """Export; raises what can't be encoded."""
        spans = MadeInBreaths(records, self._spans.make, self._breathe)
        ok = self._exporter.export(spans, SpanExportResult.SUCCESS)
        exporter = self._exporter
        self.rejected, self.lost, self.said = exporter.rejected, exporter.lost, exporter.said
        if not ok:
            # Newer exporters swallow what can't be encoded, and say no.
            for record in records:
                _check_texts(record)
        return ok


def _check_texts(record: SpanRecord) -> None:
    """Raise what the encoder of OTLP raises for a text that is no Unicode."""
    record.name.encode()
    (record.error or "").encode()
    for event in record.events:
        event.name.encode()


class _AtHand(IdGenerator, Sampler):
    """Gives our tracer the ids of the record at hand, in the thread that has one, and samples it.

    For whether its trace is sampled has been decided. The SDK hands out one tracer for a name:
    bridges of several schedulers share it.
    """

    def __init__(self, ids: IdGenerator, sampler: Sampler) -> None:
        self._record = threading.local()
        self._ids_of_others = ids
        self._sampler_of_others = sampler

    @property
    def ids(self) -> tuple[int, int] | None:
        """Ids of the trace and the span; None where no record is at hand."""
        ids: tuple[int, int] | None = getattr(self._record, "ids", None)
        return ids

    @ids.setter
    def ids(self, ids: tuple[int, int] | None) -> None:
        self._record.ids = ids

    def generate_trace_id(self) -> int:
        return self._ids_of_others.generate_trace_id() if self.ids is None else self.ids[0]

    def should_sample(self, *args: Any, **options: Any) -> SamplingResult:
        sampler = self._sampler_of_others if self.ids is None else ALWAYS_ON
        return sampler.should_sample(*args, **options)

    def generate_span_id(self) -> int:
        # It comes last: a processor may start spans of its own with this tracer, in this thread.
        ids, self.ids = self.ids, None
        return self._ids_of_others.generate_span_id() if ids is None else ids[1]

    def get_description(self) -> str:
        return self._sampler_of_others.get_description()


class ProviderSpanSink:
    """Spans through the tracer provider that the application has set, with our ids.

    Its sampler, processors, limits and resource apply, and it is never shut down by us.

    Parameters
    ----------
    provider
        The application's.
    version
        Of the bridge.
    sampler
        Asks the provider's sampler, once for each root; its spans do not ask again.
    """

    name = "the application's tracer provider"
    #: It does not say what has arrived.
    key = None
    retries = None
    advice = "Check the exporters of the application."
    rejected = False
    loss = "error"
    #: What the servers say is between them and the application's exporters.
    said = ""

    def __init__(self, provider: TracerProvider, version: str, sampler: TraceSampler) -> None:
        self.lost = 0
        tracer: Any = provider.get_tracer(
            semconv.SCOPE_NAME, version, schema_url=semconv.SCHEMA_URL
        )
        self._tracer = tracer
        self._sampler = sampler
        ids = getattr(tracer, "id_generator", None)
        if not isinstance(ids, _AtHand):
            # Plain attributes of our own tracer: other tracers of the provider keep theirs.
            ids = _AtHand(ids or provider.id_generator, provider.sampler)
            tracer.id_generator = tracer.sampler = ids
        self._at_hand: _AtHand = ids
        self._warned = False

    def surroundings(self) -> AbstractContextManager[None]:
        """See `dask_otel.pump.sinks.Sink`. The application's messages stay in the log."""
        return uninstrumented()

    def wants(self, record: SpanRecord) -> bool:
        """Whether the span is sampled."""
        return self._sampler.span(record)

    def export(self, records: Sequence[SpanRecord]) -> bool:
        """Start and end each span, with the times of the record."""
        self.lost = 0
        for record in records:
            try:
                self._replay(record)
            except BaseException:
                # One of the application's processors; others may have taken the span.
                self.lost += 1
                if not self._warned:
                    self._warned = True
                    logger.warning(
                        "dask-otel: the application's tracer provider raised", exc_info=True
                    )
        return True

    def _replay(self, record: SpanRecord) -> None:
        self._at_hand.ids = (int(record.trace_id), record.span_id)
        try:
            span = self._tracer.start_span(
                record.name,
                parent_of(record),
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
            self._at_hand.ids = None
        if not span.is_recording():
            # The application has switched our tracer off.
            self.lost += 1
            return
        for event in record.events:
            span.add_event(event.name, dict(event.attributes), event.time_ns)
        if record.error is not None:
            span.set_status(StatusCode.ERROR, record.error)
        span.end(record.end_ns)

    def last_error(self) -> str:
        """Return nothing: the provider does not tell."""
        return ""

    def shutdown(self) -> None:
        """Leave the application's provider alone."""


def application_provider() -> TracerProvider | None:
    """Return the SDK tracer provider that the application has set globally, if any."""
    provider = trace_api.get_tracer_provider()
    return provider if isinstance(provider, TracerProvider) else None

"""The sinks of the pump: what is recorded is encoded here, and sent by a transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dask_otel._otel.sdk.encode import Encoder
from dask_otel._otel.sdk.exporters import Destination
from dask_otel._otel.sdk.sampling import TraceSampler
from dask_otel.core.records import Answer, MetricRecord, Row, SpanRecord
from dask_otel.pump.breath import Breath

#: At the end, seconds for which a collector may come back to an endpoint that somebody named.
_PATIENCE: Final = 1.0


class _Sink:
    def __init__(self, destination: Destination, encoder: Encoder) -> None:
        self.name = destination.label
        #: Of its rows in the spool; None if they are not kept there.
        self.key = destination.key
        self.advice = destination.advice
        self.patience = _PATIENCE if destination.named else 0.0
        self.close = destination.transport.close
        self.transport = destination.transport
        self._encoder = encoder


class ExporterSpanSink(_Sink):
    """Spans to one destination."""

    loss = "rejected"

    def __init__(self, destination: Destination, encoder: Encoder, sampler: TraceSampler) -> None:
        super().__init__(destination, encoder)
        self._sampler = sampler

    def wants(self, record: SpanRecord) -> bool:
        """Whether the span is sampled."""
        return self._sampler.span(record)

    def encode(self, record: SpanRecord) -> bytes:
        """Return the bytes of a span."""
        return self._encoder.span(record)

    def send(self, rows: Sequence[Row], longest: float) -> Answer:
        """Send one request."""
        return self.transport.send(self._encoder.request(rows), longest)


class ExporterMetricSink(_Sink):
    """Metrics to one destination: points that the bridge added up itself."""

    def __init__(self, destination: Destination, encoder: Encoder) -> None:
        super().__init__(destination, encoder)
        self._breathe = Breath()

    def send(self, records: Sequence[MetricRecord], longest: float) -> Answer:
        """Send one request."""
        return self.transport.send(self._encoder.metrics(records, self._breathe), longest)

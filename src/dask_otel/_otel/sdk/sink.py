"""The sinks of the pump: records are encoded here, and sent by a transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from dask_otel._otel.sdk.encode import Encoder
from dask_otel._otel.sdk.exporters import Destination
from dask_otel._otel.sdk.sampling import TraceSampler
from dask_otel.core.records import Answer
from dask_otel.pump.breath import Breath

#: At the end, seconds for which a collector may come back to an endpoint that somebody named.
_PATIENCE: Final = 1.0


class _Sink:
    def __init__(
        self, destination: Destination, encode_request: Callable[[Sequence[Any]], bytes]
    ) -> None:
        self.name = destination.label
        #: Of its rows in the spool; None if they are not kept there.
        self.key = destination.key
        self.advice = destination.advice
        self.patience = _PATIENCE if destination.named else 0.0
        self.transport = destination.transport
        self.close = destination.transport.close
        self._encode_request = encode_request

    def send(self, items: Sequence[Any], longest: float) -> Answer:
        """Send one request."""
        return self.transport.send(self._encode_request(items), longest)


class ExporterSpanSink(_Sink):
    """Spans to one destination."""

    loss = "rejected"

    def __init__(self, destination: Destination, encoder: Encoder, sampler: TraceSampler) -> None:
        super().__init__(destination, encoder.request)
        self.wants = sampler.span
        self.encode = encoder.span


class ExporterMetricSink(_Sink):
    """Metrics to one destination: points that the bridge added up itself."""

    def __init__(self, destination: Destination, encoder: Encoder) -> None:
        super().__init__(destination, partial(encoder.metrics, breathe=Breath()))

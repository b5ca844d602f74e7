"""The pump's sinks: they encode records, and send them by a transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from dask_otel._otel.sdk.encode import Encoder
from dask_otel._otel.sdk.exporters import Destination
from dask_otel._otel.sdk.sampling import TraceSampler
from dask_otel.core.records import Answer, LogRecord
from dask_otel.pump.breath import Breath

#: Seconds to wait at the end for a collector to return, if the user configured the endpoint.
_PATIENCE: Final = 1.0


class _Sink:
    loss = "rejected"

    def __init__(
        self, destination: Destination, encode_request: Callable[[Sequence[Any]], bytes]
    ) -> None:
        self.name = destination.label
        #: The key of its rows in the spool; None if they are not stored there.
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

    def __init__(self, destination: Destination, encoder: Encoder, sampler: TraceSampler) -> None:
        super().__init__(destination, encoder.request)
        self.wants = sampler.span
        self.encode = encoder.span


class ExporterLogSink(_Sink):
    """Log records to one destination."""

    def __init__(self, destination: Destination, encoder: Encoder) -> None:
        super().__init__(destination, encoder.request)
        self.encode = encoder.log

    def wants(self, _record: LogRecord) -> bool:
        """Whether it is sampled: log records are not."""
        return True


class ExporterMetricSink(_Sink):
    """Metrics to one destination: points from the bridge's own totals."""

    def __init__(self, destination: Destination, encoder: Encoder) -> None:
        super().__init__(destination, partial(encoder.metrics, breathe=Breath()))

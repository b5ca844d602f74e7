"""The pump's sinks: they encode records, and send them by a transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from dask_otel._otel.sdk.encode import Encoder
from dask_otel._otel.sdk.exporters import Exporter
from dask_otel._otel.sdk.sampling import TraceSampler
from dask_otel.core.records import Answer
from dask_otel.pump.breath import Breath

#: Seconds to wait at the end for a collector to return, if the user configured the endpoint.
_PATIENCE: Final = 1.0


class ExporterSink:
    """The way of one signal to one destination.

    Parameters
    ----------
    exporter
        Its transport.
    encode_request
        Returns the bytes of a request, of rows or of metrics.
    encode
        Returns the body of a row; metrics need none.
    wants
        Whether a record is sampled; by default all are.
    """

    loss = "rejected"
    max_points: int | None = 200

    def __init__(
        self,
        exporter: Exporter,
        encode_request: Callable[[Sequence[Any]], bytes],
        encode: Callable[[Any], Any] = bytes,
        wants: Callable[[Any], bool] = lambda _: True,
    ) -> None:
        self.signal, self.destination = exporter.signal, exporter.destination
        self.key = exporter.key
        self.patience = _PATIENCE if exporter.named else 0.0
        self.transport = exporter.transport
        self.close = exporter.transport.close
        self.encode, self.wants = encode, wants
        self._encode_request = encode_request

    def send(self, items: Sequence[Any], longest: float) -> Answer:
        """Send one request."""
        return self.transport.send(self._encode_request(items), longest)


def sink_of(exporter: Exporter, encoder: Encoder, sampler: TraceSampler) -> ExporterSink:
    """Return the sink of an exporter."""
    if exporter.signal == "metrics":
        return ExporterSink(exporter, partial(encoder.metrics, breathe=Breath()))
    if exporter.signal == "logs":
        return ExporterSink(exporter, encoder.request, encoder.log)
    return ExporterSink(exporter, encoder.request, encoder.span, sampler.span)

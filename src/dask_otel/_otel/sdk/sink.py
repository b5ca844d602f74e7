"""The pump's sinks: they encode records, and send them by a transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from dask_otel._otel.sdk.encode import Encoder
from dask_otel._otel.sdk.foreign import ForeignExporter
from dask_otel._otel.sdk.otlp_json import FileTransport, RecorderTransport
from dask_otel._otel.sdk.sampling import TraceSampler
from dask_otel._otel.sdk.transport import Transport
from dask_otel.core.records import Answer
from dask_otel.pump.breath import Breath
from dask_otel.pump.destination import Destination


class ExporterSink:
    """The way of one signal to one destination.

    Parameters
    ----------
    encoder, sampler
        Make the bytes, and decide which spans are sent.
    signal
        ``"traces"``, ``"metrics"`` or ``"logs"``.
    destination, transport
        Where it goes, and how.
    named
        Whether the user configured the exporter or its server.
    key
        The key of its spans in the spool: its name in OTEL_TRACES_EXPORTER. None for an exporter
        that accepts everything at once, so that nothing waits.
    """

    loss = "rejected"
    max_points: int | None = 200

    def __init__(
        self,
        encoder: Encoder,
        sampler: TraceSampler,
        signal: str,
        destination: Destination,
        transport: Transport | ForeignExporter | FileTransport | RecorderTransport,
        named: bool = True,
        key: str | None = None,
    ) -> None:
        self.signal, self.destination, self.transport = signal, destination, transport
        self.key, self.named = key, named
        self.close = transport.close
        self.encode: Callable[[Any], bytes] = encoder.log if signal == "logs" else encoder.span
        #: Log records are not sampled, nor is what stays in memory.
        whole = signal != "traces" or isinstance(transport, RecorderTransport)
        self.wants: Callable[[Any], bool] = lambda one: whole or sampler.decides(one.trace_id)
        self._request: Callable[[Sequence[Any]], bytes] = (
            partial(encoder.metrics, breathe=Breath()) if signal == "metrics" else encoder.request
        )

    def send(self, items: Sequence[Any], longest: float) -> Answer:
        """Send one request."""
        return self.transport.send(self._request(items), longest)


#: Makes a sink of a signal, its destination and its transport; see `ExporterSink`.
MakeSink: TypeAlias = Callable[..., ExporterSink]

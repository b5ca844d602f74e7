"""What the sinks of spans and of metrics share: an exporter, and what came of its last call."""

from __future__ import annotations

from typing import Final

from dask_otel._otel.sdk.answers import ExporterLogs, WatchedExporter
from dask_otel._otel.sdk.exporters import Made
from dask_otel._otel.sdk.retries import ExporterRetries
from dask_otel.pump.breath import Breath
from dask_otel.pump.sinks import Retries

#: At the end, seconds for which a collector may come back to an endpoint that somebody named.
_PATIENCE: Final = 1.0


class ExporterSink:
    """One exporter as the pump sees it; see `dask_otel.pump.sinks.Sink`."""

    def __init__(self, made: Made, logs: ExporterLogs) -> None:
        self.name = made.label
        self.rejected = False
        self.lost = 0
        self.said = ""
        exporter = WatchedExporter(made.exporter, made.answers, logs)
        self.surroundings = exporter.surroundings
        self.last_error = exporter.last_error
        self.shutdown = exporter.shutdown
        self.retries: Retries | None = ExporterRetries(
            made.exporter, exporter.answers, _PATIENCE if made.named else 0.0
        )
        self._exporter = exporter
        self._breathe = Breath()

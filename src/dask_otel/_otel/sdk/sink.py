"""What the sinks of spans and of metrics share: an exporter, and what came of its last call."""

from __future__ import annotations

from dask_otel._otel.sdk.answers import ExporterLogs, WatchedExporter
from dask_otel._otel.sdk.exporters import NamedExporter
from dask_otel.pump.breath import Breath


class ExporterSink:
    """One exporter as the pump sees it; see `dask_otel.pump.sinks.Sink`."""

    def __init__(self, named: NamedExporter, logs: ExporterLogs) -> None:
        self.name = named.label
        self.advice = named.advice
        self.rejected = False
        self.lost = 0
        self.said = ""
        exporter = WatchedExporter(named.exporter, named.answers, logs)
        self.surroundings = exporter.surroundings
        self.last_error = exporter.last_error
        self.shutdown = exporter.shutdown
        self._exporter = exporter
        self._breathe = Breath()

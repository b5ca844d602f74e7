"""What the sinks of spans and of metrics share: an exporter, and what came of its last call."""

from __future__ import annotations

from typing import Final

from dask_otel._otel.sdk.answers import ExporterLogs, WatchedExporter
from dask_otel._otel.sdk.exporters import NamedExporter
from dask_otel._otel.sdk.retries import ExporterRetries
from dask_otel.pump.breath import Breath
from dask_otel.pump.sinks import Retries

#: At the end, seconds for which a collector may come back to an endpoint that somebody named.
_PATIENCE: Final = 1.0


class ExporterSink:
    """One exporter as the pump sees it; see `dask_otel.pump.sinks.Sink`."""

    def __init__(self, named: NamedExporter, logs: ExporterLogs) -> None:
        self.name = named.label
        #: Of its rows in the spool; None if they are not kept there.
        self.key = named.key
        self.advice = named.advice
        self.rejected = False
        self.lost = 0
        self.said = ""
        exporter = WatchedExporter(named.exporter, named.answers, logs)
        self.surroundings = exporter.surroundings
        self.last_error = exporter.last_error
        self.shutdown = exporter.shutdown
        self.retries: Retries | None = ExporterRetries(
            named.exporter, exporter.answers, _PATIENCE if named.named else 0.0
        )
        self._exporter = exporter
        self._breathe = Breath()

"""Exporters that write OTLP/JSON into files, after OpenTelemetry's OTLP File Exporter
(https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/).

Why not OpenTelemetry Python's own, ``opentelemetry-exporter-otlp-json-file``: 0.66b1 is a
pre-release that pins one minor release of the SDK (``~=1.45.1``, where the bridge takes 1.28 and
later), and it neither names, rotates nor bounds files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.trace.export import SpanExportResult

from dask_otel._otel.sdk import otlp_json
from dask_otel._otel.sdk.exporters import NamedExporter
from dask_otel.pump.breath import Breath
from dask_otel.pump.rotated import RotatedFile
from dask_otel.settings.problems import ConfigurationError

#: Of names that become part of a file's name.
_LONGEST_NAME: Final = 60
_ADVICE: Final = "Check otel.files.path: may the scheduler write there, and is there room?"


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where files are written, and how much: the section ``otel.files``."""

    path: str
    #: Bytes after which another file begins.
    max_size: int
    #: Files of one signal.
    max_files: int


class FileExporter:
    """Spans or metrics to files; what goes wrong is an OSError. For one thread.

    Parameters
    ----------
    signal
        ``"traces"`` or ``"metrics"``.
    file
        Takes the lines.
    """

    def __init__(self, signal: str, file: RotatedFile) -> None:
        traces = signal == "traces"
        self._encode: Callable[[Any], Any] = encode_spans if traces else encode_metrics
        self._success = SpanExportResult.SUCCESS if traces else MetricExportResult.SUCCESS
        self._file = file
        self._breathe = Breath()
        self.is_first: Callable[[], bool] = lambda: file.is_first
        self.shutdown = file.close

    def export(self, data: Any, **_options: Any) -> Any:
        """Write all of it, or nothing."""
        request = self._encode(data)
        self._file.write([line.encode() for line in otlp_json.lines(request, self._breathe)])
        return self._success


def make_file_exporter(signal: str, target: FileTarget, run: str) -> NamedExporter:
    """Return what writes a signal into files.

    Parameters
    ----------
    signal
        ``"traces"`` or ``"metrics"``.
    target
        Where to, and how much.
    run
        The beginning of the files' names; see `run_name`.

    Raises
    ------
    ConfigurationError
        If there can be no such folder.
    """
    try:
        folder = Path(target.path).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        # No such user, or no present folder.
        raise ConfigurationError([f"otel.files.path is {target.path!r}: {error}"]) from error
    file = RotatedFile(folder, f"{run}-", f"-{signal}.jsonl", target.max_size, target.max_files)
    return NamedExporter(f"files in {folder}", FileExporter(signal, file), None, _ADVICE)


def run_name(cluster: str, instance_id: str, started_ns: int) -> str:
    """Return what the names of a bridge's files begin with.

    The cluster's name, the time of the start, and a part of the scheduler's id: several runs and
    several schedulers share a folder, and a listing has the runs of a cluster in their order.
    """
    start = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started_ns / 1e9))
    return "-".join((_safe(cluster), start, _safe(instance_id.rpartition("Scheduler-")[2])[:8]))


def _safe(name: str) -> str:
    """Return a name of letters, digits and signs that mean nothing to shells and file systems."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_.") else "-" for c in name)
    return kept[:_LONGEST_NAME].strip("-.") or "dask"

"""A transport that writes OTLP/JSON into files, after OpenTelemetry's OTLP File Exporter
(https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/).

OpenTelemetry Python's own ``opentelemetry-exporter-otlp-json-file`` won't do: 0.66b1 is a
pre-release that pins one minor release of the SDK (``~=1.45.1``, while the bridge allows 1.28 and
later), and it neither names, rotates nor bounds files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from dask_otel._otel.sdk.otlp_json import FileTransport
from dask_otel._otel.sdk.sink import ExporterSink, MakeSink
from dask_otel.pump.destination import Destination
from dask_otel.pump.rotated import RotatedFile
from dask_otel.settings.problems import ConfigurationError

#: Characters of a name in a file's name.
_LONGEST_NAME: Final = 60
_ADVICE: Final = "Check otel.files.path: may the scheduler write there, and is there room?"


@dataclass(frozen=True, slots=True)
class FileTarget:
    """The files' folder and limits: the section ``otel.files``."""

    path: str
    #: Bytes after which another file begins.
    max_size: int
    #: Limit of the files of one signal.
    max_files: int


def file_sinks(
    signals: Iterable[str], target: FileTarget, run: str, eager: bool, make: MakeSink
) -> list[ExporterSink]:
    """Return the sinks that write some signals into files; they have one destination.

    Parameters
    ----------
    signals
        ``"traces"``, ``"metrics"``, ``"logs"``.
    target
        The folder and the limits.
    run
        The beginning of the files' names; see `run_name`.
    eager
        Whether they get every batch of metrics while all of it is in one file. Only until then, so
        that a long run keeps its older files longer.
    make
        Makes each sink.

    Raises
    ------
    ConfigurationError
        If the folder is impossible.
    """
    try:
        folder = Path(target.path).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        # No such user, or no current folder.
        raise ConfigurationError([f"otel.files.path is {target.path!r}: {error}"]) from error
    destination = Destination(f"files in {folder}", advice=_ADVICE)
    made = []
    for signal in signals:
        names = f"{run}-", f"-{signal}.jsonl"
        file = RotatedFile(folder, *names, target.max_size, target.max_files)
        if eager and signal == "metrics":
            destination.eager = partial(getattr, file, "is_first")
        made.append(make(signal, destination, FileTransport(signal, file)))
    return made


def run_name(cluster: str, instance_id: str, started_ns: int) -> str:
    """Return the prefix of the names of a bridge's files.

    It is the cluster's name, the start time, and a part of the scheduler's id: several runs and
    schedulers can share a folder, and a listing shows a cluster's runs in order.
    """
    start = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started_ns / 1e9))
    return "-".join((_safe(cluster), start, _safe(instance_id.rpartition("Scheduler-")[2])[:8]))


def _safe(name: str) -> str:
    """Return a name with only characters that are harmless in shells and file systems."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_.") else "-" for c in name)
    return kept[:_LONGEST_NAME].strip("-.") or "dask"

"""A transport that writes OTLP/JSON into files, after OpenTelemetry's OTLP File Exporter
(https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/).

OpenTelemetry Python's own ``opentelemetry-exporter-otlp-json-file`` won't do: 0.66b1 is a
pre-release that pins one minor release of the SDK (``~=1.45.1``, while the bridge allows 1.28 and
later), and it neither names, rotates nor bounds files.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from dask_otel._otel.sdk.otlp_json import FileTransport
from dask_otel._otel.sdk.sink import ExporterSink, MakeSink
from dask_otel._otel.sdk.transport import words_of
from dask_otel.core.graph import SUFFIX
from dask_otel.core.records import Answer, FinishedGraph, Row
from dask_otel.core.trace import Trace
from dask_otel.pump.breath import Breath
from dask_otel.pump.destination import Destination
from dask_otel.pump.rotated import RotatedFile
from dask_otel.settings.problems import ConfigurationError

if TYPE_CHECKING:
    from dask_otel.settings.keys import FileSettings

#: Characters of a name in a file's name.
_LONGEST_NAME: Final = 60
_ADVICE: Final = "Check otel.files.path: may the scheduler write there, and is there room?"


#: Yields the line of a graph in pieces; the second argument is called after each short step.
WriteGraph: TypeAlias = Callable[[FinishedGraph, Callable[[], None]], Iterator[str]]


class GraphSink:
    """Writes graph logs: each is a gzip member of its own, so that a kill spoils no other one.

    Parameters
    ----------
    destination
        Where they go.
    keep
        Takes the trace ids of some logs, and their members: all or none of them.
    write
        Makes the text. That is only done now: the waiting logs stay bounded by their runs.
    samples
        Whether a trace is sampled.
    close
        Called at the end.
    """

    signal, loss = "graph", "rejected"
    key: str | None = None

    def __init__(
        self,
        destination: Destination,
        keep: Callable[[Sequence[tuple[Trace, bytes]]], object],
        write: WriteGraph,
        samples: Callable[[Trace], bool],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.destination, self._keep = destination, keep
        self._write, self._samples, self.close = write, samples, close
        self._breathe = Breath()

    def wants(self, graph: FinishedGraph) -> bool:
        """Whether the root is sampled."""
        return self._samples(graph.span.identity.trace_id)

    def encode(self, graph: FinishedGraph) -> FinishedGraph:
        """Return the row's body: the record itself."""
        return graph

    def send(self, rows: Sequence[Row], _longest: float) -> Answer:
        """Write some logs, all or none of them."""
        try:
            self._keep([self._member(row.body) for row in rows])
        except OSError as error:
            return Answer(False, words_of(error))
        return Answer(True)

    def _member(self, graph: FinishedGraph) -> tuple[Trace, bytes]:
        packer = zlib.compressobj(wbits=31)
        pieces = [packer.compress(one.encode()) for one in self._write(graph, self._breathe)]
        return graph.span.identity.trace_id, b"".join([*pieces, packer.flush()])


def folder_of(path: str) -> Path:
    """Return the folder of telemetry files that the setting names.

    Raises
    ------
    ConfigurationError
        If there is no such user, or no current folder.
    """
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise ConfigurationError([f"otel.files.path is {path!r}: {error}"]) from error


def file_sinks(
    signals: Iterable[str],
    folder: Path,
    limits: FileSettings,
    run: str,
    eager: bool,
    make: MakeSink,
    write: WriteGraph | None,
    samples: Callable[[Trace], bool],
) -> list[ExporterSink | GraphSink]:
    """Return the sinks that write some signals into files; they have one destination.

    Parameters
    ----------
    signals
        ``"traces"``, ``"metrics"``, ``"logs"``.
    folder
        The files' folder.
    limits
        Limits of the size of a file, and of their number.
    run
        The beginning of the files' names; see `run_name`.
    eager
        Whether they get every batch of metrics while all of it is in one file. Only until then, so
        that a long run keeps its older files longer.
    make
        Makes each sink.
    write, samples
        See `GraphSink`; there is none without `write`.
    """
    destination = Destination(f"files in {folder}", advice=_ADVICE)
    made: list[ExporterSink | GraphSink] = []
    for signal in signals:
        file = RotatedFile(folder, f"{run}-", f"-{signal}.jsonl", limits.max_size, limits.max_files)
        if eager and signal == "metrics":
            destination.eager = partial(getattr, file, "is_first")
        made.append(make(signal, destination, FileTransport(signal, file.write, file.close)))
    if write is not None:
        file = RotatedFile(folder, f"{run}-", SUFFIX, limits.max_size, limits.max_files, b"")
        made.append(
            GraphSink(
                destination,
                lambda logs: file.write([member for _, member in logs]),
                write,
                samples,
                file.close,
            )
        )
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

"""The graph log of a run, as docs/files.md describes it, read back."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from io import BytesIO
from pathlib import Path
from typing import Any

from dask_otel.core.graph import SUFFIX, VERSION, Row


@dataclass(frozen=True)
class Graph:
    """One line of a graph log: the tasks of a root span. docs/files.md describes each field."""

    trace_id: str
    span_id: str
    name: str
    start: float
    stop: float
    complete: bool
    prefixes: Sequence[str]
    workers: Sequence[Mapping[str, Any]]
    submissions: Sequence[float]
    restrictions: Sequence[Mapping[str, Any]]
    runs: Mapping[str, Sequence[Any]]
    left_out: int = 0
    outside: int = 0
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    durations: Sequence[float | None] = ()
    longest: Sequence[float | None] = ()

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Graph:
        """Return the graph of a decoded line.

        Raises
        ------
        TypeError, ValueError
            If the line is of another version, or incomplete.
        """
        if line.get("version", VERSION) != VERSION:
            raise ValueError(f"it has version {line['version']}, and this release reads {VERSION}")
        graph = cls(**{one.name: line[one.name] for one in fields(cls) if one.name in line})
        needed = [name for name in Row._fields if name not in Row._field_defaults]
        if missing := [name for name in needed if name not in graph.runs]:
            raise ValueError(f"columns of its runs are missing: {', '.join(missing)}")
        return graph

    def rows(self) -> list[Row]:
        """Return the runs, in the order in which they were sent to workers."""
        known = [self.runs[name] for name in Row._fields if name in self.runs]
        return [Row(*one) for one in zip(*known, strict=True)]


def read_graphs(source: Path | str | bytes) -> list[Graph]:
    """Return the graphs that a folder, a file, or a file's content has of its runs.

    Parameters
    ----------
    source
        A file ``…-graph.jsonl.gz``, its content, or a folder with such files.

    Returns
    -------
    The graphs in the order of their starts; none if there are no such files.

    Raises
    ------
    OSError
        If a file can't be read.
    ValueError
        If a line is no graph. A last line that is cut off is left out instead: a scheduler that was
        killed leaves one.
    """
    files: Sequence[Path | BytesIO]
    if isinstance(source, bytes):
        files = [BytesIO(source)]
    else:
        path = Path(source)
        files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    return sorted((graph for file in files for graph in _lines(file)), key=lambda one: one.start)


def _lines(file: Path | BytesIO) -> Iterator[Graph]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        number = 1
        try:
            for line in lines:
                yield Graph.of(json.loads(line))
                number += 1
        except EOFError:
            pass
        except (gzip.BadGzipFile, zlib.error) as error:
            if number == 1:
                raise ValueError(f"{file} is no graph of a run: {error}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"line {number} of {file} is no graph of a run: {error}") from error

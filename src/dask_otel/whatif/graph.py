"""The graph log of a run, as docs/files.md describes it, read back."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from graphlib import TopologicalSorter
from io import BytesIO
from pathlib import Path
from typing import Any

from dask_otel.core.graph import LARGEST, SUFFIX, VERSION, Row

#: Bytes of a file that are unpacked at once; and zlib's number for its format, with checksums.
_PIECE, _GZIP = 2**16, 31


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
        for what, values, is_right in _checks(graph):
            if not isinstance(values, Sequence):
                raise TypeError(f"{what} is no list")
            if wrong := [one for one in values if not is_right(one)]:
                is_long = type(wrong[0]) is float and wrong[0] > graph.stop - graph.start
                why = ", unless a clock was set meanwhile" * is_long
                raise ValueError(f"{what} has {str(wrong[0])[:50]!r}, which can't be{why}")
        if len({len(graph.runs[name]) for name in Row._fields if name in graph.runs}) > 1:
            raise ValueError("columns of its runs differ in length")
        TopologicalSorter({row.task: row.before for row in graph.rows()}).prepare()
        return replace(
            graph,
            workers=[{"came": None, "went": None, **_known(one)} for one in graph.workers],
            restrictions=[
                {"workers": None, "resources": None, "loose": False, **_known(one)}
                for one in graph.restrictions
            ],
        )

    def rows(self) -> list[Row]:
        """Return the runs, in the order in which they were sent to workers."""
        known = [self.runs[name] for name in Row._fields if name in self.runs]
        return [Row(*one) for one in zip(*known, strict=True)]


def _known(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not null, which may be missing, too."""
    return {name: value for name, value in entry.items() if value is not None}


def _number(least: float = -LARGEST, most: float = LARGEST) -> Callable[[object], bool]:
    """Return whether a value is a finite number within limits."""
    return lambda value: type(value) in (int, float) and least <= value <= most  # type: ignore[operator]


def _place(items: Sequence[object], least: int = -1) -> Callable[[object], bool]:
    """Return whether a value is the place of an item, or -1."""
    return lambda value: type(value) is int and least <= value < len(items)


def _or_none(is_right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or is_right(value)


def _each(is_right: Callable[[object], bool], least: int = 0) -> Callable[[object], bool]:
    return lambda values: (
        type(values) is list and len(values) >= least and all(map(is_right, values))
    )


def _fields(**known: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return whether a value has the right fields; what is None may be missing."""
    return lambda value: (
        isinstance(value, Mapping)
        and all(is_right(value.get(name)) for name, is_right in known.items())
    )


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_amounts(value: object) -> bool:
    return value is None or (isinstance(value, Mapping) and all(map(_number(0.0), value.values())))


def _checks(graph: Graph) -> Iterator[tuple[str, Any, Callable[[object], bool]]]:
    """Yield lists by name, and whether an entry is as docs/files.md says."""
    took = graph.stop - graph.start
    at, size, whole = _or_none(_number()), _or_none(_number(0.0)), _place(range(2**53), 0)
    # No part of a run is longer than the run of the whole.
    seconds = _or_none(_number(0.0, took + 1.0))
    yield "its name and ids", [graph.name, graph.trace_id, graph.span_id], _is_text
    yield "its start and stop", [graph.start, graph.stop, took], _number(0.0)
    yield "prefixes", graph.prefixes, _is_text
    worker = {
        "threads": _number(1, 1e6),
        "resources": _is_amounts,
        **dict.fromkeys(("hash", "place"), _or_none(whole)),
        **dict.fromkeys(("came", "went", "seen"), at),
    }
    yield "workers", graph.workers, _fields(**worker)
    yield "submissions", graph.submissions, _number(-LARGEST, took + 1.0)
    places = _or_none(_each(whole))
    yield "restrictions", graph.restrictions, _fields(workers=places, resources=_is_amounts)
    yield "durations", [*graph.durations, *graph.longest], size
    every = _or_none(_number(1e-3, 1e6))
    known = {
        **dict.fromkeys(("stealing_interval", "copies_interval"), every),
        **dict.fromkeys(("stealing_at", "copies_at"), at),
        **dict.fromkeys(("saturation", "unknown_duration", "bandwidth"), size),
        "made": _or_none(whole),
    }
    yield "scheduler", [graph.scheduler], _fields(**known)
    columns = {
        "task": whole,
        "prefix": _place(graph.prefixes, 0),
        "group": whole,
        "before": _each(whole),
        "submission": _place(graph.submissions or [0.0]),
        "priority": _or_none(_each(_number(), 2)),
        "worker": _place(graph.workers),
        "outcome": lambda value: type(value) is str and value in {*"mefrlc"},
        "restriction": _place(graph.restrictions),
        # Dask's -1 is no size.
        "nbytes": _or_none(_place(range(2**53))),
        "hash": _or_none(whole),
        **dict.fromkeys(("sent", "start", "fetched"), at),
        **dict.fromkeys(("seconds", "transfer", "disk", "seceded"), seconds),
    }
    for name in graph.runs.keys() & columns.keys():
        yield f"column {name} of its runs", graph.runs[name], columns[name]


def read_graphs(source: Path | str | bytes, wrong: list[str] | None = None) -> list[Graph]:
    """Return the graphs that a folder, a file, or a file's content has of its runs.

    Parameters
    ----------
    source
        A file ``…-graph.jsonl.gz``, its content, or a folder with such files.
    wrong
        Gets a sentence for each line that is no graph, instead of an error.

    Returns
    -------
    The graphs in the order of their starts; none if there are no such files.

    Raises
    ------
    OSError
        If a file can't be read.
    ValueError
        If a line is no graph, or a file is damaged. A last line that is cut off is left out
        instead: a scheduler that was killed leaves one.
    """
    files: Sequence[Path | BytesIO]
    if isinstance(source, bytes):
        files = [BytesIO(source)]
    else:
        path = Path(source)
        files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    found = [one for file in files for one in _lines(file)]
    said = [one for one in found if isinstance(one, str)]
    if said and wrong is None:
        raise ValueError(said[0])
    if wrong is not None:
        wrong += said
    return sorted((one for one in found if isinstance(one, Graph)), key=lambda one: one.start)


def _lines(file: Path | BytesIO) -> Iterator[Graph | str]:
    """Yield the graphs of a file, and what is wrong with other lines."""
    number = 0
    try:
        for number, line in enumerate(_unpacked(file), 1):
            try:
                yield Graph.of(json.loads(line))
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                why = f"line {number} of {file} is no graph of a run: {error}"
                yield f"{why}. Remove the line or the file; other runs can be replayed."
    except zlib.error as error:
        why = f"line {number + 1} of {file} is no graph of a run: {error}"
        yield f"{why}. The file is damaged from there on, and the rest of it is left out."


def _unpacked(file: Path | BytesIO) -> Iterator[bytes]:
    """Yield the lines of each member of a gzip file that is complete and undamaged."""
    with file.open("rb") if isinstance(file, Path) else file as packed:
        member, content, rest = zlib.decompressobj(_GZIP), b"", b""
        while rest := rest or packed.read(_PIECE):
            content += member.decompress(rest)
            rest = member.unused_data
            if member.eof:
                yield from content.splitlines()
                member, content = zlib.decompressobj(_GZIP), b""

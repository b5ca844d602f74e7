"""A spool as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dask_otel import semconv
from dask_otel.report import words
from dask_otel.spool.reading import RunSummary, Summary

#: Names that are listed, those of which most spans wait.
_MOST_NAMES: Final = 20
#: Runs that are listed, the last ones.
_MOST_RUNS: Final = 20
_LONGEST: Final = 40


def as_text(found: Summary, width: int) -> str:
    """Return what is in a spool, line by line."""
    lines = list(_head(found))
    for part in (_runs(found), _names(found)):
        shown = [line[:width].rstrip() for line in part]
        if shown:
            lines += ["", *shown]
    return "\n".join(lines)


def _head(found: Summary) -> Iterator[str]:
    yield f"{_clean(str(found.path), 4096)}"
    waiting = words.counted(found.waiting, "span")
    yield f"  {found.size / 1e6:,.2f} MB on the disk, {waiting} to be sent"
    if found.holder is not None:
        yield (
            f"  {found.holder} has it and sends them; {found.noted:,} of its spans are open, and "
            "noted"
        )
    elif found.waiting:
        yield "  nobody has it; the next scheduler with this path sends them, as does"
        yield f"  dask-otel spool send {_clean(str(found.path), 4096)}"
    if found.unreadable:
        yield f"  {found.unreadable:,} rows can't be read"


def _runs(found: Summary) -> Iterator[str]:
    # Slow to import.
    from dask_otel._otel.sdk.encode import resource_of

    if not found.runs:
        return
    rows = [("run of", "instance", "started", "last sign of life", "waiting", "open")]
    rows += [
        (
            _clean(resource.get(semconv.CLUSTER_NAME, "?")),
            _clean(resource.get(semconv.SERVICE_INSTANCE_ID, run.instance_id), 60),
            words.when(run.started_ns),
            words.when(run.alive_ns),
            f"{run.waiting:,}",
            _open(found, run),
        )
        for run in found.runs[-_MOST_RUNS:]
        for resource in (resource_of(run.origin),)
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        yield "  ".join(
            cell.ljust(width) if column < 4 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
    if len(found.runs) > _MOST_RUNS:
        yield f"and {len(found.runs) - _MOST_RUNS:,} earlier runs"


def _open(found: Summary, run: RunSummary) -> str:
    if not run.noted:
        return "0"
    return f"{run.noted:,}" if found.goes_on(run) else f"{run.noted:,} lost"


def _names(found: Summary) -> Iterator[str]:
    listed = found.names.most_common(_MOST_NAMES)
    if not listed:
        return
    count = max(len(f"{count:,}") for _, count in listed)
    several = len(found.sinks) > 1
    yield "waiting, by name" + (" and exporter" if several else "")
    for (sink, name), waiting in listed:
        yield f"  {waiting:>{count},}  {_clean(name, 200)}" + (f"  ({sink})" if several else "")
    more = len(found.names) - len(listed)
    if more:
        rest = sum(found.names.values()) - sum(waiting for _, waiting in listed)
        yield f"  {rest:>{count},}  of {words.counted(more, 'other name')}"


def _clean(text: str, longest: int = _LONGEST) -> str:
    """Return a text of somebody's without what a terminal would obey."""
    return words.cut(words.one_line(text, "�"), longest, "…")

"""Replays a recorded run with changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import Final, TypeVar

from dask_otel.report.cures import graphs_of, shown, sizes
from dask_otel.report.document import Report, read_report
from dask_otel.report.money import Price
from dask_otel.report.whatif import WhatIfReport
from dask_otel.whatif.experiments import CAUSES, LONGEST, Experiment, each, require, usual
from dask_otel.whatif.graph import Graph
from dask_otel.whatif.running import replay

T = TypeVar("T")
Made = TypeVar("Made")

#: The smallest share of the run for which the transfers may matter.
_LEAST: Final = 0.01


def what_if(
    source: Report | str | Path,
    span: str | None = None,
    *,
    threads: Iterable[tuple[int, int]] = (),
    bandwidth: float | None = None,
    without: Iterable[str] = (),
    faster: Mapping[str, float] | None = None,
    split: Mapping[str, int] | None = None,
    price: float | None = None,
    progress: Callable[[int, int], object] = lambda *_: None,
) -> WhatIfReport:
    """Replay a recorded run on Dask's own scheduler in simulated time, with changes.

    First, the run is replayed as it was: the difference to its recorded duration is the error of
    each result. Each change is an experiment of its own. Without any, those that are worth a try
    are made: half to four times the threads, and the run without its faults.

    Parameters
    ----------
    source
        A folder or file that the bridge wrote (``otel.files.path``), or a report that was read from
        there, or that `performance_report` made.
    span
        The full name or the id of a root span; by default, the last one, or that of the block.
    threads
        Other workers: their number, and the threads of each. ``[(4, 8), (8, 8)]`` are two
        experiments.
    bandwidth
        Bytes a second between two workers.
    without
        What to leave out: ``restrictions``, ``failures`` with the repeated runs, ``gaps`` of the
        client between its submissions, ``transfers``, work ``stealing``, ``unevenness`` between
        workers, or what a ``slow-worker`` takes more.
    faster
        By prefix, how many times as fast its tasks compute.
    split
        By prefix, or for the ``longest`` task, the number of pieces that run side by side instead.
    price
        The price of a thread-hour; by default that of the report.
    progress
        Is called with the finished part of the work, and all of it.

    Raises
    ------
    FileNotFoundError
        If there is nothing to read.
    ValueError
        If there is no such recorded run, it has no such tasks, or an argument is not as above.
    """
    causes = [without] if isinstance(without, str) else without
    items = methodcaller("items")
    changes = [
        *each(
            _read(
                "threads",
                threads,
                lambda pairs: [(workers, of_each) for workers, of_each in pairs],
                "pairs, such as [(4, 8)]",
            ),
            bandwidth,
            _read("without", causes, list, f"some of {', '.join(CAUSES)}"),
            _read("faster", faster or {}, items, "a mapping, such as {'fit': 2}"),
            _read("split", split or {}, items, "a mapping, such as {'longest': 4}"),
        )
    ]
    require(price or 0.0, 0.0, 1e9, "the price")
    report = source if isinstance(source, Report) else read_report(source)
    cost = report.price if price is None else Price(price)
    return tried(replace(report, price=cost), span, changes, progress)


def _read(name: str, given: T, read: Callable[[T], Made], allowed: str) -> Made:
    """Return what is read from an argument, or raise an error that names it."""
    try:
        return read(given)
    except (TypeError, ValueError, AttributeError):
        raise ValueError(f"{name} is {given!r}. Allowed: {allowed}.") from None


def tried(
    report: Report,
    span: str | None,
    experiments: Sequence[Experiment],
    progress: Callable[[int, int], object] = lambda *_: None,
) -> WhatIfReport:
    """Replay a run of a report; without `experiments`, with the usual ones.

    The parameters and errors are those of `what_if`.
    """
    wrong = list[str]()
    graph = _chosen(report, span, wrong)
    named = {name for one in experiments for name in (*one.faster, *one.split)}
    if unknown := sorted(named - {LONGEST, *graph.prefixes}):
        raise ValueError(
            f"{graph.name} has no tasks of {', '.join(unknown)}; it has tasks of "
            f"{', '.join(graph.prefixes)}"
        )
    result = replay(graph, experiments or _usual(graph), progress)
    result = replace(result, assumptions=(*result.assumptions, *wrong))
    return shown(graph, result, report.accounts(), report.price)


def _chosen(report: Report, span: str | None, wrong: list[str]) -> Graph:
    """Return the last recorded run of a span."""
    graphs = graphs_of(report.paths, report.graph_logs, wrong)
    own = {key for run in report.runs for key in run.own}
    wanted = [one for one in graphs if span in (None, one.name, one.span_id, one.trace_id)]
    if wanted:
        # Others may have run something after the block.
        return max(wanted, key=lambda one: ((one.trace_id, one.span_id) in own, one.start))
    there = ", ".join(dict.fromkeys(one.name for one in graphs))
    where = ", ".join(map(str, report.paths)) or "the report"
    if wrong:
        # The run may be in one of them.
        raise ValueError(wrong[0])
    if not graphs:
        raise ValueError(
            f"no recorded graph in {where}: the scheduler records those of root spans that begin "
            "while it writes files (otel.files.path), or while a client is in a "
            "performance_report, unless otel.spans.graph or otel.spans.path is off, or it was "
            "killed before it had written the first one"
        )
    raise ValueError(f"no recorded graph of {span} in {where}; there are graphs of {there}")


def _usual(graph: Graph) -> list[Experiment]:
    """Return what is worth a try if nobody asks for anything else."""
    causes = {
        "restrictions": graph.restrictions,
        "failures": {*"fl"} & {*graph.runs["outcome"]},
        "gaps": len(graph.submissions) > 1,
        "transfers": (
            sum(filter(None, graph.runs["transfer"])) > _LEAST * (graph.stop - graph.start)
        ),
    }
    return [*usual(sizes(graph), [cause for cause, costs in causes.items() if costs])]

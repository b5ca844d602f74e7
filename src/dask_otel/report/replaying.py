"""Replays a recorded run with changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite, nan
from pathlib import Path
from time import monotonic
from typing import Final

from dask_otel.core.diagnosis import Diagnosis
from dask_otel.core.graph import SUFFIX
from dask_otel.report.account import TOGETHER, Account
from dask_otel.report.document import Report, read_report
from dask_otel.report.money import Price
from dask_otel.report.whatif import WhatIfReport
from dask_otel.whatif.experiments import LONGEST, Experiment, each, usual, with_workers
from dask_otel.whatif.graph import Graph, read_graphs
from dask_otel.whatif.running import replay

#: What a replay can leave out as the cure of a diagnosis, by its kind.
_CURES: Final = {
    **dict.fromkeys(("repeated", "lost", "memory"), "failures"),
    "restricted": "restrictions",
    "client": "gaps",
    "transfer": "transfers",
}
#: The diagnoses of a run whose cures are tried, and the pieces of a task that is split.
_FIRST, _PIECES = 5, 4
#: If replays are limited: the most runs of tasks in all of them, and the most seconds. The start of
#: a process takes as long as some runs.
_MOST, _LIMIT, _START = 6_000, 20.0, 100
#: Kinds of diagnoses of what the threads of a worker, or of a machine, share.
_SHARED: Final = ("gil", "cpus")
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
        client between its submissions, ``transfers``, or work ``stealing``.
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
        If there is no such recorded run, or it has no such tasks.
    """
    causes = [without] if isinstance(without, str) else without
    pairs = (faster or {}).items(), (split or {}).items()
    changes = [*each(threads, bandwidth, causes, *pairs)]
    report = source if isinstance(source, Report) else read_report(source)
    cost = report.price if price is None else Price(price)
    return tried(replace(report, price=cost), span, changes, progress)


def tried(
    report: Report,
    span: str | None,
    experiments: Sequence[Experiment],
    progress: Callable[[int, int], object] = lambda *_: None,
) -> WhatIfReport:
    """Replay a run of a report; without `experiments`, with the usual ones.

    The parameters and errors are those of `what_if`.
    """
    graph = _chosen(report, span)
    named = {name for one in experiments for name in (*one.faster, *one.split)}
    if unknown := sorted(named - {LONGEST, *graph.prefixes}):
        raise ValueError(
            f"{graph.name} has no tasks of {', '.join(unknown)}, but of {', '.join(graph.prefixes)}"
        )
    found = replay(graph, experiments or _usual(graph), progress)
    assumed = (*_warnings(report.accounts(), graph.name), *found.assumptions)
    return WhatIfReport(replace(found, assumptions=assumed), report.price, graph.span_id)


def judged(
    report: Report,
    progress: Callable[[int, int], object] = lambda *_: None,
    *,
    limited: bool = False,
) -> Report:
    """Measure what the cures of a report's diagnoses save, by replays of its recorded graphs.

    Each root span is replayed with the changes that its first diagnoses propose, and with other
    workers.

    Parameters
    ----------
    report
        It is returned with the results, or as it is without graphs.
    progress
        Is called with the finished part of the work of a root span, and all of it.
    limited
        Whether large runs are left out, and the replays end after some seconds.

    Raises
    ------
    OSError, ValueError, dask_otel.whatif.running.ReplayError
        If a graph can't be read, or its replay dies or takes too long.
    """
    graphs = {one.span_id: one for one in _graphs(report)}
    what_ifs, saved = list[WhatIfReport](), dict[str, dict[tuple[str, str], tuple[str, float]]]()
    room: float = _MOST if limited else inf
    until = monotonic() + _LIMIT
    for account in report.accounts() if graphs else ():
        roots = account.session.roots()
        own = [graphs[one.span_id] for one in roots if one.span_id in graphs]
        size = sum(_START + len(one.runs["task"]) for one in own)
        if len(own) < len(roots) or not own or room < 2 * size:
            continue
        most, names = room / size - 1, dict[tuple[str, str], str]()
        sums = defaultdict[tuple[str, str], float](float)
        for graph in own:
            cures = dict(_cures(account.diagnoses[:_FIRST], graph))
            changes = {one.name: one for one in (*cures.values(), *usual(_sizes(graph), ()))}
            asked = [*changes.values()][: int(min(most, len(changes)))]
            result = replay(graph, asked, progress, until - monotonic() if limited else None)
            assumed = (*_warnings([account], graph.name), *result.assumptions)
            what_ifs.append(
                WhatIfReport(replace(result, assumptions=assumed), report.price, graph.span_id)
            )
            room -= size * (1 + len(asked)) / len(own)
            took = {one.name: one.seconds for one in result.experiments}
            for key, change in cures.items():
                names[key] = change.name
                # Unknown if it is missing for one of the roots.
                base = result.replayed.seconds if result.replayed else nan
                sums[key] += base - took.get(change.name, nan)
        saved[account.session.instance] = {
            key: (names[key], less) for key, less in sums.items() if isfinite(less)
        }
    return replace(report, what_ifs=what_ifs, saved=saved)


def _cures(
    diagnoses: Sequence[Diagnosis], graph: Graph
) -> Iterator[tuple[tuple[str, str], Experiment]]:
    """Yield the changes that try the cures of diagnoses, by kind and span, if a replay can."""
    # Other workers stay, and their tasks do not wait for each other.
    is_alone = not any(one.kind in TOGETHER for one in diagnoses) and all(
        one["came"] is None and (one["went"] or inf) >= graph.stop - graph.start
        for one in graph.workers
    )
    for one in diagnoses:
        key = one.kind, one.span
        split = dict.fromkeys((name for name in one.prefixes if name in graph.prefixes), _PIECES)
        if not f"{one.span or graph.name}/".startswith(f"{graph.name}/"):
            continue
        # What was before the first span is in no graph.
        if one.kind in _CURES and key != ("client", ""):
            yield key, next(each(without=[_CURES[one.kind]]))
        elif one.kind == "threads" and is_alone:
            yield key, with_workers(2 * _sizes(graph))
        elif one.kind == "no_workers":
            yield key, with_workers(_sizes(graph, "went"))
        elif split:
            name = f"tasks of {', '.join(split)} split in {_PIECES}"
            yield key, Experiment(name, split=split)


def _chosen(report: Report, span: str | None) -> Graph:
    """Return the last recorded run of a span."""
    graphs, own = _graphs(report), {key for run in report.runs for key in run.own}
    wanted = [one for one in graphs if span in (None, one.name, one.span_id, one.trace_id)]
    if wanted:
        # Others may have run something after the block.
        return max(wanted, key=lambda one: ((one.trace_id, one.span_id) in own, one.start))
    names = dict.fromkeys(one.name for one in graphs)
    where = ", ".join(map(str, report.paths)) or "the report"
    if not graphs:
        raise ValueError(
            f"no recorded graph in {where}: one is recorded of a root span that begins while "
            "the scheduler writes files (otel.files.path) or a client is in a performance_report, "
            "unless otel.spans.graph is off there"
        )
    raise ValueError(f"no recorded graph of {span} in {where}, but of {', '.join(names)}")


def _graphs(report: Report) -> list[Graph]:
    paths = [Path(one) for one in report.paths]
    logs = [one for one in paths if one.is_dir() or one.name.endswith(SUFFIX)]
    found = [graph for path in logs for graph in read_graphs(path)]
    return found + read_graphs(report.graph_logs)


def _sizes(graph: Graph, when: str = "came") -> list[int]:
    """Return the threads of each worker that was there at the start; or at the end: ``went``."""
    present = [one["threads"] for one in graph.workers if one[when] is None]
    return present or [one["threads"] for one in graph.workers]


def _usual(graph: Graph) -> list[Experiment]:
    """Return what is worth a try if nobody asks for anything else."""
    moved = sum(graph.runs["transfer"]) > _LEAST * (graph.stop - graph.start)
    causes = {
        "restrictions": graph.restrictions,
        "failures": {*"fl"} & {*graph.runs["outcome"]},
        "gaps": len(graph.submissions) > 1,
        "transfers": moved,
    }
    return [*usual(_sizes(graph), [cause for cause, costs in causes.items() if costs])]


def _warnings(accounts: Iterable[Account], name: str) -> Iterator[str]:
    """Yield why more threads may help less than their replays say."""
    for account in accounts:
        spans = [one.parts() for one in account.spans if one.root == name]
        on, off = (sum(one[part] for one in spans) for part in ("Computing", "Off the CPU"))
        if on > off:
            yield (
                f"Its tasks used a CPU for {on / (on + off):.0%} of their time: more threads help "
                "as much as is shown only with a core for each."
            )
        for one in account.diagnoses:
            if one.kind in _SHARED and f"{one.span}/".startswith(f"{name}/"):
                yield f"{one.title}: more threads of one worker share it, and help less."

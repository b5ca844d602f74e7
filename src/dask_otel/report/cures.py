"""Tries the cures of diagnoses in replays of the recorded run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite, nan
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Final

from dask_otel import semconv
from dask_otel.core.diagnosis import Diagnosis
from dask_otel.core.graph import SUFFIX
from dask_otel.report import words
from dask_otel.report.account import TOGETHER, Account, Measured
from dask_otel.report.evidence import HELD
from dask_otel.report.history.difference import Comparison
from dask_otel.report.money import Price
from dask_otel.report.path import span_path
from dask_otel.report.telemetry.model import Session
from dask_otel.report.whatif import WhatIfReport
from dask_otel.whatif.experiments import Experiment, each, usual, with_workers
from dask_otel.whatif.graph import Graph, read_graphs
from dask_otel.whatif.plan import losers
from dask_otel.whatif.result import WhatIf
from dask_otel.whatif.running import NO_TIME, UNEXPLAINED, Room, replay

#: What a replay can leave out as the cure of a diagnosis, by its kind.
_CURES: Final = {
    **dict.fromkeys(("repeated", "lost", "memory"), "failures"),
    "restricted": "restrictions",
    "client": "gaps",
    "transfer": "transfers",
    **dict.fromkeys(("uneven", "queued"), "unevenness"),
    "slow_worker": "slow-worker",
}
#: The diagnoses of a run whose cures are tried, and the pieces of a task that is split.
_FIRST, _PIECES = 5, 4
#: Kinds of diagnoses of what the threads of a worker, or of a machine, share.
_SHARED: Final = ("gil", "cpus")


def judged(
    accounts: Iterable[Account],
    graphs: Mapping[str, Graph],
    progress: Callable[[int, int], object],
    *,
    limited: bool,
) -> tuple[list[WhatIfReport], dict[str, Measured]]:
    """Replay recorded runs with the cures of their first diagnoses, and with other workers.

    Parameters
    ----------
    accounts
        Those of the runs.
    graphs
        By the ids of root spans. A run is left out if it has not all of its own.
    progress, limited
        See `dask_otel.report.document.Report.replayed`.

    Returns
    -------
    The replays, and by the instances of the runs, the results.
    """
    what_ifs, found = list[WhatIfReport](), dict[str, Measured]()
    room = Room(limited=limited)
    for account in accounts:
        roots = account.session.roots()
        own = [graphs[one.span_id] for one in roots if one.span_id in graphs]
        if len(own) < len(roots) or not own or (times := room.times(*own)) < 2:
            continue
        # A replay has tasks of tasks when they were submitted, also on more threads.
        inner = any(span_path(one).get("inner") for one in roots)
        asked = [one for one in account.diagnoses[:_FIRST] if not (inner and one.kind == "threads")]
        names, sums = dict[tuple[str, str], str](), defaultdict[tuple[str, str], float](float)
        for graph in own:
            cures = dict(_cures(asked, graph))
            changes = {one.name: one for one in (*cures.values(), *usual(sizes(graph), ()))}
            result = replay(graph, [*changes.values()], progress, room, times)
            what_ifs.append(shown(graph, result, [account], account.price))
            took = {one.name: one.seconds for one in result.experiments}
            for key, change in cures.items():
                names[key] = change.name
                # Unknown if it is missing for one of the roots.
                base = result.replayed.seconds if result.replayed else nan
                sums[key] += base - took.get(change.name, nan)
        saved = {key: (names[key], less) for key, less in sums.items() if isfinite(less)}
        longest = max(what_ifs[-len(own) :], key=lambda one: one.result.recorded)
        found[account.session.instance] = Measured(saved, "" if inner else longest.of_threads())
    return what_ifs, found


def separated(
    comparison: Comparison,
    sides: Sequence[tuple[Sequence[Session], Sequence[Graph]]],
    progress: Callable[[int, int], object],
    *,
    limited: bool,
) -> Comparison:
    """Separate slower functions, another cluster and more work in a comparison, by replays.

    The last run of A is replayed as it was, then with the mean seconds of B's functions, and then
    on B's workers, too. The rest is other work: the last run of B has it, as it was.

    Parameters
    ----------
    comparison
        The result without replays.
    sides
        Runs and graphs of A and of B.
    progress, limited
        See `dask_otel.report.document.Report.replayed`.

    Returns
    -------
    The comparison with `replayed` of each name whose last runs were recorded, or with the reason.
    """
    ids = [{root.span_id for run in runs for root in run.roots()} for runs, _ in sides]
    known = [
        {one.name: one for one in graphs if one.span_id in own}
        for (_, graphs), own in zip(sides, ids, strict=True)
    ]
    room, names = Room(limited=limited), []
    for one in comparison.names:
        first, second = (side.get(one.name) for side in known)
        if first and second:
            terms, why = made_of(first, second, progress, room)
            one = replace(one, replayed=terms, not_replayed=why)
        names.append(one)
    return replace(comparison, names=names)


def made_of(
    first: Graph, second: Graph, progress: Callable[[int, int], object], room: Room
) -> tuple[list[tuple[str, float]], str]:
    """Return in words what the change from a run to another one is made of, with its seconds.

    Their sum is the change. Without an answer there are none, but the reason.
    """
    before, after = _means(first), _means(second)
    paces = {prefix: before[prefix] / after[prefix] for prefix in before.keys() & after.keys()}
    changes = [
        Experiment("the functions of the other run", faster=paces),
        Experiment("the functions and the cluster of the other run", faster=paces, cluster=second),
    ]
    if (times := room.times(first, second)) <= len(changes):
        return [], NO_TIME
    one = replay(first, changes, progress, room, times)
    other = replay(second, [], progress, room, times)
    if one.refused or other.refused or not one.replayed or not other.replayed:
        return [], one.refused or other.refused or ""
    if len(one.experiments) < len(changes):
        return [], " ".join(one.stuck) or NO_TIME
    slower, there = one.experiments
    unknown = one.replayed.seconds - one.recorded + other.recorded - other.replayed.seconds
    terms = {
        "by the time of the functions": slower.seconds - one.replayed.seconds,
        "by the cluster": there.seconds - slower.seconds,
        "by other work": other.replayed.seconds - there.seconds,
        "that replays do not explain": unknown,
    }
    return [*terms.items()], ""


def _means(graph: Graph) -> dict[str, float]:
    """Return the mean seconds of the tasks of each prefix that took any."""
    spent = defaultdict[str, list[float]](list)
    for row in graph.rows():
        if row.seconds and row.outcome == "m":
            spent[graph.prefixes[row.prefix]].append(row.seconds)
    return {prefix: fmean(each) for prefix, each in spent.items()}


def _cures(
    diagnoses: Sequence[Diagnosis], graph: Graph
) -> Iterator[tuple[tuple[str, str], Experiment]]:
    """Yield the changes that try the cures of diagnoses, by kind and span, if a replay can."""
    # Else other workers would change more than the number of threads, or tasks would take longer.
    is_alone = not any(one.kind in TOGETHER for one in diagnoses) and all(
        one["came"] is None and (one["went"] or inf) >= graph.stop - graph.start
        for one in graph.workers
    )
    for one in diagnoses:
        key = one.kind, one.span
        split = dict.fromkeys((name for name in one.prefixes if name in graph.prefixes), _PIECES)
        if not f"{one.span or graph.name}/".startswith(f"{graph.name}/"):
            continue
        # A graph has neither what was before the first span, nor why an idle worker left.
        if key == ("client", "") or (one.kind == "lost" and not losers(graph.rows())):
            continue
        if one.kind == "client" and _takes_some(graph):
            continue
        if one.kind in _CURES:
            yield key, next(each(without=[_CURES[one.kind]]))
        elif one.kind == "threads" and is_alone:
            yield key, with_workers(2 * sizes(graph))
        elif one.kind == "no_workers" and not losers(graph.rows()):
            yield key, with_workers(sizes(graph, "went"))
        elif split:
            name = f"tasks of {', '.join(split)} split in {_PIECES}"
            yield key, Experiment(name, split=split)


def _takes_some(graph: Graph) -> bool:
    """Return whether the client mostly paused while some of its tasks ran.

    Which results it had waited for is unknown then.
    """
    ends, paused = defaultdict[int, float](float), {True: 0.0, False: 0.0}
    for row in graph.rows():
        if row.seceded is None:
            ended = (row.start or 0.0) + (row.seconds or 0.0)
            ends[row.submission] = max(ends[row.submission], ended)
    last = until = 0.0
    for number, at in sorted(enumerate(graph.submissions), key=itemgetter(1)):
        paused[at < until] += at - last
        last, until = at, max(until, ends[number])
    return paused[True] > paused[False]


def graphs_of(
    paths: Iterable[str | Path], kept: bytes, wrong: list[str] | None = None
) -> list[Graph]:
    """Return the recorded graphs of files and folders, and of those that were kept in memory.

    `wrong` is that of `read_graphs`.
    """
    logs = [one for one in map(Path, paths) if one.is_dir() or one.name.endswith(SUFFIX)]
    return [graph for path in logs for graph in read_graphs(path, wrong)] + read_graphs(kept)


def sizes(graph: Graph, when: str = "came") -> list[int]:
    """Return the threads of each worker that was there at the start; or at the end: ``went``."""
    present = [one["threads"] for one in graph.workers if one[when] is None]
    return present or [one["threads"] for one in graph.workers]


def shown(
    graph: Graph, result: WhatIf, accounts: Iterable[Account], price: Price | None
) -> WhatIfReport:
    """Return the replays of a run with what the accounts say against them."""
    known = [*accounts]
    others = [*_others(known, graph)]
    assumed = *_warnings(known, graph.name), *map("{}.".format, others), *result.assumptions
    refused = result.refused
    for other in others:
        refused = refused and refused.replace(UNEXPLAINED, words.inside(other))
    return WhatIfReport(replace(result, assumptions=assumed, refused=refused), price, graph.span_id)


def _others(accounts: Iterable[Account], graph: Graph) -> Iterator[str]:
    """Yield that tasks of others had threads of the cluster during the run, if they had many."""
    for one in (one for account in accounts for one in account.session.roots()):
        others, threads = (
            one.number(key) or 0.0
            for key in (semconv.SPAN_ELSEWHERE, semconv.SPAN_DASK_ACTIVE_CPU_TIME)
        )
        if one.key == (graph.trace_id, graph.span_id) and others > HELD * threads:
            share = f"{others / threads:.0%}"
            yield f"Tasks of other spans had {share} of its threads, and the replay has all of them"


def _warnings(accounts: Iterable[Account], name: str) -> Iterator[str]:
    """Yield why more threads may help less than their replays say."""
    for account in accounts:
        spans = [one.parts() for one in account.spans if one.root == name]
        on, off = (sum(one[part] for one in spans) for part in ("Computing", "Off the CPU"))
        # Threads that contend for a CPU or the GIL are off the CPU, too.
        if 5 * on > on + off:
            yield (
                f"Its tasks used a CPU for {on / (on + off):.0%} of their time: more threads help "
                "as much as is shown only with a core for each."
            )
        yield from (
            f"{one.title}: more threads of one worker share it, and help less."
            for one in account.diagnoses
            if one.kind in _SHARED and f"{one.span}/".startswith(f"{name}/")
        )

"""The plan of a replay: which tasks are submitted when, on which workers, and how long they take.

A submission follows the results that its client had when it made it. So its time is relative: the
client waits until as many results of each earlier submission are there as there were, and then for
so long as it took after the last of them. On a faster cluster it submits earlier, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any, Final, NamedTuple, TypeAlias

from dask_otel.whatif.experiments import LONGEST, Experiment
from dask_otel.whatif.graph import Graph

#: Of a task: a name with its prefix, its number, and the number of its piece. Dask makes one group
#: of the tasks whose keys begin with the same name.
Key: TypeAlias = tuple[str, int, int]

#: Bytes a second between two workers, if no transfer was recorded: Dask's own guess.
BANDWIDTH: Final = 100e6

#: The most seconds of a message: a task that waits longer for a free worker waits for its start.
_MOST_WAY: Final = 0.05

#: Times of the log are rounded to this.
_ROUNDED: Final = 1e-6


class Row(NamedTuple):
    """A recorded run of a task; a row of the graph log."""

    task: int
    prefix: int
    before: Sequence[int]
    submission: int
    priority: Sequence[float] | None
    sent: float | None
    start: float | None
    seconds: float | None
    transfer: float
    disk: float
    nbytes: int | None
    worker: int
    outcome: str
    restriction: int
    seceded: float | None


class Attempt(NamedTuple):
    """What a task does when it runs."""

    #: Before its function begins (the disk, and Dask's own work), and in it.
    disk: float
    seconds: float
    #: After how many seconds of its function it leaves its thread to others.
    seceded: float | None
    #: One of the log's, but never lost with a worker: workers are lost, not runs.
    outcome: str


class Task(NamedTuple):
    """A task of a replay, or a piece of one."""

    before: Sequence[Key]
    #: One after the other; the last one again if a result is lost.
    attempts: Sequence[Attempt]
    nbytes: int
    #: Its place in the order of priorities.
    rank: int
    restriction: int
    submission: int


class Submission(NamedTuple):
    """What a client submits at once."""

    keys: Sequence[Key]
    #: Of those, the ones that nothing else in the submission needs: what the client waits for.
    results: Sequence[Key]
    #: Of earlier submissions, by their numbers: how many results must be there before.
    after: Mapping[int, int]
    #: Seconds from then to the submission.
    gap: float


class Workers(NamedTuple):
    """A worker of a replay."""

    threads: int
    resources: Mapping[str, float]
    came: float | None
    went: float | None
    #: It went with results or with runs, as a killed one does.
    killed: bool
    #: Seconds that its first task waits for it, because it imports modules, for example.
    startup: float


@dataclass(frozen=True)
class Plan:
    """Everything that a replay needs."""

    tasks: Mapping[Key, Task]
    submissions: Sequence[Submission]
    workers: Sequence[Workers]
    restrictions: Sequence[Mapping[str, Any]]
    #: Seconds of a message, and bytes a second between two workers.
    latency: float
    bandwidth: float
    #: Seconds from the end of the last task to the end of the span.
    rest: float
    #: Dask's configuration.
    config: Mapping[str, Any]


def plan(graph: Graph, change: Experiment) -> Plan:
    """Return how to replay a run with a change.

    Parameters
    ----------
    graph
        The run as recorded.
    change
        The change; of an experiment without one, the plan is the run as it was.
    """
    rows = [
        Row(*values) for values in zip(*(graph.runs[name] for name in Row._fields), strict=True)
    ]
    ran: dict[int, list[Row]] = defaultdict(list)
    names: dict[int, str] = {}
    for row in rows:
        names.setdefault(row.task, f"{graph.prefixes[row.prefix]}-{max(0, row.submission)}")
        if row.seconds is not None and row.outcome != "l":
            ran[row.task].append(row)
    longest = max(ran, key=lambda task: ran[task][-1].seconds or 0.0, default=-1)

    def pieces(task: int) -> int:
        own = change.split.get(graph.prefixes[ran[task][-1].prefix], 1)
        return max(own, change.split.get(LONGEST, 1) if task == longest else 1)

    keys = {task: [(names[task], task, one) for one in range(pieces(task))] for task in ran}
    order = sorted({tuple(runs[-1].priority) for runs in ran.values() if runs[-1].priority})
    ranks = {priority: rank for rank, priority in enumerate(order)}
    pause = _pause(rows)
    way = max(pause, _way(rows, len(graph.workers)))
    latency = way - pause
    tasks = {}
    for task, runs in ran.items():
        last, parts = runs[-1], len(keys[task])
        faster = change.faster.get(graph.prefixes[last.prefix], 1.0) * parts
        attempts = [
            Attempt(row.disk + pause, (row.seconds or 0.0) / faster,
                    row.seceded and row.seceded / faster, row.outcome)
            for row in runs
        ]  # fmt: skip
        if "failures" in change.without:
            attempts = [attempts[-1]._replace(outcome="m")]
        before = [key for other in last.before for key in keys.get(other, ())]
        restriction = -1 if "restrictions" in change.without else last.restriction
        rank = ranks[tuple(last.priority)] if last.priority else len(ranks)
        for key in keys[task]:
            tasks[key] = Task(before, attempts, (last.nbytes or 0) // parts, rank, restriction,
                              max(0, last.submission))  # fmt: skip
    submissions, rest = _submissions(graph, ran, keys)
    if "gaps" in change.without:
        submissions, rest = [one._replace(gap=0.0) for one in submissions], 0.0
    if "transfers" in change.without:
        bandwidth = inf
    else:
        bandwidth = change.bandwidth or measured_bandwidth(rows, latency) or BANDWIDTH
    scheduler = {"stealing": True, "saturation": 1.1, **graph.scheduler}
    stealing = scheduler["stealing"] and "stealing" not in change.without
    workers = _workers(graph, rows, change, way)
    return Plan(
        tasks, submissions, workers, graph.restrictions, latency, bandwidth, rest, {
            "distributed.scheduler.work-stealing": stealing,
            "distributed.scheduler.worker-saturation": scheduler["saturation"] or inf,
        },
    )  # fmt: skip


def _workers(graph: Graph, rows: Sequence[Row], change: Experiment, way: float) -> list[Workers]:
    # Of each worker, the first task comes last.
    ways = [
        (row.start, row.worker, seconds)
        for row in rows
        if row.start is not None and (seconds := _waited(row)) is not None
    ]
    startups = {worker: max(0.0, seconds - way) for _, worker, seconds in sorted(ways)[::-1]}
    # Those that went after the end of the span, when the cluster closed, were there until then.
    went = [one if one is None or one < graph.stop - graph.start else None
            for one in (worker["went"] for worker in graph.workers)]  # fmt: skip
    known = [
        Workers(
            one["threads"], one.get("resources", {}), one["came"], gone, False,
            startups.get(number, 0.0),
        )
        for number, (one, gone) in enumerate(zip(graph.workers, went, strict=True))
    ]  # fmt: skip
    if change.workers is not None:
        return [
            known[number % len(known)]._replace(threads=threads, came=None, went=None)
            for number, threads in enumerate(change.workers)
        ]
    # A result is computed again, or a run is lost, only if a worker did not hand over what it had.
    times = Counter(row.task for row in rows if row.outcome == "m")
    losers = {row.worker for row in rows if row.outcome == "l" or times[row.task] > 1}
    killed = [one.went is not None and number in losers for number, one in enumerate(known)]
    if "failures" in change.without:
        return [
            one._replace(went=None) if lost else one
            for one, lost in zip(known, killed, strict=True)
        ]
    return [one._replace(killed=lost) for one, lost in zip(known, killed, strict=True)]


def _submissions(
    graph: Graph, ran: Mapping[int, Sequence[Row]], keys: Mapping[int, Sequence[Key]]
) -> tuple[list[Submission], float]:
    """Return the submissions, and the seconds that the span went on after its last task."""
    members: dict[int, list[int]] = defaultdict(list)
    where = {task: max(0, runs[0].submission) for task, runs in ran.items()}
    inner, outer = set[int](), set[int]()
    for task, runs in ran.items():
        members[where[task]].append(task)
        for other in runs[-1].before:
            (inner if where.get(other) == where[task] else outer).add(other)
    results = ran.keys() - (inner - outer)
    times = {number: graph.submissions[number] if graph.submissions else 0.0 for number in members}
    ends = sorted(
        ((runs[-1].start or 0.0) + (runs[-1].seconds or 0.0), task) for task, runs in ran.items()
    )
    found: list[Submission] = []
    at, last = 0, 0.0
    places: dict[int, int] = {}
    had: Counter[int] = Counter()
    for number, time in sorted(times.items(), key=lambda one: (one[1], one[0])):
        after: dict[int, int] = {}
        while at < len(ends) and ends[at][0] <= time + _ROUNDED:
            end, task = ends[at]
            at += 1
            # What comes later was submitted before: its time is not exact.
            if task in results and where[task] in places:
                place = places[where[task]]
                had[place] += len(keys[task])
                after[place] = had[place]
                last = max(last, end)
        places[number] = len(found)
        found.append(Submission(
            [key for task in members[number] for key in keys[task]],
            [key for task in members[number] if task in results for key in keys[task]],
            after, max(0.0, time - last),
        ))  # fmt: skip
        last = max(last, time)
    return found, max(0.0, graph.stop - graph.start - ends[-1][0]) if ends else 0.0


def _waited(row: Row) -> float | None:
    """Return the seconds from its sending to its start without those for data."""
    if row.start is None or row.sent is None:
        return None
    return row.start - row.sent - row.transfer - row.disk


def _way(rows: Iterable[Row], workers: int) -> float:
    """Return the seconds to the start of a task that found a free thread at its worker."""
    ways = sorted(way for row in rows if (way := _waited(row)) is not None)
    # At least one of each worker did, and they are the quickest.
    quickest = ways[:workers]
    return min(_MOST_WAY, quickest[len(quickest) // 2]) if quickest else 0.0


def _pause(rows: Iterable[Row]) -> float:
    """Return the seconds in which a thread of a worker changes from a task to the next one."""
    ran = [(row, row.start, row.sent or 0.0) for row in rows if row.start is not None]
    ends: dict[int, list[float]] = defaultdict(list)
    for row, start, _ in ran:
        ends[row.worker].append(start + (row.seconds or 0.0))
    for of_worker in ends.values():
        of_worker.sort()
    pauses = []
    for row, start, sent in ran:
        place = bisect_right(ends[row.worker], start)
        last = ends[row.worker][place - 1] if place else -inf
        # It was there, and waited for that end.
        if sent < last and not row.transfer + row.disk:
            pauses.append(start - last)
    return median(pauses) if pauses else 0.0


def measured_bandwidth(rows: Iterable[Row], latency: float) -> float | None:
    """Return the bytes a second between two workers, as recorded; None if there are none."""
    places: dict[int, tuple[int, int]] = {}
    moved, seconds, there = 0, 0.0, set()
    for row in rows:
        if row.transfer:
            # A question and an answer.
            seconds += max(0.0, row.transfer - 2 * latency)
            for task in row.before:
                worker, nbytes = places.get(task, (row.worker, 0))
                if worker != row.worker and (task, row.worker) not in there:
                    there.add((task, row.worker))
                    moved += nbytes
        if row.outcome == "m":
            places[row.task] = (row.worker, row.nbytes or 0)
    return moved / seconds if moved and seconds > _ROUNDED else None

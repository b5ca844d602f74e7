"""The plan of a replay: which tasks are submitted when, on which workers, and how long they take.

A submission follows the results that its client had when it made it. So its time is relative: the
client waits until as many results of each earlier submission are there as there were, and then for
so long as it took after the last of them. On a faster cluster it submits earlier, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from math import ceil, inf
from statistics import median, median_high
from typing import Any, Final, NamedTuple, TypeAlias

from dask_otel.core.graph import Row
from dask_otel.core.pace import runs_of, slow_of
from dask_otel.core.sums import covered, summed
from dask_otel.whatif.experiments import LONGEST, Experiment
from dask_otel.whatif.graph import Graph

#: Of a task: the name of its group, which begins with its prefix; and the numbers of the task, of
#: the piece, and of the order. Dask's sets have another order in each, as in each real run.
Key: TypeAlias = tuple[str, str]

#: See `Worker.slowness`.
Slowness: TypeAlias = Mapping[int, tuple[float, float]]

#: The number of a submission, the name of a group in it, and how many results of it are there; or
#: without a group, once: it is made. The program begins with number -1.
Event: TypeAlias = tuple[int, str, int]

#: Data from a worker to another one: their numbers, its beginning and end.
Message: TypeAlias = tuple[int, int, float, float]

#: Bytes a second of a worker, if no large message was recorded: Dask's own guess.
BANDWIDTH: Final = 100e6
#: Bytes of a large message. Dask, too, learns nothing of its bandwidth from smaller ones, which
#: mostly wait for event loops.
LARGE: Final = 1e6

#: The most seconds of a message: a task that waits longer for a free worker waits for its start.
_MOST_WAY: Final = 0.05

#: Times of the log are rounded to this.
_ROUNDED: Final = 1e-6

#: The priority of a task without one.
_LAST: Final = (inf, inf)

#: A user's pauses are alike if they differ by this share of the last one at most.
_ALIKE: Final = 0.05

#: Dask's own `fifo_timeout` of `Client.map` and of `Client.compute`.
_FIFO: Final = (0.1, 60.0)


class Task(NamedTuple):
    """A task of a replay, or a piece of one."""

    before: Sequence[Key]
    #: Its place in the order of priorities.
    rank: int
    #: As recorded: the user's, the submission's, and the order in that.
    priority: Sequence[float]
    #: Its runs one after the other, as changed; the last one again if a result is lost. None is
    #: lost with a worker: workers are lost, not runs.
    runs: Sequence[Row]
    #: What decides its place in Dask's sets.
    hash: int


class Submission(NamedTuple):
    """What a client submits at once."""

    keys: Sequence[Key]
    #: Of those, the ones that nothing else in the submission needs: what the client waits for.
    results: Sequence[Key]
    #: What it follows.
    after: Collection[Event]
    #: Seconds from then until the client sends it.
    gap: float
    #: Dask gives it the priority of one before it that is so many seconds older at most.
    fifo_timeout: float


class Worker(NamedTuple):
    """A worker of a replay."""

    #: By the names, Dask has them in the recorded order.
    name: str
    threads: int
    resources: Mapping[str, float]
    #: When it came and went.
    came: float
    went: float
    #: If it went, it did with results or with runs, as a killed one does.
    killed: bool
    #: Seconds that its first task waits for it, because it imports modules, for example.
    startup: float
    #: By the number of a prefix, as far as both are known: the seconds of its tasks here, and those
    #: of as many tasks on other workers; empty if it is as fast as others.
    slowness: Slowness
    #: What decides its place in Dask's sets.
    hash: int
    #: When it sent some heartbeat; None if that is unknown, or if it came later.
    beat: float | None


class Plan(NamedTuple):
    """Everything that a replay needs."""

    tasks: Mapping[Key, Task]
    #: By their numbers.
    submissions: Mapping[int, Submission]
    workers: Sequence[Worker]
    restrictions: Sequence[Mapping[str, Any]]
    #: Seconds of a message, and those of its data by the bytes.
    latency: float
    wire: Callable[[float], float]
    #: Seconds from the end of the last task to the end of the span.
    rest: float
    #: Dask's configuration.
    config: Mapping[str, Any]
    #: Whether each task goes to a worker that has a free thread.
    is_even: bool
    #: Seconds after the start of the cluster, which decide when workers steal.
    begins: float
    #: How many tasks the scheduler has sent before, which decides where the first of these goes.
    made: int
    #: By prefix, the seconds that it expects of a task, and the longest that it has seen so far;
    #: negative if it knows none.
    expected: Mapping[str, tuple[float, float]]


def plan(graph: Graph, change: Experiment, order: int = 0) -> Plan:
    """Return how to replay a run with a change.

    Parameters
    ----------
    graph
        The run as recorded.
    change
        The change; of an experiment without one, the plan is the run as it was.
    order
        The number of an order of what Dask leaves to chance.
    """
    host = change.cluster or graph
    theirs = host.rows()
    ran: dict[int, list[Row]] = defaultdict(list)
    for row in graph.rows():
        if row.seconds is not None and row.outcome != "l":
            ran[row.task].append(row)
    longest = max(ran, key=lambda task: ran[task][-1].seconds or 0.0, default=-1)
    keys: dict[int, list[Key]] = {}
    for task, runs in ran.items():
        prefix = graph.prefixes[runs[0].prefix]
        pieces = change.split.get(LONGEST, 1) if task == longest else 1
        pieces = max(pieces, change.split.get(prefix, 1))
        keys[task] = [
            (f"{prefix}-{runs[0].group}", f"{task}.{piece}.{order}") for piece in range(pieces)
        ]
    priorities = {tuple(runs[-1].priority) for runs in ran.values() if runs[-1].priority}
    ranks = {priority: rank for rank, priority in enumerate(sorted(priorities))}
    fetched = fetched_by(theirs)
    starts = sorted(_starts(theirs, fetched))
    pause = _pause(starts)
    way = max(pause, _way(starts, len(host.workers)))
    without = change.without
    # The means of another run have its slow workers.
    slowness = _slowness(ran) if change.cluster is None else {}

    def changed(row: Row) -> Row:
        faster = slower_by(slowness.get(row.worker, {}), row.prefix) * len(keys[row.task])
        faster *= change.faster.get(graph.prefixes[row.prefix], 1.0)
        return row._replace(
            # Before its function begins; Dask's own work, too.
            disk=(row.disk or 0.0) + pause,
            seconds=(row.seconds or 0.0) / faster,
            seceded=row.seceded and row.seceded / faster,
            nbytes=(row.nbytes or 0) // len(keys[row.task]),
            outcome="m" if "failures" in without else row.outcome,
            restriction=-1 if "restrictions" in without else row.restriction,
        )

    tasks: dict[Key, Task] = {}
    for task, runs in ran.items():
        own = [*map(changed, runs[-1:] if "failures" in without else runs)]
        before = [key for other in runs[-1].before for key in keys.get(other, ())]
        rank = ranks[tuple(runs[-1].priority)] if runs[-1].priority else len(ranks)
        for piece, key in enumerate(keys[task]):
            known = None if order or piece else runs[-1].hash
            tasks[key] = Task(
                before, rank, runs[-1].priority or _LAST, own,
                hash(key) if known is None else known,
            )  # fmt: skip
    latency = way - pause
    # Of each worker, the first task comes last.
    startups = {one.worker: max(0.0, one.start - one.ready - way) for one in starts[::-1]}
    submissions, rest = _submissions(graph, ran, keys, latency)
    if "gaps" in without:
        submissions = {number: one._replace(gap=0.0) for number, one in submissions.items()}
        rest = 0.0
    wire = _wire(fetched, latency, inf if "transfers" in without else change.bandwidth)
    scheduler = {
        "stealing": True, "stealing_interval": 1.0, "stealing_at": None,
        "copies_interval": 2.0, "copies_at": None,
        "saturation": 1.1, "unknown_duration": 0.5, "made": None, **host.scheduler,
    }  # fmt: skip
    interval, every = scheduler["stealing_interval"] or 1.0, scheduler["copies_interval"] or 2.0
    stealing_at, copies_at = scheduler["stealing_at"], scheduler["copies_at"] or 0.0
    stealing_at = interval / 2 if stealing_at is None else stealing_at
    # Of the turns of stealing, the one from which extra copies are dropped as they were.
    begins = min(
        (
            interval * (ceil(1.0 / interval) + 1 + turn)
            for turn in range(ceil(min(every, 10.0) / interval))
        ),
        key=lambda one: abs((one - stealing_at + copies_at + every / 2) % every - every / 2),
    )
    is_even = "unevenness" in without
    config = {
        "distributed.scheduler.work-stealing": scheduler["stealing"] and "stealing" not in without,
        "distributed.scheduler.work-stealing-interval": f"{interval}s",
        "distributed.scheduler.active-memory-manager.start":
            scheduler["copies_interval"] is not None,
        "distributed.scheduler.active-memory-manager.interval": f"{every}s",
        "distributed.scheduler.worker-saturation":
            1.0 if is_even else scheduler["saturation"] or inf,
        "distributed.scheduler.unknown-task-duration": scheduler["unknown_duration"],
    }  # fmt: skip
    if scheduler.get("bandwidth"):
        config["distributed.scheduler.bandwidth"] = scheduler["bandwidth"]
    expected = {}
    for prefix, *pair in zip(
        graph.prefixes, graph.durations, graph.longest or repeat(None), strict=False
    ):
        # Earlier runs, of which it knows them, would have had the change, too.
        shorter = change.faster.get(prefix, 1.0) * change.split.get(prefix, 1)
        average, longest_run = (
            -1.0 if one is None else max(_ROUNDED, one / shorter) for one in pair
        )
        expected[prefix] = average, longest_run
    return Plan(
        tasks, submissions,
        _workers(
            host, theirs, change, startups, {} if "slow-worker" in without else slowness, order
        ),
        graph.restrictions, latency, wire, rest, config, is_even,
        # They steal as they did, or a third or two thirds of it earlier.
        begins + interval * order / 3 - latency - stealing_at, scheduler["made"] or 0,
        expected,
    )  # fmt: skip


def slower_by(slowness: Slowness, prefix: int) -> float:
    """Return how many times as long a prefix takes; if it ran only there, the mean of others."""
    pairs = [slowness[prefix]] if prefix in slowness else slowness.values()
    return sum(one for one, _ in pairs) / sum(one for _, one in pairs) if pairs else 1.0


def _slowness(ran: Mapping[int, Sequence[Row]]) -> Mapping[int, Slowness]:
    """Return the slowness of the slow workers."""
    seconds: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in chain(*ran.values()):
        seconds[row.prefix][row.worker].append(row.seconds or 0.0)
    found: dict[int, dict[int, tuple[float, float]]] = defaultdict(dict)
    for prefix, workers in seconds.items():
        runs = {worker: runs_of(own) for worker, own in workers.items()}
        slow, _, others = slow_of(runs)
        for worker in slow:
            count, took, _ = runs[worker]
            found[worker][prefix] = took, count * others[1] / others[0]
    return found


def losers(rows: Sequence[Row]) -> set[int]:
    """Return the workers with runs or results that may have been lost with them."""
    # A result is computed again, or a run is lost, only if a worker did not hand over what it had.
    times = Counter(row.task for row in rows if row.outcome == "m")
    return {row.worker for row in rows if row.outcome == "l" or times[row.task] > 1}


def _workers(
    graph: Graph,
    rows: Sequence[Row],
    change: Experiment,
    startups: Mapping[int, float],
    slowness: Mapping[int, Slowness],
    order: int,
) -> list[Worker]:
    known, lost = [], losers(rows)
    for number, one in enumerate(graph.workers):
        is_lost, went = number in lost, one["went"] or inf
        # Those that went after the end of the span, when the cluster closed, were there until then.
        if went >= graph.stop - graph.start or (is_lost and "failures" in change.without):
            went = inf
        known.append(
            Worker(
                name=f"w{one.get('place', number):05}-{number}",
                threads=one["threads"],
                resources=one.get("resources", {}),
                came=one["came"] or 0.0,
                went=went,
                killed=is_lost,
                startup=startups.get(number, 0.0),
                slowness=slowness.get(number, {}),
                hash=hash((number, order)) if order else one.get("hash", number),
                beat=None if order or one["came"] else one.get("seen"),
            )
        )
    if change.workers is None:
        return known
    more = [
        known[number % len(known)]._replace(
            name=f"w{number:05}", slowness={}, hash=hash((number, order))
        )
        for number in range(len(known), len(change.workers))
    ]
    return [
        one._replace(threads=threads, came=0.0, went=inf)
        for one, threads in zip(known + more, change.workers, strict=False)
    ]


def _submissions(
    graph: Graph,
    ran: Mapping[int, Sequence[Row]],
    keys: Mapping[int, Sequence[Key]],
    latency: float,
    pause: float = inf,
) -> tuple[dict[int, Submission], float]:
    """Return the submissions, and the seconds that the span went on after its last task.

    A user of whom nothing else is known makes that `pause` after results, or the usual one.
    """
    members: dict[int, list[int]] = defaultdict(list)
    where = {task: max(0, runs[0].submission) for task, runs in ran.items()}
    inner, outer = set[int](), set[int]()
    for task, runs in ran.items():
        members[where[task]].append(task)
        for other in runs[-1].before:
            (inner if where.get(other) == where[task] else outer).add(other)
    results = ran.keys() - (inner - outer)
    times = [
        (graph.submissions[number] if graph.submissions else 0.0, True, number)
        for number in sorted(members)
    ]
    ends = [
        ((runs[-1].start or 0.0) + (runs[-1].seconds or 0.0), False, task)
        for task, runs in ran.items()
    ]
    units = {task: (where[task], keys[task][0][0]) for task in results}
    #: Of tasks of one group that were submitted together: all results, and those that are there.
    sizes = Counter(unit for task, unit in units.items() for _ in keys[task])
    had, new = Counter[tuple[int, str]](), dict[tuple[int, str], float]()
    found: dict[int, Submission] = {}
    #: By submission, the pause that its user made before; by priority, the first submission.
    pauses, begun = dict[int, float](), dict[float, float]()
    before, last = -1, -latency
    for time, is_made, number in sorted(ends + times, key=lambda one: one[0] + _ROUNDED * one[1]):
        if not is_made:
            # What comes later was submitted before: its time is not exact.
            if number in units and where[number] in found:
                had[units[number]] += len(keys[number])
                new[units[number]] = time
            continue
        # Another user may wait for one that is not complete.
        whole = {one: end for one, end in new.items() if had[one] == sizes[one]}
        ended: dict[int, float] = {}
        for (one, _), end in whole.items():
            ended[one] = max(end, ended.get(one, 0.0))
        # Or for one that is: each user makes the same pause after its own.
        waited = {
            one for one, end in ended.items()
            if abs(time - end - pauses.get(one, pause)) <= _ALIKE * (time - end)
        } or ended.keys()  # fmt: skip
        if len(waited) == 1:
            pauses[number] = time - ended[next(iter(waited))]
        after = {
            (*one, had[one]): end
            for one, end in (whole or new).items() if one[0] in waited or not whole
        }  # fmt: skip
        if not whole:
            after[before, "", 1] = last
        # Nor does it overtake those that it continues: Dask would cancel it.
        needed = {where.get(one) for task in members[number] for one in ran[task][-1].before}
        after = {(one, "", 1): -latency for one in needed if one in found} | after
        before, last = number, time - latency
        new = {one: end for one, end in whole.items() if one[0] not in waited}
        _, generation, *_ = ran[members[number][0]][-1].priority or _LAST
        since = time - begun.setdefault(generation, time)
        found[number] = Submission(
            [key for task in members[number] for key in keys[task]],
            [key for task in members[number] if task in results for key in keys[task]],
            [*after], max(0.0, last - max(after.values())), _FIFO[since > _FIFO[0]],
        )  # fmt: skip
    if pauses and pause == inf:
        return _submissions(graph, ran, keys, latency, median(pauses.values()))
    return found, max(0.0, graph.stop - graph.start - max(ends)[0]) if ends else 0.0


class Fetched(NamedTuple):
    """A result that a worker got from another one."""

    source: int
    nbytes: int
    began: float
    ended: float


def fetched_by(rows: Iterable[Row]) -> dict[tuple[int, int], Fetched]:
    """Return what workers fetched, by worker and task."""
    found: dict[tuple[int, int], Fetched] = {}
    places: dict[int, tuple[int, int]] = {}
    for row in rows:
        began = row.sent or 0.0 if row.fetched is None else row.fetched
        ended = began + (row.transfer or 0.0)
        for task in row.before if row.transfer else ():
            source, nbytes = places.get(task, (row.worker, 0))
            if source != row.worker:
                found.setdefault((row.worker, task), Fetched(source, nbytes, began, ended))
        if row.outcome == "m":
            places[row.task] = (row.worker, row.nbytes or 0)
    return found


class Start(NamedTuple):
    """The start of a run."""

    start: float
    worker: int
    #: When it could have begun, and when the worker had its data, too.
    sent: float
    ready: float
    stop: float


def _starts(rows: Iterable[Row], fetched: Mapping[tuple[int, int], Fetched]) -> Iterator[Start]:
    """Yield the known starts of runs."""
    for row in rows:
        if row.start is not None and row.sent is not None:
            places = ((row.worker, task) for task in row.before)
            # Several runs can wait for a transfer, and only one of them has it.
            came = (fetched[place].ended for place in places if place in fetched)
            sent, stop = row.sent + (row.disk or 0.0), row.start + (row.seconds or 0.0)
            yield Start(row.start, row.worker, sent, max([sent, *came]), stop)


def _way(starts: Iterable[Start], workers: int) -> float:
    """Return the seconds to the start of a task that found a free thread at its worker."""
    # At least one of each worker did, and they are the quickest.
    quickest = sorted(one.start - one.sent for one in starts if one.ready == one.sent)[:workers]
    return min(_MOST_WAY, median_high(quickest)) if quickest else 0.0


def _pause(starts: Sequence[Start]) -> float:
    """Return the seconds in which a thread of a worker changes from a task to the next one."""
    ended, pauses = dict[int, float](), list[float]()
    times = chain.from_iterable(((one.stop, 0, one), (one.start, 1, one)) for one in starts)
    for time, is_start, one in sorted(times):
        if not is_start:
            ended[one.worker] = time
        # It was there, and waited for that end.
        elif one.ready < ended.get(one.worker, -inf):
            pauses.append(time - ended[one.worker])
    return median(pauses) if pauses else 0.0


def messages(fetched: Mapping[tuple[int, int], Fetched]) -> dict[Message, float]:
    """Return the bytes of the messages with data."""
    return summed(
        {(one.source, receiver, one.began, one.ended): one.nbytes}
        for (receiver, _), one in fetched.items()
    )


def _wire(
    fetched: Mapping[tuple[int, int], Fetched], latency: float, bandwidth: float | None
) -> Callable[[float], float]:
    """Return how long data of some bytes takes: with a bandwidth, or as recorded."""
    if bandwidth is not None:
        return lambda nbytes: nbytes / bandwidth
    sent = messages(fetched)
    small, large = (
        {one: size for one, size in sent.items() if (size >= LARGE) is is_large}
        for is_large in (False, True)
    )
    slow = _bandwidth(small, latency, 0)
    fast = max(_bandwidth(large, latency, end) for end in (0, 1))
    largest = max(small.values(), default=0.0)

    def seconds(nbytes: float) -> float:
        # The rest of a large message is limited by its busier end.
        first = min(nbytes, largest)
        return first / slow + (nbytes - first) / fast

    return seconds


def _bandwidth(sent: Mapping[Message, float], latency: float, end: int) -> float:
    """Return the bytes a second from a worker, or to one (1); without messages, Dask's guess."""
    busy: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for source, receiver, began, ended in sent:
        # After a question and an answer.
        busy[(source, receiver)[end]].append((began + 2 * latency, ended))
    seconds = sum(map(covered, busy.values()))
    moved = sum(sent.values())
    return moved / seconds if moved and seconds > _ROUNDED else BANDWIDTH

"""When threads were really free: from the tasks' own start and stop, and the scheduler's workers.

A closed sum is no evidence that idle is true: this is what the exported idle is compared with,
at every export and not at the end alone.

Nothing here hopes for a quick machine. What a slow one makes uncertain is measured: when the
scheduler itself took work up and saw it end, when each heartbeat was sent and came, and what Dask
metered beyond what the tasks saw of themselves. What is left is `TOLERANCE`.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from dask.typing import Key
from distributed import Worker, get_worker

from tests.cluster.conftest import Bridged, Start
from tests.cluster.truth import described_spans
from tests.cluster.witness import Witness
from tests.receiver import Receiver
from tests.waiting import eventually

#: Seconds a scenario may be off, beside what is measured. The errors to be caught are whole
#: tasks, of half a second and more.
TOLERANCE = 0.1

#: Export ten times a second: what jumps and falls back is seen.
FAST = {"OTEL_METRIC_EXPORT_INTERVAL": "100"}


class Run(NamedTuple):
    """One occupation of a thread, by the wall clock that Dask uses too."""

    #: Address of the worker; None if the process that ran it can't tell.
    worker: str | None
    start: float
    stop: float
    #: Of the task; None where it can't tell.
    key: Key | None = None

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.stop - self.start


#: Every run so far, written by the tasks themselves; workers are threads of this process.
RUNS: list[Run] = []
#: What tasks ran on after they had seceded: it is metered, and holds no thread.
BESIDE: list[Run] = []
_LOCK = threading.Lock()


@contextmanager
def recorded(into: list[Run] = RUNS) -> Iterator[None]:
    """Record the block as a run; to be used in a task."""
    worker, began = get_worker(), time.time()
    # A coroutine has no thread of its own to know its task by.
    key = worker.active_threads.get(threading.get_ident())
    try:
        yield
    finally:
        with _LOCK:
            into.append(Run(worker.address, began, time.time(), key))


def work(seconds: float, *_: object) -> float:
    """A task that holds its thread for some time."""
    with recorded():
        time.sleep(seconds)
    return seconds


def fail(seconds: float) -> None:
    """A task that fails after some time."""
    with recorded():
        time.sleep(seconds)
        raise RuntimeError("as asked for")


class Cut(NamedTuple):
    """A heartbeat that came."""

    sent: float
    came: float


def metered(metrics: Mapping[Any, float]) -> float:
    """Return the execute seconds of a heartbeat, or of what is kept for the next one."""
    return sum(
        value
        for key, value in metrics.items()
        if isinstance(key, tuple) and (key[0], key[-1]) == ("execute", "seconds")
    )


class Watch(Witness):
    """Notes what came from the workers, and what they kept when they left."""

    def __init__(self, bridged: Bridged) -> None:
        super().__init__(bridged.scheduler, bridged.cluster.workers)
        self.cuts: dict[str, list[Cut]] = defaultdict(list)
        self.joined: dict[str, tuple[float, int]] = {}
        #: Since when tasks ran, as the workers said: before what the tasks saw of themselves. A
        #: task that runs again has more than one beginning.
        self.executing_since: dict[tuple[str, Key], set[float]] = defaultdict(set)
        #: Metered seconds that never came to the scheduler.
        self.unheard = 0.0
        bridged.client.sync(self._attach, bridged.scheduler)

    async def _attach(self, scheduler: Any) -> None:
        for ws in scheduler.workers.values():
            self.add_worker(scheduler, ws.address)
        original = scheduler.handlers["heartbeat_worker"]

        @wraps(original)
        def heartbeat_worker(*args: Any, **message: Any) -> Any:
            answer = original(*args, **message)
            worker = message["address"]
            self.cuts[worker].append(Cut(message["now"], time.time()))
            for key, elapsed in message["executing"].items():
                self.executing_since[worker, key].add(message["now"] - elapsed)
            return answer

        scheduler.handlers["heartbeat_worker"] = heartbeat_worker
        scheduler.add_plugin(self)

    def add_worker(self, scheduler: Any, worker: str) -> None:
        self.joined[worker] = time.time(), scheduler.workers[worker].nthreads

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        # Those of other processes are killed, with all that they had not reported.
        for one in list(Worker._instances):
            if one.address == worker:
                self.unheard += metered(one.digests_total_since_heartbeat)

    def lost(self, message: Mapping[str, Any]) -> None:
        """A heartbeat will not come."""
        self.unheard += metered(message["extensions"]["spans"])

    def before(self, run: Run) -> float:
        """Return for how long a task ran before its own code did; 0 if no heartbeat saw it."""
        if run.worker is None or run.key is None:
            return 0.0
        began = self.executing_since.get((run.worker, run.key), ())
        since = [when for when in began if when <= run.start]
        return run.start - max(since, default=run.start)

    def settled(self, before: float, left: Mapping[str, float]) -> float:
        """Return up to when idle is booked at some moment, by the heartbeats that had come.

        The last one may have held back a task that it did not see end.
        """
        times = [before]
        for worker, (joined, _) in self.joined.items():
            if joined < before < left.get(worker, inf):
                cuts = [cut for cut in self.cuts[worker] if cut.came < before]
                times.append(cuts[-2].sent if len(cuts) > 1 else joined)
        return min(times)

    @property
    def late(self) -> float:
        """Thread-seconds that are booked too early where even quick heartbeats are slow.

        The quickest one of a worker counts as on time; see `WorkerTime._taken_at`.
        """
        return sum(
            threads * (self.cuts[worker][0].came - self.cuts[worker][0].sent)
            for worker, (_, threads) in self.joined.items()
            if self.cuts[worker]
        )


@dataclass
class Watched(Bridged):
    """A cluster with the bridge that is watched."""

    watch: Watch


@contextmanager
def watched(start: Start, **options: Any) -> Iterator[Watched]:
    """Start a cluster that exports often, and watch it; nothing has run there."""
    with start(environ=FAST, **options) as bridged:
        RUNS.clear()
        BESIDE.clear()
        yield Watched(bridged.cluster, bridged.client, bridged.received, Watch(bridged))


@dataclass
class Truth:
    """Free thread-seconds of a cluster while it had work, up to any moment."""

    #: When the scheduler got work, began to take it up, and saw it end.
    begin: float
    taken_up: float
    end: float
    #: Dask's own ``total_nthreads_history``.
    threads: list[tuple[float, int]]
    #: When workers left: what their threads did afterwards is nobody's.
    left: dict[str, float]

    @classmethod
    def of(cls, bridged: Watched, span_name: str) -> Truth:
        """Take the time of a span's work, and the scheduler's history of workers."""
        scheduler = bridged.scheduler
        described = bridged.client.run_on_scheduler(described_spans)
        ids = {span_id for span_id, one in described.items() if one["name"][0] == span_name}
        left = {
            event["worker"]: when
            for when, event in scheduler.get_events("all")
            if event.get("action") == "remove-worker"
        }
        begin = min(described[span_id]["enqueued"] for span_id in ids)
        return cls(begin, *bridged.watch.work(ids), list(scheduler.total_nthreads_history), left)

    def capacity(self, until: float = inf) -> float:
        """Thread-seconds that there were."""
        until = min(until, self.end)
        return sum(
            max(0.0, min(after[0], until) - max(before[0], self.begin)) * before[1]
            for before, after in pairwise([*self.threads, (inf, 0)])
        )

    def busy(self, until: float = inf) -> float:
        """Thread-seconds in which a task ran."""
        until = min(until, self.end)
        seconds = 0.0
        for run in RUNS:
            stop = min(run.stop, until, self.left.get(run.worker or "", inf))
            seconds += max(0.0, stop - max(run.start, self.begin))
        return seconds

    def idle(self, until: float = inf) -> float:
        """Thread-seconds in which a thread was free."""
        return self.capacity(until) - self.busy(until)

    def ran(self) -> float:
        """Thread-seconds of runs that ended on a worker that was there: they were metered."""
        return sum(run.seconds for run in RUNS if run.stop <= self.left.get(run.worker or "", inf))

    def cut_off(self) -> dict[Run, float]:
        """Thread-seconds of runs whose worker left: nobody metered them."""
        ends = [(run, self.left.get(run.worker or "", inf)) for run in RUNS]
        return {run: max(0.0, end - run.start) for run, end in ends if end < run.stop}


def held(path: str) -> None:
    """A task that runs until there is a file."""
    with recorded():
        eventually(Path(path).exists)


def running(bridged: Bridged, tasks: int) -> None:
    """Wait until so many tasks hold a thread, by the workers' own count."""
    workers = bridged.cluster.workers.values()
    eventually(lambda: sum(len(w.state.executing) for w in workers) == tasks, what="tasks run")


def cluster_time(received: Receiver, activity: str) -> float:
    """Return the last value of an activity of ``dask.cluster.time``."""
    return received.last("dask.cluster.time").get((("dask.activity", activity),), 0.0)


def reported_time(received: Receiver) -> float:
    """Return what the workers reported, over all activities."""
    return sum(
        value
        for labels, value in received.last("dask.cluster.time").items()
        if dict(labels)["dask.activity"] not in ("idle", "unused", "lost")
    )


def idle_points(received: Receiver, activity: str = "idle") -> list[tuple[float, float]]:
    """Return every exported (time, seconds) of idle, or of another activity."""
    return [
        (point.time_ns / 1e9, point.value)
        for point in received.points
        if point.metric == "dask.cluster.time" and point.attributes["dask.activity"] == activity
    ]


def at_rest(bridged: Bridged) -> Receiver:
    """Wait until nothing is in flight any more and all has been exported."""
    received = bridged.exported(60)
    eventually(lambda: received.last("dask.cluster.inflight.time")[()] == 0, 20, "in flight is 0")
    return bridged.exported()


@dataclass
class Checked:
    """What was compared with the truth."""

    received: Receiver
    truth: Truth
    #: Seconds that Dask metered beyond what the tasks saw of themselves; these are not idle.
    overhead: float
    #: Thread-seconds by which an export may be off.
    within: float


def check(
    bridged: Watched,
    name: str,
    *,
    at_once: bool = False,
    in_order: bool = True,
    earlier: float = 0.0,
) -> Checked:
    """Wait until the cluster is at rest, and compare every export with the truth.

    Parameters
    ----------
    name
        Of the span with the work.
    at_once
        Whether idle needs no heartbeat to be seen: threads that certainly have no task.
    in_order
        Whether two heartbeats tell all: not where cancelled tasks run on beside others.
    earlier
        Idle seconds of the spans before this one.
    """
    received = at_rest(bridged)
    watch, truth = bridged.watch, Truth.of(bridged, name)
    within = TOLERANCE + watch.late
    beside = sum(run.seconds for run in BESIDE)
    # What is reported was compared with Dask's own figures before.
    reported = reported_time(received) + watch.unheard
    overhead = max(0.0, reported - beside - truth.ran())
    # Nobody knows how much of it was in what did not come, in what was no thread's time, or in
    # what ran on when there was no more work.
    elsewhere = BESIDE or any(run.stop > truth.end for run in RUNS)
    unsure = overhead if elsewhere else min(overhead, watch.unheard)
    cut_off = truth.cut_off()
    # Of what is lost, too, something was before the tasks' own code.
    early = sum(map(watch.before, cut_off))
    missing = overhead + early + within + truth.capacity(truth.taken_up)
    points = [
        (at, idle - earlier)
        for at, idle in idle_points(received)
        if not earlier or at >= truth.begin
    ]
    assert points[-1][0] > truth.end
    previous = truth.begin
    for at, idle in points:
        assert idle <= truth.idle(at) + within, (at - truth.begin, idle, truth.idle(at), within)
        # An export covers the time up to some moment after the previous export.
        settled = previous if at_once else watch.settled(previous, truth.left)
        assert not in_order or idle >= truth.idle(settled) - missing, (
            at - truth.begin, settled - truth.begin, idle, truth.idle(settled), overhead, missing,
        )  # fmt: skip
        previous = at
    idle = points[-1][1]
    assert truth.idle() - missing <= idle, (idle, truth.idle(), overhead, missing)
    exported = received.last("dask.cluster.excess.time")[()]
    assert beside - within <= exported <= beside + overhead + within, (exported, beside, overhead)
    # What is in excess was metered, and took no idle thread.
    unsure += max(0.0, exported - beside)
    assert idle <= truth.idle() - overhead + unsure + within, (
        idle, truth.idle(), overhead, unsure, within,
    )  # fmt: skip
    lost, exported = watch.unheard + sum(cut_off.values()), cluster_time(received, "lost")
    assert lost - unsure - within <= exported <= lost + early + within, (
        exported, lost, unsure, early, within,
    )  # fmt: skip
    return Checked(received, truth, overhead, within)

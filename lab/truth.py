"""What really happened in a simulation, to hold against what an observer of Dask says of it.

It shares no code with any observer. When threads ran is known from the executor; when there was
unfinished work, and when workers came and left, from the scheduler's own transitions. All times are
those of the simulation's clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from distributed.diagnostics.plugin import SchedulerPlugin

from lab.clock import EPOCH
from lab.cluster import Cluster

#: A task in one of these has work left.
UNFINISHED: Final = frozenset({"waiting", "queued", "no-worker", "processing"})


#: From there to there, a task leaves its worker, which may run it on.
RELEASED: Final = (["processing", "released"], ["processing", "forgotten"])

#: Seconds between two heartbeats of few workers.
HEARTBEAT: Final = 0.5


@dataclass(frozen=True)
class Seconds:
    """Thread-seconds of a cluster."""

    #: Threads x time.
    capacity: float
    #: A task held the thread.
    busy: float
    #: No task did, although there was unfinished work; and when there was none.
    idle: float
    unused: float
    #: Tasks ran on after they had seceded.
    excess: float


@dataclass
class Presence:
    """A worker's time in the cluster."""

    state: Any
    joined: float
    left: float = inf

    @property
    def threads(self) -> int:
        """Its threads."""
        return int(self.state.nthreads)

    @property
    def silent(self) -> float:
        """For how long it had not been heard when it left."""
        return 0.0 if self.left == inf else self.left - (self.state.last_seen - EPOCH)


class Truth(SchedulerPlugin):  # type: ignore[misc]
    """Watches one simulated cluster; `attach` it before there are workers."""

    name = "truth"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.workers: dict[str, Presence] = {}
        #: Unfinished tasks, and the times at which there began to be some, and none.
        self._unfinished: set[Hashable] = set()
        self._borders: list[float] = []
        #: What tasks did, in its order: time, key, from, to.
        self.transitions: list[tuple[float, Hashable, str, str]] = []

    def attach(self) -> None:
        """Begin to watch. Belongs to the scheduler's machine."""
        self._cluster.scheduler.add_plugin(self)

    @property
    def now(self) -> float:
        """The simulation's clock."""
        return self._cluster.loop.now

    # ------------------------------------------------------------ what Dask's scheduler does

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """See ``SchedulerPlugin.add_worker``."""
        self.workers[worker] = Presence(scheduler.workers[worker], self.now)

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """See ``SchedulerPlugin.remove_worker``."""
        self.workers[worker].left = self.now

    def transition(self, key: Hashable, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """See ``SchedulerPlugin.transition``."""
        self.transitions.append((self.now, key, start, finish))
        before = bool(self._unfinished)
        if finish in UNFINISHED:
            self._unfinished.add(key)
        else:
            self._unfinished.discard(key)
        if bool(self._unfinished) is not before:
            self._borders.append(self.now)

    def restart(self, scheduler: Any) -> None:
        """See ``SchedulerPlugin.restart``: tasks are forgotten without transitions."""
        if self._unfinished:
            self._unfinished.clear()
            self._borders.append(self.now)

    # ------------------------------------------------------------------------- answers

    def working(self, until: float = inf) -> Iterator[tuple[float, float]]:
        """Yield the times from which to which there was unfinished work."""
        until = min(until, self.now)
        borders = [*self._borders, until] if len(self._borders) % 2 else self._borders
        for begin, end in zip(borders[::2], borders[1::2], strict=True):
            if begin < min(end, until):
                yield begin, min(end, until)

    def seconds(self, until: float = inf) -> Seconds:
        """Return the thread-seconds up to a time."""
        until = min(until, self.now)
        work = list(self.working(until))
        capacity = idle = busy = excess = 0.0
        for one in self.workers.values():
            there = one.joined, min(one.left, until)
            capacity += one.threads * _common(there, [there])
            idle += one.threads * _common(there, work)
        for run in self._cluster.runs:
            stop = min(run.stop, until, self.workers[run.worker].left)
            held = run.start, min(stop, run.seceded)
            busy += _common(held, [held])
            idle -= _common(held, work)
            excess += max(0.0, stop - run.seceded)
        return Seconds(capacity, busy, idle, capacity - busy - idle, excess)

    def unheard(self) -> float:
        """Return thread-seconds that workers took with them when they left."""
        return sum(one.threads * one.silent for one in self.workers.values())

    def unnoticed(self) -> float:
        """Return seconds for which ends waited for a blocked event loop; Dask meters them."""
        runs = [run for run in self._cluster.runs if run.stop < inf]
        return sum(max(0.0, run.stop - run.done) for run in runs)

    def unsettled(self) -> float:
        """Return seconds of threads that released tasks may have held, for all that is known.

        Whether they did, the heartbeats after it tell, of which an observer may need three. Until
        then it is unknown whether such a thread was free before or after the last work.
        """
        released = [t for t, _, *states in self.transitions if states in RELEASED]
        return 3 * HEARTBEAT * len(released)

    def unannounced(self) -> float:
        """Return seconds of cancelled tasks after they seceded: there is no message for that."""
        #: When a run may have begun that was released on its worker.
        ended = {}
        begun: dict[Hashable, float] = {}
        for when, key, start, finish in self.transitions:
            if finish == "processing":
                begun[key] = when
            if start == "processing" and finish in ("released", "forgotten"):
                ended[key] = begun[key], when
        return sum(
            min(run.stop, self.workers[run.worker].left) - run.seceded
            for run in self._cluster.runs
            if run.seceded < inf
            and (known := ended.get(run.key)) is not None
            and known[0] <= run.start
            and known[1] <= run.stop
        )


def _common(one: tuple[float, float], others: Sequence[tuple[float, float]]) -> float:
    """Return for how long a time overlaps with others."""
    return sum(max(0.0, min(one[1], end) - max(one[0], begin)) for begin, end in others)

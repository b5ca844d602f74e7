"""What really happened in a simulation, to hold against what an observer of Dask says of it.

It shares no code with any observer. When threads ran is known from the executor; when there was
unfinished work, and when workers came and left, from the scheduler's own transitions. All times are
those of the simulation's clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any, Final, NamedTuple

from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_otel.lab.clock import EPOCH
from dask_otel.lab.cluster import Beat, Cluster
from dask_otel.lab.executor import Run

#: A task in one of these has work left.
UNFINISHED: Final = frozenset({"waiting", "queued", "no-worker", "processing"})


#: From there to there, a task leaves its worker, which may run it on.
RELEASED: Final = (("processing", "released"), ("processing", "forgotten"))

#: Beginnings of Dask's names for ends without a result that a worker reports: the run failed, could
#: not begin, or is to be repeated.
REPORTED: Final = ("task-erred", "execute-unknown-error", "reschedule")

#: The floats of wall clocks.
STEP: Final = 1e-8

#: A clock's step that no late heartbeat can be taken for.
NOTICED: Final = 10.0

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


class Move(NamedTuple):
    """A task goes from one of Dask's states to another."""

    when: float
    key: Hashable
    start: str
    finish: str
    #: Dask's name of the cause, and the id of the task's span.
    stimulus: str
    span: str | None
    #: The tasks that it needs.
    needs: tuple[Hashable, ...]
    #: The activities that its worker reported, with their starts and stops.
    activities: tuple[Any, ...]
    #: Its worker from here on, and whether it needs a resource of that.
    worker: str | None = None
    restricted: bool = False
    #: Whether it failed for a reason of its own; and whether it, or a task that it needs, failed.
    own: bool = False
    failed: bool = False


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


class Truth(SchedulerPlugin):  # type: ignore[misc]
    """Watches one simulated cluster; `attach` it before there are workers."""

    name = "truth"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.workers: dict[str, Presence] = {}
        #: Unfinished tasks, and the times at which there began to be some, and none.
        self._unfinished: set[Hashable] = set()
        self._borders: list[float] = []
        #: What tasks did, in its order. A task that is stolen moves from processing to processing.
        self.moves: list[Move] = []
        #: After how many moves all tasks were forgotten.
        self.restarts: list[int] = []
        #: When, after how many moves, which worker takes tasks, for so many threads.
        self.taking: list[tuple[float, int, str, int]] = []
        #: When, and after how many moves, the scheduler knew that a task had seceded.
        self.seceded: list[tuple[float, int, Hashable]] = []

    def attach(self) -> None:
        """Begin to watch. Belongs to the scheduler's machine."""
        self._cluster.scheduler.add_plugin(self)
        handlers = self._cluster.scheduler.stream_handlers
        handle = handlers["long-running"]

        def long_running(key: Hashable, **message: Any) -> None:
            handle(key=key, **message)
            task = self._cluster.scheduler.tasks.get(key)
            ws = None if task is None else task.processing_on
            if ws is not None and task in ws.long_running:
                self.seceded.append((self.now, len(self.moves), key))

        handlers["long-running"] = long_running

    @property
    def now(self) -> float:
        """The simulation's clock."""
        return self._cluster.loop.now

    # ------------------------------------------------------------ what Dask's scheduler does

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """See ``SchedulerPlugin.add_worker``."""
        self.workers[worker] = Presence(scheduler.workers[worker], self.now)
        self._takes(worker)

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """See ``SchedulerPlugin.remove_worker``."""
        self.workers[worker].left = self.now
        self.taking.append((self.now, len(self.moves), worker, 0))

    def log_event(self, topic: str, message: Any) -> None:
        """See ``SchedulerPlugin.log_event``."""
        if topic in self._cluster.scheduler.workers:
            self._takes(topic)
        elif topic == "stealing" and isinstance(message, tuple) and message[0] == "confirm":
            self._moved(message[1], "processing", "processing", "steal", ())

    def _takes(self, worker: str) -> None:
        state = self._cluster.scheduler.workers[worker]
        threads = state.nthreads if state.status is Status.running else 0
        self.taking.append((self.now, len(self.moves), worker, threads))

    def transition(
        self, key: Hashable, start: str, finish: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """See ``SchedulerPlugin.transition``."""
        spent, own = tuple(kwargs.get("startstops") or ()), kwargs.get("cause") == key
        self._moved(key, start, finish, stimulus_id, spent, own)
        before = bool(self._unfinished)
        if finish in UNFINISHED:
            self._unfinished.add(key)
        else:
            self._unfinished.discard(key)
        if bool(self._unfinished) is not before:
            self._borders.append(self.now)

    def _moved(
        self,
        key: Hashable,
        start: str,
        finish: str,
        stimulus: str,
        spent: tuple[Any, ...],
        own: bool = False,
    ) -> None:
        task = self._cluster.scheduler.tasks[key]
        needs = tuple(one.key for one in task.dependencies)
        ws = task.processing_on if finish == "processing" else None
        worker = None if ws is None else ws.address
        span, failed = task.group.span_id, task.exception_blame is not None
        about = worker, bool(task.resource_restrictions), own, failed
        self.moves.append(Move(self.now, key, start, finish, stimulus, span, needs, spent, *about))

    def restart(self, scheduler: Any) -> None:
        """See ``SchedulerPlugin.restart``: tasks are forgotten without transitions."""
        self.restarts.append(len(self.moves))
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

    def is_anything_lost(self) -> bool:
        """Whether a heartbeat was lost, or a worker left with what it had not reported."""
        left = any(one.left < inf for one in self.workers.values())
        return left or any(beat.arrives == inf for beat in self._cluster.beats)

    def unheard(self) -> float:
        """Return thread-seconds that workers took with them when they left.

        They are those after the last heartbeat that came, from its sending on.
        """
        silent = 0.0
        for address, one in self.workers.items():
            if one.left < inf:
                silent += one.threads * (one.left - self._heard(address)[-1])
        return silent

    def undated(self) -> float:
        """Return seconds by which idle may be too large, as workers left with what they ran.

        Nobody knows how long their quickest heartbeat travelled. The next one makes up for that,
        but the last one has none.
        """
        late = 0.0
        for address, one in self.workers.items():
            if one.left < inf and (quickest := self._quickest(address)) < inf:
                late += one.threads * quickest
        return late

    def undated_ends(self) -> float:
        """Return seconds by which idle may be too large, and unused too small, as work ended.

        As in `undated`: the next heartbeat makes up for it, but nothing was idle before that.
        """
        return sum(
            one.threads * quickest
            for _, end in self.working()
            for address, one in self.workers.items()
            if one.joined <= end <= one.left and (quickest := self._quickest(address)) < inf
        )

    def _heard(self, address: str) -> list[float]:
        """Return when a worker joined, and when it sent each of its heartbeats that came."""
        one = self.workers[address]
        heard = one.state.last_seen - EPOCH + STEP
        return [one.joined, *(beat.sent for beat in self._beats(address) if beat.arrives <= heard)]

    def silence(self) -> float:
        """Return the longest time without a heartbeat of a worker that was not late."""
        # All of a worker's can be late.
        longest, quick = 0.0, min(map(self._quickest, self.workers), default=inf) + STEP
        for address, one in self.workers.items():
            beats = self._beats(address)
            came = [beat.arrives for beat in beats if beat.arrives - beat.sent <= quick < inf]
            times = [one.joined, *came, min(one.left, self.now)]
            longest = max(longest, *(after - before for before, after in pairwise(times)))
        return longest

    def _beats(self, address: str) -> list[Beat]:
        """Return the heartbeats of a worker."""
        return [one for one in self._cluster.beats if one.worker == address]

    def _quickest(self, address: str) -> float:
        """Return the way of a worker's quickest heartbeat; infinite if none came."""
        return min((beat.arrives - beat.sent for beat in self._beats(address)), default=inf)

    def heartbeat_after(self, address: str, when: float, number: int) -> float:
        """Return when a worker's heartbeat of that number arrived, from those sent after a time."""
        came = sorted(one.arrives for one in self._beats(address) if one.sent >= when)
        return [*came, *[inf] * number][number - 1]

    def unnoticed(self) -> tuple[float, float]:
        """Return seconds for which ends waited for a blocked event loop, and nobody knows it.

        The message of an end says when the code ended, and Dask meters the time until the worker
        noticed it: both are known together, from the metered seconds, unless the worker leaves
        before it reports them, or the heartbeat is lost. Of a task that had seceded, it is unknown
        whether it was on its own meanwhile, unless a heartbeat listed it after its end.

        Returns
        -------
        on_their_own, unreported
            Those of tasks that had seceded, and those that were never reported.
        """
        on_their_own = unreported = 0.0
        for run in self._cluster.runs:
            waited = max(0.0, run.stop - run.done) if run.stop < inf else 0.0
            if run.seceded < inf:
                on_their_own += waited
            elif any(since <= run.stop <= until for since, until in self._silent(run.worker)):
                unreported += waited
        return on_their_own, unreported

    def untold(self) -> float:
        """Return seconds that were not reported: a heartbeat was lost, or the worker left.

        An observer finds no more of them idle than were of runs that ended without a message that
        has their times. Which seconds were in the lost heartbeat is unknown, so that those of such
        runs, from the first to the last, pay for those of others.
        """
        reported = self._reported()
        untold = 0.0
        for address in self.workers:
            runs = [r for r in self._cluster.runs if r.worker == address and r.stop < inf]
            gaps = list(self._silent(address))
            lost = [r for r in runs if any(since <= r.stop <= until for since, until in gaps)]
            timeless = [r for r in runs if r not in reported]
            untold += min(sum(r.stop - r.start for r in some) for some in (lost, timeless))
        return untold

    def _released(self) -> set[Hashable]:
        """Return the tasks that left a worker which may have run them on."""
        return {one.key for one in self.moves if (one.start, one.finish) in RELEASED}

    def _reported(self) -> set[Run]:
        """Return the runs whose times are in the message of their end."""
        reported = set()
        for move in self.moves:
            if move.activities:
                ended = [
                    r
                    for r in self._cluster.runs
                    if r.key == move.key and r.stop <= move.when + STEP
                ]
                reported.update(ended[-1:])
        return reported

    def _silent(self, address: str) -> Iterator[tuple[float, float]]:
        """Yield the times of which a worker's reports may not have come."""
        yield from self._gaps(address)
        # What a heartbeat says was gathered before it was sent.
        if self.workers[address].left < inf:
            yield self._heard(address)[-2:][0], self.workers[address].left

    def _gaps(self, address: str) -> Iterator[tuple[float, float]]:
        """Yield the times between a worker's heartbeats before and after each that was lost."""
        came, lost = [self.workers[address].joined], []
        for beat in self._beats(address):
            if beat.arrives == inf:
                lost.append(len(came))
            else:
                came.append(beat.sent)
        for number in lost:
            yield came[number - 1], [*came, inf][number]

    def misdated(self) -> float:
        """Return seconds that are wrong since a worker's clock was set.

        They are those of the runs meanwhile, and, after a small step, those of the worker's threads
        up to its next heartbeat, which seems to be late, or not. If a task was released, there is
        no message of its end: it may have run from one heartbeat to the next.
        """
        wrong = 0.0
        released = self._released()
        for when, one, seconds in self._cluster.steps:
            address, step = f"lab://{one.name}", abs(seconds)
            ways = (b.arrives - b.sent for b in self._beats(address) if when <= b.sent)
            late = next((way for way in ways if way < inf), 0.0)
            late += step if step < NOTICED else 0.0
            wrong += self.workers[address].threads * late
            wrong += sum(
                min(step, run.stop - run.start + 4 * HEARTBEAT * (run.key in released))
                for run in self._cluster.runs
                if run.start <= when <= run.stop and run.worker == address
            )
        return wrong

    def hidden(self) -> float:
        """Return seconds of free threads that nobody can see, since a clock was set forward.

        A run meanwhile is reported too long, by the step. What is more than the worker's threads
        had time for is known to be wrong, but not the part that fills the time of free threads,
        from the heartbeat before the run to the one after it.
        """
        hidden = 0.0
        for when, one, seconds in self._cluster.steps:
            for run in self._cluster.runs:
                if run.start <= when <= run.stop and run.worker == f"lab://{one.name}":
                    around = run.stop - run.start + 4 * HEARTBEAT
                    hidden += min(max(0.0, seconds), self.workers[run.worker].threads * around)
        return hidden

    def unsettled(self) -> float:
        """Return seconds of threads that released tasks may have held, for all that is known.

        The heartbeats after it report whether they did; an observer may need three. Until then it
        is unknown whether such a thread was free before or after the last work. A worker whose
        clock was set back sends none for as long.
        """
        released = [one for one in self.moves if (one.start, one.finish) in RELEASED]
        back = sum(max(0.0, -seconds) for _, _, seconds in self._cluster.steps)
        return (3 * HEARTBEAT + back) * len(released)

    def unannounced(self) -> float:
        """Return seconds of cancelled tasks after they seceded: there is no message for that."""
        released, reported = self._released(), self._reported()
        return sum(
            max(0.0, min(run.stop, self.workers[run.worker].left) - run.seceded)
            for run in self._cluster.runs
            if run.seceded < inf and run.key in released and run not in reported
        )


def _common(one: tuple[float, float], others: Sequence[tuple[float, float]]) -> float:
    """Return for how long a time overlaps with others."""
    return sum(max(0.0, min(one[1], end) - max(one[0], begin)) for begin, end in others)

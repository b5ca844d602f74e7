"""Replays a plan on Dask's own scheduler, workers and client in simulated time.

Each task is a coroutine that sleeps as long as the recorded one took. Dask's worker counts it among
its threads like any other, and no real thread is needed. `dask_otel.lab.install` must have been
called before this module is imported.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Final

import dask
from dask._task_spec import Task as Spec
from dask._task_spec import TaskRef
from dask.sizeof import sizeof
from distributed import Reschedule, get_worker
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import TaskState as SchedulerTask
from distributed.scheduler import WorkerState, heartbeat_interval
from distributed.worker_state_machine import SecedeEvent, TaskState

from dask_otel.core.graph import Row
from dask_otel.lab.clock import Machine, Stuck
from dask_otel.lab.cluster import Cluster, simulate
from dask_otel.lab.executor import RUN
from dask_otel.lab.threads import here
from dask_otel.whatif.plan import LARGE, Key, Plan, slower_by
from dask_otel.whatif.result import Replayed

#: What costs time in a replay, and decides nothing.
CONFIG: Final = {
    "distributed.admin.tick.interval": "1000 days",
    "distributed.admin.tick.cycle": "1000 days",
    "distributed.admin.large-graph-warning-threshold": "1 TB",
    "distributed.diagnostics.computations.max-history": 1,
}


#: After so many tasks garbage is collected, which a simulation does not do by itself.
_COLLECT: Final = 5000


class Result(int):
    """The result of a replayed task: so many bytes."""

    __slots__ = ()


# Python's own size of an object would have 16 bytes for its garbage collector, too.
sizeof.register(Result, int)


#: The replay that runs. There is one at a time in a process.
_current: list[_Replay] = []


async def _run(*_: object) -> Result:
    return await _current[0].run()


def _priority(key: Key) -> int:
    """Let Dask begin with the most important tasks. Older releases pickle this function."""
    return -_current[0].plan.tasks[key].rank


def _place(name: Any, usual: int) -> int:
    """Return the hash of a task or a worker, which gives it its place in Dask's sets."""
    return _current[0].places.get(name, usual) if _current else usual


WorkerState.__hash__ = lambda ws: _place(ws.address, ws._hash)
SchedulerTask.__hash__ = lambda task: _place(task.key, task._hash)
TaskState.__hash__ = lambda task: _place(task.key, hash(task.key))


def replayed(plan: Plan, tick: Callable[[], None] = lambda: None) -> Replayed:
    """Replay a plan, which gets no name here.

    Parameters
    ----------
    plan
        What is to be replayed.
    tick
        Called at the end of each task.

    Raises
    ------
    dask_otel.lab.clock.Stuck
        If the run does not end; the message says why.
    """
    replay = _Replay(plan, tick)
    _current.append(replay)
    rows = (row for task in plan.tasks.values() for row in task.runs)
    busy = sum((row.disk or 0.0) + (row.seconds or 0.0) for row in rows)
    longest = 1000 + 10 * (busy + sum(one.gap for one in plan.submissions.values()))
    try:
        seconds, taken = simulate(
            replay.program, workers=0, latency=replay.latency, prepare=replay.prepare,
            longest=longest, config={**CONFIG, **plan.config},
        )  # fmt: skip
    except Stuck as error:
        raise Stuck(replay.lack or f"it had not ended after {longest:,.0f} s") from error
    finally:
        _current.clear()
    capacity = sum(
        one.threads * max(0.0, min(seconds, one.went) - one.came) for one in plan.workers
    )
    stays = all((one.came, one.went) == (0.0, inf) for one in plan.workers)
    return Replayed(
        "", seconds, capacity / 3600, max(0.0, 1 - taken / capacity) if capacity else 0.0,
        sum(one.threads for one in plan.workers) if stays else None,
    )  # fmt: skip


class _Replay(SchedulerPlugin):  # type: ignore[misc]
    """One replay: the user's program, and what its tasks are and do."""

    def __init__(self, plan: Plan, tick: Callable[[], None]) -> None:
        self.plan = plan
        self.tick = tick
        #: What a replay that does not end waits for; empty if it is unknown.
        self.lack = ""
        self._attempts: Counter[Key] = Counter()
        #: By submission and group, the results that the client has; and the futures of all.
        self._there: Counter[tuple[int, str]] = Counter()
        self._futures: list[Any] = []
        #: What submissions wait for.
        submissions = plan.submissions.items()
        self._events = {event: asyncio.Event() for _, one in submissions for event in one.after}
        self._ended: set[Key] = set()
        #: What the scheduler does not have yet.
        self._expected = {**plan.expected}
        self._over = threading.Event()
        #: The workers by their addresses, and when they have begun by their numbers.
        self._workers = {f"lab://{one.name}": one for one in plan.workers}
        #: By the keys of tasks and the addresses of workers.
        self.places: dict[object, int] = {key: one.hash for key, one in plan.tasks.items()}
        self.places |= {address: one.hash for address, one in self._workers.items()}
        self._ready: dict[int, float] = {}
        self._where = {key: number for number, one in submissions for key in one.results}
        self._cluster: Cluster
        self._began = 0.0
        #: By the name of a worker, with its direction: when all data is there that was asked for.
        self._moved: dict[tuple[str, str], float] = {}

    def update_graph(self, scheduler: Any, *, tasks: Iterable[Key], **_: Any) -> None:
        """See ``SchedulerPlugin.update_graph``: give new tasks what the recorded ones had."""
        plan = self.plan
        for key in tasks:
            state, task = scheduler.tasks[key], plan.tasks[key]
            if expected := self._expected.pop(state.prefix.name, None):
                state.prefix.duration_average, state.prefix.max_exec_time = expected
            user, generation, *order = task.priority
            # It is Dask's, except of the tasks of a task, which go before others.
            if generation % 1 == 0:
                _, generation, _ = state.priority
            # Equal priorities stay equal, whatever Dask adds.
            state.priority, state.retries = (user, generation, *order), len(task.runs)
            # In the recorded order.
            state.dependencies = {scheduler.tasks[one] for one in task.before}
            if task.runs[-1].restriction >= 0:
                limit, there = plan.restrictions[task.runs[-1].restriction], [*self._workers]
                state.worker_restrictions = {
                    there[one % len(there)] for one in limit["workers"] or ()
                } or None
                state.resource_restrictions = limit["resources"] or None
                state.loose_restrictions = limit["loose"]

    # ------------------------------------------------------------------------ the cluster

    def latency(self, sender: Machine, receiver: Machine, message: Any) -> float:
        """Return how long a message takes: data, after what both workers send and get already."""
        data = message.get("data") if type(message) is dict else None
        if type(data) is not dict or message.get("status") != "OK":
            return self.plan.latency
        now, tasks = self._cluster.loop.now, self.plan.tasks
        moved = sum(tasks[key].runs[-1].nbytes or 0 for key in data if key in tasks)
        # Small messages wait for event loops, and not for others to the same worker.
        ends = [("from", sender.name), ("to", receiver.name)][: 2 if moved >= LARGE else 1]
        for end in ends:
            began = max(now, self._moved.get(end, 0.0))
            self._moved[end] = began + self.plan.wire(moved)
        return max(self._moved[end] for end in ends) - now + self.plan.latency

    async def prepare(self, cluster: Cluster) -> None:
        """Start the workers. Belongs to the scheduler's machine, like the following ones."""
        self._cluster = cluster
        cluster.scheduler.add_plugin(self)
        cluster.scheduler.n_tasks = self.plan.made
        if self.plan.is_even:
            # Dask then keeps it until there is one.
            cluster.scheduler.is_rootish = lambda task: (
                not (task.worker_restrictions or task.resource_restrictions)
            )
        await asyncio.gather(
            *(self._start(number) for number, one in enumerate(self.plan.workers) if not one.came)
        )

    async def _start(self, number: int) -> None:
        one = self.plan.workers[number]

        def delay(key: Any) -> float:
            """Let the first tasks wait until the worker has begun, and then for the disk."""
            now = self._cluster.loop.now
            ready = self._ready.setdefault(number, now + one.startup)
            return max(0.0, ready - now) + (self._row(key).disk or 0.0)

        worker = await self._cluster.start_worker(
            one.name, one.threads, resources=one.resources, delay=delay
        )
        if one.beat is not None:
            beats = worker.periodic_callbacks["heartbeat"]
            beats.stop()
            every = heartbeat_interval(len(self._workers))
            beats.callback_time = 1000 * every
            await asyncio.sleep((self.plan.begins + one.beat - self._cluster.loop.now) % every)
            self._cluster.machine(one.name).run(beats.start)

    async def _life(self, number: int) -> None:
        """Let a worker come and go."""
        one, cluster = self.plan.workers[number], self._cluster
        if one.came:
            await asyncio.sleep(self._began + one.came - cluster.loop.now)
            await self._start(number)
        if one.went < inf:
            await asyncio.sleep(self._began + one.went - cluster.loop.now)
            if one.killed:
                cluster.kill(one.name)
            else:
                del cluster.workers[one.name]
                await cluster.scheduler.retire_workers(names=[one.name], close_workers=True)

    # ---------------------------------------------------------------------------- the user

    def program(self, cluster: Cluster) -> tuple[float, float]:
        """Submit all tasks as the user did; return the span's seconds, and the busy threads'."""
        plan, loop, thread = self.plan, cluster.loop, here()
        assert thread is not None
        # The recorded times have the wait for Dask's next batch of messages already.
        cluster.client.scheduler_comm.interval = 0.0
        thread.sleep(plan.begins - loop.now)
        # Before that, no message can arrive.
        self._began = loop.now + plan.latency
        for number in range(len(plan.workers)):
            cluster.begin(cluster.machine("scheduler"), self._life, number)
        for number in plan.submissions:
            cluster.begin(cluster.machine("client"), self._submit, number)
        self._happened(-1)
        try:
            if plan.tasks:
                self._over.wait()
        finally:
            # Later, the scheduler has no tasks any more.
            if cluster.scheduler.unrunnable:
                self.lack = "no worker has what a task needs"
        ends = {name: min(loop.now, self._began + one.went) for name, one in self._workers.items()}
        busy = sum(
            max(0.0, min(run.stop, run.seceded, ends[run.worker]) - run.start)
            for run in cluster.runs
        )
        return loop.now + plan.rest - self._began, busy

    async def _submit(self, number: int) -> None:
        """Submit tasks after what the user waited for. Belongs to the client's machine."""
        one, tasks = self.plan.submissions[number], self.plan.tasks
        for event in one.after:
            await self._events[event].wait()
        await asyncio.sleep(one.gap)
        specs = {key: Spec(key, _run, *map(TaskRef, tasks[key].before)) for key in one.keys}
        with dask.annotate(priority=_priority):
            self._futures.append(
                self._cluster.client.get(
                    specs, [*one.results], sync=False, fifo_timeout=one.fifo_timeout
                )
            )
        self._happened(number)

    def _happened(self, number: int, group: str = "") -> None:
        """Count a result of a group, or a submission, and let those go on that waited for it."""
        self._there[number, group] += 1
        if event := self._events.get((number, group, self._there[number, group])):
            event.set()

    # ----------------------------------------------------------------------------- a task

    def _row(self, key: Key) -> Row:
        """Return the recorded run that comes next."""
        runs = self.plan.tasks[key].runs
        return runs[min(self._attempts[key], len(runs) - 1)]

    async def run(self) -> Result:
        """Take as long as the recorded run did. Belongs to a worker's machine."""
        ran = RUN.get()
        assert ran is not None
        key: Any = ran.key
        row = self._row(key)
        pace = slower_by(self._workers[ran.worker].slowness, row.prefix)
        seconds = pace * (row.seconds or 0.0)
        holds = seconds if row.seceded is None else pace * row.seceded
        await asyncio.sleep(holds)
        if row.seceded is not None:
            ran.seceded = self._cluster.loop.now
            get_worker().handle_stimulus(
                SecedeEvent(key=key, compute_duration=holds, stimulus_id=f"secede-{ran.seceded}")
            )
            await asyncio.sleep(seconds - holds)
        # A run that ends here was not lost with its worker.
        self._attempts[key] += 1
        if row.outcome == "r":
            raise Reschedule
        if row.outcome != "f" and key not in self._ended:
            self._ended.add(key)
            self._happened(self._where.get(key, -1), key[0])
            self.tick()
            if len(self._ended) == len(self.plan.tasks):
                self._over.set()
            if len(self._ended) % _COLLECT == 0:
                gc.collect()
        if row.outcome in ("e", "f"):
            raise RuntimeError("as recorded")
        return Result(row.nbytes or 0)

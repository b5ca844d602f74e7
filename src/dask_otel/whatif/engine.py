"""Replays a plan on Dask's own scheduler, workers and client in simulated time.

Each task is a coroutine that sleeps as long as the recorded one took. Dask's worker counts it among
its threads like any other, and no real thread is needed. `dask_otel.lab.install` must have been
called before this module is imported.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf
from typing import Any, Final

import dask
from dask._task_spec import Task as Spec
from dask._task_spec import TaskRef
from dask.sizeof import sizeof
from distributed import Reschedule, get_worker
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.worker_state_machine import SecedeEvent

from dask_otel.lab.clock import Machine
from dask_otel.lab.cluster import Cluster, simulate
from dask_otel.lab.executor import RUN
from dask_otel.lab.threads import here
from dask_otel.whatif.plan import Key, Plan
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


class Result:
    """The result of a replayed task."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


@sizeof.register(Result)  # type: ignore[untyped-decorator]
def _size(result: Result) -> int:
    return result.nbytes


class _Priorities(SchedulerPlugin):  # type: ignore[misc]
    """Gives tasks the recorded priorities: equal ones must stay equal, whatever Dask adds."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def update_graph(self, scheduler: Any, *, tasks: Iterable[Key], **_: Any) -> None:
        """See ``SchedulerPlugin.update_graph``."""
        for key in tasks:
            scheduler.tasks[key].priority = (self.plan.tasks[key].rank,)


class _Failed(Exception):
    """The recorded task failed."""


#: The replay that runs. There is one at a time in a process.
_current: list[_Replay] = []


async def _run(number: tuple[int, int], *_: object) -> Result:
    return await _current[0].run(number)


# Dask calls these for each key. Functions of the module: older releases of Dask pickle them.


def _priority(key: Key) -> int:
    return -_current[0].plan.tasks[key].rank


def _retries(key: Key) -> int:
    return len(_current[0].plan.tasks[key].attempts)


def _restricted(what: str, none: Any, key: Key) -> Any:
    plan = _current[0].plan
    number = plan.tasks[key].restriction
    value = plan.restrictions[number].get(what) if number >= 0 else None
    if what == "workers" and value:
        return [f"lab://w{worker % len(plan.workers)}" for worker in value]
    return value or none


_ANNOTATIONS: Final = {
    "priority": _priority,
    "retries": _retries,
    "workers": partial(_restricted, "workers", []),
    "resources": partial(_restricted, "resources", {}),
    "allow_other_workers": partial(_restricted, "loose", False),
}


def replayed(plan: Plan, name: str, tick: Callable[[], None] = lambda: None) -> Replayed:
    """Replay a plan.

    Parameters
    ----------
    plan
        What is to be replayed.
    name
        That of the experiment.
    tick
        Called at the end of each task.

    Raises
    ------
    dask_otel.lab.clock.Stuck
        If the run does not end, for example because no worker has what a task needs.
    """
    replay = _Replay(plan, tick)
    _current[:] = [replay]
    longest = 1000 + 10 * sum(
        one.disk + one.seconds for task in plan.tasks.values() for one in task.attempts
    )
    longest += 10 * sum(one.gap for one in plan.submissions)
    seconds = simulate(
        replay.program, workers=0, latency=replay.latency, prepare=replay.prepare, longest=longest,
        config={**CONFIG, **plan.config},
    )  # fmt: skip
    capacity = sum(
        one.threads * (min(seconds, inf if one.went is None else one.went) - (one.came or 0.0))
        for one in plan.workers
        if (one.came or 0.0) < seconds
    )
    stays = {one.went for one in plan.workers} | {one.came for one in plan.workers} == {None}
    threads = sum(one.threads for one in plan.workers)
    return Replayed(
        name, seconds, capacity / 3600, max(0.0, 1 - replay.busy / capacity) if capacity else 0.0,
        threads if stays else None,
    )  # fmt: skip


class _Replay:
    """One replay: the user's program, and what its tasks do."""

    def __init__(self, plan: Plan, tick: Callable[[], None]) -> None:
        self.plan = plan
        self.tick = tick
        #: Thread-seconds in which tasks ran.
        self.busy = 0.0
        self._attempts: Counter[Key] = Counter()
        #: By submission, the results that the client has.
        self._there: Counter[int] = Counter()
        self._ended: set[Key] = set()
        #: When workers were killed, and when they have begun, by their addresses.
        self._gone: dict[str, float] = {}
        self._ready: dict[str, float] = {}
        self._keys = {key[1:]: key for key in plan.tasks}
        self._where = {
            key: number for number, one in enumerate(plan.submissions) for key in one.results
        }
        self._cluster: Cluster
        self._began = 0.0

    # ------------------------------------------------------------------------ the cluster

    def latency(self, _: Machine, __: Machine, message: Any) -> float:
        """Return how long a message takes: data that a worker asked for, by its size."""
        seconds = self.plan.latency
        data = message.get("data") if type(message) is dict else None
        if type(data) is dict and message.get("status") == "OK":
            moved = sum(self.plan.tasks[key].nbytes for key in data if key in self.plan.tasks)
            seconds += moved / self.plan.bandwidth
        return seconds

    async def prepare(self, cluster: Cluster) -> None:
        """Start the workers. Belongs to the scheduler's machine, like the following ones."""
        self._cluster = cluster
        cluster.scheduler.add_plugin(_Priorities(self.plan))
        for number, one in enumerate(self.plan.workers):
            if one.came is None:
                await self._start(number)

    async def _start(self, number: int) -> None:
        one = self.plan.workers[number]
        await self._cluster.start_worker(f"w{number}", one.threads, resources=one.resources)

    async def _life(self, number: int) -> None:
        """Let a worker come and go."""
        one, cluster, name = self.plan.workers[number], self._cluster, f"w{number}"
        if one.came is not None:
            await asyncio.sleep(self._began + one.came - cluster.loop.now)
            await self._start(number)
        if one.went is not None:
            await asyncio.sleep(self._began + one.went - cluster.loop.now)
            if one.killed:
                self._gone[f"lab://{name}"] = cluster.loop.now
                cluster.kill(name)
            else:
                del cluster.workers[name]
                await cluster.scheduler.retire_workers(names=[name], close_workers=True)

    # ---------------------------------------------------------------------------- the user

    def program(self, cluster: Cluster) -> float:
        """Submit all tasks as the user did; return the seconds of the span."""
        plan, loop, thread = self.plan, cluster.loop, here()
        assert thread is not None
        # The recorded times have the wait for Dask's next batch of messages already.
        cluster.client.scheduler_comm.interval = 0.0
        thread.sleep(1.0)
        # Before that, no message can arrive.
        arrived = self._began = loop.now + plan.latency
        for number in range(len(plan.workers)):
            cluster.begin(cluster.machine("scheduler"), self._life, number)
        futures = []
        for one in plan.submissions:
            thread.wait(partial(self._has, one.after), None)
            arrived = max(arrived, loop.now) + one.gap
            thread.sleep(arrived - plan.latency - loop.now)
            arrived = loop.now + plan.latency
            specs = {
                key: Spec(key, _run, key[1:], *map(TaskRef, plan.tasks[key].before))
                for key in one.keys
            }
            with dask.annotate(**_ANNOTATIONS):
                futures.append(cluster.client.get(specs, [*one.results], sync=False))
        thread.wait(lambda: len(self._ended) == len(plan.tasks), None)
        self.busy = sum(
            min(run.stop, run.seceded, self._gone.get(run.worker, loop.now)) - run.start
            for run in cluster.runs
        )
        return loop.now + plan.rest - self._began

    def _has(self, after: Mapping[int, int]) -> bool:
        return all(self._there[number] >= count for number, count in after.items())

    # ----------------------------------------------------------------------------- a task

    async def run(self, number: tuple[int, int]) -> Result:
        """Take as long as the recorded run did. Belongs to a worker's machine."""
        key = self._keys[number]
        task = self.plan.tasks[key]
        attempt = task.attempts[min(self._attempts[key], len(task.attempts) - 1)]
        await self._startup()
        left = attempt.disk + attempt.seconds
        if attempt.seceded is not None:
            left = attempt.seconds - attempt.seceded
            await asyncio.sleep(attempt.disk + attempt.seceded)
            self._secede(key, attempt.seceded)
        await asyncio.sleep(left)
        # A run that ends here was not lost with its worker.
        self._attempts[key] += 1
        if attempt.outcome == "r":
            raise Reschedule
        if attempt.outcome == "f":
            raise _Failed
        if key not in self._ended:
            self._ended.add(key)
            self._there[self._where.get(key, -1)] += 1
            self.tick()
            if len(self._ended) % _COLLECT == 0:
                gc.collect()
        if attempt.outcome == "e":
            raise _Failed
        return Result(task.nbytes)

    async def _startup(self) -> None:
        """Wait until the worker has begun, for the first of its tasks."""
        run, now = RUN.get(), self._cluster.loop.now
        assert run is not None
        startup = self.plan.workers[int(run.worker.removeprefix("lab://w"))].startup
        ready = self._ready.setdefault(run.worker, now + startup)
        if ready > now:
            await asyncio.sleep(ready - now)

    def _secede(self, key: Key, seconds: float) -> None:
        run = RUN.get()
        assert run is not None
        run.seceded = self._cluster.loop.now
        get_worker().handle_stimulus(
            SecedeEvent(key=key, compute_duration=seconds, stimulus_id=f"secede-{run.seceded}")
        )

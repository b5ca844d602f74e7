"""A cluster in simulated time, and what can happen to it.

::

    def program(cluster):
        with distributed.span("work"):
            wait(cluster.client.map(nap, [0.1] * 20))

    simulate(program, workers=2, threads=2, seed=1)

The program is ordinary code of a user: it runs on a simulated thread of a machine of its own, with
a client that waits as always. It may look at Dask's objects directly, since nothing else runs at
that moment.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from inspect import iscoroutinefunction
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import dask
from distributed import Client, Scheduler
from distributed.core import Status, _expects_comm
from distributed.http.routing import RoutingApplication
from distributed.utils_comm import _round_robin_counter
from distributed.worker_state_machine import TaskState
from tornado.ioloop import PeriodicCallback

from dask_otel.lab.clock import MACHINE, Loop, Machine
from dask_otel.lab.executor import LabWorker, Run, spilling
from dask_otel.lab.patches import install
from dask_otel.lab.threads import Pool
from dask_otel.lab.wires import Latency, Wires, use

T = TypeVar("T")

#: Nothing that reads real clocks, asks the operating system, or opens sockets.
CONFIG: Final = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.use-file-locking": False,
    "distributed.admin.system-monitor.interval": "1000 days",
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}

#: Seconds of the client after which a history counts as stuck.
LONGEST: Final = 10_000.0


# By the address of the object, sets of them would have another order in each run. It compares as
# before.
TaskState.__hash__ = lambda task: hash(task.key)
_run_in_task = PeriodicCallback._run


def _run_plainly(periodic: PeriodicCallback) -> Coroutine[Any, Any, None] | None:
    """Run what Dask does each so often without a task, if it waits for nothing.

    Such tasks are most of what the loop runs in a long history. It runs when its task would begin.
    """

    if MACHINE.get() is None or iscoroutinefunction(periodic.callback):
        return _run_in_task(periodic)
    asyncio.get_running_loop().call_soon(lambda: next(_run_in_task(periodic).__await__(), None))
    return None


PeriodicCallback._run = _run_plainly  # type: ignore[method-assign, assignment]


class LabScheduler(Scheduler):  # type: ignore[misc]
    """Dask's scheduler without pages."""

    def get_task_duration(self, ts: TaskState) -> float:
        """See ``SchedulerState.get_task_duration``: no task takes no time, which Dask relies on."""
        return max(1e-6, float(super().get_task_duration(ts)))

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Pages can be added to it, but nobody asks for them."""
        self.http_application = RoutingApplication()

    def _setup_logging(self, *loggers: logging.Logger) -> None:
        """Keep no lines: all servers of the process log with the same loggers."""


class Beat(NamedTuple):
    """A heartbeat; by the simulation's clock."""

    worker: str
    sent: float
    #: Infinite: it was lost.
    arrives: float


class Cluster:
    """Scheduler, workers and clients, each on a machine of its own. Made by `simulate`.

    Methods are for programs. They return when Dask has done what they say.
    """

    def __init__(self, loop: Loop, latency: float | Latency = 0.0, room: int = 0) -> None:
        self.loop, self.room = loop, room
        self.pool = Pool(loop)
        self.latency: Latency = latency if callable(latency) else lambda *_: latency
        self.wires = Wires(loop, self._takes)
        self.machines: dict[str, Machine] = {}
        self.scheduler: Any = None
        self.workers: dict[str, LabWorker] = {}
        #: What ran on the workers' threads, in the order of their starts.
        self.runs: list[Run] = []
        #: By a worker's name, gives the seconds that its next heartbeat takes, or None: it is lost.
        self.heartbeats: dict[str, Callable[[], float | None]] = {}
        #: The heartbeats that were sent, in their order.
        self.beats: list[Beat] = []
        #: When clocks were set, whose, and by how much.
        self.steps: list[tuple[float, Machine, float]] = []
        #: When workers took tasks again after a pause, and which.
        self.resumed: list[tuple[float, str]] = []
        self.client: Any = None
        self._clients: list[tuple[Machine | None, Any]] = []
        self._begun: list[Future[Any]] = []
        self._starts: dict[str, int] = {}
        self._dead: list[Machine] = []

    # --------------------------------------------------------------------- running code

    def machine(self, name: str) -> Machine:
        """Return the machine of this name, a new one if it is unknown."""
        return self.machines.setdefault(name, Machine(name, self.loop))

    def begin(
        self, machine: Machine, function: Callable[..., Coroutine[Any, Any, T]], *args: Any
    ) -> Future[T]:
        """Let a coroutine run on a machine."""

        async def call() -> T:
            return await function(*args)

        future = machine.run(asyncio.run_coroutine_threadsafe, call(), self.loop)
        self._begun.append(future)
        return future

    def do(self, name: str, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a coroutine on a machine, and return its result."""
        return self.begin(self.machine(name), function, *args).result()

    def thread(self, name: str, function: Callable[[], T]) -> Future[T]:
        """Run a function on a thread of a machine, beside what runs already."""
        future: Future[T] = Future()

        def call() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self.pool.start(self.machine(name), call)
        return future

    def new_client(self, **options: Any) -> Any:
        """Return another client; it is of the machine that calls this."""
        client = Client(self.scheduler.address, loop=self.scheduler.loop, **options)
        self._clients.append((MACHINE.get(), client))
        return client

    def user(self, name: str, function: Callable[[Any], T]) -> Future[T]:
        """Let another user work, on a machine of that name with a client of its own."""
        return self.thread(name, lambda: function(self.new_client(set_as_default=False)))

    # -------------------------------------------------------------------------- workers

    async def start_worker(
        self, name: str, threads: int = 2, shift: float = 0.0, slowness: float = 1.0, **options: Any
    ) -> LabWorker:
        """Start a worker on a machine of its own, a new one if it was there before."""
        times = self._starts[name] = self._starts.get(name, 0) + 1
        machine = Machine(name if times == 1 else f"{name}.{times}", self.loop, shift, slowness)
        self.machines[name] = machine

        async def start() -> LabWorker:
            memory = spilling(self.room) if self.room else {}
            worker: LabWorker = await LabWorker(
                self.scheduler.address, pool=self.pool, runs=self.runs, name=name, nthreads=threads,
                **{"memory_limit": 0, "dashboard": False, "data": memory, **options},
            )  # fmt: skip
            return worker

        worker = self.workers[name] = await machine.run(asyncio.ensure_future, start())
        return worker

    def add_worker(self, name: str, threads: int = 2, **options: Any) -> LabWorker:
        """Let a worker join. `shift` and `slowness` are those of its machine; see `Machine`."""
        return self.do("scheduler", lambda: self.start_worker(name, threads, **options))

    def kill(self, name: str) -> None:
        """Kill a worker or a user: it says nothing any more, and its connections break."""
        self.workers.pop(name, None)
        self._power_off(self.machines[name])

    def _power_off(self, machine: Machine) -> None:
        machine.alive = False
        self._dead.append(machine)
        self.wires.cut(machine)

    def leave(self, name: str) -> None:
        """Let a worker close as it does when it is asked to."""
        self.do(name, self.workers.pop(name).close)

    def pause(self, name: str, seconds: float) -> None:
        """Let a worker begin no tasks for so long, as if its memory was nearly full."""
        worker = self.workers[name]

        async def pause() -> None:
            if worker.status is Status.running:
                worker.status = Status.paused
                await asyncio.sleep(seconds)
                if worker.status is Status.paused:
                    worker.status = Status.running
                    self.resumed.append((self.loop.now, str(worker.address)))

        self.begin(self.machines[name], pause)

    def set_clock(self, name: str, seconds: float) -> None:
        """Set the clock of a worker forward, or back."""
        machine = self.machines[name]
        machine.shift += seconds
        self.steps.append((self.loop.now, machine, seconds))

    def adapt(self, minimum: int, maximum: int, interval: float = 1.0, threads: int = 2) -> None:
        """Let the number of workers be as the scheduler advises from now on."""

        async def adapt() -> None:
            for made in itertools.count():
                target = min(maximum, max(minimum, self.scheduler.adaptive_target()))
                if len(self.workers) < target:
                    await self.start_worker(f"adaptive-{made}", threads)
                    continue
                surplus = len(self.workers) - target
                for address in self.scheduler.workers_to_close(n=surplus) if surplus else ():
                    name = self.scheduler.workers[address].name
                    self.begin(self.machines[name], self.workers.pop(name).close)
                await asyncio.sleep(interval)

        self.begin(self.machine("scheduler"), adapt)

    def restart(self) -> None:
        """Let the client restart the cluster: its workers are killed, and new ones come."""
        before = {name: worker.state.nthreads for name, worker in self.workers.items()}
        machines = [self.machines[name] for name in before]

        async def again() -> None:
            while self.scheduler.workers:
                await asyncio.sleep(0.01)
            for machine in machines:
                self._power_off(machine)
            for name, threads in before.items():
                await self.start_worker(name, threads)

        self.workers.clear()
        self.begin(self.machine("scheduler"), again)
        self.client.restart()

    # ------------------------------------------------------------------------- internal

    def _takes(self, sender: Machine, receiver: Machine, message: Any) -> float:
        seconds = self.latency(sender, receiver, message)
        if type(message) is dict and message.get("op") == "heartbeat_worker":
            fate = self.heartbeats.get(sender.name, lambda: 0.0)()
            seconds += inf if fate is None else fate
            now = self.loop.now
            self.beats.append(Beat(f"lab://{sender.name}", now, now + seconds))
            if fate is None:
                raise OSError("this heartbeat is lost")
        return seconds

    async def open(self, prepare: Step | None, workers: int, threads: int) -> None:
        """Start the scheduler and these workers. Belongs to the scheduler's machine."""
        self.scheduler = await LabScheduler(
            protocol="lab", host="scheduler", dashboard=False, dashboard_address=None
        )
        if prepare is not None:
            await prepare(self)
        await asyncio.gather(
            *(self.start_worker(f"w{number}", threads) for number in range(workers))
        )

    async def close(self) -> None:
        """Close workers and scheduler. Belongs to the scheduler's machine."""
        for name, worker in [*self.workers.items()]:
            await self.machines[name].run(asyncio.ensure_future, worker.close())
        await self.scheduler.close()

    async def end(self) -> None:
        """End what a kill has left."""
        for machine in self._dead:
            machine.alive = True
        me = asyncio.current_task()
        for _ in range(9):
            for task in (left := asyncio.all_tasks() - {me}):
                task.cancel()
            if not left:
                break
            await asyncio.wait(left, timeout=1)


#: What a caller of `simulate` does on the scheduler's machine.
Step: TypeAlias = Callable[[Cluster], Coroutine[Any, Any, None]]


def simulate(
    program: Callable[[Cluster], T],
    *,
    workers: int = 2,
    threads: int = 2,
    seed: int = 0,
    latency: float | Latency = 0.0,
    room: int = 0,
    config: Mapping[str, Any] | None = None,
    prepare: Step | None = None,
    finish: Step | None = None,
    longest: float = LONGEST,
) -> T:
    """Run a program on a new cluster in simulated time, and return its result.

    Parameters
    ----------
    program
        Gets the cluster; a user's code. See the module.
    workers, threads
        How many workers there are from the start, named w0, w1, …, and the threads of each.
    seed
        Of ids and random numbers.
    latency
        Seconds that a message takes, or a function of sender, receiver and message.
    room
        Bytes of results that a worker keeps in its memory before it spills some; 0 for all.
    config
        More of Dask's configuration.
    prepare
        Runs on the scheduler's machine before there are workers, for example to add plugins.
    finish
        Runs there after the program, before the cluster closes.
    longest
        Simulated seconds after which the history counts as stuck.

    Raises
    ------
    ImportError
        If `lab.install` was not called before `distributed` was imported.
    dask_otel.lab.clock.Stuck
        If the program waits for what can't happen any more.
    """
    install()
    loop = Loop(seed, longest)
    cluster = Cluster(loop, latency, room)

    def whole() -> T:
        cluster.client = cluster.new_client()
        try:
            return program(cluster)
        finally:
            for machine, client in cluster._clients:
                if machine is None or machine.alive:
                    client.close()

    with _alone(cluster.wires, seed), dask.config.set({**CONFIG, **(config or {})}):

        def on_scheduler(call: Coroutine[Any, Any, None]) -> None:
            loop.run_until_complete(cluster.machine("scheduler").run(loop.create_task, call))

        try:
            on_scheduler(cluster.open(prepare, workers, threads))
            ended = cluster.thread("client", whole)
            # The loop does not end at a program's `SystemExit`.
            loop.run_until_complete(asyncio.wait([asyncio.wrap_future(ended, loop=loop)]))
            result = ended.result()
            if finish is not None:
                on_scheduler(finish(cluster))
            on_scheduler(cluster.close())
        finally:
            # Nobody wants to know how the cluster ends.
            logging.disable()
            loop.set_exception_handler(lambda *_: None)
            cluster.pool.close()
            on_scheduler(cluster.end())
            loop.close()
    return result


@contextmanager
def _alone(wires: Wires, seed: int) -> Iterator[None]:
    """Keep what belongs to the process from the simulation, and put it back."""
    state, disabled = random.getstate(), logging.root.manager.disable
    random.seed(seed)
    # Which worker gets the next scattered data.
    _round_robin_counter[0] = 0
    collecting = gc.isenabled()
    # When objects go would depend on what ran before.
    gc.disable()
    use(wires)
    try:
        yield
    finally:
        use(None)
        random.setstate(state)
        logging.disable(disabled)
        # Dask keeps each handler of each server there for ever, and with it the whole cluster.
        _expects_comm.cache_clear()
        if collecting:
            gc.enable()

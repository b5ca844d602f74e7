"""What the programs of the planted cases are made of."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary

from dask.sizeof import sizeof
from distributed import SchedulerPlugin, as_completed, get_worker, span, wait

from dask_otel.lab.clock import Machine
from dask_otel.lab.threads import burn
from dask_otel.lab.wires import Latency

MB = 10**6


def compute(seconds: float, *after: Any) -> float:
    """Use a CPU for so long."""
    burn(seconds)
    return seconds


def sleep(seconds: float, *after: Any) -> float:
    """Use none."""
    time.sleep(seconds)
    return seconds


def load(size: int, *after: Any) -> bytes:
    """Return so many bytes, quickly."""
    burn(0.05)
    return bytes(size)


#: Tasks that have begun, by their simulation.
_begun: defaultdict[int, set[Hashable]] = defaultdict(set)


def first(key: Hashable) -> bool:
    """Return whether a task asks for the first time in its cluster."""
    begun = _begun[id(get_worker().loop)]
    return key not in begun and not begun.add(key)


def forget() -> None:
    """Forget all tasks, when a simulation has ended."""
    _begun.clear()


def tasks(
    client: Any,
    name: str,
    arguments: Sequence[Any],
    *each: Sequence[Any],
    function: Callable[..., Any] = compute,
    **options: Any,
) -> list[Any]:
    """Submit tasks of that name, in a group of their own, one for each argument."""
    group = f"{name}-{uuid.uuid4().hex}"
    keys = [(group, number) for number in range(len(arguments))]
    return list(client.map(function, arguments, *each, key=keys, **options))


def task(client: Any, name: str, argument: Any, *after: Any, **options: Any) -> Any:
    """Submit one such task, after others."""
    function = options.pop("function", compute)
    return client.submit(function, argument, *after, key=f"{name}-{uuid.uuid4().hex}", **options)


# ------------------------------------------------------------------------- simulated means


def bandwidth(bytes_per_second: float) -> Latency:
    """Return the latency of wires for data."""

    def seconds(sender: Machine, receiver: Machine, message: Any) -> float:
        data = message.get("data") if type(message) is dict else None
        if type(data) is not dict:
            return 0.0
        return sum(sizeof(getattr(one, "data", one)) for one in data.values()) / bytes_per_second

    return seconds


def imports(seconds: float, *names: str) -> Latency:
    """Let each worker import for so long when it unpickles its first task of each name."""
    met = WeakKeyDictionary[Machine, set[str]]()

    def none(sender: Machine, receiver: Machine, message: Any) -> float:
        for one in message if type(message) is list else ():
            key = str(one["key"]).lstrip("('") if one.get("op") == "compute-task" else ""
            known = met.setdefault(receiver, set())
            if (name := next(filter(key.startswith, names), None)) and name not in known:
                known.add(name)
                receiver.block(seconds)
        return 0.0

    return none


class Slow(SchedulerPlugin):
    """Blocks the scheduler's event loop at each transition."""

    name = "slow"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)


# ------------------------------------------------------------------- what clients and users do


def steps(client: Any, names: Sequence[str], seconds: Sequence[float], **options: Any) -> list[Any]:
    """Submit tasks for each name at once; each of them needs one of the step before, if any."""
    before: list[Any] = []
    for name in names:
        before = tasks(client, name, seconds, *([before] if before else []), **options)
    return before


def rounds(
    client: Any, names: Sequence[str], seconds: Sequence[float], thinks: float = 0.0
) -> None:
    """Submit tasks for each name, and look at their results for so long, one after another."""
    for name in names:
        client.gather(tasks(client, name, seconds))
        time.sleep(thinks)


def fed(
    client: Any, name: str, seconds: float, ahead: int, count: int, thinks: float = 0.0
) -> None:
    """Keep so many of all tasks on the way, and look at each result for so long."""
    futures = as_completed(tasks(client, name, [seconds] * ahead))
    for number, _ in enumerate(futures, ahead):
        time.sleep(thinks)
        if number < count:
            futures.add(task(client, name, seconds))


def user(
    cluster: Any, name: str, seconds: Sequence[float], after: float = 0.0, **options: Any
) -> Future[Any]:
    """Let another user have tasks in a span of that name, after some seconds."""

    def program(client: Any) -> None:
        time.sleep(after)
        with span(*name.split("/")):
            wait(tasks(client, name, seconds, **options))

    return cluster.user(f"user-{uuid.uuid4().hex}", program)  # type: ignore[no-any-return]


def together(*users: Future[Any]) -> None:
    """Wait for users."""
    for one in users:
        one.result()


# --------------------------------------------------------------------- events of the cluster

Event = Callable[[Any], Any]


def come(*names: str, threads: int = 2) -> Event:
    """Let workers come."""
    return lambda cluster: [cluster.add_worker(name, threads) for name in names]


def kill(*names: str) -> Event:
    """Kill workers."""
    return lambda cluster: [cluster.kill(name) for name in names]


def pause(seconds: float, *names: str) -> Event:
    """Pause workers for so long, as for lack of memory."""
    return lambda cluster: [cluster.pause(name, seconds) for name in names]


def block(name: str, seconds: float) -> Event:
    """Block the event loop of a machine."""
    return lambda cluster: cluster.machines[name].block(seconds)


def slow(times: float, *names: str) -> Event:
    """Let the tasks of workers take so many times as long from then on."""
    return lambda cluster: [setattr(cluster.machines[name], "slowness", times) for name in names]


def at(cluster: Any, seconds: float, event: Event) -> None:
    """Let something happen to the cluster later, beside the program."""

    def happen() -> None:
        time.sleep(seconds)
        event(cluster)

    cluster.thread("events", happen)

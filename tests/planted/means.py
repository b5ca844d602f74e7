"""What the programs of the planted cases are made of."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from dask.sizeof import sizeof
from distributed import Status, get_worker

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


def imports(seconds: float, name: str) -> Latency:
    """Let each worker import for so long when it unpickles its first task of that name."""
    met: set[Machine] = set()

    def none(sender: Machine, receiver: Machine, message: Any) -> float:
        if type(message) is not list or receiver in met:
            return 0.0
        for one in message:
            if one.get("op") == "compute-task" and str(one["key"]).lstrip("('").startswith(name):
                met.add(receiver)
                receiver.block(seconds)
        return 0.0

    return none


def at(cluster: Any, seconds: float, function: Callable[[], Any]) -> None:
    """Let something happen to the cluster later, beside the program."""

    def happen() -> None:
        time.sleep(seconds)
        function()

    cluster.thread("events", happen)


async def become(worker: Any, status: str) -> None:
    """Let a worker have a status, as its memory gives it one; for `Cluster.do`."""
    worker.status = Status[status]

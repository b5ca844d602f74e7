"""Random programs by seed, and the smallest part of one that still fails.

A program is what some users do, step by step, and what happens to the cluster meanwhile. Its text
is Python: what a failure prints can be run again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from distributed import Reschedule, get_worker, secede, span, wait, worker_client
from distributed.client import Future
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker

from dask_otel.lab.cluster import Cluster

#: What a user does: seconds before it, its name, and its arguments.
Step: TypeAlias = tuple[float, str, tuple[Any, ...]]
#: Enters a span of that name, for the user of that client.
Enter: TypeAlias = Callable[[Any, str], Any]


@dataclass(frozen=True)
class Program:
    """What happens to one cluster."""

    seed: int
    workers: int
    threads: int
    #: Whether the scheduler keeps tasks that find no free thread.
    queuing: bool
    latency: float
    #: The steps of each user, and those of the cluster.
    users: tuple[tuple[Step, ...], ...]
    events: tuple[Step, ...]
    #: Bytes of results that a worker has room for before it spills some; 0 for all.
    room: int = 0

    @property
    def config(self) -> dict[str, Any]:
        """Dask's configuration for it."""
        saturation = 1.1 if self.queuing else float("inf")
        return {
            "distributed.scheduler.worker-saturation": saturation,
            "distributed.worker.resources": {"token": 1},
        }

    def options(self) -> dict[str, Any]:
        """Return how `simulate` makes its cluster."""
        return {
            "workers": self.workers, "threads": self.threads, "seed": self.seed,
            "latency": self.latency, "config": self.config, "room": self.room,
        }  # fmt: skip


# --------------------------------------------------------------------------- what tasks do


def nap(seconds: float, *after: Any) -> float:
    """Sleep."""
    time.sleep(seconds)
    return seconds


def fail(seconds: float, *after: Any) -> None:
    """Fail, always."""
    time.sleep(seconds)
    raise ValueError("as asked")


def flaky(seconds: float, *after: Any) -> float:
    """Fail in the first run."""
    return _first(seconds, ValueError)


def moved(seconds: float, *after: Any) -> float:
    """Ask for another worker in the first run."""
    return _first(seconds, Reschedule)


def apart(seconds: float, *after: Any) -> float:
    """Leave the thread to others halfway."""
    time.sleep(seconds / 2)
    secede()
    return nap(seconds / 2)


def boss(seconds: float, *after: Any) -> float:
    """Submit a task, and wait for it."""
    with worker_client() as client:
        return float(client.submit(nap, seconds, pure=False).result())


def bulky(seconds: float, *after: Any) -> bytes:
    """Sleep; the longer, the larger is the result."""
    time.sleep(seconds)
    return bytes(1_000 + int(seconds * 50_000))


#: Tasks that have begun once, by the loop of their simulation.
_begun: WeakKeyDictionary[Any, set[Hashable]] = WeakKeyDictionary()


def _first(seconds: float, error: type[Exception]) -> float:
    worker = get_worker()
    key, begun = worker.get_current_task(), _begun.setdefault(worker.loop, set())
    time.sleep(seconds)
    if key not in begun:
        begun.add(key)
        raise error
    return seconds


class Counter:
    """Works beside the tasks of its worker."""

    def work(self, seconds: float) -> float:
        """Sleep."""
        return nap(seconds)


TASKS: Final = {one.__name__: one for one in (nap, fail, flaky, moved, apart, boss)}

#: Those of `heavy`, too.
KINDS: Final = {**TASKS, "bulky": bulky}

#: Tasks of the same keys for all users.
SAME: Final = [(nap, 0.0), (nap, 0.2), (fail, 0.05), (nap, 1.5)]

#: What users ask for besides.
OPTIONS: Final[Sequence[Mapping[str, Any]]] = (
    {"priority": 10},
    {"priority": -10},
    {"resources": {"token": 1}},
    {"workers": ["lab://w0"], "allow_other_workers": True},
)
NO: Final[Mapping[str, Any]] = {}

# ------------------------------------------------------------------------- what users do


class User:
    """One user at work; each step is a method."""

    def __init__(self, number: int, enter: Enter, steps: Sequence[Step]) -> None:
        self.number, self.enter, self.steps = number, enter, steps
        self.client: Any = None
        self.futures: list[Future] = []
        self.spans: list[ExitStack] = []
        self.made = 0
        self.published: list[str] = []

    def work(self, client: Any) -> None:
        """Do all steps, wait for the remaining futures, and release them; or quit before."""
        self.client = client
        for pause, name, arguments in self.steps:
            time.sleep(pause)
            # Clients in tasks share the user's connections, which break with the tasks' workers.
            with suppress(CommClosedError):
                getattr(self, name)(*arguments)
        while self.spans:
            self.leave()
        if client.status == "closed":
            return
        self._await(self.futures)
        self.futures.clear()
        for name in self.published:
            with suppress(CommClosedError):
                client.unpublish_dataset(name)

    def go_into(self, name: str) -> None:
        """Enter a span."""
        self.spans.append(ExitStack())
        self.spans[-1].enter_context(self.enter(self.client, name))

    def leave(self) -> None:
        """Leave the innermost span."""
        if self.spans:
            self.spans.pop().close()

    def tasks(
        self, kind: str, seconds: Sequence[float], after: int, options: Mapping[str, Any] = NO
    ) -> None:
        """Submit tasks of a kind; each needs so many of the last results."""
        self.made += 1
        needs = self.futures[-after:] if after else []
        if kind == "flaky":
            options = {**options, "retries": 2}
        keys = [f"{kind}{self.made}-{self.number}-{i}" for i in range(len(seconds))]
        function = KINDS[kind]
        new = [
            self.client.submit(function, one, *needs, key=key, **options)
            for key, one in zip(keys, seconds, strict=True)
        ]
        self.futures += new

    def same(self, which: int) -> None:
        """Submit one of the tasks that all users submit."""
        function, seconds = SAME[which]
        self.futures.append(self.client.submit(function, seconds, key=f"same{which}-0"))

    def quit(self) -> None:
        """End as a script does, whose futures and blocks end with its client: the last step."""
        self.client.close()

    def chain(self, seconds: Sequence[float]) -> None:
        """Submit tasks; each needs the one before."""
        for one in seconds:
            self.tasks("nap", [one], 1)

    def scatter(self, where: Sequence[str], size: int) -> None:
        """Bring data to workers, or to any."""
        there = [one for one in where if one in self.client.scheduler_info()["workers"]]
        # A worker can leave before Dask has chosen it.
        with suppress(KeyError):
            self.futures += self.client.scatter([bytes(size)], workers=there or None, hash=False)

    def scatter_again(self, key: str, size: int) -> None:
        """Bring data under a key that may be there already; tasks of its group have a span."""
        with suppress(KeyError):
            self.futures += self.client.scatter({f"{key}-{self.number}": bytes(size)}).values()
            self.tasks("bulky", [0.01], 1)

    def replicate(self, which: int, copies: int) -> None:
        """Copy a result to so many workers, or to fewer if there are more."""
        # A worker can leave meanwhile, and a task can have failed.
        if self.futures and (one := self.futures[which % len(self.futures)]).status == "finished":
            with suppress(KeyError, ValueError, TimeoutError, OSError, CancelledError):
                self.client.replicate([one], n=copies)

    def publish(self, which: int) -> None:
        """Publish a result; it outlives its future."""
        if self.futures:
            self.made += 1
            self.published.append(f"{self.number}-{self.made}")
            one = self.futures[which % len(self.futures)]
            self.client.publish_dataset(one, name=self.published[-1])

    def actor(self, seconds: float) -> None:
        """Let an actor work, and wait for it; its worker may be lost meanwhile."""
        ends = CancelledError, OSError, asyncio.TimeoutError, ValueError, RuntimeError, KilledWorker
        with suppress(*ends):
            made = self.client.submit(Counter, actor=True, pure=False).result()
            # Dask gives no answer if the actor was released before the call arrives.
            made.work(seconds).result(60)

    def wait(self, which: int) -> None:
        """Wait for a task."""
        if self.futures:
            self._await(self.futures[which % len(self.futures)])

    def _await(self, futures: Any) -> None:
        # Their dependencies may have been cancelled.
        with suppress(CancelledError):
            wait(futures)

    def cancel(self, which: int) -> None:
        """Cancel a task."""
        if self.futures:
            self.client.cancel([self.futures.pop(which % len(self.futures))])

    def drop(self, which: int) -> None:
        """Let go of a future."""
        if self.futures:
            del self.futures[which % len(self.futures)]

    def retry(self, which: int) -> None:
        """Retry a task, if it has failed."""
        if self.futures and (one := self.futures[which % len(self.futures)]).status == "error":
            # A restart forgets tasks.
            with suppress(KeyError):
                self.client.retry([one])


def happen(cluster: Cluster, events: Sequence[Step]) -> None:
    """Let the events of a cluster happen; one worker stays."""
    for pause, name, arguments in events:
        time.sleep(pause)
        names = [*cluster.workers]
        if name == "join":
            cluster.add_worker(f"more{len(cluster.machines)}", *arguments)
        elif name in ("restart", "adapt"):
            # As for users. A worker that adaptive scaling closed does not come back.
            with suppress(CommClosedError, TimeoutError):
                getattr(cluster, name)(*arguments)
        elif names:
            which, *more = arguments
            chosen = names[which % len(names)]
            machine = cluster.machines[chosen]
            if name in ("set_clock", "pause"):
                getattr(cluster, name)(chosen, *more)
            elif name in ("kill", "leave"):
                if len(names) > 1:
                    getattr(cluster, name)(chosen)
            elif name in ("block", "stop"):
                getattr(machine, name)(*more)
            elif name == "heartbeats":
                fates = chain.from_iterable([repeat(*more), repeat(0.0)])
                cluster.heartbeats[machine.name] = fates.__next__
            else:
                setattr(machine, name, *more)


def plainly(client: Any, name: str) -> Any:
    """Enter a span as Dask offers it."""
    return span(name)


def run(program: Program, cluster: Cluster, enter: Enter = plainly) -> None:
    """Do what a program says. It is a program for `simulate`."""
    events = cluster.thread("client", lambda: happen(cluster, program.events))
    users = [
        cluster.user(f"user{number}", User(number, enter, steps).work)
        for number, steps in enumerate(program.users)
    ]
    for one in [events, *users]:
        one.result()


# ----------------------------------------------------------------------- random programs


def draw(seed: int) -> Program:
    """Return the program of a seed."""
    rng = random.Random(seed)
    return Program(
        seed=seed,
        workers=rng.randint(1, 3),
        threads=rng.randint(1, 3),
        queuing=rng.random() < 0.7,
        latency=rng.choice([0.0, 0.001, 0.02]),
        users=tuple(_steps(rng) for _ in range(rng.randint(1, 3))),
        events=tuple(_event(rng) for _ in range(rng.choice([0, 0, 1, 2, 4]))),
    )


def heavy(program: Program) -> Program:
    """Return a program with results of all sizes, copies, and data that is replaced or spilled."""
    rng = random.Random(program.seed)
    users = tuple(_heavy(steps, rng) for steps in program.users)
    return replace(program, users=users, room=rng.choice([0, 20_000, 100_000]))


def shared(program: Program) -> Program:
    """Return a program whose users submit the same tasks, too, or quit; its workers may pause."""
    rng = random.Random(program.seed)
    users = []
    for steps in program.users:
        found = list(steps)
        for _ in range(rng.randint(1, 4)):
            same = rng.choice([0.0, 0.05, 0.3]), "same", (rng.randint(0, 3),)
            found.insert(rng.randint(0, len(found)), same)
        if rng.random() < 0.2:
            found.append((0.05, "quit", ()))
        users.append(tuple(found))
    pause = rng.choice([0.05, 0.3]), "pause", (rng.randint(0, 9), rng.choice([0.1, 1.0]))
    events = (*program.events, pause) if rng.random() < 0.3 else program.events
    return replace(program, users=tuple(users), events=events)


def _heavy(steps: tuple[Step, ...], rng: random.Random) -> tuple[Step, ...]:
    found: list[Step] = []
    for pause, name, arguments in steps:
        if name == "chain":
            found += [(pause, "tasks", ("bulky", [one], 1)) for one in arguments[0]]
        elif name == "tasks" and arguments[0] == "nap":
            found.append((pause, name, ("bulky", *arguments[1:])))
        else:
            found.append((pause, name, arguments))
        more: list[tuple[str, tuple[Any, ...]]] = [
            ("replicate", (rng.randint(0, 9), rng.randint(1, 3))),
            ("scatter_again", (rng.choice("xy"), rng.choice([0, 500, 20_000]))),
        ]
        if rng.random() < 0.4:
            found.append((rng.choice([0.0, 0.3]), *rng.choice(more)))
    return tuple(found)


def _seconds(rng: random.Random, most: int) -> list[float]:
    return [rng.choice([0.0, 0.01, 0.05, 0.2, 0.7, 1.5]) for _ in range(rng.randint(1, most))]


def _steps(rng: random.Random) -> tuple[Step, ...]:
    steps: list[Step] = []
    for _ in range(rng.randint(1, 8)):
        pause = rng.choice([0.0, 0.0, 0.0, 0.05, 0.3, 1.0])
        which = rng.randint(0, 9)
        kind = rng.choice(["nap", "nap", "nap", *TASKS])
        step: tuple[str, tuple[Any, ...]] = rng.choice(
            [
                *[("tasks", (kind, _seconds(rng, 8), rng.choice([0, 0, 1, 3])))] * 4,
                ("chain", (_seconds(rng, 5),)),
                *[("go_into", (rng.choice("abc"),))] * 2,
                ("leave", ()),
                *[(name, (which,)) for name in ("wait", "cancel", "drop", "retry", "publish")],
                ("tasks", (kind, _seconds(rng, 4), 0, rng.choice(OPTIONS))),
                ("scatter", (rng.choice([(), ("lab://w0",)]), 1000)),
                ("actor", (rng.choice([0.05, 0.7]),)),
            ]
        )
        steps.append((pause, *step))
    return tuple(steps)


def _event(rng: random.Random) -> Step:
    which = rng.randint(0, 9)
    event: tuple[str, tuple[Any, ...]] = rng.choice(
        [
            ("kill", (which,)),
            ("leave", (which,)),
            ("join", (rng.randint(1, 3),)),
            ("block", (which, rng.choice([0.1, 1.0, 3.0]))),
            ("stop", (which, rng.choice([0.1, 1.0, 3.0]))),
            # Late by so much, or lost: so many of the next ones.
            ("heartbeats", (which, rng.choice([None, 0.2, 1.0]), rng.randint(1, 4))),
            ("slowness", (which, rng.choice([0.5, 2.0, 4.0]))),
            ("set_clock", (which, rng.choice([-20.0, -0.3, 0.3, 20.0]))),
            ("restart", ()),
            ("adapt", (1, 4)),
        ]
    )
    return (rng.choice([0.05, 0.3, 0.8, 1.5]), *event)


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """Return a part of a failing program that still fails, and needs each of its steps."""
    parts = [*program.users, program.events]
    for number in range(len(parts)):
        size = len(parts[number])
        while size:
            for start in range(len(parts[number]) - size, -1, -1):
                fewer = list(parts)
                fewer[number] = parts[number][:start] + parts[number][start + size :]
                smaller = replace(program, users=tuple(fewer[:-1]), events=fewer[-1])
                if fails(smaller):
                    parts, program = fewer, smaller
                    break
            else:
                size //= 2
            size = min(size, len(parts[number]))
    return program
